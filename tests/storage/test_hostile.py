"""A run that somebody else made: its links are not written through, its pipes are not waited for, its sizes bounded."""

import os
import shutil
import signal
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch

import langevin as lv
from langevin.cli.logging import logging
from langevin.report.contents import Report
from langevin.storage import files, folders, locks, status
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore
from langevin.storage.verify import quarantine, verify
from tests.helpers import toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"lr": 1e-2, "steps": 12, "burn_in": 0, "thin": 2, "checkpoint_steps": 4}
FILES = [
    "manifest.json",
    "fixed.safetensors",
    "lock",
    "samples",
    "samples/chain-0000",
    "samples/chain-0000/0000000002.safetensors",
    "checkpoints",
    "checkpoints/0000-0000.safetensors",
    "writers",
    "writers/h-1-0.json",
    "writers/h-1-0.lock",
]


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    """What reaches the disk, and when, is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "r"
    draw(toy_posterior(), toy_data(), lv.SGLD, out=path, **OPTIONS)
    return path


@pytest.fixture
def path(original, tmp_path):
    shutil.copytree(original, tmp_path / "r")
    return tmp_path / "r"


@contextmanager
def at_most(seconds):
    """Fail instead of waiting."""

    def late(*_):
        raise AssertionError(f"it hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def remove(file):
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


# nothing waits


@pytest.mark.fault("a pipe, a device or a folder in the place of a file")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
@pytest.mark.parametrize("name", FILES)
def test_nothing_waits_for_a_pipe(path, name, kind):
    file = path / name
    remove(file)
    if kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    uses = [
        lambda: status.describe(path),
        lambda: verify(path),
        lambda: list(lv.load(path, toy_model())),
        lambda: resume(path, toy_posterior(), toy_data(), steps=14),
        lambda: resume(path, toy_posterior(), toy_data(), steps=16),
    ]
    with at_most(20):
        for use in uses:
            try:
                use()
            except lv.RunError as error:
                assert name.split("/")[0] in str(error) or str(path) in str(error)  # noqa: PT017


# nothing is written through a link


@pytest.mark.fault("a symbolic link where something is written")
@pytest.mark.filterwarnings("ignore:Samples of chain 0")
@pytest.mark.parametrize("name", [*FILES, "samples/chain-0000/0000000014.safetensors"])
def test_links_inside_a_run_are_not_followed(path, name, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_HEARTBEAT_SECONDS", 0.0)
    outside = tmp_path / "outside"
    file = path / name
    if file.is_dir():
        shutil.move(file, outside)
    else:
        outside.write_bytes(file.read_bytes() if file.exists() else b"precious")
        file.unlink(missing_ok=True)
    file.symlink_to(outside)
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    try:
        resume(path, toy_posterior(), toy_data(), steps=14)
    except lv.RunError as error:
        assert "symbolic link" in str(error)  # noqa: PT017
    assert {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()} == before


@pytest.mark.parametrize("name", [".manifest.json", "checkpoints/.0000-0000.safetensors"])
@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_what_lies_where_a_file_is_prepared_is_not_written_to(path, name, kind, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    planted = path / f"{name}.{os.getpid()}"
    planted.symlink_to(victim) if kind == "a link" else os.mkfifo(planted)
    with at_most(20):
        run = resume(path, toy_posterior(), toy_data(), steps=14)
    assert len(run) == 7
    assert victim.read_text() == "precious"
    assert not os.path.lexists(planted)


def test_a_quarantine_that_is_a_link_is_refused(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (path / "quarantine").symlink_to(tmp_path / "elsewhere")
    file = min((path / "samples" / "chain-0000").iterdir())
    file.write_bytes(b"")
    with pytest.raises((lv.RunError, OSError), match="symbolic link"):
        quarantine(path, verify(path))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert file.exists()


@pytest.mark.parametrize("name", ["report.html", "numbers.json"])
def test_a_report_replaces_a_link(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    Report("title", "summary", [], [], [], {}, {}, []).save(tmp_path / name)
    assert victim.read_text() == "precious"
    assert not (tmp_path / name).is_symlink()
    assert "summary" in (tmp_path / name).read_text()


def test_an_export_replaces_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "model.pt2").symlink_to(victim)
    draw(toy_posterior(), toy_data(), lv.SGLD, **OPTIONS).export(tmp_path / "model.pt2", samples=1)
    assert victim.read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt2", "victim"]


def test_a_log_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ValueError, match="is a symbolic link, which is not followed"),
        logging("tensorboard", toy_posterior(), tmp_path, {}, None),
    ):
        pass


def test_a_run_may_itself_be_reached_by_a_link(path, tmp_path):
    """It is the user who names it."""
    (tmp_path / "by-link").symlink_to(path)
    assert len(resume(tmp_path / "by-link", toy_posterior(), toy_data(), steps=14)) == 7
    assert verify(path).problems == []


# sizes


def test_a_manifest_is_not_read_beyond_its_bound(path):
    with open(path / "manifest.json", "r+b") as file:
        file.truncate(1 << 40)  # a file of zeros that takes no room on the disk
    with at_most(20), pytest.raises(lv.RunError, match="larger than 64 MB"):
        lv.load(path, toy_model())


@pytest.mark.parametrize("name", ["fixed.safetensors", "checkpoints/0000-0000.safetensors"])
def test_a_file_larger_than_the_memory_is_refused_unread(path, name):
    with open(path / name, "r+b") as file:
        file.truncate(1 << 42)
    with at_most(20), pytest.raises(lv.RunError, match=rf"{name}.*(larger|not a checkpoint)"):
        resume(path, toy_posterior(), toy_data(), steps=14)


def test_fixed_tensors_are_not_larger_than_the_model(path):
    store = DirectoryStore.open(path)
    files.write(path / "fixed.safetensors", files.tensors({"x": torch.zeros(1 << 25)}, {"run": store.manifest["run"]}))
    with pytest.raises(lv.RunError, match="larger .* than all that it may contain"):
        lv.load(path, toy_model())


def test_a_heartbeat_is_not_read_beyond_its_bound(path):
    with open(path / "writers" / "h-1-0.json", "wb") as file:
        file.truncate(1 << 40)
    with at_most(20):
        assert status.describe(path)[1][1][:2] == ("0", "12")


def test_a_regular_file_is_read_and_others_are_not(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert folders.read_bytes(tmp_path / "file", 3) == b"abc"
    with pytest.raises(ValueError, match="larger"):
        folders.read_bytes(tmp_path / "file", 2)
    with pytest.raises(ValueError, match="not a regular file"):
        folders.read_bytes(tmp_path, 3)


# what is written is what safetensors reads


def test_tensors_of_every_dtype_are_read_back(tmp_path):
    from safetensors.torch import load_file

    given = {
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in files._DTYPES
        if dtype not in (torch.uint16, torch.uint32, torch.uint64)
    }
    given |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 2), "strided": torch.arange(12.0).reshape(3, 4).T}
    files.write(tmp_path / "x.safetensors", files.tensors(given, {"a": "ä" + "0" * 64}))
    files.check(tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert files.read(tmp_path / "x.safetensors")[1]["a"] == "ä" + "0" * 64


FORGED = (None, 3, "x", [], {}, {"name": "Nothing"}, {"name": "SWAG", "options": {"rank": -1}}, {"tensor": [3]})


def test_a_forged_manifest_of_a_fit_raises_only_our_own_errors(tmp_path):
    path = tmp_path / "fit"
    optimizer = partial(torch.optim.SGD, lr=1e-2)
    options = {"optimizer": optimizer, "steps": 8, "progress": False, "out": path}
    lv.fit(toy_posterior(), toy_data(), lv.SWAG(cycle=2, rank=2), **options)
    manifest = manifests.read(path)
    for name in manifest:
        lacking = {key: value for key, value in manifest.items() if key != name}
        for forged in (lacking, *({**manifest, name: value} for value in FORGED)):
            (path / "manifest.json").write_bytes(manifests.text(forged))
            with suppress(ValueError):  # a RunError is one
                lv.load(path, toy_model()).predict(toy_data()[0][:2])
