"""A writer writes into the run that it began, whatever happens to its path; a forked process is not the writer."""

import copy
import multiprocessing
import os
import pickle
import sys
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.storage import files, locks
from langevin.storage.base import Checkpoint
from langevin.storage.directory import DirectoryStore
from langevin.storage.verify import verify
from tests.helpers import assert_same_samples, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 40, "burn_in": 0, "thin": 2, "checkpoint_steps": 4}


def store_at(path, **more):
    store = DirectoryStore.create(path, {"tensors": {"w": {"shape": [3], "dtype": "float32"}}, **more})
    store.write_manifest()
    return store


def contents(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.fault("a run that is moved while it is written, with another in its place")
@pytest.mark.parametrize("kind", ["another run", "a copy", "nothing"])
def test_a_run_that_is_moved_is_not_confused_with_what_takes_its_place(tmp_path, kind):
    path, moved, before = tmp_path / "r", tmp_path / "moved", {}

    def move(info):
        if info.step == 21:
            path.rename(moved)
            if kind == "another run":
                draw(toy_posterior(), toy_data(), seed=7, out=path, **OPTIONS)
            elif kind == "a copy":
                lv.load(moved, toy_model()).save(path)
            before.update(contents(path) if path.exists() else {})

    with pytest.raises(lv.RunError, match="was moved, deleted or replaced while it was in use"):
        draw(toy_posterior(), toy_data(), out=path, callbacks=[move], **OPTIONS)
    assert (contents(path) if path.exists() else {}) == before
    assert_same_samples(
        draw(toy_posterior(), toy_data(), **OPTIONS), resume(moved, toy_posterior(), toy_data(), steps=40)
    )


def test_a_store_is_not_held_if_another_run_is_there(tmp_path):
    run = draw(toy_posterior(), toy_data(), out=tmp_path / "r", **OPTIONS)
    store = DirectoryStore.open(run.path)
    run.path.rename(tmp_path / "moved")
    draw(toy_posterior(), toy_data(), seed=7, out=tmp_path / "r", **OPTIONS)
    before = contents(tmp_path / "r")
    with pytest.raises(lv.RunError, match="moved, deleted or replaced"), store.writing():
        pass
    with pytest.raises(lv.RunError, match="moved, deleted or replaced"):
        store.write_manifest()
    assert contents(tmp_path / "r") == before


# forked processes


def forked(function):
    """Call a function in a forked process; how that ended."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            function()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.fault("a forked process that ends before its parent, a writer")
def test_a_forked_process_leaves_the_lock_alone(tmp_path):
    with locks.holding(tmp_path):
        lock = locks.holding(tmp_path)
        child = os.fork()
        if child == 0:
            raise_in_child = True
        else:
            raise_in_child = False
            os.waitpid(child, 0)
            assert len(list((tmp_path / "writers").glob("*.lock"))) == 1
            with pytest.raises(lv.RunError, match="is being written"), lock:
                pass
    if raise_in_child:  # it has left the block, as a child that raises does
        os._exit(0)
    assert not list((tmp_path / "writers").glob("*.lock"))


def test_a_forked_process_writes_nothing(tmp_path):
    """One that runs into an error saves nothing on its way out; the parent continues."""
    path, states = tmp_path / "r", []

    def fork(info):
        if info.step == 10:
            before = contents(path)
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
                raise KeyboardInterrupt
            states.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), before == contents(path)))

    parent = os.getpid()
    try:
        run = draw(toy_posterior(), toy_data(), out=path, callbacks=[fork], **OPTIONS)
    except BaseException:
        if os.getpid() != parent:
            os._exit(5)
        raise
    assert states == [(5, True)]
    assert_same_samples(draw(toy_posterior(), toy_data(), **OPTIONS), run)


def test_descriptors_of_a_forked_process_are_its_own(tmp_path):
    """The number of a lock's descriptor is free in the child, and used again: leaving must not close that."""

    def child():
        file = os.open(tmp_path, os.O_RDONLY)
        block.__exit__(None, None, None)
        os.fstat(file)

    block = locks.holding(tmp_path)
    block.__enter__()
    assert forked(child) == 0
    block.__exit__(None, None, None)


# copies


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))], ids=["copy", "pickle"])
def test_runs_and_fits_can_be_copied(tmp_path, where, copied):
    out = None if where == "memory" else tmp_path / "r"
    run = draw(toy_posterior(), toy_data(), out=out, **OPTIONS)
    run.predict(toy_data()[0])  # a file of samples is open
    torch.manual_seed(0)
    posterior = toy_posterior(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    optimizer = partial(torch.optim.SGD, lr=1e-2)
    out = None if where == "memory" else tmp_path / "f"
    fit = lv.fit(posterior, toy_data(), lv.SWAG(cycle=2, rank=2), optimizer=optimizer, steps=8, progress=False, out=out)
    for ensemble in (run, run[3:], fit):
        other = copied(ensemble)
        assert len(other) == len(ensemble)
        assert torch.equal(other.predict(toy_data()[0]).probs, ensemble.predict(toy_data()[0]).probs)
        assert torch.equal(other[0]["0.weight"], ensemble[0]["0.weight"])
    if where == "disk":
        assert len(resume(copied(run), toy_posterior(), toy_data(), steps=44)) == 22


def test_a_store_with_unwritten_samples_says_how_to_copy_it(tmp_path):
    store = store_at(tmp_path / "s")
    store.add(0, 1, {"w": torch.zeros(3)}, {})
    with pytest.raises(lv.RunError, match=r"call flush\(\) before copying"):
        copy.deepcopy(store)
    store.flush()
    assert copy.deepcopy(store).saved() == 1


def predict_in_another_process(run, x, pipe):
    torch.set_num_threads(1)
    pipe.send(run.predict(x).probs.tolist())


def test_a_run_can_be_sent_to_another_process(tmp_path):
    run = draw(toy_posterior(), toy_data(), out=tmp_path / "r", **OPTIONS)
    here, there = multiprocessing.Pipe()
    expected = run.predict(toy_data()[0]).probs.tolist()
    process = multiprocessing.get_context("fork").Process(
        target=predict_in_another_process, args=(pickle.loads(pickle.dumps(run)), toy_data()[0], there)
    )
    process.start()
    assert here.recv() == expected
    process.join()


# files that give way to others while they are read


def test_a_file_that_is_replaced_while_it_is_opened_is_read_anew(tmp_path, monkeypatch):
    store = store_at(tmp_path / "s")
    store.add(0, 1, {"w": torch.ones(3)}, {})
    store.flush()
    (record,) = store.records()
    reader, check, checked = DirectoryStore.open(tmp_path / "s"), files.check, []

    def replaced(path):
        check(path)
        checked.append(path)
        if len(checked) == 1:
            metadata = {"run": store.manifest["run"], "chain": "0", "after": "null", "samples": '[{"step": 1}]'}
            files.write(path, files.tensors({"w": [torch.full((3,), 2.0)]}, metadata))

    monkeypatch.setattr(files, "check", replaced)
    assert float(reader.read(record)["w"][0]) == 2.0
    assert len(checked) == 2  # nothing is read whose checksum was not verified


def test_a_file_that_gave_way_to_other_samples_is_not_called_corrupted(tmp_path):
    store = store_at(tmp_path / "s", keep_last=2)
    for step in (1, 2):
        store.add(0, step, {"w": torch.full((3,), float(step))}, {})
    store.flush()
    reader = DirectoryStore.open(tmp_path / "s")
    first, second = reader.records()
    metadata = {"run": store.manifest["run"], "chain": "0", "after": "null", "samples": '[{"step": 1}]'}
    files.write(first.path, files.tensors({"w": [torch.ones(3)]}, metadata))  # with fewer rows
    assert float(reader.read(first)["w"][0]) == 1.0
    with pytest.raises(lv.RunError, match=r"replaced by newer samples \(keep_last\). Load the run again"):
        reader.read(second)


def test_a_file_that_vanishes_while_it_is_opened_is_not_called_corrupted(tmp_path, monkeypatch):
    store = store_at(tmp_path / "s")
    store.add(0, 1, {"w": torch.ones(3)}, {})
    store.flush()
    (record,) = store.records()
    opened = files.safe_open

    def vanishing(path, **options):
        path.unlink()
        return opened(path, **options)

    monkeypatch.setattr(files, "safe_open", vanishing)
    assert DirectoryStore.open(tmp_path / "s").corrupted == {}
    with pytest.raises(lv.RunError, match="does not exist any more"):
        store.read(record)


# on the disk


def test_every_directory_is_entered_into_the_one_above_it(tmp_path, monkeypatch):
    """A directory whose parent was not synchronized may be gone after a power cut, with the samples in it."""
    log = []

    def identity(status):
        return status.st_dev, status.st_ino

    fsync, mkdir = os.fsync, os.mkdir
    monkeypatch.setattr(os, "fsync", lambda fd: log.append(("fsync", identity(os.fstat(fd)))) or fsync(fd))

    def logged(path, mode=0o777, *, dir_fd=None):
        mkdir(path, mode, dir_fd=dir_fd)
        above = os.fstat(dir_fd) if dir_fd is not None else os.stat(os.path.dirname(os.path.abspath(path)))
        log.append(("mkdir", identity(above)))

    monkeypatch.setattr(os, "mkdir", logged)
    tensors = {"w": {"shape": [3], "dtype": "float32"}}
    store = DirectoryStore.create(tmp_path / "runs" / "mine" / "s", {"tensors": tensors})
    with store.writing():
        store.write_fixed({})
        store.write_manifest()
        store.add(0, 1, {"w": torch.zeros(3)}, {})
        store.write_checkpoint({0: Checkpoint(1, {"w": torch.zeros(3)}, {})})
    made = [place for place, (what, _) in enumerate(log) if what == "mkdir"]
    assert len(made) == 7  # runs, mine, s, samples, checkpoints, writers, chain-0000
    for place in made:
        assert ("fsync", log[place][1]) in log[place:], log[place]
    assert verify(store.path).problems == []
