"""Standard errors of correlated values, calibrated on AR(1) chains, whose true mean is 0."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from langevin.core.statistics import RECORD_LENGTH, Estimate, long_run_variance, mean_and_error
from tests.diagnostics.chains import autoregressive

CORRELATIONS = (0.0, 0.5, 0.9, 0.97)
CELLS = [(rho, n, chains) for rho in CORRELATIONS for n in (100, 1000) for chains in (1, 4, 100)]


def replicates(rho, n, chains, count, seed=11):
    """(count, chains, n)."""
    return autoregressive(rho, n=n, columns=count * chains, seed=seed).T.numpy().reshape(count, chains, n)


def coverage(rho, n, chains, count):
    """The shares of replicates whose mean is within two errors of 0, and whose error is unknown."""
    found = [mean_and_error(*replicate) for replicate in replicates(rho, n, chains, count)]
    return np.mean([e.known and abs(e.mean) < 2 * e.error for e in found]), np.mean([not e.known for e in found])


def long_enough(rho, n, chains):
    """Whether the record is clearly longer than what an error needs; ten chains need nothing."""
    return chains >= 10 or n > 3 * RECORD_LENGTH * (1 + rho) / (1 - rho)


def test_two_standard_errors_cover_the_truth_or_are_unknown():
    """0.95 by design; batch means of ⌊√n⌋ values had 0.93, 0.72, 0.44 at n = 100 and ρ = 0.5, 0.9, 0.97."""
    shares = []
    for cell in CELLS:
        count = {1: 200, 4: 100, 100: 30}[cell[2]]
        covered, unknown = coverage(*cell, count)
        shares.append(covered + unknown)
        assert covered + unknown > 0.92 - 3 * math.sqrt(0.92 * 0.08 / count), cell
        if long_enough(*cell):
            assert unknown < 0.03, cell
    assert np.mean(shares) > 0.93
    assert coverage(0.97, 100, 1, 100)[1] > 0.85  # 1.5 autocorrelation times


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_two_standard_errors_cover_the_truth_in_many_replicates(cell):
    count = {1: 4000, 4: 2000, 100: 1000 if cell[1] == 100 else 400}[cell[2]]
    covered, unknown = coverage(*cell, count)
    print(f"ρ {cell[0]}, n {cell[1]}, {cell[2]} chains: {covered:.3f} covered, {unknown:.3f} unknown")
    assert covered + unknown >= 0.92
    if long_enough(*cell):
        assert covered / (1 - unknown) >= 0.92


def test_the_error_of_many_chains_is_their_spread():
    """100 chains at ρ = 0.97, n = 1000: the standard deviation of their mean is √(τ/n)/10 = 0.0256, τ = 65.7."""
    errors = [mean_and_error(*chains).error for chains in replicates(0.97, 1000, 100, 10)]
    assert np.mean(errors) == pytest.approx(0.0256, rel=0.08)


def test_chains_that_disagree_have_the_error_of_their_spread():
    """Four chains about −1, −0.3, 0.4, 1: unknown, as are four values; with forty of them their spread."""
    noise = replicates(0.0, 1000, 40, 1)[0] / 10
    assert not mean_and_error(*(noise[:4] + np.array([-1.0, -0.3, 0.4, 1.0])[:, None])).known
    centres = np.linspace(-1, 1, 40)
    expected = centres.std(ddof=1) / math.sqrt(40)
    assert mean_and_error(*(noise + centres[:, None])).error == pytest.approx(expected, rel=0.1)


def test_the_error_of_several_chains_is_that_of_their_mean():
    """Nine chains of independent values, of different lengths: √(mean of 1/n)/3."""
    chains = [values[: 200 + 50 * c] for c, values in enumerate(replicates(0.0, 1000, 9, 1)[0])]
    found = mean_and_error(*chains)
    assert found.mean == pytest.approx(np.mean([values.mean() for values in chains]))
    assert found.error == pytest.approx(math.sqrt(np.mean([1 / len(values) for values in chains]) / 9), rel=0.15)


def test_the_error_of_an_oscillating_chain_is_not_too_small():
    """An AR(2), as momentum makes it, whose long-run variance is 1/(1 − a − b)² of the noise's: the sum stops at the
    first negative pair of autocorrelations, before the swing that would make it smaller."""
    a, b = 1.2, -0.8
    noise = np.random.default_rng(0).normal(size=(20, 6000))
    chains = lfilter([1.0], [1.0, -a, -b], noise, axis=1)[:, 1000:]
    found = np.mean([long_run_variance([values]).variance for values in chains])
    assert 1 / (1 - a - b) ** 2 < found < 5 / (1 - a - b) ** 2


def test_the_error_of_few_values_is_unknown():
    assert mean_and_error([1.0, 2.0]).mean == 1.5
    assert str(mean_and_error([1.0, 2.0])) == "1.5 ± unknown"
    assert not mean_and_error(list(range(RECORD_LENGTH - 1))).known
    assert not mean_and_error([3.0] * 5).known
    assert mean_and_error([3.0] * 50) == Estimate(3.0, 0.0)
    assert not mean_and_error(*([float(c)] for c in range(9))).known
    assert mean_and_error(*([float(c)] for c in range(10))).known
    assert math.isnan(mean_and_error([]).mean)
    assert math.isnan(mean_and_error().mean)
    gaps = [math.nan, *autoregressive(0.0, n=100, columns=1)[:, 0].tolist(), math.inf]
    assert mean_and_error(gaps) == mean_and_error(gaps[1:-1])
