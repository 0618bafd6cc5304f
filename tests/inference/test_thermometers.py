"""Both thermometers on targets whose temperatures are known: readings are within two of their own errors."""

import math

import numpy as np
import pytest

from benchmarks.temperature import Replicates, about_own_means, two_weights


def test_readings_are_within_two_of_their_errors():
    """Conjugate regression at B = N/20, a large step: T is 1.1 in the softest and 1.8 in the stiffest direction."""
    replicates = Replicates(chains=60, steps=800, probe=0.2)
    assert replicates.truth["stiffest"] > replicates.truth["gradient"] > replicates.truth["virial"] > 1.2
    found = {chains: replicates.readings(chains) for chains in (1, 4)}
    shares = [replicates.within(readings, kind) for readings in found.values() for kind in replicates.truth]
    covered, count = zip(*shares, strict=True)
    assert sum(count) > 0.8 * 3 * 75
    share = np.average(covered, weights=count)
    assert share > 0.93 - 3 * math.sqrt(0.93 * 0.07 / 75)  # readings of one kind are independent, kinds are not
    for kind, truth in replicates.truth.items():
        means = [e.mean for e in found[1][kind]]
        assert abs(np.mean(means) - truth) < 4 * np.std(means) / math.sqrt(60) + 0.02 * truth


@pytest.mark.slow
def test_readings_are_within_two_of_their_errors_in_many_replicates():
    replicates = Replicates(chains=400, steps=4000, probe=0.3)
    for chains in (1, 2, 4, 10):
        readings = replicates.readings(chains)
        for kind in replicates.truth:
            covered, count = replicates.within(readings, kind)
            assert covered > 0.93 - 2 * math.sqrt(0.93 * 0.07 / count), (chains, kind)


def test_chains_that_mix_slowly_from_exact_draws():
    """Two weights, 64 chains that hardly move: about its own mean a chain reads less than what it samples at."""
    run, truth = two_weights()
    for name, found in run.temperatures().items():
        assert abs(found.mean - truth[name]) < 2 * found.error < 0.5
    assert about_own_means(run).mean < 0.75
