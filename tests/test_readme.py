"""The README's example runs as a doctest; here: its figures are those that the demo wrote."""

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


def test_the_versions_agree():
    assert f"version: {lv.__version__}" in (ROOT / "CITATION.cff").read_text()
