"""Where a verdict says to run longer, the call that does so stands beside it, for runs by autopilot."""

import math

import pytest

from langevin.diagnostics.verdict import Finding
from langevin.ensembles.advice import with_call

FEW = Finding("Effective sample size", "warning", "ESS 30 of 500 samples.", "Run longer.")
DRIFT = Finding("Stationarity", "warning", "The loss drifts.", "Run longer, with a longer burn-in.")
HOT = Finding("Temperature", "bad", "Too hot.", "Lower the learning rate or increase the batch size.")
PLAN = {"seconds": None, "times": None, "steps": None, "temperature": 1.0, "options": {}}


def manifest(enough=False, **plan):
    looks = [{"enough": enough}] * 2
    return {"autopilot": {"plan": PLAN | plan, "steps": 3000, "looks": looks}, "settings": {"steps": 800}}


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ({"seconds": 20.0}, 'lv.sample(posterior, data, budget="80 s")'),  # 100/30 times, and a fifth more
        ({"seconds": 90.0}, 'lv.sample(posterior, data, budget="6 min")'),
        ({"gradients": 500_000}, 'lv.sample(posterior, data, budget="2000000 gradients")'),
        ({"times": 5.0}, 'lv.sample(posterior, data, budget="20x")'),
        ({}, 'lv.sample(posterior, data, budget="12000 steps")'),
        ({"steps": 500}, "lv.sample(posterior, data, steps=2000)"),
        ({"enough": True}, "lv.resume(run, posterior, data, steps=3200)"),  # a larger budget would change nothing
        ({"enough": True, "temperature": "auto"}, "lv.sample(posterior, data, steps=3200)"),
    ],
)
def test_the_corrected_call_is_by_what_the_run_had(given, call) -> None:
    assert with_call(FEW, manifest(**given), 30.0).advice.startswith(f"Run longer: {call}")


def test_burn_in_needs_a_larger_budget() -> None:
    found = with_call(DRIFT, manifest(enough=True), math.nan).advice
    assert found == 'Run longer, with a longer burn-in: lv.sample(posterior, data, budget="6000 steps").'


@pytest.mark.parametrize("plan", [{"full_batch": True, "sampler": "MCLMC"}, {"sampler": "SGHMC"}])
def test_a_rate_that_follows_from_the_budget_is_lowered_by_a_larger_one(plan) -> None:
    found = with_call(HOT, manifest(**plan), math.nan).advice
    assert found == 'Run longer, with a longer burn-in: lv.sample(posterior, data, budget="6000 steps").'


def test_other_advice_and_other_runs_are_left_as_they_are() -> None:
    assert with_call(HOT, manifest(options={"lr": 1e-3}), 30.0) is HOT
    assert with_call(HOT, manifest(steps=500), 30.0) is HOT  # more samples leave the rate as it is
    assert with_call(HOT, manifest(sampler="ATMC"), 30.0) is HOT  # its rate is that of a search
    assert with_call(HOT, {"settings": {"steps": 800}}, 30.0) is HOT
    assert with_call(FEW, {"settings": {"steps": 800}}, 30.0) is FEW
