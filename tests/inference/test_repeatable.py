"""Whatever keeps a run from being repeated bit for bit is noticed: in the data, the environment, other threads."""

import random
import sys
import threading
import warnings
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import langevin as lv
from langevin.core.batches import GENERATORS
from langevin.inference import checks
from tests.helpers import assert_same_samples, toy_data, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"sampler": partial(lv.SGLD, lr=1e-2), "burn_in": 0, "thin": 5}


class Noisy(Dataset):
    """Examples with noise from a generator of its own, or from the global ones."""

    def __init__(self, generator):
        self.generator = generator
        self.x, self.y = toy_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.generator == "global":
            noise = torch.randn(4) + np.random.randn() + random.random()
        elif isinstance(self.generator, torch.Generator):
            noise = torch.randn(4, generator=self.generator)
        else:
            noise = torch.from_numpy(self.generator.standard_normal(4)).float()
        return self.x[index] + noise, self.y[index]


@pytest.mark.parametrize("generator", [torch.Generator, np.random.default_rng], ids=["torch", "numpy"])
@pytest.mark.parametrize("loader", [False, True], ids=["data set", "loader"])
def test_a_data_set_with_a_generator_of_its_own_is_noticed(tmp_path, generator, loader):
    def data():
        return DataLoader(Noisy(generator()), batch_size=16) if loader else Noisy(generator())

    with pytest.warns(UserWarning, match="it has a random generator or a state of its own"):
        run = draw(toy_posterior(), data(), steps=10, out=tmp_path / "r", **OPTIONS)
    assert run.manifest["environment"]["repeatable_data"] is False
    with pytest.warns(UserWarning, match="order of the data can't be repeated"):
        resume(tmp_path / "r", toy_posterior(), data(), steps=20)


@pytest.mark.parametrize("loader", [False, True], ids=["data set", "loader"])
def test_noise_from_the_global_generators_is_repeated(tmp_path, loader):
    def data():
        return DataLoader(Noisy("global"), batch_size=16, shuffle=True) if loader else Noisy("global")

    with warnings.catch_warnings(action="error"):
        whole = draw(toy_posterior(), data(), steps=20, **OPTIONS)
        draw(toy_posterior(), data(), steps=10, out=tmp_path / "r", **OPTIONS)
        assert_same_samples(whole, resume(tmp_path / "r", toy_posterior(), data(), steps=20))


def test_another_precision_or_way_to_compute_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    draw(toy_posterior(), toy_data(), steps=10, out=tmp_path / "r", **OPTIONS)
    with warnings.catch_warnings(action="error"):
        resume(tmp_path / "r", toy_posterior(), toy_data(), steps=12)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    with pytest.warns(UserWarning, match=r"environment has changed \(MKL_CBWR None → COMPATIBLE\)"):
        resume(tmp_path / "r", toy_posterior(), toy_data(), steps=14)
    monkeypatch.delenv("MKL_CBWR")
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.warns(UserWarning, match=r"\(float32_matmul_precision highest → medium\)"):
            resume(tmp_path / "r", toy_posterior(), toy_data(), steps=16)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def _quick_switches():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_quick_switches")
@pytest.mark.parametrize("kind", ["dropout", "noisy data", "noisy loader"])
def test_runs_in_threads_are_those_that_run_alone(kind):
    def built():
        """Before any thread runs: to make layers draws from the global generator."""
        layers = [nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)]
        model = nn.Sequential(*(layers if kind == "dropout" else layers[::2]))
        for p in model.parameters():
            nn.init.constant_(p, 0.1)
        return toy_posterior(model, allow=["dropout"] if kind == "dropout" else [])

    def one(seed, posterior):
        torch.set_num_threads(1)
        data = toy_data()
        if kind != "dropout":
            data = Noisy("global") if kind == "noisy data" else DataLoader(Noisy("global"), batch_size=8, shuffle=True)
        found[seed] = draw(posterior, data, steps=30, seed=seed, batch_size=None if "loader" in kind else 8, **OPTIONS)

    found = {}
    for seed in range(3):
        one(seed, built())
    alone, found = found, {}
    threads = [threading.Thread(target=one, args=(seed, built())) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        assert_same_samples(alone[seed], found[seed])


class HeldDropout(nn.Dropout):
    """Dropout that looks whether its thread holds the global generators when it draws from them."""

    held: ClassVar[list[bool]] = []

    def forward(self, x):
        if self.training:
            self.held.append(GENERATORS._is_owned())
        return super().forward(x)


@pytest.mark.parametrize("chains", [1, 2])
def test_what_draws_from_the_global_generators_holds_them(chains):
    """Otherwise a run in another thread gets other numbers, now and then."""
    HeldDropout.held.clear()
    posterior = toy_posterior(nn.Sequential(nn.Linear(4, 5), HeldDropout(), nn.Linear(5, 3)), allow=["dropout"])
    draw(posterior, toy_data(), steps=10, chains=chains, **OPTIONS)
    assert HeldDropout.held
    assert all(HeldDropout.held)


def test_the_last_thread_to_leave_restores_the_generators():
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with checks.preserve_rng_state():
            torch.manual_seed(1)
            inside.set()
            leave.wait()
            random.seed(1)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with checks.preserve_rng_state():  # the generators are not the user's any more
        torch.manual_seed(2)
    assert not torch.equal(torch.get_rng_state(), before[0])
    leave.set()
    thread.join()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
