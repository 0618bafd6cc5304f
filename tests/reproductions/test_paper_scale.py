"""The papers' own configurations run: two steps at batch 2 on made-up data (heek2019 and palacci2018 have theirs)."""

import json
import math
from dataclasses import replace

import pytest
import torch

from reproductions import PAPERS
from reproductions.harness import sample_or_resume
from reproductions.lange2023 import race as races
from reproductions.lange2023 import residual

torch.set_num_threads(1)
TWO_STEPS = {"batch_size": 2, "steps": 2}
SMITH = {
    "theorem": {"burn_in": 1, "steps": 2},
    "ellipses": {"batch_size": 2, "burn_in": 1, "samples": 3},
    "temperature": {"burn_in": 1, "samples": 2},
    "implicit_prior": {},
    "network": {"data": "digits", "sizes": (64,), "batch_sizes": (2,), "burn_in": 1, "samples": 2, "fisher_batch": 8}
    | {"largest_times": 2.0},
    "convolution": {"data": "noise", "sizes": (4,), "rates": (1.0,), "temperatures": (1.0,), "fisher_batch": 4}
    | {"updates_times_rate": 2.0, "start_size": 128, "start_steps": 1, "test_size": 4},
}
LANGE = {
    "simulation": {**TWO_STEPS, "every": 1},
    "condition": {"moments": (0, 2), "num_data": 50},
    "bandit": {"data": "made", "batch_size": 2, "rounds": 2},
    "residual": {**TWO_STEPS, "data": "noise", "num_data": 4, "test_size": 4, "every": 1},
}
HWA = {
    "batch_size": 2,
    "steps": 8,
    "num_data": 8,
    "test_size": 8,
    "start_steps": 1,
    "cycles": (2, 4),
    "draws": 2,
    "rank": 2,
} | {
    "resolution": 2,
    "landscape_size": 4,
}
CASES = [
    *(("smith2018", name, changes) for name, changes in SMITH.items()),
    *(("lange2023", name, changes) for name, changes in LANGE.items()),
    ("hwa2020", "lenet", {**HWA, "data": "digits"}),
    pytest.param("hwa2020", "vgg", {**HWA, "data": "noise"}, marks=pytest.mark.slow),  # fifteen million weights
]


@pytest.mark.parametrize(("paper", "name", "changes"), CASES)
def test_two_steps(paper, name, changes, tmp_path):
    experiment = PAPERS[paper].experiments[name]
    settings = replace(experiment.settings["paper"], **changes)
    cells = experiment.cells(settings)
    methods = {cell.get("method"): cell for cell in reversed(cells)}  # the first cell of every method
    for number, cell in enumerate(methods.values()):
        row = experiment.measure(settings, tmp_path / str(number), **cell)
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers)), row
        json.dumps(row)


def test_two_steps_of_the_papers_vgg(tmp_path):
    vgg = PAPERS["hwa2020"].experiments["vgg"]
    settings = replace(vgg.settings["paper"], **HWA, data="noise")
    row = vgg.measure(settings, tmp_path, method="SWA", cycle=2, rate="cyclical", seed=0)
    assert math.isfinite(row["nll"])


def test_an_interrupted_race_resumes(tmp_path, monkeypatch):
    settings = replace(residual.EXPERIMENT.settings["quick"], steps=8, every=2)
    cell = {"method": "psgld", "lr": 1e-3, "seed": 0}
    whole = residual.measure(settings, tmp_path / "whole", **cell)

    def cut(info):
        if info.step == 5:
            raise KeyboardInterrupt

    def stopped(*args, callbacks, **options):
        return sample_or_resume(*args, callbacks=[*callbacks, cut], **options)

    monkeypatch.setattr(races, "sample_or_resume", stopped)
    with pytest.raises(KeyboardInterrupt):
        residual.measure(settings, tmp_path / "cut", **cell)
    monkeypatch.undo()
    assert residual.measure(settings, tmp_path / "cut", **cell) == whole
    assert whole["steps"] == [2, 4, 6, 8]
