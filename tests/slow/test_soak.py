"""A million steps: constant memory, constant speed, the correct distribution."""

import json
import os
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv

STEPS = int(os.environ.get("LANGEVIN_SOAK_STEPS", "1000000"))


def resident():
    """Resident memory of this process in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_a_million_steps_of_four_vectorised_chains(tmp_path, record_property):
    """Bayesian linear regression, whose posterior is known: y = Xw + noise, w ~ N(0, 1)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.5 * torch.randn(40, 1, generator=generator)
    model = nn.Linear(3, 1, bias=False)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(1.0), num_data=40)
    precision = x.T @ x / 0.25 + torch.eye(3)
    covariance = torch.linalg.inv(precision.double())
    mean = (covariance @ (x.T @ y / 0.25).double()).flatten()

    marks = []

    def look(moment):
        if moment.step % (STEPS // 20) == 0:
            marks.append((moment.step, time.process_time(), resident()))

    run = lv.sample(
        posterior,
        (x, y),
        partial(lv.SGHMC, lr=1e-2),
        batch_size=40,
        steps=STEPS,
        burn_in=STEPS // 100,
        thin=STEPS // 1000,
        chains=4,
        mode="vectorised",
        out=tmp_path / "soak",
        progress=False,
        callbacks=[look],
    )
    seconds = [b[1] - a[1] for a, b in pairwise(marks)]
    memory = [mark[2] for mark in marks]
    record_property("steps", STEPS)
    record_property("seconds of processor time per 1000 steps", round(sum(seconds) / (STEPS * 0.95) * 1000, 3))
    record_property("megabytes, at a quarter and at the end", f"{memory[4]:.0f} {memory[-1]:.0f}")
    halves = sum(seconds[:9]), sum(seconds[-9:])
    record_property("second half over first half of the time", round(halves[1] / halves[0], 3))

    assert len(run) == 4 * 990
    assert memory[-1] - memory[4] < 10  # of 300: the record of a sample takes a kilobyte, and there are 3000 more
    assert 0.75 < halves[1] / halves[0] < 1.33
    draws = torch.stack([torch.stack([s["weight"].flatten() for s in run.chain(c)]) for c in range(4)]).double()
    # samples are 1000 steps apart, the autocorrelation time is about 20: they are independent
    count = draws.shape[0] * draws.shape[1]
    error = (covariance.diag() / count).sqrt()
    assert bool(((draws.mean((0, 1)) - mean).abs() < 5 * error).all())
    spread = draws.reshape(-1, 3).T.cov()
    # the relative error of a variance is √(2/n); the bias of SGHMC is of order h²: 1 % here
    assert bool((spread.diag() / covariance.diag() - 1).abs().max() < 5 * (2 / count) ** 0.5 + 0.02)
    results = os.environ.get("LANGEVIN_SOAK_RESULTS")
    if results:
        Path(results).write_text(json.dumps({"steps": STEPS, "seconds": seconds, "memory": memory}))
