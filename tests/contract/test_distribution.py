"""The stationary distribution of every registered sampler that has a target."""

import inspect
import math
from functools import partial

import pytest
import torch

import langevin as lv
from langevin.diagnostics.temperature import Thermometer
from langevin.samplers import SAMPLERS
from tests.contract.targets import (
    FRACTION,
    LAYERWISE,
    NUM_DATA,
    SIGMAS,
    TARGETED,
    Moments,
    ill_conditioned,
    limit,
    make,
    simulate,
    start,
)

TEMPERATURES = [0.25, 1.0, 4.0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", TARGETED)
def test_ill_conditioned_gaussian(name, temperature):
    sampler_class = SAMPLERS[name]
    precision = ill_conditioned()
    fraction = FRACTION[sampler_class.order]
    parameter = start(precision, temperature, 512)
    lr = fraction * limit(sampler_class, 100.0, temperature=temperature)
    sampler = make(sampler_class, [parameter], lr=lr, temperature=temperature)
    moments = simulate(sampler, parameter, precision, burn_in=4000, steps=8000)

    exact = torch.linalg.inv(precision) * temperature / NUM_DATA
    mean, error = Moments.estimate(moments.mean)
    assert (mean.abs() < SIGMAS * error).all()

    covariance, error = Moments.estimate(moments.second)
    spread = exact.diagonal().sqrt()
    bias = 1.5 * fraction**sampler_class.order * spread[:, None] * spread[None, :]
    assert ((covariance - exact).abs() < SIGMAS * error + bias).all()
    assert (error.diagonal() / exact.diagonal() < 0.05).all(), "too few steps: the error is too large"

    # along the eigenvectors, where the smallest variance is a hundredth of the largest
    values, vectors = torch.linalg.eigh(precision)
    along = torch.einsum("ik,rij,jk->rk", vectors, moments.second, vectors) * values * NUM_DATA / temperature
    ratio, error = Moments.estimate(along)
    assert ((ratio - 1).abs() < SIGMAS * error + 1.5 * fraction**sampler_class.order).all()


@pytest.mark.parametrize("name", [name for name in TARGETED if SAMPLERS[name].shows_order])
def test_order_of_convergence(name):
    """The bias of the variance is proportional to lr**order, with lr changed as by a schedule."""
    sampler_class = SAMPLERS[name]
    fractions = [0.3, 0.15]
    biases, errors = [], []
    for fraction in fractions:
        parameter = start(torch.eye(1, dtype=torch.float64), 1.0, 8192)
        sampler = make(sampler_class, [parameter], lr=fractions[0] * limit(sampler_class, 1.0))
        sampler.param_groups[0]["lr"] *= fraction / fractions[0]
        moments = simulate(sampler, parameter, torch.eye(1, dtype=torch.float64), burn_in=300, steps=1500)
        ratio, error = Moments.estimate(moments.second[:, 0, 0] * NUM_DATA)
        biases.append(float(ratio) - 1)
        errors.append(float(error))
    slope = math.log(biases[0] / biases[1]) / math.log(fractions[0] / fractions[1])
    error = math.hypot(errors[0] / biases[0], errors[1] / biases[1]) / math.log(2)
    assert error < 0.2, "too few steps: the error of the slope is too large"
    # at these fractions the next order raises the slope by up to log((1 − f²)/(1 − f))/log 2 = 0.3
    assert sampler_class.order - SIGMAS * error < slope < sampler_class.order + 0.35 + SIGMAS * error


@pytest.mark.parametrize("name", TARGETED)
def test_an_anharmonic_well(name):
    """exp(−N(θ²/2 + 25θ⁴/2)), on which, unlike on a Gaussian, the fourth moment of the noise has an effect."""
    sampler_class = SAMPLERS[name]
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    density = torch.exp(-NUM_DATA * (grid.square() / 2 + 12.5 * grid**4))
    exact = torch.stack([(grid**power * density).sum() / density.sum() for power in (2, 4)])
    fraction = 0.05
    parameter = torch.nn.Parameter(0.1 * torch.randn(4096, generator=torch.Generator().manual_seed(2)).double())
    has_thermostat = "thermostat_rate" in inspect.signature(sampler_class).parameters
    options = {"thermostat_rate": 1e-2} if has_thermostat else {}  # as below: converged within this burn-in
    lr = fraction * limit(sampler_class, 3.0)
    sampler = make(sampler_class, [parameter], lr=lr, **options)
    sums = torch.zeros(4096, 2, dtype=torch.float64)
    for step in range(2500):
        theta = parameter.detach()
        parameter.grad = theta + 50 * theta**3
        sampler.step()
        if step == 500:
            sampler.freeze()
        if step > 500:
            sums += torch.stack([theta.square(), theta**4], dim=1) / 1999
    mean, error = Moments.estimate(sums)
    assert (error / exact < 0.02).all(), "too few steps: the error is too large"
    assert ((mean - exact).abs() < SIGMAS * error + 2 * fraction * exact).all(), (mean / exact, error / exact)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", TARGETED)
def test_configurational_temperature(name, temperature):
    sampler_class = SAMPLERS[name]
    fraction = FRACTION[sampler_class.order]
    parameter = start(torch.eye(4, dtype=torch.float64), temperature, 256)
    lr = fraction * limit(sampler_class, 1.0, temperature=temperature)
    sampler = make(sampler_class, [parameter], lr=lr, temperature=temperature)
    simulate(sampler, parameter, torch.eye(4, dtype=torch.float64), burn_in=1000, steps=1)
    thermometer = Thermometer([parameter], NUM_DATA, stacked=True)
    thermometer.anchor = [torch.full_like(parameter, 0.1)]  # any fixed point
    readings = torch.zeros(256, dtype=torch.float64)
    for _ in range(2000):
        parameter.grad = parameter.detach().clone()
        readings += thermometer.measure([parameter]) / 2000
        sampler.step()
    mean, error = Moments.estimate(readings)
    assert error < 0.05 * temperature
    assert abs(mean - temperature) < SIGMAS * error + 1.5 * fraction**sampler_class.order * temperature


def regression(num_data=200):
    """Bayesian linear regression with orthogonal features: an isotropic posterior."""
    generator = torch.Generator().manual_seed(5)
    x = torch.linalg.qr(torch.randn(num_data, 3, generator=generator, dtype=torch.float64)).Q * math.sqrt(num_data)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y = y + 0.5 * torch.randn(num_data, generator=generator, dtype=torch.float64)
    precision = x.T @ x / 0.5**2 + torch.eye(3, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / 0.5**2)
    return x, y[:, None], mean, precision


def gradient_variance(x, y, mean, precision, temperature, batch_size):
    """Variance of each coordinate of the mini-batch gradient of the mean loss, averaged over the posterior."""
    generator = torch.Generator().manual_seed(6)
    spread = torch.linalg.cholesky(torch.linalg.inv(precision) * temperature)
    theta = mean + torch.randn(500, 3, generator=generator, dtype=torch.float64) @ spread.T
    residual = y - x @ theta.T  # (data, draws)
    each = -x[:, None, :] * residual[:, :, None] / 0.5**2
    return each.var(0).mean(0) / batch_size * (1 - batch_size / len(x))


@pytest.mark.parametrize(("temperature", "batch_size"), [(0.25, 50), (1.0, 20), (1.0, 200), (4.0, 50)])
@pytest.mark.parametrize("name", TARGETED)
def test_conjugate_regression_with_mini_batches(name, temperature, batch_size):
    """End to end: the batch size has no effect besides the documented gradient-noise temperature."""
    sampler_class = SAMPLERS[name]
    x, y, mean, precision = regression()
    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.5).double(), lv.priors.Gaussian(1.0), num_data=len(x))
    curvature = float(precision[0, 0]) / len(x)
    fraction = 0.05 if sampler_class.order == 1 else 0.1
    lr = fraction * limit(sampler_class, curvature, num_data=len(x), temperature=temperature)
    root = torch.linalg.cholesky(torch.linalg.inv(precision) * temperature)
    has_thermostat = "thermostat_rate" in inspect.signature(sampler_class).parameters
    options = (
        {"thermostat_rate": 1e-2} if has_thermostat else {}
    )  # converged within this burn-in; the default takes 10⁴ steps

    def init(chain):
        """Half the posterior's standard deviation from its mean (see `start`)."""
        normal = torch.randn(3, generator=torch.Generator().manual_seed(chain), dtype=torch.float64)
        return {"weight": (mean + 0.5 * root @ normal)[None]}

    run = lv.sample(
        posterior,
        (x, y),
        partial(sampler_class, lr=lr, temperature=temperature, **options),
        batch_size=batch_size,
        steps=2500,
        burn_in=500,
        thin=4,
        chains=16,
        mode="vectorised",
        progress=False,
        seed=11,
        init=init,
    )
    draws = torch.stack([torch.stack([s["weight"][0] for s in run.chain(c)[:]]) for c in run.chains])

    estimate, error = Moments.estimate(draws.mean(1))
    assert ((estimate - mean).abs() < SIGMAS * error).all()

    probe = make(sampler_class, [torch.nn.Parameter(torch.zeros(1))], lr=lr, temperature=temperature, num_data=len(x))
    noise = gradient_variance(x, y, mean, precision, temperature, batch_size)
    added = torch.tensor(
        [probe.gradient_noise_temperature(float(v)) if v > 0 else 0.0 for v in noise], dtype=torch.float64
    )
    if added.isnan().any():
        pytest.skip("the gradient-noise temperature depends on the estimate of the preconditioner")
    exact = (temperature + added) / precision.diagonal()
    estimate, error = Moments.estimate((draws - mean).square().mean(1))
    assert (error / exact < 0.1).all(), "too few steps: the error is too large"
    assert ((estimate - exact).abs() < SIGMAS * error + 1.5 * fraction**sampler_class.order * exact).all()
    cross, error = Moments.estimate(((draws - mean)[..., 0] * (draws - mean)[..., 1]).mean(1))
    assert abs(cross) < SIGMAS * error


@pytest.mark.parametrize(
    "temperature", [1.0, pytest.param(0.25, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", LAYERWISE)
def test_conjugate_regression_for_layer_wise_samplers(name, temperature):
    """A linear layer with many outputs is many independent regressions: each row is a replicate of one posterior."""
    rows, n, std = 64, 40, 1.0
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 3.0]) + torch.tensor(
        [0.5, 0.0]
    )
    truth = torch.randn(3, rows, generator=generator, dtype=torch.float64)
    design = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], dim=1)
    y = design @ truth + std * torch.randn(n, rows, generator=generator, dtype=torch.float64)
    precision = design.T @ design / std**2 + torch.eye(3, dtype=torch.float64)
    exact = torch.linalg.inv(precision) * temperature
    mean = torch.linalg.solve(precision, design.T @ y / std**2)

    model = torch.nn.Linear(2, rows).double()
    with torch.no_grad():  # half the target's standard deviation from the mean
        offset = 0.5 * torch.linalg.cholesky(exact) @ torch.randn(3, rows, generator=generator, dtype=torch.float64)
        model.weight.copy_((mean + offset)[:2].T)
        model.bias.copy_((mean + offset)[2])
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(std), lv.priors.Gaussian(1.0), num_data=n)
    fraction = FRACTION[SAMPLERS[name].order]
    # with one output per replicate the factor G is large and takes many mini-batches to estimate
    options = {"factor_interval": 1, "inverse_interval": 1, "average": 0.99} if name == "ksgld" else {}
    sampler = SAMPLERS[name](posterior.parameters(), lr=1.0, num_data=n, temperature=temperature, seed=3, **options)
    sampler.bind(posterior, (x, y))
    curvature = float(torch.linalg.eigvalsh(precision).max()) / n
    sampler.param_groups[0]["lr"] = fraction * sampler.stability_limit(curvature)

    def step():
        sampler.zero_grad()
        posterior.loss(x, y).backward()
        sampler.step()
        return torch.cat([model.weight.detach().T, model.bias.detach()[None]]) - mean

    for _ in range(300 if options else 30):
        step()
    sampler.freeze()
    for _ in range(500):
        step()
    steps, first, second = 3000, torch.zeros(rows, 3).double(), torch.zeros(rows, 3, 3).double()
    for _ in range(steps):
        theta = step().T
        first += theta / steps
        second += theta[:, :, None] * theta[:, None, :] / steps
    estimate, error = Moments.estimate(first)
    assert (estimate.abs() < SIGMAS * error).all()
    spread = exact.diagonal().sqrt()
    estimate, error = Moments.estimate(second)
    assert (error.diagonal() / exact.diagonal() < 0.06).all(), "too few steps: the error is too large"
    bias = 1.5 * fraction * spread[:, None] * spread[None, :]
    assert ((estimate - exact).abs() < SIGMAS * error + bias).all()
