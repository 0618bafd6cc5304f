"""Bootstrap: standard errors are those of the central limit theorem, and paired differences cancel shared variation."""

import math

import numpy as np
import pytest
import torch

from langevin.evaluation import scores
from langevin.evaluation.bootstrap import difference, percentile_intervals, replicates


def predictions(n, seed, sharpness=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(sharpness * torch.randn(n, 4, generator=generator), 1), torch.randint(
        4, (n,), generator=generator
    )


def test_the_spread_of_a_mean_is_its_standard_error():
    probs, labels = predictions(500, seed=0)
    losses = -probs.gather(1, labels[:, None]).log()
    found = replicates(scores.negative_log_likelihood, probs, labels, number=2000)
    spread, expected = torch.tensor(found).std(), losses.std() / math.sqrt(500)
    assert abs(spread / expected - 1) < 5 / math.sqrt(2 * 2000)  # the relative error of a standard deviation
    assert abs(torch.tensor(found).mean() - losses.mean()) < 5 * expected / math.sqrt(2000)


def test_paired_differences_cancel_shared_variation():
    """The NLLs of two predictions that differ by a constant factor in p(label) differ by a constant."""
    probs, labels = predictions(300, seed=1)
    halved = probs.clone()
    rows = torch.arange(300)
    halved[rows, labels] = probs[rows, labels] / 2
    halved[rows, (labels + 1) % 4] += probs[rows, labels] / 2
    score = scores.negative_log_likelihood
    gap = difference(
        score(halved, labels), score(probs, labels), replicates(score, halved, labels), replicates(score, probs, labels)
    )
    assert gap.mean == pytest.approx(math.log(2), abs=1e-6)
    assert gap.error < 1e-6
    other = replicates(score, probs, labels, seed=1)
    assert difference(0, 0, replicates(score, halved, labels), other).error > 0.01  # different seeds are not paired


def test_percentile_intervals_are_the_quantiles_of_the_resamples(monkeypatch):
    """For several statistics at once, and independent of the batch size."""
    values = np.random.default_rng(0).normal(size=(3, 40))
    seen = []

    def means(chosen):
        seen.append(chosen)
        return values[:, chosen].mean(-1)

    options = {"resamples": 500, "level": 0.9, "seed": 4}
    low, high = percentile_intervals(means, 40, **options)
    resampled = np.concatenate(seen)
    assert resampled.shape == (500, 40)
    expected = np.quantile(values[:, resampled].mean(-1), [0.05, 0.95], axis=1)
    np.testing.assert_allclose([low, high], expected)
    monkeypatch.setattr("langevin.evaluation.bootstrap._BATCH", 40 * 7)  # seven resamples at a time
    np.testing.assert_allclose(percentile_intervals(means, 40, **options), expected)


def test_one_example_has_no_interval():
    low, high = percentile_intervals(lambda chosen: np.zeros((2, 3)), 1, resamples=10, level=0.9, seed=0)
    assert low.shape == high.shape == (2, 3)
    assert np.isnan([low, high]).all()


def test_bad_input():
    probs, labels = predictions(20, seed=0)
    with pytest.raises(ValueError, match="number=100"):
        replicates(scores.accuracy, probs, labels, number=1)
    with pytest.raises(ValueError, match="can't be paired"):
        difference(1.0, 0.0, [1.0, 2.0], [1.0, 2.0, 3.0])
