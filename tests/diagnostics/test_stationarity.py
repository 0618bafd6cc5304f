import math

import numpy as np
import pytest

from langevin.diagnostics.stationarity import stationarity
from tests.diagnostics.chains import autoregressive

CELLS = [(rho, n, chains) for rho in (0.0, 0.5, 0.9, 0.97) for n in (100, 1000) for chains in (1, 4, 100)]


def outcomes(rho, n, chains, count, seed=3):
    """The shares of stationary runs that are said to drift, and of those that are unknown."""
    runs = autoregressive(rho, n=n, columns=count * chains, seed=seed).T.numpy().reshape(count, chains, n)
    found = [stationarity({"x": dict(enumerate(run))})[0].stationary for run in runs]
    return np.mean([answer is False for answer in found]), np.mean([answer is None for answer in found])


def test_false_alarms_are_at_the_level():
    """At level 0.05; batch means had 8 to 34 %."""
    alarms = []
    for cell in CELLS:
        count = {1: 200, 4: 100, 100: 30}[cell[2]]
        alarm, unknown = outcomes(*cell, count)
        alarms.append(alarm)
        assert alarm < 0.05 + 3 * math.sqrt(0.05 * 0.95 / count), cell
        if cell[0] < 0.9 and cell[1] == 1000:
            assert unknown == 0
    assert np.mean(alarms) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_false_alarms_are_at_most_seven_per_cent(cell):
    count = {1: 4000, 4: 2000, 100: 1000}[cell[2]]
    alarm, unknown = outcomes(*cell, count, seed=4)
    print(f"ρ {cell[0]}, n {cell[1]}, {cell[2]} chains: {alarm:.3f} false alarms, {unknown:.3f} unknown")
    assert alarm <= 0.07


def test_the_family_wise_error_rate_is_the_level():
    """60 families of 20 traces: about 3 have a false positive; unadjusted it would be 38."""
    traces = autoregressive(0.0, n=120, columns=1200).T.numpy().reshape(60, 20, 120)
    families = [stationarity({str(i): {0: trace} for i, trace in enumerate(family)}) for family in traces]
    positives = sum(any(test.stationary is False for test in family) for family in families)
    assert positives < 3 + 4 * math.sqrt(3)


def test_p_values_are_holms():
    traces = autoregressive(0.0, n=120, columns=5).T.numpy()
    traces[3, :40] += 1.0
    together = stationarity({str(i): {0: trace} for i, trace in enumerate(traces)})
    alone = [stationarity({"x": {0: trace}})[0].p_value for trace in traces]
    order = np.argsort(alone)
    adjusted = np.minimum(1, np.maximum.accumulate(np.sort(alone) * np.arange(5, 0, -1)))
    assert [together[i].p_value for i in order] == pytest.approx(list(adjusted))
    assert together[3].stationary is False
    assert together[3].z > 0 > together[3].late - together[3].early


@pytest.mark.parametrize("chains", [1, 4, 40])
def test_a_burn_in_that_was_too_short_is_found(chains):
    noise = autoregressive(0.3, n=600, columns=chains).T.numpy()
    decay = 3 * np.exp(-np.arange(600) / 75)
    (found,) = stationarity({"loss": dict(enumerate(noise + decay))})
    assert found.stationary is False
    assert found.early > found.late


def test_one_chain_that_drifts_is_found_and_named():
    traces = autoregressive(0.3, n=600, columns=4).T.numpy()
    traces[2] += np.linspace(2, 0, 600)
    (found,) = stationarity({"loss": dict(enumerate(traces))})
    assert found.stationary is False
    assert found.chain == 2


def test_short_and_slowly_mixing_traces_are_unknown():
    short, constant = stationarity({"x": {0: [1.0, 2.0] * 11}, "y": {1: [3.0] * 50}})
    assert short.stationary is None
    assert math.isnan(short.p_value)
    assert "22 values; at least 24 are needed" in short.why
    assert constant.stationary is True
    (slow,) = stationarity({"x": {0: autoregressive(0.99, n=200, columns=1)[:, 0].tolist()}})
    assert slow.stationary is None
    assert "can't be distinguished from slow mixing" in slow.why
    (gaps,) = stationarity({"x": {0: [math.nan] * 5 + autoregressive(0.0, n=100, columns=1)[:, 0].tolist()}})
    assert gaps.stationary is not None
    assert stationarity({}) == []
