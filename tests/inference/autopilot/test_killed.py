"""A run by autopilot that is killed with SIGKILL in any stage goes on to the same samples, bit for bit."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

import langevin as lv
from langevin.inference.autopilot import budget, warm_start
from tests.inference.autopilot.test_autopilot import draws, linear_posterior, regression, small

SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    import torch
    torch.set_num_threads(1)
    from pathlib import Path
    from langevin.inference.autopilot import autopilot, warm_start
    from tests.inference.autopilot.test_autopilot import small

    out, stage, after = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    warm_start.STEPS, warm_start.EPOCHS = 300, 1
    advance = autopilot.stages.advance

    def watched(engine, store, until, **options):
        if str(store.path).endswith(stage) or (stage == "sampling" and store.path == out):
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        advance(engine, store, until, **options)

    autopilot.stages.advance = watched
    small(out, checkpoint_steps=20)
    time.sleep(1)  # a stage that is over before it is killed
    """
)


@pytest.mark.parametrize(
    ("stage", "after"),
    [
        pytest.param("warm-start", 0.05, marks=pytest.mark.slow),
        pytest.param("warm-start-slower", 0.03, marks=pytest.mark.slow),
        ("burn-in", 0.1),
        pytest.param("settling", 0.1, marks=pytest.mark.slow),
        pytest.param("burn-in", 0.4, marks=pytest.mark.slow),
        pytest.param("sampling", 0.1, marks=pytest.mark.slow),
        pytest.param("sampling", 0.3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, monkeypatch, stage, after) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 300)
    monkeypatch.setattr(warm_start, "EPOCHS", 1)
    monkeypatch.setattr(budget, "RATE_STEPS", 200)
    whole = small(tmp_path / "whole", checkpoint_steps=20)
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "cut"), stage, str(after)], cwd=os.getcwd(), timeout=200
    )
    assert killed.returncode == -signal.SIGKILL
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert [d.decided for d in again.tuning] == [d.decided for d in whole.tuning]
