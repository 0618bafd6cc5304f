"""Simulation-based calibration (Talts et al. 2018), from the prior to samples of the posterior.

Draw θ from the prior, data given θ, and samples of the posterior given the data: if all of these are correct, the rank
of θ among the samples is uniform for every coordinate.
"""

import inspect
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn

import langevin as lv
from langevin.samplers import SAMPLERS
from tests.contract.targets import limit

SIMULATIONS, DRAWS, FEATURES, NUM_DATA = 100, 9, 3, 40


def ranks(name):
    sampler_class = SAMPLERS[name]
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(NUM_DATA, FEATURES, generator=generator)
    curvature = float(torch.linalg.eigvalsh(x.T @ x / NUM_DATA)[-1]) + 1 / NUM_DATA
    lr = (0.05 if sampler_class.order == 1 else 0.2) * limit(sampler_class, curvature, num_data=NUM_DATA)
    has_thermostat = "thermostat_rate" in inspect.signature(sampler_class).parameters
    options = {"thermostat_rate": 1e-2} if has_thermostat else {}
    found = []
    for simulation in range(SIMULATIONS):
        theta = torch.randn(FEATURES, generator=generator)
        y = x @ theta[:, None] + torch.randn(NUM_DATA, 1, generator=generator)
        posterior = lv.Posterior(
            nn.Linear(FEATURES, 1, bias=False), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(), num_data=NUM_DATA
        )
        run = lv.sample(
            posterior,
            (x, y),
            partial(sampler_class, lr=lr, **options),
            batch_size=NUM_DATA,
            steps=200 + DRAWS * 30,
            burn_in=200,
            thin=30,
            seed=simulation,
            progress=False,
        )
        draws = torch.stack([sample["weight"][0] for sample in run])
        found.append((draws < theta).sum(0))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "name", [name for name, sampler_class in SAMPLERS.items() if sampler_class.target == "posterior"]
)
def test_ranks_are_uniform(name):
    found = ranks(name)
    for coordinate in range(FEATURES):
        counts = torch.bincount(found[:, coordinate], minlength=DRAWS + 1)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
        # the mean and variance of uniform ranks; the chi-square test alone has little power against a ∪ or ∩ shape
        mean, variance = DRAWS / 2, ((DRAWS + 1) ** 2 - 1) / 12
        values = found[:, coordinate].double()
        assert abs(float(values.mean()) - mean) < 4 * (variance / SIMULATIONS) ** 0.5
        spread = float((values - mean).square().mean())
        fourth = float((values - mean).pow(4).mean())
        assert abs(spread - variance) < 4 * ((fourth - spread**2) / SIMULATIONS) ** 0.5
