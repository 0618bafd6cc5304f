"""The examples run, at toy size, as a user would run them."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.py"))])
def test_example(name, capsys):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(steps=300, burn_in=200, thin=20) > 0.85
    assert "<Run of 5 samples from 1 chain" in capsys.readouterr().out
