"""Densities, quantiles, intervals and draws of predictions of values."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.core.likelihoods.families import StudentT
from langevin.ensembles import prediction as predictions
from langevin.ensembles.mixture import Mixture
from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation import scores

L = lv.likelihoods
RATES = torch.tensor([[1.0, 20.0, 400.0], [3.0, 30.0, 500.0]])  # (members, n)


def poisson():
    return Mixture(L.Poisson().distribution, (RATES,))


def ensemble(likelihood, outputs=1, members=6, inputs=3):
    model = nn.Linear(inputs, outputs)
    generator = torch.Generator().manual_seed(0)
    weights = [
        {"weight": torch.randn(outputs, inputs, generator=generator), "bias": torch.randn(outputs, generator=generator)}
        for _ in range(members)
    ]
    return lv.Ensemble.from_weights(model, likelihood, weights), weights


def test_the_density_of_counts_is_that_of_the_mixture_of_poissons():
    y = torch.tensor([2.0, 25.0, 450.0])
    expected = np.mean([stats.poisson(row).pmf(y.double().numpy()) for row in RATES.double().numpy()], 0)
    torch.testing.assert_close(poisson().log_prob(y), torch.as_tensor(np.log(expected)))
    found, weights = ensemble(L.Poisson())
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([0.0, 1, 2, 3, 4])
    rates = torch.stack([(x @ w["weight"].T + w["bias"]).exp()[:, 0] for w in weights]).double()
    by_hand = np.log(np.mean(stats.poisson(rates.numpy()).pmf(counts.numpy()), 0))
    prediction = found.predict(x)
    torch.testing.assert_close(prediction.log_prob(counts), torch.as_tensor(by_hand), rtol=1e-4, atol=1e-4)
    assert scores.value_scores(prediction, counts)["nll"] == pytest.approx(-by_hand.mean(), rel=1e-4)


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.95])
def test_quantiles_invert_the_cdf(q):
    values = poisson().quantile(q)
    assert (poisson().cdf(values) >= q).all()
    assert (poisson().cdf(values - 1) < q).all()
    normal = Mixture(L.Gaussian(1.0).distribution, (torch.tensor([[0.0], [100.0]]), torch.tensor([[1.0], [5.0]])))
    torch.testing.assert_close(normal.cdf(normal.quantile(q)), torch.tensor([q]).double(), atol=1e-5, rtol=0)
    for df in (3, 4):
        heavy = Mixture(L.StudentT(1.0, df=df).distribution, (torch.zeros(1, 2), torch.ones(1, 2)))
        torch.testing.assert_close(heavy.quantile(q), torch.full((2,), stats.t(df).ppf(q)).double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.499, 0.7, 0.999])
def test_quantiles_between_narrow_peaks_and_in_tails(q):
    """Where chords are of no use, as between two peaks, brackets are halved."""
    mixture = peaks()
    found = mixture.quantile(q)
    spread = float(mixture.moments()[0].std(0, correction=0).max()) + 1.0
    for side in (-1, 1):
        beyond = mixture.cdf(found + side * 3e-6 * spread) - q
        assert bool((side * beyond >= -2e-7 * min(q, 1 - q)).all())


def test_quantiles_of_what_is_nearly_one_number():
    """Its spread is less than the distance of neighbouring numbers, so no bracket is ever narrow enough."""
    location = torch.full((2, 1), 1e6, dtype=torch.float64)
    mixture = Mixture(
        lambda a, b: StudentT(torch.full_like(a, 4.0), a, b), (location, torch.full_like(location, 1e-12))
    )
    assert float(mixture.quantile(0.3)) == pytest.approx(1e6, rel=1e-12)


def peaks():
    """Student's t of scale 1e-3 at -5 and 5, and one of scale 3 between them, for two inputs."""
    location = torch.tensor([-5.0, 5.0, 0.0])[:, None].expand(3, 2)
    scale = torch.tensor([1e-3, 1e-3, 3.0])[:, None].expand(3, 2)
    return Mixture(lambda a, b: StudentT(torch.full_like(a, 4.0), a, b), (location, scale))


@pytest.mark.parametrize("df", [2.0, 3.0, 4.0, 8.0, 10.0, 12.0])
def test_the_cdf_of_students_t(df):
    t = torch.cat([torch.linspace(-30, 30, 201), torch.tensor([-1e6, 1e6])]).double()
    found = StudentT(torch.full_like(t, df), torch.ones_like(t), torch.full_like(t, 2.0)).cdf(1 + 2 * t)
    torch.testing.assert_close(found, torch.as_tensor(stats.t(df).cdf(t.numpy())), atol=1e-14, rtol=0)
    mixed = torch.full_like(t, df)
    mixed[3] = 5.0
    some = StudentT(mixed, torch.zeros_like(t), torch.ones_like(t)).cdf(t)
    assert float(some[3]) == pytest.approx(stats.t(5).cdf(float(t[3])))
    assert float(some[4]) == pytest.approx(stats.t(df).cdf(float(t[4])))


def test_quantiles_of_positive_values_and_of_distributions_without_cdf():
    gamma = L.Distribution(lambda out: torch.distributions.Gamma(out[:, 0], out[:, 1]))
    mixture = Mixture(gamma.distribution, (torch.tensor([[[2.0, 3.0]]]),))
    expected = stats.gamma(2, scale=1 / 3).ppf(0.01)
    torch.testing.assert_close(mixture.quantile(0.01), torch.tensor([expected]), atol=1e-5, rtol=0)
    assert float(mixture.cdf(torch.tensor([-1.0]))) == 0
    beta = L.Distribution(lambda out: torch.distributions.Beta(out[:, 0], out[:, 1]))  # torch has no cdf of it
    mixture = Mixture(beta.distribution, (torch.tensor([[[2.0, 3.0]]]),))
    error = math.sqrt(0.25 / 4096) / stats.beta(2, 3).pdf(stats.beta(2, 3).median())
    assert abs(float(mixture.quantile(0.5)) - stats.beta(2, 3).median()) < 4 * error


def test_draws_are_from_the_mixture():
    draws = poisson().sample(20_000, seed=0)
    assert draws.shape == (20_000, 3)
    means, variances = poisson().moments()
    spread = (variances.mean(0) + means.var(0, correction=0)).sqrt()
    assert ((draws.mean(0) - means.mean(0)).abs() < 4 * spread / math.sqrt(20_000)).all()
    below = (draws <= poisson().quantile(0.3)).double().mean(0)
    expected = poisson().cdf(poisson().quantile(0.3))
    assert ((below - expected).abs() < 4 * (expected * (1 - expected) / 20_000).sqrt()).all()


def test_the_crps_is_the_integral_of_the_squared_difference_of_the_cdfs():
    heavy = Mixture(
        L.StudentT(1.0, df=4).distribution, (torch.tensor([[0.0, 0.0], [2.0, 1.0]]), torch.tensor([[0.5, 1.0]] * 2))
    )
    y = torch.tensor([0.3, 40.0])
    prediction = ValuePrediction(torch.zeros(2), torch.ones(2), torch.ones(2), components=heavy)
    found = scores.crps_each(prediction, y)
    for i in range(2):

        def cdf(z, i=i):
            return float(heavy.cdf(torch.full((2,), z))[i])

        low = integrate.quad(lambda z, f=cdf: f(z) ** 2, -60, float(y[i]), limit=200, points=[0.0])[0]
        high = integrate.quad(lambda z, f=cdf: (1 - f(z)) ** 2, float(y[i]), 100, limit=200)[0]
        assert float(found[i]) == pytest.approx(low + high, abs=2e-3)
    counts = ValuePrediction(RATES.mean(0), RATES.mean(0), RATES.var(0), components=poisson())
    target = torch.tensor([4.0, 25.0, 380.0])
    z = np.arange(2000)
    cdf = np.mean([stats.poisson(row[:, None]).cdf(z) for row in RATES.numpy()], 0)
    expected = ((cdf - (z >= target.numpy()[:, None])) ** 2).sum(1)
    torch.testing.assert_close(scores.crps_each(counts, target), torch.as_tensor(expected), rtol=1e-6, atol=1e-6)


def test_intervals_include_the_noise_of_every_likelihood():
    found, _ = ensemble(L.HeteroscedasticGaussian(), outputs=2)
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    prediction = found.predict(x)
    y = prediction.sample(1, seed=3)[0]
    low, high = prediction.interval(0.8)
    inside = float(((y >= low) & (y <= high)).double().mean())
    assert abs(inside - 0.8) < 4 * math.sqrt(0.16 / 200)
    assert prediction.mean.shape == low.shape == (200, 1)


def test_memory_of_a_prediction_is_bounded_and_thinning_is_said(monkeypatch):
    found, _ = ensemble(L.Gaussian(0.5), members=10)
    x = torch.zeros(8, 3)
    whole = found.predict(x)
    monkeypatch.setattr(predictions, "_KEPT", 50)  # numbers: 3 members of 8 inputs with 2 parameters
    thinned = found.predict(x)
    torch.testing.assert_close(thinned.mean, whole.mean)
    with pytest.warns(UserWarning, match="use 3 of 10 members"):
        thinned.interval(0.9)
    assert found.predict(x, samples=True).components.members == 10


def test_inputs_may_be_data_sets_and_loaders():
    found, _ = ensemble(L.Gaussian(0.5))
    x, y = torch.randn(10, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(10)
    expected = found.predict(x).mean
    for given in (
        TensorDataset(x),
        TensorDataset(x, y),
        DataLoader(TensorDataset(x, y), batch_size=4),
        DataLoader(x, batch_size=4),
        torch.utils.data.Subset(TensorDataset(x, y), range(10)),
    ):
        torch.testing.assert_close(found.predict(given).mean, expected)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    assert lv.compare({"a": found}, loader).examples == 10
    torch.testing.assert_close(found[::2].predict(x).mean, lv.Ensemble.concat([found[::2]]).predict(x).mean)


def test_a_single_example_is_told_how_to_be_passed():
    x, y = torch.randn(20, 4), torch.randn(20)
    posterior = lv.Posterior(nn.Linear(4, 1), L.Gaussian(0.5), num_data=20)
    run = lv.sample(posterior, (x, y), lv.SGLD, lr=1e-3, steps=10, progress=False)
    with pytest.raises(ValueError, match=r"predict\(x\[None\]\)"):
        run.predict(x[0])
    assert run.predict(x[0][None]).mean.shape == (1, 1)


def test_bad_levels_and_targets_are_refused():
    prediction = ensemble(L.Gaussian(0.5))[0].predict(torch.zeros(4, 3))
    for call, message in (
        (lambda: prediction.interval(1.0), r"interval\(0.9\)"),
        (lambda: prediction.quantile(0), r"quantile\(0.5\)"),
        (lambda: prediction.sample(0), "1 or more"),
        (lambda: prediction.log_prob(torch.zeros(3)), "one y for every value"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_members_with_different_likelihoods_are_averaged_by_their_moments():
    a, _ = ensemble(L.Gaussian(0.5))
    b, _ = ensemble(L.StudentT(0.5))
    x = torch.zeros(2, 3)
    both = lv.Ensemble.concat([a, b]).predict(x)
    torch.testing.assert_close(both.mean, (a.predict(x).mean + b.predict(x).mean) / 2)
    assert both.mixture.gaussian


def test_labels_are_drawn_from_their_probabilities():
    found, _ = ensemble(L.Categorical(), outputs=3)
    prediction = found.predict(torch.zeros(2, 3))
    draws = prediction.sample(10_000, seed=1)
    for label in range(3):
        p = prediction.probs[:, label].double()
        shares = (draws == label).double().mean(0)
        assert ((shares - p).abs() < 4 * (p * (1 - p) / 10_000).sqrt()).all()
    torch.testing.assert_close(
        prediction.log_prob(torch.tensor([0, 2])), prediction.probs[[0, 1], [0, 2]].log().double()
    )


def test_targets_outside_the_support_have_no_density():
    """A Poisson density of −1 or 0.5 would be some number, and a score of it wrong in silence."""
    for wrong in ([-1.0, 3.0, 2.0], [0.5, 3.0, 2.0], [math.nan, 3.0, 2.0]):
        with pytest.raises(ValueError, match=r"1 of 3 targets are outside, such as (-1|0.5|nan)"):
            poisson().log_prob(torch.tensor(wrong))
    assert bool(poisson().log_prob(torch.tensor([0.0, 3.0, 2.0])).isfinite().all())
