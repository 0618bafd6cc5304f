"""What the system does to a run: full and read-only disks, too many open files, signals, workers that die."""

import math
import os
import resource
import signal
import subprocess
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.inference import checks
from langevin.inference import manifest as describe
from langevin.inference import resume as resume_module
from langevin.inference.chains import Chains
from langevin.inference.engine import Engine
from langevin.storage import files, locks
from langevin.storage.directory import DirectoryStore
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior
from tests.storage import faults

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"sampler": partial(lv.SGLD, lr=1e-2), "burn_in": 0, "thin": 1, "checkpoint_steps": 10}


@contextmanager
def mounted(folder, *options):
    """A file system of its own; the test is skipped where that is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting needs more rights: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # files of it may still be mapped


@pytest.mark.fault("a full disk (tmpfs)")
def test_a_full_disk(tmp_path, record_property):
    """a disk that is full (a tmpfs of 400 kB)"""
    uninterrupted = draw(toy_posterior(), toy_data(), steps=300, **OPTIONS)
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=400k", "tmpfs") as small:
        filler = small / "filler"
        with pytest.raises(lv.RunError, match="No space left on device. Existing samples are unaffected; make room"):
            draw(
                toy_posterior(),
                toy_data(),
                steps=300,
                out=small / "r",
                callbacks=[lambda info: info.step == 105 and filler.write_bytes(os.urandom(_free(small)))],
                **OPTIONS,
            )
        saved = samples_of(lv.load(small / "r", toy_model()))
        assert {step for _, step in saved} >= set(range(1, 101))
        assert not list((small / "r").rglob(".*safetensors*"))  # nothing half-written lies about
        assert DirectoryStore.open(small / "r").checkpoint_steps()[0] >= 90
        filler.unlink()
        again = resume(small / "r", toy_posterior(), toy_data())
        assert_same_samples(uninterrupted, again)
    record_property("faults", 1)


def _free(path):
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


@pytest.mark.fault("a read-only directory (bind mount)")
def test_a_read_only_directory(tmp_path, record_property):
    """a read-only directory (remounted)"""
    run = draw(toy_posterior(), toy_data(), steps=20, out=tmp_path / "disk" / "r", **OPTIONS)
    with mounted(tmp_path / "disk", "--bind", str(tmp_path / "disk")) as folder:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(lv.RunError, match="can't be written to: Read-only file system"):
            resume(folder / "r", toy_posterior(), toy_data(), steps=40)
        with pytest.raises(lv.RunError, match="can't be made a directory for the run: Read-only file system"):
            draw(toy_posterior(), toy_data(), steps=20, out=folder / "new", **OPTIONS)
        assert_same_samples(run, lv.load(folder / "r", toy_model()))  # it can be read
    assert len(resume(tmp_path / "disk" / "r", toy_posterior(), toy_data(), steps=40)) == 40
    record_property("faults", 2)


@pytest.mark.fault("a directory that becomes read-only (chattr +i)")
def test_a_directory_that_becomes_read_only(tmp_path, record_property):
    """a directory that becomes read-only during the run (chattr +i)"""
    run = tmp_path / "r"

    def freeze(info):
        if info.step == 25 and subprocess.run(["chattr", "+i", run / "samples" / "chain-0000"]).returncode:
            pytest.skip("chattr needs more rights, or another file system")

    try:
        with pytest.raises(lv.RunError, match="Operation not permitted. Existing samples are unaffected; repair that"):
            draw(toy_posterior(), toy_data(), steps=60, out=run, callbacks=[freeze], **OPTIONS)
    finally:
        subprocess.run(["chattr", "-i", run / "samples" / "chain-0000"], check=True)
    again = resume(run, toy_posterior(), toy_data())
    assert_same_samples(draw(toy_posterior(), toy_data(), steps=60, **OPTIONS), again)
    record_property("faults", 1)


def exhausted(path):
    """Sample, and from step 25 on have no free file descriptor."""
    taken, manifest = [], {}

    def take_all(info):
        if info.step == 24:
            manifest.update(DirectoryStore.open(path).manifest)
        if info.step == 25:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
        if info.step == 26:
            for use in (lambda: DirectoryStore.open(path), lambda: DirectoryStore(path, manifest)):
                with pytest.raises(lv.RunError, match="can't be read: .*Too many open files"):
                    use()  # its samples are neither called corrupted nor left out

    try:
        draw(toy_posterior(), toy_data(), steps=60, out=path, callbacks=[take_all], **OPTIONS)
    finally:
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.fault("no free file descriptor (RLIMIT_NOFILE)")
def test_file_descriptors_exhausted(tmp_path, record_property):
    """file descriptors exhausted (RLIMIT_NOFILE)"""
    uninterrupted = draw(toy_posterior(), toy_data(), steps=60, **OPTIONS)
    code, said = faults.child(tmp_path / "said", exhausted, tmp_path / "r")
    assert code == 1
    assert "RunError" in said
    assert "could not be written: Too many open files. Existing samples are unaffected; repair that" in said
    assert_same_samples(uninterrupted, resume(tmp_path / "r", toy_posterior(), toy_data()))
    record_property("faults", 1)


@pytest.mark.fault("two processes resume one run")
def test_two_processes_resume_one_run(tmp_path, record_property):
    """two processes that resume one run at once"""
    draw(toy_posterior(), toy_data(), steps=20, out=tmp_path / "r", **OPTIONS)
    told = []

    def meanwhile(info):
        if info.step == 25:
            told.append(faults.child(tmp_path / "said", resume, tmp_path / "r", toy_posterior(), toy_data(), steps=80))

    run = resume(tmp_path / "r", toy_posterior(), toy_data(), steps=40, callbacks=[meanwhile])
    ((code, said),) = told
    assert code == 1
    assert f"is being written by process {os.getpid()} on " in said
    assert_same_samples(draw(toy_posterior(), toy_data(), steps=40, **OPTIONS), run)
    record_property("faults", 1)


@pytest.mark.fault("the clock set back (simulated)")
def test_the_clock_is_set_back(tmp_path, monkeypatch, record_property):
    """the clock set back by years (simulated: Python's clocks are replaced)"""
    uninterrupted = draw(toy_posterior(), toy_data(), steps=40, **OPTIONS)

    def set_back(info):
        if info.step == 15:
            monkeypatch.setattr(locks.time, "time", lambda: 1e6)
            for module in (describe, resume_module):
                monkeypatch.setattr(module, "timestamp", lambda: "1970-01-12T13:46:40+00:00")

    draw(toy_posterior(), toy_data(), steps=30, out=tmp_path / "r", callbacks=[set_back], **OPTIONS)
    resumed = resume(tmp_path / "r", toy_posterior(), toy_data(), steps=40)
    assert_same_samples(uninterrupted, resumed)
    assert resumed.manifest["resumed"][0]["at"] < resumed.manifest["created"]  # the clock was set back
    record_property("faults", 1)


# signals

PHASES = {
    "checks before the start": (checks, "check_data"),
    "making the directory": (DirectoryStore, "create"),
    "the first checkpoint": (DirectoryStore, "write_checkpoint"),
    "writing the manifest": (DirectoryStore, "write_manifest"),
    "building a chain": (Engine, "_continued"),
    "fetching a batch and its gradient": (Chains, "losses_and_gradients"),
    "moving the weights": (Chains, "advance"),
    "adding a sample": (DirectoryStore, "add"),
    "writing a file": (files.os, "fsync"),
    "renaming a file": (files.os, "replace"),
    "a heartbeat": (DirectoryStore, "heartbeat"),
}


def signalled(path, owner, name, number, call):
    """Sample; a signal comes in the middle of the given call of a function."""
    genuine, count = owner.__dict__[name], 0

    def interrupted(*args, **options):
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), number)
        return genuine.__func__(*args, **options) if isinstance(genuine, classmethod) else genuine(*args, **options)

    setattr(owner, name, classmethod(interrupted) if isinstance(genuine, classmethod) else interrupted)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    draw(toy_posterior(), toy_data(), steps=20, out=path, **{**OPTIONS, "checkpoint_steps": 4})


@pytest.mark.fault("SIGTERM or Ctrl-C, in every phase")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("phase", PHASES)
def test_signals_in_any_phase(tmp_path, phase, number, record_property):
    """SIGTERM and Ctrl-C in any phase"""
    uninterrupted = draw(toy_posterior(), toy_data(), steps=20, **OPTIONS)
    counts = (1, 9) if PHASES[phase][1] in ("backward", "advance", "add", "fsync", "replace", "heartbeat") else (1,)
    for call in counts:
        path = tmp_path / str(call)
        code, _ = faults.child(tmp_path / "said", signalled, path, *PHASES[phase], number, call)
        assert code in {signal.SIGTERM: (-15, 143), signal.SIGINT: (-2, 1, 130)}[number]
        before = samples_of(lv.load(path, toy_model())) if (path / "manifest.json").exists() else {}
        again = (
            resume(path, toy_posterior(), toy_data())
            if (path / "manifest.json").exists()
            else draw(toy_posterior(), toy_data(), steps=20, out=path, **OPTIONS)
        )
        assert_same_samples(uninterrupted, again)
        assert all(torch.equal(value, samples_of(again)[key]) for key, value in before.items())
    record_property("faults", len(counts))


# numbers


def explode(sampler, name, value):
    def at_12(info):
        if info.step == 12:
            for state in info.sampler.state.values():
                state[name].fill_(value)

    return {"sampler": sampler, "callbacks": [at_12]}


@pytest.mark.fault("NaN, infinity, overflow in momentum or thermostat")
@pytest.mark.parametrize(
    ("name", "value"), [("momentum", math.inf), ("thermostat", math.nan), ("thermostat", -1e4), ("momentum", 1e38)]
)
@pytest.mark.parametrize("kind", [lv.SGNHT, lv.ATMC])
def test_an_exploding_thermostat(tmp_path, kind, name, value, record_property):
    """NaN, infinity and overflow in momentum or thermostat"""
    options = {**OPTIONS, "checkpoint_steps": 5}
    sampler = partial(kind, lr=1e-3)
    uninterrupted = draw(toy_posterior(), toy_data(), steps=30, **{**options, "sampler": sampler})
    bounded = kind is lv.ATMC and math.isfinite(value)  # its moves have a largest length: it may survive
    with suppress(lv.DivergenceError) if bounded else pytest.raises(lv.DivergenceError, match="smaller lr"):
        draw(toy_posterior(), toy_data(), steps=30, out=tmp_path / "r", **{**options, **explode(sampler, name, value)})
    checkpoint = DirectoryStore.open(tmp_path / "r").checkpoints([0])[0]
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint.tensors.values())
    expected = samples_of(uninterrupted)
    for (chain, step), sample in samples_of(lv.load(tmp_path / "r", toy_model())).items():
        assert bool(sample.isfinite().all())
        if step <= 12:
            assert torch.equal(sample, expected[chain, step])
    record_property("faults", 1)


@pytest.mark.parametrize("name", ["momentum", "thermostat"])
def test_a_momentum_that_is_not_finite_never_enters_a_checkpoint(tmp_path, name):
    def explode(info):
        if info.step == 12:
            next(iter(info.sampler.state.values()))[name][0] = math.inf
            raise KeyboardInterrupt  # the loop saves on its way out; every weight is still finite

    options = OPTIONS | {"sampler": partial(lv.SGNHT, lr=1e-3)}
    with pytest.raises(KeyboardInterrupt):
        draw(toy_posterior(), toy_data(), steps=20, out=tmp_path / "r", callbacks=[explode], **options)
    assert DirectoryStore.open(tmp_path / "r").checkpoint_steps() == {0: 10}
    uninterrupted = draw(toy_posterior(), toy_data(), steps=20, **options)
    assert_same_samples(uninterrupted, resume(tmp_path / "r", toy_posterior(), toy_data()))


@pytest.mark.fault("NaN or infinity in a batch")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_batch_that_is_not_finite(tmp_path, value, record_property):
    """NaN and infinity in a batch"""

    class Sometimes(torch.utils.data.Dataset):
        bad = True
        count = 0

        def __len__(self):
            return 60

        def __getitem__(self, index):
            self.count += 1
            x, y = toy_data()
            return x[index] * (value if self.bad and self.count == 330 else 1.0), y[index]

    options = {**OPTIONS, "batch_size": 16}
    sound = Sometimes()
    sound.bad = False
    uninterrupted = draw(toy_posterior(), sound, steps=30, **options)
    with pytest.raises(lv.DivergenceError, match="the loss is|not finite|no longer finite"):
        draw(toy_posterior(), Sometimes(), steps=30, out=tmp_path / "r", **options)
    assert_same_samples(uninterrupted, resume(tmp_path / "r", toy_posterior(), sound))
    record_property("faults", 1)


# data loaders


class Fragile(TensorDataset):
    """A data set whose worker dies, or fails, once."""

    def __init__(self, mark, how):
        super().__init__(*toy_data())
        self.mark, self.how = mark, how

    def __getitem__(self, index):
        if index == 17 and self.mark.exists() and torch.utils.data.get_worker_info() is not None:
            seen = int(self.mark.read_text()) + 1
            self.mark.write_text(str(seen))
            if seen == 4:
                if self.how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the file server went away")
        return super().__getitem__(index)


@pytest.mark.fault("a DataLoader worker that dies or fails")
@pytest.mark.parametrize("how", ["dies", "fails"])
def test_a_worker_of_the_data_loader(tmp_path, how, record_property):
    """a worker of the DataLoader that is killed, and one that fails"""
    mark = tmp_path / "mark"

    def loader():
        data = Fragile(mark, how)
        return DataLoader(data, batch_size=20, shuffle=True, num_workers=1, multiprocessing_context="fork")

    options = {**OPTIONS, "checkpoint_steps": 2}
    uninterrupted = draw(toy_posterior(), loader(), steps=9, **options)
    mark.write_text("0")
    with pytest.raises((RuntimeError, OSError), match="exited unexpectedly|killed by signal|reset by peer|went away"):
        draw(toy_posterior(), loader(), steps=9, out=tmp_path / "r", **options)
    mark.unlink()
    assert_same_samples(uninterrupted, resume(tmp_path / "r", toy_posterior(), loader()))
    record_property("faults", 1)
