"""`kill -9`: the run resumes bit for bit, and no sample that was reported as saved is lost."""

import os
import random
import tempfile
from pathlib import Path

import pytest
import torch

import langevin as lv
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior
from tests.storage import faults


def saved_in(path):
    """The samples of a run that was killed, perhaps before it was one."""
    return samples_of(lv.load(path, toy_model())) if (path / "manifest.json").exists() else {}


@pytest.fixture
def path(tmp_path):
    """In memory, if there is such a place: a process that is killed loses nothing that the system has, and real disks
    need tens of milliseconds for every file.
    """
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "r"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="langevin-test-") as folder:
        yield Path(folder) / "r"


@pytest.mark.fault("`kill -9` at a random moment")
@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
@pytest.mark.parametrize("times", [5, pytest.param(15, marks=pytest.mark.slow)])
def test_killed_at_random_moments(path, mode, times, record_property):
    """`kill -9` at a random moment, again and again"""
    uninterrupted = faults.uninterrupted(mode)
    chance, phases = random.Random(f"{mode} {times}"), []
    before = {}
    while len(phases) < times:
        saved, phase = (faults.server.Value("i", 0, lock=False) for _ in range(2))  # a lock could be killed too
        resumed = (path / "manifest.json").exists()
        process = faults.server.Process(target=faults.watched, args=(path, mode, saved, phase, resumed))
        process.start()
        while process.is_alive() and phase.value == 0:  # it starts
            process.join(0.001)
        process.join(chance.uniform(0.0, 0.25))
        process.kill()
        process.join()
        if process.exitcode == 0:  # it came to its end
            break
        assert process.exitcode == -9
        phases.append(faults.PHASES[phase.value])
        after = saved_in(path)
        assert len(after) >= saved.value  # whatever was reported as saved is there
        assert all(torch.equal(value, after[key]) for key, value in before.items())  # and stays as it was
        before = after
    again = lv.resume(path, toy_posterior(), toy_data(), progress=False)
    assert_same_samples(uninterrupted, again)
    record_property("faults", len(phases))
    record_property("during", " ".join(phases))


@pytest.mark.fault("`kill -9` between the system calls that write a file")
@pytest.mark.parametrize(
    ("call", "name"),
    [(9, "fsync"), (12, "replace"), pytest.param(10, "fsync", marks=pytest.mark.slow)]
    + [pytest.param(n, name, marks=pytest.mark.slow) for name in ("fsync", "replace") for n in (1, 2, 3, 4, 15, 21)],
)
def test_killed_inside_the_writing_of_a_file(path, call, name, record_property):
    """`kill -9` between the system calls that write a file"""
    uninterrupted = faults.uninterrupted("sequential")
    process = faults.server.Process(target=faults.self_killing, args=(path, call, name))
    process.start()
    process.join()
    assert process.exitcode == -9
    before = saved_in(path)
    if not (path / "manifest.json").exists():
        faults.sampler(out=path, progress=False, mode="sequential", **faults.OPTIONS)()
    again = lv.resume(path, toy_posterior(), toy_data(), progress=False)
    assert_same_samples(uninterrupted, again)
    assert all(torch.equal(value, samples_of(again)[key]) for key, value in before.items())
    record_property("faults", 1)
