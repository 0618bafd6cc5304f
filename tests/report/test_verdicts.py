"""Every verdict in every case: level and message."""

import math

import pytest
import torch

from langevin.core.statistics import Estimate
from langevin.diagnostics.directions import Direction
from langevin.diagnostics.stationarity import Stationarity
from langevin.diagnostics.target_temperature import Temperatures
from langevin.evaluation.attacks import Attacked
from langevin.evaluation.calibration import Reliability, calibration_error, reliability
from langevin.evaluation.compare import Interval
from langevin.evaluation.ood import Detection
from langevin.report import verdicts

NAN = math.nan


@pytest.mark.parametrize(
    ("mean", "error", "target", "level", "message"),
    [
        (1.02, 0.03, 1.0, "good", "Temperature 1.02 ± 0.03 (virial): on target (1)."),
        (0.50, 0.01, 0.5, "good", "on target (0.5)"),
        (1.30, 0.05, 1.0, "bad", "too hot, target 1"),
        (0.70, 0.05, 1.0, "bad", "too cold, target 1"),
        (2.00, 0.05, 1.0, "bad", "too hot"),
        (1.06, 0.03, 1.0, "check", "perhaps a little hot"),  # on target within one standard error, not within two
        (1.16, 0.04, 1.0, "check", "perhaps a little hot"),
        (1.09, 0.03, 1.0, "check", "perhaps a little hot"),
        (0.91, 0.03, 1.0, "check", "perhaps a little cold"),
        (1.00, 0.30, 1.0, "unknown", "too uncertain to compare"),
        (1.00, NAN, 1.0, "unknown", "too short for a standard error"),
        (NAN, NAN, 1.0, "unknown", "No temperature was measured"),
    ],
)
def test_temperature(mean, error, target, level, message):
    verdict = verdicts.temperature(Temperatures(target, Estimate(mean, error)), "SGLD", True)
    assert verdict.level == level
    assert message in verdict.message


ON = Estimate(1.0, 0.02)


@pytest.mark.parametrize(
    ("readings", "level", "message"),
    [
        ({"gradient": ON}, "good", "1.00 ± 0.02 (virial), 1.00 ± 0.02 (gradient): on target (1)."),
        ({"gradient": Estimate(1.3, 0.5)}, "good", "on target (1); the other thermometer is too uncertain to tell"),
        ({"gradient": Estimate(1.5, 0.1)}, "bad", "stiff directions are too hot"),
        ({"gradient": Estimate(1.1, 0.02)}, "check", "perhaps a little hot"),
        ({"stiffest": Estimate(1.6, 0.1)}, "bad", "stiffest direction at 1.60 ± 0.10 is too hot"),
        ({"virial": Estimate(0.7, 0.02), "gradient": ON}, "bad", "soft directions are too cold"),
        (
            {"virial": Estimate(0.7, 0.02), "gradient": Estimate(1.4, 0.02)},
            "bad",
            "gradient at 1.40 ± 0.02 is too hot and",
        ),
        ({"virial_by_tensor": {"a": ON, "b": Estimate(0.5, 0.05)}}, "bad", "virial, b at 0.50 ± 0.05 is too cold"),
        ({"gradient_by_tensor": {"a": Estimate(2.0, 0.1)}}, "bad", "gradient, a at 2.00 ± 0.10 is too hot"),
        ({"softest": [Direction(1.0, Estimate(0.4, 0.1))]}, "bad", "softest direction 1 at 0.40 ± 0.10 is too cold"),
        ({"virial_by_tensor": {str(i): Estimate(1.27, 0.08) for i in range(20)}}, "good", "on target"),  # 20 are many
        ({"virial_by_tensor": {"0": Estimate(1.27, 0.08)}}, "good", "on target"),
        ({"virial_by_tensor": {"0": Estimate(1.29, 0.08)}}, "bad", "too hot"),
        ({"virial": Estimate(1.0, NAN), "gradient": ON}, "good", "1.00 ± unknown (virial)"),
    ],
)
def test_the_worst_reading_decides(readings, level, message):
    verdict = verdicts.temperature(Temperatures(**{"target": 1.0, "virial": ON, **readings}), "SGLD", True)
    assert message in verdict.message
    assert verdict.level == level


def test_methods_without_a_temperature_have_no_temperature_verdict():
    assert verdicts.temperature(None, "SWAG", True) is None
    for target, posterior in ((1.0, False), (0.0, True)):
        verdict = verdicts.temperature(Temperatures(target, Estimate(0.3, 0.01)), "SGD", posterior)
        assert verdict.level == "unknown"
        assert "not samples of the posterior" in verdict.message


def test_a_custom_sampler_has_no_known_target_temperature():
    verdict = verdicts.temperature(Temperatures(NAN, Estimate(1.0, 0.01)), "This sampler", True)
    assert verdict.level == "unknown"
    assert "Temperature 1.00 ± 0.01 (virial); the target temperature of a custom sampler is unknown" in verdict.message


@pytest.mark.parametrize(
    ("chains", "draws", "worst", "share", "why", "level", "message"),
    [
        (4, 100, 1.04, 0.0, "", "good", "The 4 chains agree"),
        (4, 100, 1.06, 0.05, "", "good", "R̂ ≤ 1.05 on 95%"),
        (4, 100, 1.4, 0.12, "", "bad", "R̂ reaches 1.4 and is above 1.05 on 12% of the probe set."),
        (4, 100, 1.1, 0.12, "", "check", "Chains disagree"),
        (4, 100, math.inf, 0.02, "", "bad", "stuck at different values"),
        (1, 100, NAN, NAN, "", "unknown", "R̂ needs at least two chains"),
        (2, 1, NAN, NAN, "", "unknown", "1 samples per chain are too few"),
        (2, 1, NAN, NAN, "because", "unknown", "Unknown: because."),
    ],
)
def test_convergence(chains, draws, worst, share, why, level, message):
    verdict = verdicts.convergence(chains, draws, worst, share, why)
    assert verdict.level == level
    assert message in verdict.message
    assert ("Run longer" in verdict.advice) == ("disagree" in verdict.message)


@pytest.mark.parametrize(
    ("samples", "ess", "level", "message"),
    [
        (400, 120.0, "good", "ESS 120 of 400 samples: enough"),
        (400, 99.0, "check", "large Monte Carlo error"),
        (3, NAN, "unknown", "3 samples are too few"),
        (1, NAN, "unknown", "One sample: epistemic uncertainty cannot be estimated"),
    ],
)
def test_effective(samples, ess, level, message):
    verdict = verdicts.effective(samples, ess)
    assert verdict.level == level
    assert message in verdict.message


def trace(name, chain, z, stationary):
    return Stationarity(name, chain, early=2.0, late=1.0, z=z, p_value=0.01, stationary=stationary)


def test_stationarity():
    assert verdicts.stationary([]).level == "unknown"
    assert verdicts.stationary([trace("loss", 0, NAN, None)]).level == "unknown"
    assert verdicts.stationary([trace("loss", 0, 1, True), trace("loss", 1, NAN, None)]).level == "good"
    verdict = verdicts.stationary([trace("loss", 0, 4, False), trace("loss", 2, -9, False), trace("loss", 3, 1, True)])
    assert verdict.level == "check"
    assert "The loss of chain 2 drifts, from 2 to 1, and 1 more traces" in verdict.message
    assert "more" not in verdicts.stationary([trace("loss", 0, 4, False)]).message.split("drifts")[1].split(":")[0]


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
        (0.08, 0.97, 0.90, "check", "Overconfident: confidence 0.97, accuracy 0.90"),
        (0.20, 0.97, 0.77, "bad", "Overconfident"),
        (0.20, 0.70, 0.90, "check", "Underconfident"),
        (0.029, 0.93, 0.90, "check", "Overconfident"),  # the bins are within chance, their mean is not
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
        (0.48, 0.82, "check", "overconfident: 82%"),
        (0.4, 0.6, "bad", "overconfident: 60%"),
        (0.75, 0.9, "check", "underconfident: 75%"),  # right at 90 % alone
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
    assert (good.level, check.level, bad.level) == ("good", "check", "bad")
    assert "Detects a: AUROC 0.95 by entropy, FPR95 20%." in good.message
    assert "Does not detect c" in bad.message


@pytest.mark.parametrize(
    ("accuracy", "auroc", "level"), [(0.9, 0.5, "good"), (0.6, 0.5, "check"), (0.1, 0.95, "check"), (0.1, 0.6, "bad")]
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


def test_corrupted_samples_are_named():
    assert verdicts.corrupted([], 10) is None
    verdict = verdicts.corrupted(["the sample of chain 0 at step 90 has NaN or infinity in 0.weight"], 9)
    assert verdict.level == "bad"
    assert "chain 0 at step 90" in verdict.message
    assert "9 samples remain" in verdict.message
    assert "; …" in verdicts.corrupted(["a", "b", "c", "d"], 1).message
