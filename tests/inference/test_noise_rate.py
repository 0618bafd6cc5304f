"""A sampled scale of the noise has a rate of its own: the same target, and it forgets as fast as the weights."""

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.full_batches import make_batches
from langevin.core.statistics import batch_means_ess
from langevin.inference.one_chain import OneChain
from langevin.inference.steppers import sampler_factory

N, NOISE = 200, 0.1


def problem(likelihood=None, values=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    y = (x @ torch.tensor([[0.5], [-0.3]])).repeat(1, values) + NOISE * torch.randn(N, values, generator=generator)
    model = nn.Linear(2, values, bias=False)
    likelihood = likelihood or lv.likelihoods.Gaussian(NOISE, sampled=True)
    return lv.Posterior(model, likelihood, lv.priors.Gaussian(1.0), num_data=N), (x, y)


def chain_of(kind, likelihood=None, values=1, burn_in=0, schedule=None, **options):
    posterior, data = problem(likelihood, values)
    batches = make_batches(data, 50, 0, torch.device("cpu"))
    start = {name: p.detach() for name, p in posterior.trainable_parameters().items()}
    make = sampler_factory(kind, options)
    return OneChain(posterior, [0], [start], batches, make, schedule, seed=0, burn_in=burn_in)


def stepper_of(kind, likelihood=None, values=1, **options):
    return chain_of(kind, likelihood, values, **options).stepper


@pytest.mark.parametrize("kind", [lv.SGLD, lv.SGHMC, lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("values", [1, 3])
def test_the_noise_is_as_far_from_its_stability_limit_as_a_weight(kind, values):
    stepper = stepper_of(kind, lr=1e-5, values=values)
    weights, noise = stepper.param_groups
    assert [p.shape for p in noise["params"]] == [()]
    share = weights["lr"] / stepper.stability_limit(NOISE**-2)
    assert noise["lr"] / stepper.stability_limit(2.0 * values) == pytest.approx(share)
    assert noise["lr"] > 3 * weights["lr"]
    assert noise["num_data"] == weights["num_data"]


def test_where_it_would_not_help_or_not_be_safe_there_is_one_rate():
    assert len(stepper_of(lv.SGLD, lv.likelihoods.Gaussian(NOISE), lr=1e-4).param_groups) == 1  # not sampled
    assert len(stepper_of(lv.pSGLD, lr=1e-4).param_groups) == 1  # has a scale for every weight
    assert len(stepper_of(lv.SGD, lr=1e-4).param_groups) == 1
    assert len(stepper_of(lv.SGHMC, lr=1e-5, gradient_variance=1e-3).param_groups) == 1
    weights, noise = stepper_of(lv.ATMC, lr=1e-5, max_speed=2e-5).param_groups
    assert noise["max_speed"] / noise["lr"] == pytest.approx(weights["max_speed"] / weights["lr"])
    large = stepper_of(lv.SGLD, lv.likelihoods.Gaussian(2.0, sampled=True), lr=1e-2).param_groups
    assert [group["lr"] for group in large] == [1e-2, 1e-2]  # a slower rate for the noise than for weights: never
    tiny = stepper_of(lv.SGLD, lv.likelihoods.Gaussian(1e-3, sampled=True), lr=1e-6).param_groups
    assert tiny[1]["lr"] == pytest.approx(5e-6)  # moves by 5 at residuals of 1, not by 500,000
    student = stepper_of(lv.SGLD, lv.likelihoods.StudentT(NOISE, df=5.0, sampled=True), lr=1e-4).param_groups
    assert student[1]["lr"] / 1e-4 == pytest.approx((6 / 8 / NOISE**2) / (10 / 8), rel=1e-6)


@pytest.mark.parametrize("schedule", [None, lv.cyclical(100)])
@pytest.mark.parametrize("kind", [lv.SGLD, lv.SGHMC, lv.ATMC])
def test_the_rate_is_raised_in_the_middle_of_burn_in(kind, schedule):
    chain = chain_of(kind, lr=1e-5, burn_in=6, schedule=schedule)
    ratios = []
    for _ in range(5):
        weights, noise = chain.stepper.param_groups
        ratios.append(noise["lr"] / weights["lr"])
        chain.backward()
        chain.advance()
    assert ratios == pytest.approx([1, 1, 1, noise["factor"], noise["factor"]])
    assert noise["factor"] > 3
    if kind is not lv.SGLD:
        assert noise["reference_lr"] / weights["reference_lr"] == pytest.approx(noise["factor"])
    chain.reset([{name: p.detach().clone() for name, p in zip(chain.names, chain.params, strict=True)}])
    assert chain.stepper.param_groups[1]["lr"] == chain.stepper.param_groups[0]["lr"]


def exact():
    """Mean and standard deviation of log σ, by quadrature: the weights integrate out in closed form."""
    _, (x, y) = problem()
    x, y = x.double(), y.double()[:, 0]
    grid = torch.linspace(-2.8, -1.8, 2001).double()
    values, vectors = torch.linalg.eigh(x.T @ x)
    along = (vectors.T @ x.T @ y).square()
    s2 = torch.exp(2 * grid)[:, None]
    precision = values / s2 + 1
    log_density = -N * grid - 0.5 * precision.log().sum(1) - 0.5 * (y @ y) / s2[:, 0]
    log_density = log_density + 0.5 * (along / s2**2 / precision).sum(1) - grid.square() / 2
    weights = torch.softmax(log_density, 0)
    mean = weights @ grid
    return float(mean), float((weights @ (grid - mean).square()).sqrt())


def noise_of(kind, lr, steps, chains):
    posterior, data = problem()
    options = {
        "lr": lr,
        "steps": steps,
        "burn_in": 300,
        "chains": chains,
        "batch_size": N,
        "seed": 1,
        "progress": False,
    }
    run = lv.sample(posterior, data, kind, mode="vectorised", **options)
    return [torch.stack([w["likelihood.log_std"] for w in run.chain(c)]) for c in range(chains)], run


@pytest.mark.parametrize(("kind", "lr"), [(lv.SGLD, 5e-4), pytest.param(lv.SGHMC, 5e-4, marks=pytest.mark.slow)])
def test_the_target_is_the_same_and_the_noise_forgets_as_fast_as_the_weights(kind, lr):
    chains = 32
    series, run = noise_of(kind, lr, steps=1000, chains=chains)
    means = torch.stack([s.double().mean() for s in series])
    error = float(means.std()) / chains**0.5
    mean, std = exact()
    assert abs(float(means.mean()) - mean) < 4 * error + 0.05 * std
    assert error < 0.2 * std
    spread = torch.stack([s.double().var() for s in series])
    assert abs(float(spread.mean()) / std**2 - 1) < 4 * float(spread.std()) / chains**0.5 / std**2 + 0.05
    weights = [torch.stack([w["weight"][0, 0] for w in run.chain(c)]) for c in range(chains)]
    noise, weight = (sum(float(batch_means_ess(s.double())) for s in each) for each in (series, weights))
    assert noise > 0.4 * weight


def test_it_resumes_bit_for_bit(tmp_path):
    posterior, data = problem()
    options = {"lr": 1e-4, "burn_in": 5, "chains": 2, "batch_size": 20, "progress": False}
    whole = lv.sample(posterior, data, lv.SGLD, steps=40, **options)
    lv.sample(posterior, data, lv.SGLD, steps=20, out=tmp_path / "run", **options)
    resumed = lv.resume(tmp_path / "run", posterior, data, steps=40, progress=False)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(whole, resumed, strict=True) for name in a)
