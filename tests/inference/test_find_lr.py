import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_posterior


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
    found = lv.find_lr(
        posterior,
        data,
        partial(lv.SGLD, temperature=temperature),
        batch_size=300,
        tolerance=0.15,
        steps=1200,
        ladder=1.6,
        init=lv.find_map(posterior, data),
        progress=False,
    )
    boundary = 2 * (1 - 1 / 1.15) / (4 + 1 / 300)
    assert boundary / 1.6**2 < found.lr < boundary * 1.6
    for trial in found.trials:
        if math.isfinite(trial.temperature.mean):
            predicted = temperature / (1 - trial.lr * (4 + 1 / 300) / 2)
            assert abs(trial.temperature.mean - predicted) < 4 * trial.temperature.error + 0.02 * predicted
    axes = lv.plots.rate_search(found)
    assert axes.get_xlabel() == "learning rate"


def test_mini_batch_noise_lowers_the_rate():
    posterior, data = regression()
    options = {"init": lv.find_map(posterior, data), "steps": 1000, "progress": False}
    whole = lv.find_lr(posterior, data, lv.SGLD, batch_size=300, **options)
    small = lv.find_lr(posterior, data, lv.SGLD, batch_size=10, **options)
    assert small.lr < whole.lr / 2


@pytest.mark.parametrize(
    ("sampler", "options", "words"),
    [
        (lv.SGD, {}, "no temperature to hold"),
        (partial(lv.SGLD, temperature=0.0), {}, "no temperature to hold"),
        (lv.SGLD, {"tolerance": 2.0}, "0 < tolerance < 1"),
        (lv.SGLD, {"ladder": 1.0}, "ladder > 1"),
        (lv.SGLD, {"steps": 20, "tolerance": 1e-6}, "No learning rate held the temperature"),
    ],
)
def test_bad_input_is_refused(sampler, options, words):
    with pytest.raises(ValueError, match=words):
        lv.find_lr(toy_posterior(), toy_data(), sampler, progress=False, **options)


def test_citations():
    run = lv.sample(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), steps=5, progress=False)
    assert lv.cite(run) == lv.cite(lv.SGHMC) == lv.cite("sghmc") == lv.SGHMC.citation
    assert all(lv.cite(name).startswith("@") for name in lv.samplers.SAMPLERS)
    with pytest.raises(ValueError, match="'hmc' is not a method of langevin; choose one of"):
        lv.cite("hmc")
    own = lv.sample(toy_posterior(), toy_data(), lambda p, **o: lv.SGLD(p, lr=1e-3, **o), steps=5, progress=False)
    with pytest.raises(ValueError, match="was sampled with a custom sampler: langevin has no citation for it"):
        lv.cite(own)
