"""Temperature scaling: confidence of anything that predicts, corrected by one number.

Guo, Pleiss, Sun & Weinberger (2017), "On calibration of modern neural networks", ICML. The probabilities of all classes
are raised to the power 1/τ and normalized, with τ minimizing the negative log-likelihood of held-out data. Labels do
not change, confidence does: τ > 1 corrects overconfidence. (τ has nothing to do with the temperature of a sampler.)
Values have their predictive standard deviation multiplied by τ about the mean, and become Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.evaluation.checks import checked
from langevin.evaluation.inputs import examples, prediction_of

CITATION = """@inproceedings{guo2017calibration,
  title = {On Calibration of Modern Neural Networks},
  author = {Guo, Chuan and Pleiss, Geoff and Sun, Yu and Weinberger, Kilian Q.},
  booktitle = {International Conference on Machine Learning},
  year = {2017}
}"""
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class TemperatureScaled:
    """Anything that predicts, with its confidence corrected by τ; it predicts too."""

    source: Any
    tau: float
    has_members: ClassVar[bool] = False  # it predicts as a whole

    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The corrected prediction. What is not epistemic is what remains of the corrected entropy or variance."""
        if samples:
            raise ValueError("Temperature scaling changes the mean prediction, not those of members: samples=False.")
        prediction = prediction_of(self.source, x, batch_size=batch_size)
        if isinstance(prediction, ClassPrediction):
            probs = _powered(prediction.probs.double(), self.tau)
            entropy = torch.special.entr(probs).sum(1)
            share = (prediction.aleatoric / prediction.entropy.clamp_min(_TINY)).clamp(0, 1).double()
            dtype = prediction.probs.dtype
            return ClassPrediction(probs.to(dtype), entropy.to(dtype), (share * entropy).to(dtype))
        square = self.tau**2
        return ValuePrediction(prediction.mean, square * prediction.aleatoric, square * prediction.epistemic)


def temperature_scaling(source: Any, calibration: Any, *, batch_size: int = 1024) -> TemperatureScaled:
    """Find τ on data (x, y) that were not used for training; `source` is a run, a fit, or a module with logits."""
    x, y = examples(calibration)
    prediction = prediction_of(source, x, batch_size=batch_size)
    if isinstance(prediction, ValuePrediction):  # the minimum is known: the mean squared z-score is 1
        residual = y.to(prediction.mean.device).reshape(prediction.mean.shape).double() - prediction.mean.double()
        return TemperatureScaled(source, math.sqrt(float((residual.square() / prediction.variance.double()).mean())))
    probs, labels = checked(prediction.probs, y)
    low, high = math.log(1e-2), math.log(1e2)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):  # convex in 1/τ, so unimodal in log τ
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _loss(probs, labels, math.exp(left)) < _loss(probs, labels, math.exp(right)):
            high = right
        else:
            low = left
    return TemperatureScaled(source, math.exp((low + high) / 2))


def _powered(probs: Tensor, tau: float) -> Tensor:
    return (probs.clamp_min(_TINY).log() / tau).softmax(1)


def _loss(probs: Tensor, labels: Tensor, tau: float) -> float:
    chosen = (probs.clamp_min(_TINY).log() / tau).log_softmax(1).gather(1, labels[:, None])
    return -float(chosen.mean())
