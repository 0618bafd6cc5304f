import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from benchmarks.rates import exact_temperatures
from benchmarks.temperature import linear
from langevin.core.batches import as_batches
from langevin.inference.find_lr import sampler_at, search_rate
from tests.helpers import toy_data, toy_posterior

search = partial(lv.find_lr, progress=False)


def regression():
    """Orthogonal features: every direction has curvature 4 + 1/300 of the mean loss."""
    x = torch.linalg.qr(torch.randn(300, 20, generator=torch.Generator().manual_seed(1))).Q * math.sqrt(300)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(300, 1, generator=torch.Generator().manual_seed(2))
    posterior = lv.Posterior(
        nn.Linear(20, 1, bias=False), lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(), num_data=300
    )
    return posterior, (x, y)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_rate_is_where_the_discretization_bias_is_the_tolerance(temperature):
    """On a quadratic of curvature λ SGLD samples at T/(1 − ελ/2): 15 % too hot at ε = 2(1 − 1/1.15)/λ."""
    posterior, data = regression()
    options = {"temperature": temperature, "batch_size": 300, "tolerance": 0.15, "steps": 200}
    found = search(posterior, data, lv.SGLD, **options)
    curvature = 4 + 1 / 300
    boundary = 2 * (1 - 1 / 1.15) / curvature
    assert 0.7 * boundary < found.lr < boundary
    assert found.temperature == pytest.approx(temperature / (1 - found.lr * curvature / 2), rel=0.02)
    for trial in found.trials:
        if math.isfinite(trial.temperature.mean) and trial.temperature.known:
            exact = temperature / (1 - trial.lr * curvature / 2)
            assert abs(trial.temperature.mean - exact) < 4 * trial.temperature.error + 0.01 * exact
    assert found.expected(0.5 * found.lr)[0] == pytest.approx(temperature + (found.temperature - temperature) / 2)
    assert found.expected(2 / curvature * 1.1) == (math.inf, math.inf)
    axes = lv.plots.rate_search(found)
    assert axes.get_xlabel() == "learning rate"


def test_with_momentum_the_bias_is_of_second_order():
    """T/(1 − kℓ²/4), k = Nλ; the thermostats get the same rate."""
    posterior, data = regression()
    curvature = 300 * (4 + 1 / 300)
    boundary = 2 * math.sqrt((1 - 1 / 1.1) / curvature)
    found = search(posterior, data, lv.SGHMC, batch_size=300, steps=200)
    assert 0.8 * boundary < found.lr < boundary
    assert found.power == 2
    assert search(posterior, data, lv.ATMC, batch_size=300, steps=200).lr == pytest.approx(found.lr, rel=0.05)


@pytest.mark.parametrize("sampler", [lv.KSGLD, partial(lv.NLD, target="as-printed", damping=1e-3), lv.pSGLD])
def test_in_another_metric(sampler):
    """A makes all curvatures alike, so T is T/(1 − ε aλ/2) with a the metric's scale."""
    posterior, data = regression()
    mode = lv.find_map(posterior, data, progress=False)
    found = search(posterior, data, sampler, batch_size=300, steps=200, init=mode)
    assert 1.04 < found.temperature < 1.1
    assert found.stiffest < 1.2
    options = {"batch_size": 300, "steps": 2000, "init": mode, "progress": False}
    run = lv.sample(posterior, data, sampler, lr=found.lr, **options)
    assert abs(run.temperature().mean - found.temperature) < 3 * run.temperature().error + 0.02


def test_mini_batch_noise_lowers_the_rate():
    """Conjugate regression at B = N/20, where the temperature of a run is known in closed form."""
    posterior, data, _, _ = linear()
    found = search(posterior, data, lv.SGLD, batch_size=20, steps=600)
    exact = exact_temperatures(found.lr, 20)
    assert 1.05 < float(exact.mean()) < 1.1
    assert 1.1 < float(exact[-1]) < 1.2
    assert abs(found.temperature - float(exact.mean())) < 0.02
    assert abs(found.stiffest - float(exact[-1])) < 0.06
    assert found.lr < search(posterior, data, lv.SGLD, batch_size=400, steps=300).lr / 3
    assert found.lr <= found.lr_by_mean


def test_with_momentum_mini_batch_noise_lowers_the_rate_too():
    posterior, data, _, _ = linear()
    found = search(posterior, data, lv.SGHMC, batch_size=20, steps=400)
    exact = exact_temperatures(found.lr, 20, momentum=0.9)
    assert 1.03 < float(exact.mean()) < 1.1
    assert 1.05 < float(exact[-1]) < 1.2
    assert abs(found.temperature - float(exact.mean())) < 0.03


def test_the_search_is_a_function_of_its_arguments_and_measures_the_variance_of_gradients():
    posterior, (x, y), _, mode = linear()
    batches = as_batches((x, y), 20, 3, torch.device("cpu"))
    at = partial(sampler_at, lv.SGLD, {"temperature": 0.5})
    seen = []
    start = {"weight": mode[None].float()}
    options = {"start": start, "seed": 3, "steps": 400, "report": seen.append}
    first, second = (search_rate(posterior, batches, at, **options) for _ in range(2))
    assert first == second
    assert len(seen) == 2 * (len(first.trials) - 1)
    each = x.double() * (x.double() @ mode - y[:, 0].double())[:, None] / 0.25  # the gradient of each example
    exact = float(each.var(0).mean()) / 20 * (1 - 20 / 400)
    assert first.gradient_variance.mean == pytest.approx(exact, rel=0.4)  # three errors of forty differences


@pytest.mark.slow
def test_every_seed_is_within_the_tolerance():
    posterior, data, _, _ = linear()
    for seed in range(20):
        exact = exact_temperatures(search(posterior, data, lv.SGLD, batch_size=20, seed=seed).lr, 20)
        assert 1.0 < float(exact.mean()) < 1.1, seed
        assert float(exact[-1]) < 1.2, seed


def test_an_unstable_rate_is_not_taken_for_a_cold_one():
    """From a start at which the curvature is a thousandth of what it will be, so that the first rates diverge."""
    x, y = toy_data()
    posterior = toy_posterior()
    with torch.no_grad():
        for p in posterior.parameters():
            p.mul_(0.01)
    found = search(posterior, (30 * x, y), lv.SGLD, steps=200, batch_size=20)
    assert all(trial.temperature.mean >= 1 for trial in found.trials)
    assert found.lr <= found.stability_limit / 2
    assert found.stiffest < 1.2


@pytest.mark.parametrize(
    ("sampler", "options", "words"),
    [
        (lv.SGD, {}, "no temperature to hold"),
        (partial(lv.SGLD, temperature=0.0), {}, "no temperature to hold"),
        (lv.MCLMC, {}, "finds its own step size"),
        (lv.SGLD, {"tolerance": 2.0}, "tolerance must be a number, between 0 and 1"),
        (lv.SGLD, {"steps": 3}, "steps ≥ 20"),
    ],
)
def test_bad_input_is_refused(sampler, options, words):
    with pytest.raises(ValueError, match=words):
        search(toy_posterior(), toy_data(), sampler, **options)


def test_a_chain_that_does_not_settle_is_an_error(monkeypatch):
    from langevin.inference import find_lr as module

    monkeypatch.setattr(module, "_ROUNDS", 2)
    with pytest.raises(ValueError, match=r"No learning rate was found in 2 rounds of 20 steps .* not settled"):
        search(toy_posterior(), toy_data(), lv.SGLD, steps=20)


def test_citations():
    run = lv.sample(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), steps=5, progress=False)
    assert lv.cite(run) == lv.cite(lv.SGHMC) == lv.cite("sghmc") == lv.SGHMC.citation
    assert all(lv.cite(name).startswith("@") for name in lv.samplers.SAMPLERS)
    with pytest.raises(ValueError, match="'nuts' is not a method of langevin; choose one of"):
        lv.cite("nuts")
    own = lv.sample(toy_posterior(), toy_data(), lambda p, **o: lv.SGLD(p, lr=1e-3, **o), steps=5, progress=False)
    with pytest.raises(ValueError, match="was sampled with a custom sampler: langevin has no citation for it"):
        lv.cite(own)
