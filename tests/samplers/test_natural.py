"""NLD and SNGD: their stationary densities, on targets with known moments.

A model of many outputs, each a function of separate weights, has a block-diagonal Fisher: one chain of it is many
independent chains, which give valid error bars.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import langevin as lv

torch.set_num_threads(1)


class Curved(nn.Module):
    """Output f(w) block by block, for every input: the Fisher is JᵀJ/σ²."""

    def __init__(self, blocks, size, function):
        super().__init__()
        start = 0.5 * torch.randn(blocks, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.w, self.function = nn.Parameter(start), function

    def forward(self, x):
        return self.function(self.w).flatten().expand(len(x), -1)


def sample_curved(function, energy, *, target, lr, steps, burn_in, blocks, size=1, damping=0.2, thin=1):
    """Draws (time, blocks, size) of NLD with N = 1 on the energy, a function of one block."""
    model = Curved(blocks, size, function)
    outputs = model(torch.zeros(1, 1)).shape[1]
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(1.0).double(), lv.priors.Gaussian(1.0), num_data=1)
    sampler = lv.NLD(posterior.parameters(), lr, num_data=1, target=target, damping=damping, seed=3)
    sampler.bind(posterior, (torch.zeros(1, 1), torch.zeros(1, outputs)))
    draws = []
    for t in range(burn_in + steps):
        (gradient,) = torch.autograd.grad(energy(model.w).sum(), model.w)
        model.w.grad = gradient
        sampler.step()
        if t >= burn_in and t % thin == 0:
            draws.append(model.w.detach().clone())
    return torch.stack(draws)


def mean_and_error(draws):
    """Mean over time and blocks of (time, blocks), and its error from the blocks."""
    per_block = draws.mean(0)
    return float(per_block.mean()), float(per_block.std() / math.sqrt(len(per_block)))


# ---- one dimension: U = w²/2, G = 1/(1 + w²) + 0.2

POWERS = {"as-printed": 1.0, "jeffreys": 0.5, "posterior": 0.0}


def density(w, power):
    return np.exp(-(w**2) / 2) * (1 / (1 + w**2) + 0.2) ** power


def exact_second_moment(power):
    total = integrate.quad(lambda w: density(w, power), -12, 12)[0]
    return integrate.quad(lambda w: w**2 * density(w, power), -12, 12)[0] / total


def half_square(w):
    return w.square().sum(-1) / 2


@pytest.mark.parametrize("target", POWERS)
def test_one_dimension_second_moment(target):
    """0.636, 0.797 and 1.000: they differ by more than error and bias."""
    draws = sample_curved(torch.asinh, half_square, target=target, lr=0.04, steps=900, burn_in=100, blocks=32)
    mean, error = mean_and_error(draws.square()[..., 0])
    assert error < 0.035
    assert abs(mean - exact_second_moment(POWERS[target])) < 3 * error + 0.03  # 0.03: the bias of order lr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", POWERS)
def test_one_dimension_goodness_of_fit(target):
    """Kolmogorov–Smirnov test against quadrature: accepts the target's density and rejects the two others."""
    draws = sample_curved(
        torch.asinh, half_square, target=target, lr=0.02, steps=20_000, burn_in=300, blocks=32, thin=80
    )
    values = draws.flatten().numpy()
    grid = np.linspace(-12, 12, 4001)
    fits = {}
    for other, power in POWERS.items():
        cumulative = integrate.cumulative_trapezoid(density(grid, power), grid, initial=0)
        fits[other] = stats.kstest(values, lambda w, c=cumulative / cumulative[-1]: np.interp(w, grid, c)).pvalue
    assert fits[target] > 0.01
    assert all(p < 1e-3 for other, p in fits.items() if other != target)


# ---- two dimensions


def twisted(w):
    """Two outputs a block, with a metric that is neither diagonal nor constant."""
    w0, w1 = w[..., 0], w[..., 1]
    return torch.stack([torch.asinh(2 * w0) + 0.3 * w1, torch.asinh(2 * w1) - 0.3 * w0], dim=-1)


def correlated(w):
    return w[..., 0].square() / 2 + w[..., 1].square() - 0.5 * w[..., 0] * w[..., 1]


def quadrature_moments(jeffreys):
    """Means of w₀, w₀², w₁², w₀w₁ under e^{−U} det G^{1/2} or e^{−U}."""
    axis = torch.linspace(-6, 6, 601, dtype=torch.float64)
    w = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).reshape(-1, 2)
    weight = torch.exp(-correlated(w))
    if jeffreys:
        jacobian = torch.func.vmap(torch.func.jacrev(twisted))(w)
        metric = jacobian.mT @ jacobian + 0.2 * torch.eye(2, dtype=torch.float64)
        weight = weight * torch.linalg.det(metric).sqrt()
    weight = weight / weight.sum()
    return [float((weight * m).sum()) for m in moments(w)]


def moments(w):
    return [w[..., 0], w[..., 0].square(), w[..., 1].square(), w[..., 0] * w[..., 1]]


def check_two_dimensions(target, lr, steps, largest_error, bias):
    """Second moments 1.14, 0.57, 0.29 for the posterior and 0.71, 0.38, 0.13 with the Jeffreys factor."""
    draws = sample_curved(twisted, correlated, target=target, lr=lr, steps=steps, burn_in=100, blocks=16, size=2)
    right, wrong = (quadrature_moments(jeffreys) for jeffreys in (target == "jeffreys", target != "jeffreys"))
    distinguished = 0
    for values, exact, other in zip(moments(draws), right, wrong, strict=True):
        mean, error = mean_and_error(values)
        assert error < largest_error
        assert abs(mean - exact) < 4 * error + bias
        distinguished += abs(mean - other) > 4 * error + bias
    assert distinguished >= 1


@pytest.mark.parametrize("target", ["posterior", "jeffreys"])
def test_two_dimensions_against_quadrature(target):
    check_two_dimensions(target, lr=0.05, steps=800, largest_error=0.1, bias=0.03)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["posterior", "jeffreys"])
def test_two_dimensions_against_quadrature_long(target):
    check_two_dimensions(target, lr=0.03, steps=8000, largest_error=0.04, bias=0.015)


# ---- invariance: with the Jeffreys factor the parameterization does not matter


PARAMETERIZATIONS = {"asinh": torch.asinh, "cubic": lambda w: w + w**3 / 2}


def predictive(function, target, steps):
    """f(w) for one datum y = 1 of precision 4 and a flat prior."""
    draws = sample_curved(
        function,
        lambda w: 2 * (function(w) - 1).square().sum(-1),
        target=target,
        lr=0.02,
        steps=steps,
        burn_in=150,
        blocks=32,
        damping=1e-3,
    )
    return function(draws)[..., 0]


@pytest.mark.parametrize("function", PARAMETERIZATIONS.values(), ids=PARAMETERIZATIONS.keys())
def test_jeffreys_predictive_is_invariant_under_reparameterization(function):
    """f(w) is N(1, 1/4) for every f."""
    f = predictive(function, "jeffreys", steps=900)
    mean, error = mean_and_error(f)
    assert error < 0.04
    assert abs(mean - 1) < 4 * error + 0.01
    variance, error = mean_and_error((f - 1).square())
    assert abs(variance - 0.25) < 4 * error + 0.01


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_without_the_jeffreys_factor_the_parameterization_matters():
    """A prior flat in w gives f the density e^{−2(f−1)²} cosh f, of mean 1.19, under f = asinh w."""
    f = np.linspace(-4, 6, 2001)
    weight = np.exp(-2 * (f - 1) ** 2) * np.cosh(f)
    mean, error = mean_and_error(predictive(torch.asinh, "posterior", steps=6000))
    assert abs(mean - (f * weight).sum() / weight.sum()) < 4 * error + 0.01
    assert abs(mean - 1) > 4 * error + 0.1


# ---- SNGD: logistic regression against the Laplace approximation


def logistic(num_data=2000):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num_data, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.5, 2.0])
    logit = x @ torch.tensor([0.8, -1.0, 0.3], dtype=torch.float64)
    y = torch.bernoulli(torch.sigmoid(logit), generator=generator)
    return x, y


def laplace(x, y):
    """MAP estimate and the Fisher per example there, by Newton's method."""
    theta = torch.zeros(3, dtype=torch.float64)
    for _ in range(20):
        p = torch.sigmoid(x @ theta)
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + torch.eye(3) / 100
        theta = theta - torch.linalg.solve(hessian, x.T @ (p - y) + theta / 100)
    return theta, (hessian - torch.eye(3) / 100) / len(x)


def run_sngd(lr, batch_size, steps, *, damping, batches=None, burn_in=500):
    x, y = logistic()
    optimum, fisher = laplace(x, y)
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(optimum)
    posterior = lv.Posterior(model, lv.likelihoods.Bernoulli(), lv.priors.Gaussian(10.0), num_data=len(x))
    sampler = lv.SNGD(
        posterior.parameters(), lr, num_data=len(x), damping=damping, batch_size=len(x), interval=10, seed=1
    )
    sampler.bind(posterior, (x, y))
    draws = []
    for t in range(steps + burn_in):
        chosen = sampler.batch(batch_size) if batches is None else [v[batches(t)] for v in (x, y)]
        sampler.zero_grad()
        posterior.loss(*chosen).backward()
        sampler.step()
        draws.append(model.weight.detach()[0].clone())
    return torch.stack(draws[burn_in:]) - optimum, fisher


def directional_temperatures(draws, fisher):
    """N·variance·eigenvalue along the Fisher's eigenvectors, with standard errors by fifty batch means."""
    values, vectors = torch.linalg.eigh(fisher)
    along = (draws @ vectors).square() * values * 2000
    batches = along.reshape(50, -1, 3).mean(1)
    return batches.mean(0), batches.std(0) / math.sqrt(50), values


def test_sngd_has_the_nominal_temperature_with_its_corrections():
    lr, damping = 0.1, 0.05
    batch_size = lv.samplers.batch_size_for(1.0, lr, 2000)
    nominal = lv.samplers.temperature_of(lr, 2000, batch_size)
    assert nominal == pytest.approx(1.0, rel=0.02)
    draws, fisher = run_sngd(lr, batch_size, 8_000, damping=damping)
    measured, error, values = directional_temperatures(draws, fisher)
    # along a direction of eigenvalue λ drift and noise are λ/(λ+δ) times those of the undamped step
    shrink = values / (values + damping)
    expected = nominal * shrink / (1 - lr * shrink / 2)
    assert (error / expected < 0.08).all()
    assert ((measured - expected).abs() < 4 * error + 0.06 * expected).all()  # 6 %: Σ is not F exactly
    assert expected[0] < 0.9  # the effect of the damping is visible


def test_reshuffled_batches_lower_the_temperature_of_sngd():
    lr, batch_size = 0.1, 95
    order = {}

    def epoch(t):
        per_epoch = 2000 // batch_size
        number, place = divmod(t, per_epoch)
        if number not in order:
            order.clear()
            order[number] = torch.randperm(2000, generator=torch.Generator().manual_seed(number))
        return order[number][place * batch_size : (place + 1) * batch_size]

    draws, fisher = run_sngd(lr, batch_size, 8_000, damping=1e-4, batches=epoch)
    measured, error, _ = directional_temperatures(draws, fisher)
    nominal = lv.samplers.temperature_of(lr, 2000, batch_size)
    assert nominal == pytest.approx(1.0, abs=0.01)
    assert (measured + 4 * error < 0.75 * nominal).all()


def test_sngd_temperature_and_batch_size():
    assert lv.samplers.temperature_of(0.1, 1000, 1000) == 0
    assert lv.samplers.batch_size_for(0.0, 0.1, 1000) == 1000
    for batch_size in (1, 7, 10, 999):
        assert lv.samplers.batch_size_for(lv.samplers.temperature_of(0.03, 1000, batch_size), 0.03, 1000) == batch_size
    with pytest.raises(ValueError, match=r"temperatures 0\.05 … 0;.*lr=0\.002"):
        lv.samplers.batch_size_for(1.0, 1e-4, 1001)
    with pytest.raises(ValueError, match="given temperature=-1"):
        lv.samplers.batch_size_for(-1.0, 1e-4, 1001)
    with pytest.raises(ValueError, match="batch_size=0"):
        lv.samplers.temperature_of(0.1, 10, 0)


def test_sngd_refuses_a_loader_a_target_and_a_temperature():
    x, y = logistic(20)
    posterior = lv.Posterior(nn.Linear(3, 1).double(), lv.likelihoods.Bernoulli(), lv.priors.Gaussian(1.0), num_data=20)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5, shuffle=True)
    with pytest.raises(ValueError, match="fresh random subset"):
        lv.SNGD(posterior.parameters(), 0.1, num_data=20).bind(posterior, loader)
    with pytest.raises(ValueError, match=r"lv\.NLD"):
        lv.SNGD(posterior.parameters(), 0.1, num_data=20, target="posterior")
    with pytest.raises(ValueError, match="SNGD has no option 'temperature'"):
        lv.SNGD(posterior.parameters(), 0.1, num_data=20, temperature=1.0)
