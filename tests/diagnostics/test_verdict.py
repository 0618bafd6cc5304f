"""Every finding about chains in every case; and whole runs: wrong ones are bad, correct ones raise no alarm."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.statistics import Estimate
from langevin.diagnostics import verdict
from langevin.diagnostics.convergence import Convergence
from langevin.diagnostics.directions import Direction
from langevin.diagnostics.stationarity import Stationarity
from langevin.diagnostics.target_temperature import Temperatures
from langevin.diagnostics.verdict import Finding, Verdict
from langevin.errors import ConvergenceWarning
from tests.helpers import toy_data, toy_posterior

NAN = math.nan


@pytest.mark.parametrize(
    ("mean", "error", "target", "level", "message"),
    [
        (1.02, 0.03, 1.0, "good", "Temperature 1.02 ± 0.03 (virial): on target (1)."),
        (0.50, 0.01, 0.5, "good", "on target (0.5)"),
        (1.30, 0.05, 1.0, "bad", "too hot, target 1"),
        (0.70, 0.05, 1.0, "bad", "too cold, target 1"),
        (2.00, 0.05, 1.0, "bad", "too hot"),
        (1.06, 0.03, 1.0, "good", "on target"),  # within 10 %
        (1.16, 0.04, 1.0, "warning", "perhaps a little hot"),
        (1.12, 0.03, 1.0, "warning", "perhaps a little hot"),
        (0.88, 0.03, 1.0, "warning", "perhaps a little cold"),
        (1.00, 0.30, 1.0, "unknown", "too uncertain to compare"),
        (1.00, NAN, 1.0, "unknown", "too short for a standard error"),
        (9.00, NAN, 1.0, "bad", "far too hot"),
        (NAN, NAN, 1.0, "unknown", "No temperature was measured"),
    ],
)
def test_temperature(mean, error, target, level, message):
    finding = verdict.temperature(Temperatures(target, Estimate(mean, error)), "SGLD", True)
    assert finding.level == level
    assert message in finding.message


ON = Estimate(1.0, 0.02)


@pytest.mark.parametrize(
    ("readings", "level", "message"),
    [
        ({"gradient": ON}, "good", "1.00 ± 0.02 (virial), 1.00 ± 0.02 (gradient): on target (1)."),
        ({"gradient": Estimate(1.3, 0.5)}, "good", "on target (1); the gradient one is too uncertain to tell"),
        ({"gradient": Estimate(1.5, 0.1)}, "bad", "stiff directions are too hot"),
        ({"gradient": Estimate(1.12, 0.02)}, "warning", "perhaps a little hot"),
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
    finding = verdict.temperature(Temperatures(**{"target": 1.0, "virial": ON, **readings}), "SGLD", True)
    assert message in finding.message
    assert finding.level == level


def test_methods_without_a_temperature_have_no_finding_about_it():
    assert verdict.temperature(None, "SWAG", True) is None
    for target, posterior in ((1.0, False), (0.0, True)):
        finding = verdict.temperature(Temperatures(target, Estimate(0.3, 0.01)), "SGD", posterior)
        assert finding.level == "unknown"
        assert "not samples of the posterior" in finding.message


def test_a_custom_sampler_has_no_known_target_temperature():
    finding = verdict.temperature(Temperatures(NAN, Estimate(1.0, 0.01)), "This sampler", True)
    assert finding.level == "unknown"
    assert "Temperature 1.00 ± 0.01 (virial); the target temperature of a custom sampler is unknown" in finding.message


def convergence_of(rhat, *, chains=4, draws=100, ess=400.0, space="function", why=""):
    """What `langevin.diagnostics.convergence` finds, with these R̂ and one ESS."""
    rhat = np.asarray(rhat, dtype=float)
    ess = np.full(len(rhat), ess)
    unknown = {"rhat": why} if why else {}
    return Convergence(space, ["a"] * len(rhat), chains, draws, ess, ess, ess, ess, rhat, unknown=unknown)


@pytest.mark.parametrize(
    ("rhat", "options", "level", "message"),
    [
        ([1.04] * 100, {}, "good", "The 4 chains agree"),
        ([1.06] * 5 + [1.0] * 95, {}, "good", "R̂ ≤ 1.05 on 95%"),
        ([1.4] * 12 + [1.0] * 88, {}, "bad", "R̂ reaches 1.4 and is above 1.05 on 12% of the probe set."),
        ([1.1] * 12 + [1.0] * 88, {}, "warning", "Chains disagree"),
        ([1.1] * 12 + [1.0] * 88, {"ess": 80.0}, "good", "R̂ ≤ 1.16"),  # with few effective samples R̂ scatters
        ([math.inf] * 2 + [1.0] * 98, {}, "bad", "stuck at different values"),
        ([NAN], {"chains": 1}, "unknown", "R̂ needs at least two chains"),
        ([NAN], {"chains": 2, "draws": 1}, "unknown", "1 samples per chain are too few"),
        ([NAN], {"why": "because"}, "unknown", "Unknown: because."),
        ([1.01] * 20, {"space": "weights"}, "good", "on 100% of the weights"),
        ([3.0] * 20, {"space": "weights"}, "unknown", "R̂ reaches 3 in weight space"),  # not identifiable
    ],
)
def test_convergence(rhat, options, level, message):
    finding = verdict.convergence(convergence_of(rhat, **options))
    assert finding.level == level
    assert message in finding.message
    assert ("Run longer" in finding.advice) == ("disagree" in finding.message)


@pytest.mark.parametrize(
    ("samples", "ess", "options", "level", "message"),
    [
        (400, 120.0, {}, "good", "ESS 120 of 400 samples: enough"),
        (400, 99.0, {}, "warning", "large Monte Carlo error"),
        (3, NAN, {}, "unknown", "3 samples are too few"),
        (1, NAN, {}, "unknown", "One sample: epistemic uncertainty cannot be estimated"),
        (400, 9.0, {"space": "weights"}, "unknown", "in weight space"),
        (400, 9.0, {"space": "weights", "chains": 1}, "warning", "large Monte Carlo error"),
    ],
)
def test_effective(samples, ess, options, level, message):
    finding = verdict.effective(samples, convergence_of([1.0], ess=ess, **options))
    assert finding.level == level
    assert message in finding.message


def test_a_loss_far_above_the_start_is_a_divergence():
    assert verdict.loss(2.0, {0: [5.0, 6.0]}, spread=1.0) is None  # 5.5 ≤ 2 + 2 + 1 + 1
    assert verdict.loss(NAN, {0: [1e9]}, spread=1.0) is None
    finding = verdict.loss(2.0, {0: [1.0], 1: [5.0, 1e9]}, spread=1.0)
    assert finding.level == "bad"
    assert "The loss of chain 1 is 5e+08 on average, far above the 2 of the start" in finding.message
    assert finding.expected == "below 6"


@pytest.mark.parametrize(
    ("acceptance", "rejections", "level"),
    [
        (0.8, NAN, None),
        (0.3, NAN, "warning"),
        (0.05, NAN, "bad"),
        (NAN, 0.0005, None),
        (NAN, 0.01, "warning"),
        (NAN, 0.2, "bad"),
        (NAN, NAN, None),
    ],
)
def test_rejected_steps(acceptance, rejections, level):
    finding = verdict.rejected(acceptance, rejections)
    assert (finding and finding.level) == level


def test_the_worst_finding_decides():
    good, warning, bad, unknown = (Finding(x, x, f"{x}.", "Do it.") for x in ("good", "warning", "bad", "unknown"))
    of = partial(Verdict.of, temperature=Estimate(1.0, 0.02))
    assert of([good, None, unknown]).level == "good"
    assert of([good, warning]).level == "warning"
    assert of([good, warning, bad]).level == "bad"
    assert of([good, replace(unknown, about="Temperature")]).level == "warning"
    assert str(of([good, bad])) == "bad: T 1 ± 0.02, R̂ unknown, ESS unknown. bad. Do it."
    assert str(of([good], convergence=convergence_of([1.02]))) == "good: T 1 ± 0.02, R̂ 1.02, ESS 400."


def trace(name, chain, z, stationary):
    return Stationarity(name, chain, early=2.0, late=1.0, z=z, p_value=0.01, stationary=stationary)


def test_stationarity():
    assert verdict.stationary([]).level == "unknown"
    assert verdict.stationary([trace("loss", 0, NAN, None)]).level == "unknown"
    assert verdict.stationary([trace("loss", 0, 1, True), trace("loss", 1, NAN, None)]).level == "good"
    finding = verdict.stationary([trace("loss", 0, 4, False), trace("loss", 2, -9, False), trace("loss", 3, 1, True)])
    assert finding.level == "warning"
    assert "The loss of chain 2 drifts, from 2 to 1, and 1 more traces" in finding.message
    assert "more" not in verdict.stationary([trace("loss", 0, 4, False)]).message.split("drifts")[1].split(":")[0]


def test_a_temperature_may_drift_within_its_tolerance():
    small = replace(trace("temperature", 0, 9, False), early=0.095, late=0.101)
    assert verdict.stationary([small], target=0.1).level == "good"
    assert verdict.stationary([small], target=1.0).level == "warning"
    assert verdict.stationary([replace(small, early=0.08)], target=0.1).level == "warning"
    assert verdict.stationary([small]).level == "warning"
    assert verdict.stationary([replace(small, trace="loss")], target=0.1).level == "warning"


def test_corrupted_samples_are_named():
    assert verdict.corrupted([], 10) is None
    finding = verdict.corrupted(["the sample of chain 0 at step 90 has NaN or infinity in 0.weight"], 9)
    assert finding.level == "bad"
    assert "chain 0 at step 90" in finding.message
    assert "9 samples remain" in finding.message
    assert "; …" in verdict.corrupted(["a", "b", "c", "d"], 1).message


# whole runs


def regression(factor, **options):
    """SGLD on linear regression with sixteen orthogonal features, at a multiple of a good rate."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linalg.qr(torch.randn(64, 16, generator=generator)).Q * 8
    y = x.sum(1, keepdim=True) + torch.randn(64, 1, generator=generator)
    prior = lv.priors.Gaussian(1.0)
    posterior = lv.Posterior(nn.Linear(16, 1, bias=False), lv.likelihoods.Gaussian(1.0), prior, num_data=64)
    settings = {"steps": 1000, "burn_in": 200, "thin": 8, "mode": "vectorised", "compile": False}
    settings |= {"batch_size": 64, "progress": False, **options}
    return lv.sample(posterior, (x, y), lv.SGLD, lr=factor * 0.08, **settings)  # unstable at 2


def verdicts(runs, seed):
    """Of correct runs of four chains each, made as one."""
    run = regression(1.0, chains=4 * runs, seed=seed)
    groups = [run._some(run.samples[400 * i : 400 * (i + 1)]) for i in range(runs)]
    assert all(len(group.chains) == 4 for group in groups)
    return [group.verdict() for group in groups]


def test_correct_runs_raise_no_alarm():
    found = verdicts(8, seed=3)
    assert sum(v.level != "good" for v in found) <= 1, "\n".join(map(str, found))


@pytest.mark.slow
def test_many_correct_runs_raise_few_alarms():
    """With false alarms in 5 % of 160 runs, more than sixteen have probability 0.003.

    Seeds that no limit was chosen on. Those that are bad come from few readings of the gradient thermometer.
    """
    found = [each for seed in range(10, 14) for each in verdicts(40, seed)]
    assert sum(v.level != "good" for v in found) <= 16, "\n".join(map(str, found))


@pytest.mark.parametrize("seed", range(2))
def test_a_rate_that_is_far_too_large_is_bad(seed):
    with pytest.warns(ConvergenceWarning, match="The verdict on this run is bad.*too hot"):
        run = regression(22.0, chains=4, seed=seed)
    assert run.verdict().level == "bad"
    with pytest.warns(ConvergenceWarning, match="too hot|diverged"):  # of a network, whose loss stays finite
        network = lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=5.0, steps=400, seed=seed, progress=False)
    assert network.verdict().level == "bad"
