"""Peers in environments of their own: what they are asked and answer, and what a peer that fails is called."""

import json
import stat
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv
from benchmarks import bde, rival_peers
from benchmarks.leaderboard_page import page
from benchmarks.rivals import Job


def a_posterior(num_data):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return lv.Posterior(model, lv.likelihoods.HeteroscedasticGaussian(), lv.priors.Gaussian(1.0), num_data=num_data)


@pytest.fixture
def job():
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    return Job(a_posterior, (x, y), 20_000, 1, 0, (torch.randn(6, 3),))


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A program instead of Python in the peer's environment, which runs these lines."""

    def make(lines):
        (tmp_path / "lines.py").write_text("import json, sys\nimport numpy as np\n" + lines)
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path / "lines.py"} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        for name in rival_peers._INSTALL:
            monkeypatch.setenv(name, str(program))
        return tmp_path

    return make


BDE = """
data, told = np.load(sys.argv[1]), json.loads(sys.argv[2])
open("asked.json", "w").write(json.dumps(told))
raw = np.zeros((2, 3, len(data["asked0"]), 2), dtype=np.float32)
raw[0, ..., 0], raw[..., 1] = 1.0, 5.0
np.savez(sys.argv[3], epochs=50, asked0=raw)
"""


def test_bde_has_half_of_the_gradients_for_training_and_half_for_mclmc(job, peer, monkeypatch):
    monkeypatch.chdir(peer(BDE))
    answers = rival_peers.bde(job, {"lr": 0.01})
    prediction = answers.predict(job.asked[0])
    assert torch.allclose(prediction.mean, torch.full_like(prediction.mean, 0.5))
    noise = (torch.nn.functional.softplus(torch.tensor(5.0, dtype=torch.float64)) + 1e-6) ** 2
    assert torch.allclose(prediction.variance.double(), noise + 0.25)
    told = json.loads(Path("asked.json").read_text())
    options = told["options"]
    assert options["hidden_layers"] == [4]
    assert options["lr"] == 0.01
    assert not told["classifies"]
    trained = 5 * 34 * options["epochs"]  # 34 of 40 rows
    sampled = 2 * 5 * 40 * (options["warmup_steps"] + options["n_samples"])
    assert 0.95 * job.budget < trained + sampled <= job.budget
    assert job.spent == 50 * 34 + sampled  # training stopped early


LAPLACE = """
data, told = np.load(sys.argv[1]), json.loads(sys.argv[2])
assert told["widths"] == [3, 4, 1]
assert data["weight0"].shape == (4, 3)
n = len(data["asked0"])
np.savez(sys.argv[3], asked0=np.stack([np.full((n, 1), 2.0), np.full((n, 1), 0.25)], -1))
"""


def test_laplace_torch_starts_at_a_network_of_one_output(job, peer, monkeypatch):
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.STEPS", 40)
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.EPOCHS", 1)
    peer(LAPLACE)
    prediction = rival_peers.laplace_torch(job, {"layers": "all", "structure": "kron"}).predict(job.asked[0])
    assert torch.allclose(prediction.mean, torch.full_like(prediction.mean, 2.0))
    assert torch.allclose(prediction.variance, torch.full_like(prediction.variance, 0.25))
    assert job.spent > len(job.train[0])


def test_an_environment_that_is_not_there_is_told_how_to_be_made(job, peer, monkeypatch):
    peer("raise ModuleNotFoundError('No module named bde')")
    with pytest.raises(ValueError, match=r"lacks a package: .*bde.*pip install sklearn-contrib-bde"):
        rival_peers.bde(job, {})
    monkeypatch.delenv("LANGEVIN_BDE_PYTHON")
    with pytest.raises(ValueError, match="environment of its own.*pip install sklearn-contrib-bde"):
        rival_peers.bde(job, {})


def test_a_peer_that_fails_is_not_called_diverged(job, peer):
    peer("raise FloatingPointError('energy is NaN')")
    with pytest.raises(ArithmeticError, match="(?s)the peer failed: .*energy is NaN") as failed:
        rival_peers.bde(job, {})
    row = {"set": "yacht", "method": "bde", "times": 1, "scores": {}, "example_gradients": 1, "seconds": 1.0}
    rows = [row | {"split": 0, "failure": str(failed.value)}, row | {"split": 1, "failure": "DivergenceError: …"}]
    rows += [row | {"split": 2, "scores": {"nll": 1.0}}]
    assert "1.000 (1 diverged, 1 failed)" in page(rows)
    assert "| bde | failed |" in page(rows[:1])


def test_bde_is_compared_over_seeds_of_the_first_split_and_over_splits():
    def row(split, seed, ours):
        them, us = ({"nll": nll, "rmse": 0.1, "seconds": 10.0} for nll in (-0.7, ours))
        about = {"set": "airfoil", "burn_in": 2000, "steps": 2000, "split": split, "seed": seed, "threads": 1}
        return about | {"bde": them, "langevin": us, "deep ensemble": us}

    lines = bde.table([row(0, 0, -0.8), row(0, 1, -0.9), row(1, 0, -0.5)]).splitlines()
    assert lines[2].startswith("| airfoil | 2,000 + 2,000 | split 0, 2 seeds | -0.700 ± 0.000 |")
    assert "| -0.150 ± 0.050 |" in lines[2]
    assert lines[3].startswith("| airfoil | 2,000 + 2,000 | 2 splits, 1 seed |")
    assert "| +0.050 ± 0.150 |" in lines[3]
    assert "with 1 threads" in lines[5]
    alone = bde.table([row(0, 0, -0.8)]).splitlines()
    assert "split 0, 1 seed |" in alone[2]
    assert not alone[3]
