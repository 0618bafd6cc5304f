"""The page on variational methods: its examples run as doctests, so its numbers are computed."""

import doctest
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[3] / "docs" / "variational.md"


def test_the_examples_of_the_page_run():
    torch.manual_seed(0)
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 30
    assert found.failed == 0


def test_the_printed_recursion_gives_negative_variances_and_ours_does_not():
    text = PAGE.read_text()
    rows = [line.split() for line in text.splitlines() if "snapshots: printed" in line and "print(" not in line]
    assert [int(row[0]) for row in rows] == [2, 10, 50]
    for row in rows:
        printed, ours, exact = (float(row[row.index(word) + 1]) for word in ("printed", "ours", "exact"))
        assert printed < -0.1 * int(row[0])
        assert ours == pytest.approx(exact)
