"""Several processes and one run: each chain has one writer, and the others are told which."""

import json
import multiprocessing
import os
import time
from functools import partial

import pytest
import torch

import langevin as lv
from langevin.storage import locks, sample_files, status
from langevin.storage.directory import DirectoryStore
from langevin.storage.gaps import Gap
from tests.helpers import samples_of, toy_data, toy_posterior
from tests.storage import faults

draw = partial(lv.sample, progress=False)


def test_a_chain_has_one_writer(tmp_path):
    with locks.holding(tmp_path, [0, 1]), locks.holding(tmp_path, [2]):
        for chains in ([1], [2, 3], None):
            with (
                pytest.raises(lv.RunError, match=f"being written by process {os.getpid()} on "),
                locks.holding(tmp_path, chains),
            ):
                pass
    with locks.holding(tmp_path), pytest.raises(lv.RunError, match="being written"), locks.holding(tmp_path, [7]):
        pass
    with locks.holding(tmp_path):
        pass
    assert not list((tmp_path / "writers").glob("*.lock"))


def sleep_on(path, held):
    with locks.holding(path):
        child = os.fork()  # as a worker of a DataLoader is
        if child == 0:
            time.sleep(60)
            os._exit(0)
        held.send(child)
        time.sleep(60)


@pytest.mark.fault("a killed writer whose children live on")
def test_a_killed_process_releases_its_lock_though_its_children_live(tmp_path):
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=sleep_on, args=(tmp_path, there))
    process.start()
    child = here.recv()
    try:
        with pytest.raises(lv.RunError, match=f"process {process.pid} on"), locks.holding(tmp_path):
            pass
        process.kill()
        process.join()
        with locks.holding(tmp_path, [0]):
            pass
    finally:
        os.kill(child, 9)


def test_a_lock_with_unreadable_content_is_still_a_lock(tmp_path):
    with locks.holding(tmp_path):
        (lock,) = (tmp_path / "writers").glob("*.lock")
        for text in ("", "[]", "{}", '{"process": 1, "chains": "x"}'):
            lock.write_text(text)
            with pytest.raises(lv.RunError, match="being written by"), locks.holding(tmp_path, [3]):
                pass


def test_status_shows_steps_rates_and_heartbeats_whatever_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_HEARTBEAT_SECONDS", 0.0)
    seen = []

    def look(info):
        if info.step == 30 and info.chains == [1]:
            seen.extend(status.describe(tmp_path / "r")[1])
            monkeypatch.setattr(locks.time, "time", lambda: 1000.0)  # years back
        if info.step == 35 and info.chains == [1]:
            seen.extend(status.describe(tmp_path / "r")[1])

    run = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=40,
        burn_in=0,
        thin=4,
        chains=2,
        mode="sequential",
        out=tmp_path / "r",
        callbacks=[look],
    )
    head, first, second, *_, third = seen
    assert head == ("chain", "step", "of", "samples", "temperature", "steps/s", "last heartbeat")
    assert first[:4] == ("0", "40", "40", "10")
    assert second[:3] == ("1", "29", "40")  # the heartbeat comes after the callbacks
    assert float(second[5]) > 0
    assert f"process {os.getpid()}" in second[6]
    assert third[1] == "34"
    assert len(run) == 20  # the clock on the wall moves nothing
    monkeypatch.undo()
    (beat,) = (run.path / "writers").glob("*.json")
    said = json.loads(beat.read_text())
    beat.write_text(json.dumps({**said, "at": time.time() + 500}))
    assert "ahead of this clock, ended" in status.describe(run.path)[1][1][6]


def test_reading_while_another_process_writes_is_consistent(tmp_path):
    options = {"steps": 150, "burn_in": 0, "thin": 1, "chains": 2, "mode": "sequential", "checkpoint_steps": 3}
    whole = samples_of(draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), **options))
    path = tmp_path / "r"
    process = faults.server.Process(
        target=lv.sample,
        args=(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2)),
        kwargs={"out": path, "progress": False, **options},
    )
    process.start()
    lengths = set()
    while process.is_alive():
        if (path / "manifest.json").exists():
            store = DirectoryStore.open(path)
            assert store.corrupted == {}
            assert store.missing == []
            for chain in range(2):
                records = store.records(chain)
                assert [record.step for record in records] == list(range(1, len(records) + 1))
                for record in records[-1:]:
                    flat = torch.cat([t.flatten().double() for t in store.read(record).values()])
                    assert torch.equal(flat, whole[chain, record.step])
            lengths.add(store.saved())
        process.join(0.005)
    assert process.exitcode == 0
    assert len(lengths) > 5  # it was looked at in many states


def test_a_listing_that_missed_a_file_is_made_again(tmp_path, monkeypatch):
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=20, checkpoint_steps=5, out=tmp_path / "r")
    look, looks = sample_files._look, []

    def hasty(*rest):
        index = look(*rest)
        looks.append(index)
        if len(looks) == 1:
            index.missing.append(Gap(0, 1, "between the steps 1 and 9"))
            index.records.clear()
        return index

    monkeypatch.setattr(sample_files, "_look", hasty)
    assert DirectoryStore.open(run.path).saved() == len(run)
    assert len(looks) == 2
