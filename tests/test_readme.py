"""The README: its figures are those of the demo, and it is short. Its example runs in tests/slow/test_quickstart.py."""

import json
import re
from pathlib import Path

import langevin as lv
from langevin.demo import Row, as_markdown

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_demos():
    table = (ROOT / "docs" / "demo" / "table.md").read_text()
    assert table in (ROOT / "README.md").read_text()
    rows = json.loads((ROOT / "docs" / "demo" / "results.json").read_text())["table"]
    assert as_markdown([Row(**row) for row in rows]) == table


def test_every_name_in_the_readme_exists():
    for name in set(re.findall(r"\blv\.([A-Za-z_]+)", (ROOT / "README.md").read_text())):
        assert hasattr(lv, name), name


def test_it_has_at_most_two_screens():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert len(text) < 5000


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text().replace("\n", " ")):
        assert (ROOT / target).exists(), target


def test_the_versions_agree():
    """Of the newest section of the changelog and of the citation; without a tag it is the version to come."""
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert f"version: {newest}" in (ROOT / "CITATION.cff").read_text()
    assert f'"{newest}.dev0"' in (ROOT / "src" / "langevin" / "_version.py").read_text()
    assert f'fallback-version = "{newest}.dev0"' in (ROOT / "pyproject.toml").read_text()
