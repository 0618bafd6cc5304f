"""The examples run, at toy size, as a user would run them; at their own size the verdict on them is good (slow)."""

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = [path.stem for path in sorted(EXAMPLES.glob("*.py"))]


def main_of(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.parametrize("name", NAMES)
def test_example(name, capsys):
    run = main_of(name)(steps=300, burn_in=200, thin=20)
    assert len(run) == 5
    assert "temperature" in run.traces
    assert "<Run of 5 samples from 1 chain" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_on_an_example_is_good(name, capsys):
    main_of(name)()
    printed = capsys.readouterr().out
    assert re.search(r"good: T (0\.9|1)", printed)
    assert "accuracy 97" in printed
