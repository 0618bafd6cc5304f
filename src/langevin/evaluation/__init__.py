"""Evaluation of predictions: scores, calibration, out-of-distribution detection, adversarial attacks, comparison."""

from langevin.evaluation.attacks import FGSM as FGSM
from langevin.evaluation.attacks import PGD as PGD
from langevin.evaluation.compare import Comparison as Comparison
from langevin.evaluation.compare import compare as compare
