"""Evaluation of predictions: scores, calibration, out-of-distribution detection, adversarial attacks, comparison."""

from langevin.evaluation.attacks import FGSM as FGSM
from langevin.evaluation.attacks import PGD as PGD
from langevin.evaluation.compare import Comparison as Comparison
from langevin.evaluation.compare import compare as compare
from langevin.evaluation.conformal import Conformal as Conformal
from langevin.evaluation.conformal import conformal as conformal
from langevin.evaluation.temperature_scaling import TemperatureScaled as TemperatureScaled
from langevin.evaluation.temperature_scaling import temperature_scaling as temperature_scaling
