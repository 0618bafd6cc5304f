"""The bootstrap: its error is that of the central limit theorem, and pairs cancel what they share."""

import math

import pytest
import torch

from langevin.evaluation import scores
from langevin.evaluation.bootstrap import difference, replicates


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


def test_pairs_cancel_what_they_share():
    """Of two predictions that differ by a constant factor in p(label) the difference is known exactly."""
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
    assert difference(0, 0, replicates(score, halved, labels), other).error > 0.01  # another seed does not pair


def test_bad_input():
    probs, labels = predictions(20, seed=0)
    with pytest.raises(ValueError, match="number=100"):
        replicates(scores.accuracy, probs, labels, number=1)
    with pytest.raises(ValueError, match="can't be paired"):
        difference(1.0, 0.0, [1.0, 2.0], [1.0, 2.0, 3.0])
