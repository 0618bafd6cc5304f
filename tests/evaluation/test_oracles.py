"""Every score against torchmetrics, scikit-learn or an independent computation, on random input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation import calibration, ood, scores, selective

SETTINGS = settings(max_examples=25, deadline=None)


@st.composite
def classified(draw, smallest=8):
    """Probabilities (n, classes), from nearly flat to nearly one-hot, and labels."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n, classes = draw(st.integers(smallest, 60)), draw(st.integers(2, 6))
    sharpness = draw(st.sampled_from([0.1, 1.0, 5.0]))
    probs = (sharpness * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (n,), generator=generator)


@SETTINGS
@given(classified())
def test_accuracy_likelihood_and_brier(case):
    from sklearn.metrics import accuracy_score, log_loss

    probs, labels = case
    assert scores.accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    expected = log_loss(labels, probs.numpy(), labels=np.arange(probs.shape[1]))
    assert scores.negative_log_likelihood(probs, labels) == pytest.approx(expected, rel=1e-9)
    one_hot = np.eye(probs.shape[1])[labels.numpy()]
    assert scores.brier(probs, labels) == pytest.approx(((probs.numpy() - one_hot) ** 2).sum(1).mean(), rel=1e-9)


@SETTINGS
@given(classified())
def test_brier_of_two_classes_is_twice_scikit_learns(case):
    from sklearn.metrics import brier_score_loss

    probs, labels = case
    two = torch.stack([probs[:, 0], 1 - probs[:, 0]], 1)
    second = (labels > 0).long()
    if len(second.unique()) == 2:
        assert scores.brier(two, second) == pytest.approx(2 * brier_score_loss(second, two[:, 1]), rel=1e-9)


@SETTINGS
@given(classified(), st.integers(1, 20))
def test_calibration_error_of_equal_width(case, bins):
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = case
    expected = multiclass_calibration_error(probs, labels, probs.shape[1], n_bins=bins, norm="l1")
    assert scores.calibration_error(probs, labels, bins, "width") == pytest.approx(float(expected), abs=1e-6)


@SETTINGS
@given(classified(), st.integers(1, 8))
def test_calibration_error_of_equal_mass(case, bins):
    """By numpy's `array_split` of the sorted confidences."""
    probs, labels = (t.numpy() for t in case)
    confidence, right = probs.max(1), probs.argmax(1) == labels
    bins_ = np.array_split(np.argsort(confidence, kind="stable"), bins)
    expected = sum(len(p) * abs(confidence[p].mean() - right[p].mean()) for p in bins_) / len(labels)
    assert scores.calibration_error(*case, bins) == pytest.approx(expected, rel=1e-9)


@SETTINGS
@given(classified(), st.sampled_from(["mass", "width"]))
def test_calibration_of_a_class_is_that_of_the_binary_problem(case, equal):
    probs, labels = case
    errors = calibration.class_calibration_errors(probs, labels, 5, equal)
    for c in range(probs.shape[1]):
        found = calibration.class_reliability(probs, labels, 5, equal)[c]
        assert int(found.size.sum()) == len(labels)
        assert float((found.accuracy * found.size).sum()) == pytest.approx(int((labels == c).sum()))
        assert float((found.confidence * found.size).sum()) == pytest.approx(float(probs[:, c].sum()))
        if equal == "width":
            from torchmetrics.functional.classification import binary_calibration_error

            expected = binary_calibration_error(probs[:, c], (labels == c).long(), n_bins=5, norm="l1")
            assert float(errors[c]) == pytest.approx(float(expected), abs=1e-6)


@SETTINGS
@given(st.integers(0, 2**31), st.integers(1, 80), st.integers(1, 80), st.booleans())
def test_detection(seed, inside, outside, ties):
    """AUROC is the probability that an OOD score exceeds an in-distribution one, ties counting half."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=inside), rng.normal(0.7, 2.0, size=outside)
    if ties:
        a, b = a.round(), b.round()
    found = ood.detection(torch.from_numpy(a), torch.from_numpy(b))
    wins = (b[:, None] > a[None]).mean() + 0.5 * (b[:, None] == a[None]).mean()
    assert found.auroc == pytest.approx(wins)
    thresholds = [t for t in np.unique(np.concatenate([a, b])) if (b >= t).mean() >= 0.95]
    assert found.fpr95 == pytest.approx((a >= max(thresholds)).mean())
    from torchmetrics.functional.classification import binary_average_precision

    both = torch.from_numpy(np.concatenate([a, b]))
    place = (both - both.min()) / (both.max() - both.min() + 1e-9)  # torchmetrics treats values above 1 as logits
    is_ood = torch.cat([torch.zeros(inside), torch.ones(outside)]).long()
    assert found.aupr == pytest.approx(float(binary_average_precision(place, is_ood)), abs=1e-5)


@SETTINGS
@given(classified())
def test_risk_coverage_by_brute_force(case):
    probs, labels = case
    found = selective.risk_coverage(probs, labels)
    confidence, wrong = probs.amax(1), (probs.argmax(1) != labels).double()
    order = confidence.argsort(descending=True)
    risks = [float(wrong[order[:k]].mean()) for k in range(1, len(labels) + 1)]
    assert found.risk.tolist() == pytest.approx(risks)
    assert found.aurc == pytest.approx(sum(risks) / len(risks))
    assert found.excess_aurc >= -1e-12
    assert found.risk_at(1.0) == pytest.approx(1 - scores.accuracy(probs, labels))


@SETTINGS
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([0.0, 0.3]))
def test_crps_of_a_mixture_by_quadrature(seed, components, spread):
    """∫ (F(t) − [t ≥ y])² dt; the mixture's distribution function is known."""
    from scipy.stats import norm

    rng = np.random.default_rng(seed)
    means, stds, y = rng.normal(size=components), rng.uniform(0.3, 1.5, components), rng.normal()
    stds = stds[:1] + spread * (stds - stds[:1])
    prediction = _mixture(means, stds**2)
    t = np.linspace(-15, 15, 60_001)
    cdf = norm.cdf((t[:, None] - means) / stds).mean(1)
    expected = integrate.trapezoid((cdf - (t >= y)) ** 2, t)
    target = torch.tensor([[y]])
    assert scores.crps(prediction, target) == pytest.approx(expected, abs=5e-4)
    density = norm.pdf((y - means) / stds) / stds
    found = scores.value_scores(prediction, target)["nll"]  # its terms are of order 1, in single precision
    assert found == pytest.approx(-math.log(density.mean()), rel=1e-6, abs=1e-6)


def test_crps_of_many_members_takes_some_of_the_pairs():
    """Of 400 correlated members, within a thousandth of what all pairs give."""
    walk = torch.randn(400, 30, 1, generator=torch.Generator().manual_seed(0)).double().cumsum(0) / 10
    noise, y = torch.full_like(walk, 0.25), torch.zeros(30, 1).double()
    many = ValuePrediction(walk.mean(0), noise.mean(0), walk.var(0), samples=walk, noise=noise)
    some = scores.crps_each(many, y)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scores, "_APART", 10**6)
        every = scores.crps_each(many, y)
    assert not torch.equal(some, every)
    torch.testing.assert_close(some, every, rtol=2e-3, atol=0)


def test_crps_of_one_gaussian_in_closed_form():
    """σ (z(2Φ(z) − 1) + 2φ(z) − 1/√π), and |y − m| without spread."""
    z = 0.7
    phi, above = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(z / math.sqrt(2)))
    expected = 2.0 * (z * (2 * above - 1) + 2 * phi - 1 / math.sqrt(math.pi))
    flat = torch.tensor([1.0])
    one = ValuePrediction(mean=flat, aleatoric=flat * 3, epistemic=flat)
    assert scores.crps(one, torch.tensor([1 + 2 * z])) == pytest.approx(expected, rel=1e-6)
    certain = ValuePrediction(mean=flat, aleatoric=flat * 0, epistemic=flat * 0)
    assert scores.crps(certain, torch.tensor([3.5])) == pytest.approx(2.5)


def test_crps_of_samples_is_that_of_torchmetrics():
    """With almost no noise the mixture is the empirical distribution of the samples."""
    from torchmetrics.functional.regression import continuous_ranked_probability_score

    draws, y = torch.randn(7, 30, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    prediction = ValuePrediction(draws.mean(0), torch.full((30,), 1e-20), draws.var(0), samples=draws)
    # both average |Y − Y′| over pairs with repetition
    expected = continuous_ranked_probability_score(draws.T, y)
    assert scores.crps(prediction, y) == pytest.approx(float(expected), rel=1e-6)


def test_root_mean_square_error():
    from sklearn.metrics import root_mean_squared_error

    mean, target = torch.randn(20, 3), torch.randn(20, 3)
    expected = math.sqrt(float((mean - target).square().mean()))
    assert scores.root_mean_square_error(mean, target) == pytest.approx(expected, rel=1e-6)
    column = scores.root_mean_square_error(mean[:, :1], target[:, 0])  # (n, 1) against (n,) does not broadcast
    assert column == pytest.approx(root_mean_squared_error(target[:, 0], mean[:, 0]), rel=1e-6)


def test_nll_of_a_gaussian_is_that_of_torch_distributions():
    mean, variance, y = torch.randn(9, 2), torch.rand(9, 2) + 0.1, torch.randn(9, 2)
    prediction = ValuePrediction(mean, variance * 0.25, variance * 0.75)
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).sum(1).mean()
    assert scores.value_scores(prediction, y)["nll"] == pytest.approx(float(expected), rel=1e-5)


def test_confidence_histogram():
    probs = torch.tensor([[0.5, 0.5], [0.95, 0.05], [0.0, 1.0], [0.7, 0.3]])
    edges, share = ood.confidence_histogram(probs, bins=10)
    assert edges.tolist() == pytest.approx([i / 10 for i in range(11)])
    assert share.tolist() == pytest.approx([0, 0, 0, 0, 0, 0.25, 0.25, 0, 0, 0.5], abs=1e-12)


def _mixture(means, variances):
    samples = torch.tensor(means).reshape(-1, 1, 1)
    noise = torch.tensor(variances).reshape(-1, 1, 1)
    return ValuePrediction(samples.mean(0), noise.mean(0), samples.var(0, correction=0), samples=samples, noise=noise)
