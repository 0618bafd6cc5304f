import math

import pytest
import torch

from langevin.evaluation import scores


def test_scores_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    labels = torch.tensor([0, 1, 1, 0])
    assert scores.accuracy(probs, labels) == 0.75
    expected = -(math.log(0.9) + math.log(0.2) + math.log(0.7) + math.log(0.6)) / 4
    assert scores.negative_log_likelihood(probs, labels) == pytest.approx(expected)
    # by confidence: 0.6 right, 0.7 right | 0.8 wrong, 0.9 right
    found = scores.reliability(probs, labels, bins=2)
    torch.testing.assert_close(found.confidence, torch.tensor([0.65, 0.85]).double())
    assert found.accuracy.tolist() == [1.0, 0.5]
    assert scores.calibration_error(probs, labels, bins=2) == pytest.approx((0.35 + 0.35) / 2)
    assert scores.calibration_error(probs[:3], labels[:3], bins=2) == pytest.approx((2 * abs(0.75 - 0.5) + 0.1) / 3)
    with pytest.raises(ValueError, match="not logits"):
        scores.accuracy(probs * 3, labels)
