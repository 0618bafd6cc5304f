import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.diagnostics.directions import _gradient, direction_temperatures


def target(n=50):
    """Regression whose posterior is a Gaussian with a soft direction, (1, 1)/√2, that is not an axis."""
    rotation = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]) / math.sqrt(2)
    x = torch.linalg.qr(torch.randn(n, 2)).Q * math.sqrt(n) @ torch.diag(torch.tensor([0.2, 1.0])) @ rotation
    posterior = lv.Posterior(
        nn.Linear(2, 1, bias=False), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(), num_data=n
    )
    precision = (x.T @ x + torch.eye(2)).double()
    mean = torch.linalg.solve(precision, (x.T @ (x @ torch.ones(2))).double())
    return posterior, (x, x @ torch.ones(2, 1)), mean, precision


class Drawn:
    """Chains of independent draws from N(mean, covariance)."""

    def __init__(self, mean, covariance, chains, n):
        root = torch.linalg.cholesky(covariance)
        self.chains = list(range(chains))
        draws = mean + torch.randn(chains, n, 2, dtype=torch.float64) @ root.T
        self._draws = [[{"weight": theta.float()[None]} for theta in chain] for chain in draws]

    def chain(self, number):
        return self._draws[number]


@pytest.mark.parametrize("chains", [1, 3])
def test_exact_draws_have_the_temperature_in_every_direction(chains):
    posterior, data, mean, precision = target()
    found = direction_temperatures(Drawn(mean, 2.0 * precision.inverse(), chains, 600 // chains), posterior, data)
    assert len(found) == 2
    for direction, value in zip(found, torch.linalg.eigvalsh(precision).tolist(), strict=True):
        assert abs(direction.temperature.mean - 2.0) < 4 * direction.temperature.error < 1.2
        assert direction.std == pytest.approx(math.sqrt(2 / value), rel=0.15)
    assert all(p.grad is None for p in posterior.parameters())


def test_a_cold_soft_direction_is_detected_when_the_mean_is_on_target():
    """Variances 0.35 and 1.65 times the posterior's: the mean temperature is 1, which is all a thermostat controls."""
    posterior, data, mean, precision = target()
    values, vectors = torch.linalg.eigh(precision)
    covariance = vectors @ torch.diag(torch.tensor([0.35, 1.65]).double() / values) @ vectors.T
    soft, stiff = direction_temperatures(Drawn(mean, covariance, 4, 200), posterior, data)
    assert abs(soft.temperature.mean - 0.35) < 4 * soft.temperature.error < 0.3
    assert abs(stiff.temperature.mean - 1.65) < 4 * stiff.temperature.error < 1.0
    assert (soft.temperature.mean + stiff.temperature.mean) / 2 == pytest.approx(1.0, abs=0.25)


def test_the_anchor_is_independent_of_the_chain_that_is_tested():
    """Four draws per chain: about their own mean T̂ would be T(1 − 1/4). The error of 1000 draws is T√(2/1000)."""
    posterior, data, mean, precision = target()
    soft = direction_temperatures(Drawn(mean, 2.0 * precision.inverse(), 250, 4), posterior, data, directions=1)[0]
    assert abs(soft.temperature.mean - 2.0) < 4 * 2.0 * math.sqrt(2 / 1000)


def test_the_gradient_is_over_all_data_for_any_batch_size():
    posterior, data, mean, precision = target()
    theta = torch.tensor([0.3, -0.2], dtype=torch.float64)
    for size in (50, 30, 7):
        found = _gradient(posterior, ["weight"], theta, data, size)
        torch.testing.assert_close(found, precision @ (theta - mean), rtol=1e-4, atol=1e-4)


def test_a_run():
    posterior, data, _, _ = target()
    before = posterior.model.weight.detach().clone()
    run = lv.sample(
        posterior, data, partial(lv.SGLD, lr=0.1), batch_size=50, steps=1200, thin=5, chains=2, progress=False
    )
    found = direction_temperatures(run, posterior, data, directions=1, batch_size=30)
    assert len(found) == 1
    assert abs(found[0].temperature.mean - 1) < 4 * found[0].temperature.error + 0.1
    assert torch.equal(posterior.model.weight, before)
    short = lv.sample(posterior, data, partial(lv.SGLD, lr=0.1), steps=8, burn_in=0, thin=4, progress=False)
    with pytest.raises(ValueError, match="at least 8 samples; the run has 2"):
        direction_temperatures(short, posterior, data)
