"""How chains are computed is decided by a short trial."""

import pytest

import langevin as lv
from langevin.inference import trial
from langevin.inference.stacked_chains import StackedChains
from tests.inference.autopilot.test_autopilot import linear_posterior, regression


@pytest.mark.parametrize(
    ("recorded", "alone", "mode"), [(False, 0.3, "sequential"), (True, 0.3, "vectorised"), (True, 0.2, "sequential")]
)
def test_chains_that_will_be_recorded_are_vectorised_unless_that_is_twice_as_slow(
    monkeypatch, recorded, alone, mode
) -> None:
    """Two chains: 1 s together, 0.6 or 0.4 s apart."""
    monkeypatch.setattr(trial, "seconds_per_step", lambda group: 1.0 if isinstance(group, StackedChains) else alone)
    monkeypatch.setattr(StackedChains, "will_be_recorded", recorded)
    run = lv.sample(linear_posterior(), regression(), lv.SGLD, lr=1e-4, steps=10, chains=2, progress=False)
    assert run.manifest["settings"]["mode"] == mode
