"""The README's first example, as it stands there."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_first_example_beats_the_deep_ensemble_that_it_starts_from(tmp_path, monkeypatch):
    torch.manual_seed(0)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    run, (x, y) = names["run"], names["test"]
    loss, other = (float(-e.predict(x).probs[torch.arange(len(y)), y].log().mean()) for e in (run, run.warm_start))
    assert loss < other
    assert (tmp_path / "report.html").exists()
    assert "stop: enough" in str(run.tuning)
