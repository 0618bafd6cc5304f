"""Every finding about predictions in every case: level and message."""

import math

import pytest
import torch

from langevin.evaluation.attacks import Attacked
from langevin.evaluation.calibration import Reliability, calibration_error, reliability
from langevin.evaluation.compare import Interval
from langevin.evaluation.ood import Detection
from langevin.report import verdicts

NAN = math.nan


def test_chance_is_that_of_calibrated_predictions():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(800, 3, generator=generator).softmax(1)
    confidence, predicted = probs.max(1)
    chance = verdicts.chance_level(reliability(probs, predicted))
    errors, gaps, alarms = [], [], 0
    repeats = 300
    for _ in range(repeats):
        labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
        accuracy = float((predicted == labels).double().mean())
        errors.append(calibration_error(probs, labels))
        gaps.append(float(confidence.mean()) - accuracy)
        alarms += verdicts.calibration(errors[-1], float(confidence.mean()), accuracy, chance).level != "good"
    errors, gaps = torch.tensor(errors), torch.tensor(gaps)
    mean_error, deviation_error = float(errors.std()) / repeats**0.5, 1 / (2 * repeats) ** 0.5
    assert abs(float(errors.mean()) - chance.error) < 4 * mean_error
    assert abs(float(errors.std()) / chance.spread - 1) < 4 * deviation_error
    assert abs(float(gaps.std()) / chance.gap - 1) < 4 * deviation_error
    assert alarms / repeats < 0.1  # two tests at two standard deviations, about 0.02 and 0.05
    one = Reliability(torch.tensor([0.8]), torch.tensor([0.8]), torch.tensor([100]))
    assert verdicts.chance_level(one) == pytest.approx([math.sqrt(2 / math.pi) * 0.04, 0.6028 * 0.04, 0.04], rel=1e-3)


@pytest.mark.parametrize(
    ("error", "confidence", "accuracy", "level", "message"),
    [
        (0.02, 0.9, 0.91, "good", "No miscalibration detected"),
        (0.008, 0.9, 0.91, "good", "No miscalibration detected"),
        (0.08, 0.97, 0.90, "warning", "Overconfident: confidence 0.97, accuracy 0.90"),
        (0.20, 0.97, 0.77, "bad", "Overconfident"),
        (0.20, 0.70, 0.90, "warning", "Underconfident"),
        (0.029, 0.93, 0.90, "warning", "Overconfident"),  # the bins are within chance, their mean is not
    ],
)
def test_calibration(error, confidence, accuracy, level, message):
    verdict = verdicts.calibration(error, confidence, accuracy, verdicts.Chance(0.02, 0.005, 0.01))
    assert verdict.level == level
    assert message in verdict.message


@pytest.mark.parametrize(
    ("half", "most", "level", "message"),
    [
        (0.51, 0.91, "good", "no miscalibration detected"),
        (0.48, 0.82, "warning", "overconfident: 82%"),
        (0.4, 0.6, "bad", "overconfident: 60%"),
        (0.75, 0.9, "warning", "underconfident: 75%"),  # right at 90 % alone
        (0.3, 0.9, "bad", "overconfident: 30%"),
    ],
)
def test_coverage_is_judged_at_all_levels(half, most, level, message):
    verdict = verdicts.coverage({0.5: half, 0.9: most}, 400)
    assert verdict.level == level
    assert message in verdict.message.lower()


def test_with_few_examples_low_coverage_is_within_chance():
    assert verdicts.coverage({0.5: 0.5, 0.9: 0.8}, 10).level == "good"


def test_five_percent_of_calibrated_models_are_suspected():
    generator = torch.Generator().manual_seed(0)
    alarms, repeats = 0, 1000
    for _ in range(repeats):
        distance = torch.rand(2000, generator=generator)
        found = {k / 10: float((distance <= k / 10).double().mean()) for k in range(1, 10)}
        alarms += verdicts.coverage(found, 2000).level != "good"
    assert 0.005 < alarms / repeats < 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)


def test_ood():
    (unknown,) = verdicts.ood({})
    assert unknown.level == "unknown"
    assert 'ood={"name": inputs}' in unknown.advice
    found = {
        name: {"entropy": Detection(auroc, 0.9, 0.2), "max probability": Detection(auroc - 0.1, 0.9, 0.3)}
        for name, auroc in (("a", 0.95), ("b", 0.8), ("c", 0.6))
    }
    good, check, bad = verdicts.ood(found)
    assert (good.level, check.level, bad.level) == ("good", "warning", "bad")
    assert "Detects a: AUROC 0.95 by entropy, FPR95 20%." in good.message
    assert "Does not detect c" in bad.message


@pytest.mark.parametrize(
    ("accuracy", "auroc", "level"),
    [(0.9, 0.5, "good"), (0.6, 0.5, "warning"), (0.1, 0.95, "warning"), (0.1, 0.6, "bad")],
)
def test_attack(accuracy, auroc, level):
    result = Attacked(torch.zeros(1), 0.95, accuracy, 1.0, {"entropy": Detection(auroc, 0.5, 0.5)})
    verdict = verdicts.attacked("FGSM(0.1)", result)
    assert verdict.level == level
    assert f"Under FGSM(0.1) accuracy falls from 95% to {accuracy:.0%}" in verdict.message


@pytest.mark.parametrize(
    ("interval", "level", "message"),
    [
        (Interval(0.166, 0.1, 0.24), "good", "Better than SGD: NLL lower by 0.166 nats (interval 0.100 to 0.240)."),
        (Interval(-0.05, -0.08, -0.02), "bad", "Worse than SGD: NLL higher by 0.050 nats (interval 0.020 to 0.080)."),
        (Interval(0.01, -0.02, 0.04), "unknown", "No significant difference from SGD"),
        (Interval(-0.01, -0.02, 0.04), "unknown", "higher by 0.010 nats (interval −0.040 to 0.020)"),
        (Interval(0.1, NAN, NAN), "unknown", "NLL lower by 0.100 nats."),
    ],
)
def test_baseline(interval, level, message):
    verdict = verdicts.baseline("SGD", interval)
    assert verdict.level == level
    assert message in verdict.message
