import math

import numpy as np
import pytest

from langevin.diagnostics.stationarity import autocorrelation_time, stationarity
from tests.diagnostics.chains import autoregressive


@pytest.mark.parametrize(("rho", "n"), [(0.0, 100), (0.5, 200), (0.8, 1000)])
def test_the_false_positive_rate_is_the_level(rho, n):
    """Each of 400 stationary traces by itself: at level 0.05 about 20 false positives, with a standard error of 4.4."""
    traces = autoregressive(rho, n=n, columns=400).T.numpy()
    positives = sum(stationarity({"x": {0: trace}})[0].stationary is False for trace in traces)
    assert positives < 20 + 4 * math.sqrt(400 * 0.05 * 0.95)


def test_the_family_wise_error_rate_is_the_level():
    """60 families of 20 traces: about 3 have a false positive; unadjusted it would be 38."""
    traces = autoregressive(0.0, n=120, columns=1200).T.numpy().reshape(60, 20, 120)
    families = [stationarity({"x": dict(enumerate(family))}) for family in traces]
    positives = sum(any(test.stationary is False for test in family) for family in families)
    assert positives < 3 + 4 * math.sqrt(3)


def test_p_values_are_holms():
    traces = autoregressive(0.0, n=120, columns=5).T.numpy()
    traces[3, :40] += 1.0
    together = stationarity({"x": dict(enumerate(traces))})
    alone = [stationarity({"x": {0: trace}})[0].p_value for trace in traces]
    order = np.argsort(alone)
    adjusted = np.minimum(1, np.maximum.accumulate(np.sort(alone) * np.arange(5, 0, -1)))
    assert [together[i].p_value for i in order] == pytest.approx(list(adjusted))
    assert together[3].stationary is False
    assert together[3].z > 0 > together[3].late - together[3].early


def test_a_burn_in_that_was_too_short_is_found():
    noise = autoregressive(0.3, n=600, columns=20).T.numpy()
    decay = 3 * np.exp(-np.arange(600) / 75)
    assert all(test.stationary is False for test in stationarity({"loss": dict(enumerate(noise[:5] + decay))}))


def test_short_and_slowly_mixing_traces_are_unknown():
    short, constant = stationarity({"x": {0: [1.0, 2.0] * 11, 1: [3.0] * 50}})
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


def test_autocorrelation_time():
    assert autocorrelation_time(autoregressive(0.8, n=50_000, columns=1)[:, 0].numpy()) == pytest.approx(9, rel=0.15)
    assert autocorrelation_time(np.ones(10)) == math.inf
