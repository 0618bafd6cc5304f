"""What pages and examples show passes the library's own verdicts."""

import doctest
import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def test_pages_that_sample_show_a_good_verdict():
    """The doctests of these pages run, so what they show is so."""
    for page in ("README.md", "docs/likelihoods.md"):
        lines = (ROOT / page).read_text().splitlines()
        shown = [n for n, line in enumerate(lines) if line.startswith(">>> run.verdict().level")]
        assert len(shown) == sum(line.startswith(">>> run = lv.sample(") for line in lines), page
        assert all(lines[n + 1] == "'good'" for n in shown), page


def test_the_demo_passed_its_verdict():
    assert json.loads((ROOT / "docs" / "demo" / "results.json").read_text())["verdict"] == "good"


@pytest.mark.slow
def test_the_examples_of_the_page_on_likelihoods_run():
    torch.manual_seed(0)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(ROOT / "docs" / "likelihoods.md"), module_relative=False, optionflags=flags)
    assert found.attempted > 8
    assert found.failed == 0
