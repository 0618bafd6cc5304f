"""Prior precisions that are sampled by Gibbs, against a posterior that is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import langevin as lv
from tests.helpers import assert_same_samples, toy_data, toy_model

D, NOISE, SHAPE, RATE = 12, 0.5, 2.0, 1.0
SGHMC = {"lr": 0.1, "momentum": 0.8, "batch_size": D}


def known(temperature=1.0):
    """y = w + noise, w ~ N(0, 1/λ), λ ~ Gamma: data, and mean and standard deviation of log λ under the posterior."""
    y = 1.5 * torch.randn(D, generator=torch.Generator().manual_seed(1))
    log_lam = np.linspace(-7, 5, 4001)[:, None]
    lam, squares = np.exp(log_lam), y.numpy()[None] ** 2
    # exp(−U/T) integrated over w: a product of Gaussian integrals
    precision = lam + NOISE**-2
    energy = 0.5 * squares * NOISE**-2 * lam / precision - 0.5 * np.log(lam)
    log_density = -energy.sum(1) / temperature - 0.5 * np.log(precision[:, 0]) * D
    log_density += ((SHAPE - 1) * log_lam - RATE * lam)[:, 0] / temperature + log_lam[:, 0]  # of log λ
    p = np.exp(log_density - log_density.max())
    p /= p.sum()
    mean = (p * log_lam[:, 0]).sum()
    return y, mean, math.sqrt((p * (log_lam[:, 0] - mean) ** 2).sum())


def posterior(prior=None):
    torch.manual_seed(0)
    prior = prior or lv.priors.SampledGaussian(SHAPE, RATE, every=1)
    return lv.Posterior(nn.Linear(D, 1, bias=False), lv.likelihoods.Gaussian(NOISE), prior, num_data=D)


@pytest.mark.parametrize(
    ("sampler", "options", "steps", "temperature"),
    [
        pytest.param(lv.SGHMC, SGHMC, 1500, 0.3, id="SGHMC at T = 0.3"),
        pytest.param(lv.SGHMC, SGHMC, 3000, 1.0, id="SGHMC", marks=pytest.mark.slow),
        pytest.param(lv.HMC, {}, 1000, 1.0, id="HMC", marks=pytest.mark.slow),
    ],
)
def test_the_precision_has_its_posterior(sampler, options, steps, temperature):
    y, mean, std = known(temperature)
    run = lv.sample(
        posterior(),
        (torch.eye(D), y[:, None]),
        sampler,
        temperature=temperature,
        steps=steps,
        burn_in=300,
        thin=5,
        chains=8,
        seed=0,
        probe=0,
        compile=False,
        progress=False,
        **options,
    )
    log_precisions = np.log(np.array(list(run.trace("precision/weight").values())))
    error = log_precisions.mean(1).std(ddof=1) / math.sqrt(8)
    assert error < 0.12 * std
    assert abs(log_precisions.mean() - mean) < 4 * error + 0.01
    assert abs(log_precisions.std() / std - 1) < 0.12


def test_a_draw_makes_samplers_forget_gradients_that_they_have_cached():
    seen = {}
    prior = lv.priors.SampledGaussian(SHAPE, RATE, every=3)
    data = (torch.eye(D), known()[0][:, None])
    look = [lambda info: seen.update({info.step: info.sampler._rows.loss is None})]
    lv.sample(posterior(prior), data, lv.HMC, steps=7, burn_in=1, probe=0, progress=False, callbacks=look)
    assert seen == {step: step % 3 == 0 for step in range(1, 8)}


def test_a_draw_is_the_gamma_of_the_formula():
    own = posterior().precisions
    weights = torch.randn(4000, D, generator=torch.Generator().manual_seed(0))[:1].expand(4000, D)
    drawn = own.draw("weight", weights, temperature=0.5, seed=3, chains=range(4000), step=7)
    shape, rate = 1 + (SHAPE - 1 + D / 2) / 0.5, (RATE + float(weights[0].square().sum()) / 2) / 0.5
    assert stats.kstest(drawn.numpy(), stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-3
    again = own.draw("weight", weights[:1], temperature=0.5, seed=3, chains=[17], step=7)
    assert float(again) == float(drawn[17])


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, mode):
    def make():
        prior = lv.priors.adaptive(toy_model(), every=3, start=6)
        return lv.Posterior(toy_model(), lv.likelihoods.Categorical(), prior, num_data=60)

    class Stop(Exception): ...

    def stop(info):
        if info.step == 25:
            raise Stop

    options = {"lr": 1e-2, "steps": 40, "burn_in": 10, "thin": 3, "chains": 2, "seed": 1, "mode": mode, "probe": 0}
    options["progress"] = False
    whole = lv.sample(make(), toy_data(), lv.SGHMC, **options)
    with pytest.raises(Stop):
        lv.sample(make(), toy_data(), lv.SGHMC, **options, out=tmp_path / "run", callbacks=[stop])
    resumed = lv.resume(tmp_path / "run", make(), toy_data(), progress=False)
    assert_same_samples(whole, resumed)
    for name in ("precision/0.weight", "precision/2.weight"):
        assert whole.trace(name) == resumed.trace(name)
        for values in whole.trace(name).values():
            assert len(set(values)) == len(values)
    assert run_predicts(resumed)


def run_predicts(run):
    return run.predict(toy_data()[0]).probs.isfinite().all()


def test_stacked_and_single_chains_draw_the_same_precisions():
    x, y = torch.eye(D), known()[0][:, None]
    options = {"lr": 1e-2, "batch_size": D, "steps": 30, "chains": 2, "seed": 1, "probe": 0, "progress": False}
    a, b = (lv.sample(posterior(), (x, y), lv.SGLD, mode=mode, **options) for mode in ("vectorised", "sequential"))
    for chain in (0, 1):
        np.testing.assert_allclose(
            a.trace("precision/weight")[chain], b.trace("precision/weight")[chain], rtol=1e-4, atol=0
        )


def test_the_marginal_density_is_a_multivariate_student_t():
    prior = lv.priors.SampledGaussian(2.0, 3.0)
    w = torch.randn(5, generator=torch.Generator().manual_seed(0)).double()
    expected = stats.multivariate_t(np.zeros(5), np.eye(5) * 3 / 2, df=4).logpdf(w.numpy())
    assert float(prior.log_prob(w)) == pytest.approx(expected)
    given = prior.conditional_log_prob(w, torch.tensor(4.0))
    assert float(given) == pytest.approx(float(lv.priors.Gaussian(0.5).log_prob(w)))


def test_patterns_that_apply_to_no_parameter_are_refused():
    def make(prior):
        return lv.Posterior(toy_model(), lv.likelihoods.Categorical(), prior, num_data=60)

    g = lv.priors.Gaussian()
    with pytest.raises(ValueError, match=r"'conv\*' matches no parameter; the names are \['0.weight'"):
        make({"conv*": g, "*": g})
    with pytest.raises(ValueError, match="never applies: '\\*' comes first"):
        make({"*": g, "*.bias": g})
    make({"*.bias": g, "*.weight": g, "*": g})
    with pytest.raises(ValueError, match="every is 1 or more"):
        lv.priors.SampledGaussian(every=0)
    with pytest.raises(ValueError, match="lv.fit approximates the weights at a fixed prior"):
        lv.fit(posterior(), (torch.eye(D), torch.zeros(D, 1)), lv.MeanField(), steps=2, progress=False)
