"""A small problem that most tests of the loop share."""

import math
import os
import signal

import torch
from torch import nn

import langevin as lv
from langevin.storage.base import SampleStore


def toy_data(n=60, classes=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator).to(dtype)
    y = (x @ torch.randn(4, classes, generator=generator).to(dtype)).argmax(1)
    return x, y


def toy_model(classes=3):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, classes))


def toy_posterior(model=None, n=60, **options):
    return lv.Posterior(
        model or toy_model(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=n, **options
    )


def samples_of(run):
    """Every sample of a run (or snapshot of a fit), flattened, by (chain, step)."""
    stored = run.snapshots if isinstance(run, lv.Fit) else run.samples
    return {
        (record.chain, record.step): torch.cat([t.flatten().double() for t in run.store.read(record).values()])
        for record in stored.records
    }


def assert_same_samples(a, b):
    first, second = samples_of(a), samples_of(b)
    assert first.keys() == second.keys()
    assert len(first) > 0
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def killed(work):
    """Do the work in a copy of this process, which has to end by `kill -9`: no import is paid for again."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def store_nan(monkeypatch, number):
    """Store NaN in the sample of this number, past the store's own check."""
    as_stored, seen = SampleStore._as_stored, []

    def corrupting(self, name, tensor, **options):
        stored = as_stored(self, name, tensor, **options)
        if name == "2.bias":
            if len(seen) == number:
                stored[1] = math.nan
            seen.append(name)
        return stored

    monkeypatch.setattr(SampleStore, "_as_stored", corrupting)
