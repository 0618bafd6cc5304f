"""Samples that were saved can't vanish unnoticed, the newest included."""

import os
import shutil
import tempfile
import warnings
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.storage import status
from langevin.storage.directory import DirectoryStore
from langevin.storage.gaps import Gap, Saved, find_gaps, saved_now
from langevin.storage.verify import verify
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior
from tests.storage import faults

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"sampler": partial(lv.SGLD, lr=1e-2), "burn_in": 0, "thin": 2, "mode": "sequential", "checkpoint_steps": 8}


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def path(tmp_path):
    draw(toy_posterior(), toy_data(), steps=40, chains=2, out=tmp_path / "r", **OPTIONS)
    return tmp_path / "r"


def sample_files(path, chain=0):
    return sorted((path / "samples" / f"chain-{chain:04}").glob("*.safetensors"))


@pytest.mark.fault("the newest samples deleted")
@pytest.mark.filterwarnings("ignore:Samples of chain")
@pytest.mark.parametrize(
    ("what", "says", "left"),
    [
        ("the last file", "chain 0 after step 32, up to step 40,", 36),
        ("the last two files", "chain 0 after step 24, up to step 40,", 32),
        ("a file in the middle", "chain 0 between the steps 8 and 18", 36),
        ("a chain", "chain 1 after step 0, up to step 40,", 20),
        ("all samples", "chain 0 after step 0, up to step 40,", 0),
    ],
)
def test_what_is_missing_is_named(path, what, says, left):
    if what in ("a chain", "all samples"):
        shutil.rmtree(path / "samples" / "chain-0001" if what == "a chain" else path / "samples")
    else:
        gone = {"the last file": [-1], "the last two files": [-1, -2], "a file in the middle": [1]}[what]
        for number, files in [(number, sample_files(path)) for number in gone]:
            files[number].unlink()
    with pytest.warns(UserWarning, match=f"Samples of {says} are missing from"):
        run = lv.load(path, toy_model())
    assert len(run) == left
    report = verify(path)
    assert f"samples of {says} are missing" in report.problems
    assert report.samples == left
    with pytest.warns(UserWarning, match="are missing"):
        assert f"samples of {says} are missing" in status.describe(path)[2]


@pytest.mark.filterwarnings("ignore:Samples of chain")
def test_resume_says_that_they_cannot_be_drawn_again_and_the_gap_stays_known(path):
    sample_files(path)[-1].unlink()
    with pytest.warns(UserWarning, match="can't be drawn again: the checkpoint of chain 0 is of step 40"):
        more = resume(path, toy_posterior(), toy_data(), steps=60)
    whole = samples_of(draw(toy_posterior(), toy_data(), steps=60, chains=2, **OPTIONS))
    assert len(more) == 56
    assert all(torch.equal(value, whole[key]) for key, value in samples_of(more).items())
    assert verify(path).problems == ["samples of chain 0 between the steps 32 and 42 are missing"]


@pytest.mark.filterwarnings("ignore:Samples of chain 0")
def test_resume_draws_them_again_from_an_older_checkpoint(path, tmp_path):
    """As after chains were divided among processes in another way: their files have other names."""
    old = tmp_path / "old"
    draw(toy_posterior(), toy_data(), steps=32, chains=2, out=old, **OPTIONS)
    store, other = DirectoryStore.open(path), DirectoryStore.open(old)
    checkpoints = dict(enumerate(other.checkpoints([0, 1])))
    store.write_checkpoint(checkpoints)  # for both chains together
    sample_files(path)[-1].unlink()
    with pytest.warns(UserWarning, match="are drawn again from the checkpoint of step 32"):
        again = resume(path, toy_posterior(), toy_data())
    assert_same_samples(draw(toy_posterior(), toy_data(), steps=40, chains=2, **OPTIONS), again)
    assert verify(path).problems == []


@pytest.mark.parametrize("keep_last", [None, 3, 5])
def test_nothing_is_missing_from_a_run_as_it_is_written(tmp_path, keep_last):
    """By a reader, and at every moment at which the writer can be killed."""
    options = {"thin": 1, "checkpoint_steps": 3, "keep_last": keep_last}
    process = faults.server.Process(
        target=lv.sample,
        args=(toy_posterior(), toy_data()),
        kwargs={"out": tmp_path / "r", "progress": False, "steps": 60, "chains": 2, **OPTIONS, **options},
    )
    process.start()
    looks = 0
    while process.is_alive():
        if (tmp_path / "r" / "manifest.json").exists():
            with warnings.catch_warnings(action="error"):
                store = DirectoryStore.open(tmp_path / "r")
            assert store.missing == []
            looks += 1
    process.join()
    assert process.exitcode == 0
    assert looks > 3
    assert verify(tmp_path / "r").problems == []


def test_keep_last_counts_what_is_there(tmp_path):
    options = {**OPTIONS, "keep_last": 6, "checkpoint_steps": 4}
    draw(toy_posterior(), toy_data(), steps=40, out=tmp_path / "r", **options)
    assert verify(tmp_path / "r").problems == []
    first, *_, last = sample_files(tmp_path / "r")
    first.rename(tmp_path / "first")
    assert verify(tmp_path / "r").problems == ["samples of chain 0 (4 of 6 are there) are missing"]
    (tmp_path / "first").rename(first)
    last.unlink()
    assert verify(tmp_path / "r").problems == ["samples of chain 0 after step 36, up to step 40, are missing"]


def test_a_recorded_run_knows_how_many_it_has(tmp_path):
    posterior = toy_posterior()
    with lv.Recorder(posterior, out=tmp_path / "r") as recorder:
        for step in range(1, 7):
            recorder.record(step)
            if step % 2 == 0:
                recorder.run()
    assert verify(tmp_path / "r").problems == []
    sample_files(tmp_path / "r")[-1].unlink()
    with pytest.warns(UserWarning, match="after step 4, up to step 6"):
        lv.load(tmp_path / "r", toy_model())


def test_a_saved_part_is_complete(path, tmp_path):
    sample_files(path)[-1].unlink()
    with pytest.warns(UserWarning, match="are missing"):
        run = lv.load(path, toy_model())
    for name, part in (("all", run), ("some", run[::3])):
        part.save(tmp_path / name)
        assert verify(tmp_path / name).problems == []


def unreadable(path, folder):
    os.setegid(65534)
    os.seteuid(65534)
    with pytest.raises(lv.RunError, match=f"{folder}.* can't be read: Permission denied"):
        lv.load(path, toy_model())
    with pytest.raises(lv.RunError, match="Permission denied"):
        verify(path)


@pytest.mark.fault("a directory that can't be read")
@pytest.mark.skipif(os.geteuid() != 0, reason="permissions are tested as another user")
@pytest.mark.parametrize("folder", ["samples", "samples/chain-0000", "checkpoints"])
def test_a_directory_that_cannot_be_read_is_an_error(path, folder, tmp_path):
    for parent in takewhile(lambda folder: folder != Path(tempfile.gettempdir()), path.parents):
        parent.chmod(0o755)
    (path / folder).chmod(0)
    code, said = faults.child(tmp_path / "said", unreadable, path, "" if "samples" in folder else folder)
    assert code == 0, said


def test_statistics_of_a_fit_are_verified(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with warnings.catch_warnings(action="ignore"):
        posterior = toy_posterior(model)
        optimizer = partial(torch.optim.SGD, lr=1e-2)
        lv.fit(posterior, toy_data(), lv.SWA(cycle=2), optimizer=optimizer, steps=8, progress=False, out=tmp_path / "f")
    assert verify(tmp_path / "f").problems == []
    file = tmp_path / "f" / "statistics.safetensors"
    genuine = file.read_bytes()
    file.write_bytes(genuine[:-1] + bytes([genuine[-1] ^ 1]))
    assert any("statistics.safetensors: its bytes are not" in problem for problem in verify(tmp_path / "f").problems)
    file.unlink()
    assert any("statistics.safetensors: No such file" in problem for problem in verify(tmp_path / "f").problems)
    shutil.copy(tmp_path / "f" / "fixed.safetensors", file)
    with pytest.raises(lv.RunError, match="does not describe what is stored"):
        lv.load(tmp_path / "f", model)[0]


# the arithmetic


@pytest.mark.parametrize(
    ("links", "steps", "known", "keep_last", "where"),
    [
        ([(0, 1, None), (0, 3, 2)], {1, 2, 3}, Saved(3, 3), None, None),
        ([(0, 1, None), (0, 3, 2)], {1, 2, 3}, Saved(2, 2), None, None),  # killed between a sample and its checkpoint
        ([(0, 1, None)], {1, 2}, Saved(3, 3), None, "after step 2, up to step 3,"),
        ([(0, 3, 2)], {3}, Saved(3, 3), None, "between the steps 0 and 3"),
        ([], set(), Saved(3, 3), None, "after step 0, up to step 3,"),
        ([(0, 3, 2)], {3, 4}, Saved(4, 4), 2, None),
        ([(0, 5, 4)], {5, 6}, Saved(4, 4), 2, None),  # newer ones came since the checkpoint
        ([(0, 1, None), (0, 5, 4)], {1, 5, 6}, Saved(6, 6), 3, "between the steps 1 and 5"),
        ([(0, 5, 4)], {5, 6}, Saved(6, 6), 4, "(2 of 4 are there)"),
    ],
)
def test_gaps(links, steps, known, keep_last, where):
    found = list(find_gaps(links, {0: steps} if steps else {}, {0: known}, keep_last))
    assert [gap.where for gap in found] == ([] if where is None else [where])


def test_what_has_been_saved_is_counted_once():
    assert saved_now({0: [1, 2, 3]}, {}) == {0: Saved(3, 3)}
    assert saved_now({0: [3, 4]}, {0: Saved(3, 3)}) == {0: Saved(4, 4)}
    assert saved_now({0: [2]}, {0: Saved(3, 3), 1: Saved(7, 9)}) == {0: Saved(3, 3), 1: Saved(7, 9)}
    assert str(Gap(1, 0, "(2 of 3 are there)")) == "samples of chain 1 (2 of 3 are there) are missing"
