"""Split conformal prediction: sets and intervals with guaranteed coverage, on top of any prediction.

Vovk, Gammerman & Shafer (2005), "Algorithmic learning in a random world". A score s(x, y) is computed on n calibration
examples, used nowhere else; y belongs to the set of a new x if its score is at most the ⌈(n + 1)(1 − α)⌉-th smallest.
If calibration and test examples are exchangeable, the set contains y with probability at least 1 − α, and at most
1 − α + 1/(n + 1) if there are no ties, whatever the model. That holds on average over inputs, not for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.evaluation.checks import checked
from langevin.evaluation.inputs import examples, prediction_of

CITATION = """@book{vovk2005algorithmic,
  title = {Algorithmic Learning in a Random World},
  author = {Vovk, Vladimir and Gammerman, Alexander and Shafer, Glenn},
  publisher = {Springer},
  year = {2005}
}"""


@dataclass(frozen=True)
class Conformal:
    """A calibrated threshold, for sets of classes or intervals of values of anything that predicts.

    Of classes, the score is 1 − p(y): the set has all classes of a probability at least 1 − threshold. Of values, it
    is how far y lies outside the central interval of probability `coverage`, whose ends are moved by the threshold
    (conformalized quantiles); it may be negative, if the model was underconfident.
    """

    source: Any
    coverage: float
    threshold: float
    examples: int  # of calibration
    batch_size: int = 1024

    def sets(self, x: Any) -> Tensor:
        """Which classes belong to the set of each input, (n, classes) of bool."""
        prediction = self._prediction(x)
        if not isinstance(prediction, ClassPrediction):
            raise ValueError("These are predictions of values; write .intervals(x).")
        return prediction.probs.double() >= 1 - self.threshold

    def intervals(self, x: Any) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, each in the shape of y."""
        prediction = self._prediction(x)
        if not isinstance(prediction, ValuePrediction):
            raise ValueError("These are predictions of classes; write .sets(x).")
        low, high = prediction.interval(self.coverage)
        low, high = low.double() - self.threshold, high.double() + self.threshold
        middle = (low + high) / 2
        return torch.minimum(low, middle), torch.maximum(high, middle)  # a negative threshold may empty an interval

    def _prediction(self, x: Any) -> Prediction:
        return prediction_of(self.source, x, batch_size=self.batch_size)


def conformal(source: Any, calibration: Any, *, coverage: float = 0.9, batch_size: int = 1024) -> Conformal:
    """Calibrate anything that predicts on data (x, y) that were used neither for training nor for choosing it.

    Args:
        source: a run, a fit or any object with `predict(x)`; a module that returns logits.
        calibration: at least ⌈1/(1 − coverage)⌉ − 1 examples (x, y).
        coverage: the probability with which sets and intervals contain y; of several values, all of them at once.
        batch_size: inputs at a time.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1; given {coverage}. Write coverage=0.9.")
    x, y = examples(calibration)
    alpha = 1 - coverage
    least = math.ceil(1 / alpha - 1e-9) - 1
    if len(y) < least:
        raise ValueError(
            f"{len(y)} calibration examples are too few for a coverage of {coverage:g}: even the largest score would "
            f"not do. Give at least {least} examples, or coverage={math.floor(100 * len(y) / (len(y) + 1)) / 100:g}."
        )
    prediction = prediction_of(source, x, batch_size=batch_size)
    if isinstance(prediction, ClassPrediction):
        probs, labels = checked(prediction.probs, y)
        scores = 1 - probs.gather(1, labels[:, None]).squeeze(1)
    else:
        low, high = prediction.interval(coverage)
        target = y.to(low.device).reshape(low.shape).double()
        outside = torch.maximum(low.double() - target, target - high.double())
        scores = outside.reshape(len(outside), -1).amax(1)
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    threshold = float(scores.sort().values[rank - 1])
    return Conformal(source, coverage, threshold, len(scores), batch_size)
