"""The preconditioned samplers: stationary distribution once frozen, the update equation, exact resume from disk."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core import random
from langevin.samplers import SAMPLERS

torch.set_num_threads(1)
OUTPUTS = 40


def regression():
    """Linear regression with shifted and badly scaled inputs; every output is a replicate of the same posterior."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 2, generator=generator, dtype=torch.float64) * torch.tensor([0.5, 2.0]) + torch.tensor(
        [1, -3.0]
    )
    y = torch.randn(100, OUTPUTS, generator=generator, dtype=torch.float64)
    design = torch.cat([x, torch.ones(100, 1, dtype=torch.float64)], dim=1)
    precision = design.T @ design + torch.eye(3, dtype=torch.float64)
    return x, y, torch.linalg.solve(precision, design.T @ y), precision


SETTINGS = {
    "ksgld": {"lr": 0.04, "damping": 1e-2, "warmup": 20},
    "bnpsgld": {"lr": 0.04},
    "nld": {"lr": 0.04, "target": "as-printed", "damping": 1e-2},
}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("name", SETTINGS)
def test_stationary_distribution_once_frozen(name, temperature):
    x, y, mean, precision = regression()
    model = nn.Linear(2, OUTPUTS).double()
    with torch.no_grad():
        model.weight.copy_(mean[:2].T)
        model.bias.copy_(mean[2])
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(1.0).double(), lv.priors.Gaussian(1.0), num_data=100)
    sampler = SAMPLERS[name](posterior.parameters(), num_data=100, temperature=temperature, seed=4, **SETTINGS[name])
    sampler.bind(posterior, (x, y))
    root = torch.linalg.cholesky(precision)
    total = torch.zeros(OUTPUTS, 3, dtype=torch.float64)
    steps, burn_in = 2500, 150
    for t in range(steps + burn_in):
        sampler.zero_grad()
        posterior.loss(x, y).backward()
        sampler.step()
        if t == 22:
            sampler.freeze()
        if t >= burn_in:
            theta = torch.cat([model.weight, model.bias[:, None]], dim=1).detach() - mean.T
            total += (theta @ root).square() / steps  # in coordinates where the posterior is √T times a standard normal
    measured, error = total.mean(0) / temperature, total.std(0) / temperature / math.sqrt(OUTPUTS)
    assert (error < 0.05).all()
    assert ((measured - 1).abs() < 4 * error + 0.05).all()  # 0.05: 1/(1 − ε a/2), a the largest eigenvalue of A H


def test_a_step_of_psgld_is_its_equation():
    """θ − ε A g + √(2εT/N) A^{1/2} η, with explicit A; ε rises in the warm-up."""
    p = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))
    sampler = lv.pSGLD([p], 0.01, num_data=50, temperature=0.7, alpha=0.9, eps=0.1, warmup=2, seed=6, chain=2)
    theta, v = p.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for t in range(3):
        g = torch.tensor([1.0 + t, -2.0], dtype=torch.float64)
        p.grad = g.clone()
        sampler.step()
        v = 0.9 * v + 0.1 * g * g
        a = 1 / (0.1 + (v / (1 - 0.9 ** (t + 1))).sqrt())
        eta = random.normal(2, seed=6, chain=2, step=t, dtype=torch.float64)
        lr = 0.01 * min(1, (t + 1) / 2)
        theta = theta - lr * a * g + (2 * lr * 0.7 / 50 * a).sqrt() * eta
        torch.testing.assert_close(p.detach(), theta, rtol=1e-12, atol=1e-14)


def test_an_adapting_diagonal_raises_the_temperature_and_a_frozen_one_does_not():
    """Why `sample` freezes at the end of burn-in: pSGLD on a Gaussian, α = 0.9."""
    measured = {}
    for frozen in (True, False):
        p = nn.Parameter(0.1 * torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        sampler = lv.pSGLD([p], 0.02, num_data=100, alpha=0.9, eps=0.05, seed=1)
        total = 0.0
        for t in range(1500):
            p.grad = p.detach().clone()
            sampler.step()
            if t == 200 and frozen:
                sampler.freeze()
            if t >= 500:
                total += float(p.detach().square().mean()) / 1000
        measured[frozen] = total * 100
    assert measured[True] == pytest.approx(1.0, abs=0.12)
    assert measured[False] > measured[True] + 0.1


def test_the_gradient_noise_temperature_includes_the_preconditioner():
    p = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    sampler = lv.pSGLD([p], 0.01, num_data=50, alpha=0.0, eps=1e-9)
    assert math.isnan(sampler.gradient_noise_temperature(1.0))
    p.grad = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    sampler.step()
    assert sampler.gradient_noise_temperature(3.0) == pytest.approx(0.01 * 50 * 3 / 2 * (1 + 1 / 2 + 1 / 4 + 1 / 8) / 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgnht", {"lr": 0.01}),
        ("atmc", {"lr": 0.01, "integrator": "symmetric"}),
        ("psgld", {"lr": 1e-3}),
        ("psgld", {"lr": 1e-3, "eps": 0.1, "precondition": "noise", "noise_power": 1.0}),
        ("ksgld", {"lr": 0.01, "factor_interval": 2, "inverse_interval": 3}),
        ("ksgld", {"lr": 0.01, "fisher": "empirical", "precondition": "noise"}),
        ("bnpsgld", {"lr": 0.01}),
        ("nld", {"lr": 0.01, "target": "as-printed", "kind": "mc", "average": 0.9, "interval": 3, "batch_size": 8}),
        ("sngd", {"lr": 0.01, "interval": 4, "batch_size": 8}),
    ],
)
@pytest.mark.parametrize("freeze", [True, False])
def test_resume_from_disk_is_exact(name, options, freeze, tmp_path):
    """A resumed run is bit-identical, frozen or still adapting."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=generator), torch.randint(2, (40,), generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=40)
    run = partial(
        lv.sample,
        posterior,
        (x, y),
        partial(SAMPLERS[name], **options),
        batch_size=10,
        burn_in=6,
        freeze=freeze,
        chains=2,
        seed=3,
        mode="sequential",
        progress=False,
    )
    whole = run(steps=22, out=tmp_path / "whole")
    run(steps=15, out=tmp_path / "part")
    resumed = lv.resume(tmp_path / "part", copy.deepcopy(posterior), (x, y), steps=22, progress=False)
    assert len(whole) == len(resumed)
    for a, b in zip(whole.chain(1)[-8:], resumed.chain(1)[-8:], strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
