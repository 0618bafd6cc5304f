import json
import os
import resource
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import langevin as lv
from langevin.inference import checks
from langevin.inference.settings import RunSettings
from langevin.storage import checkpoint_files, directory, files
from langevin.storage import manifest as manifests
from langevin.storage.base import Checkpoint
from langevin.storage.directory import DirectoryStore
from tests.helpers import samples_of, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)


@pytest.fixture
def run(tmp_path):
    return draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=40,
        burn_in=0,
        thin=4,
        chains=2,
        mode="sequential",
        out=tmp_path / "run",
        checkpoint_steps=10,
    )


def manifest(**more):
    return {"tensors": {"w": {"shape": [3], "dtype": "float32"}}, **more}


def store_at(path, **more):
    store = DirectoryStore.create(path, manifest(**more))
    store.write_manifest()
    return store


def test_a_run_is_a_sequence_of_samples(run):
    assert len(run) == 20
    assert run.chains == [0, 1]
    assert len(run.chain(1)) == 10
    assert set(run[0]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(run[-1]["0.weight"], run.chain(1)[-1]["0.weight"])
    assert len(run[2:5]) == 3
    assert len(list(run)) == 20
    with pytest.raises(IndexError):
        run[20]
    with pytest.raises(IndexError, match="chains"):
        run.chain(2)


def test_the_manifest_says_what_was_run(run):
    saved = json.loads((run.path / "manifest.json").read_text())
    assert saved["sampler"] == {"name": "SGLD", "options": {"lr": 0.01}}
    assert saved["settings"]["steps"] == 40
    assert saved["num_data"] == 60
    assert saved["environment"]["torch"] == torch.__version__
    assert saved["environment"]["threads"] == 1


def test_loaded_samples_are_the_stored_ones(run):
    loaded = lv.load(run.path, toy_model())
    assert samples_of(loaded).keys() == samples_of(run).keys()
    assert all(torch.equal(samples_of(loaded)[k], v) for k, v in samples_of(run).items())


def test_a_run_is_never_overwritten(run):
    with pytest.raises(lv.RunError, match=r"never overwritten.*ontinue it with lv.resume\(.*out='.*/run-2'"):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=5, out=run.path)
    assert len(lv.load(run.path, toy_model())) == 20


def test_a_truncated_file_is_named_and_the_rest_stays_readable(run):
    _, file, *_ = sorted((run.path / "samples" / "chain-0000").glob("*.safetensors"))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.warns(UserWarning, match=file.name):
        loaded = lv.load(run.path, toy_model())
    assert list(loaded.corrupted) == [str(file)]
    assert 10 < len(loaded) < 20
    assert loaded.predict(toy_data()[0]).probs.shape == (60, 3)


@pytest.mark.parametrize("kind", ["garbage", "empty", "other tensors", "other chain", "no metadata"])
def test_files_that_are_not_of_this_run_are_named_and_left_out(run, kind):
    file = min((run.path / "samples" / "chain-0000").glob("*.safetensors"))
    if kind == "garbage":
        file.write_bytes(os.urandom(500))
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "other tensors":
        save_file({"x": torch.zeros(3)}, file, {"chain": "0", "samples": '[{"step": 4}]'})
    elif kind == "other chain":
        file.write_bytes(min((run.path / "samples" / "chain-0001").glob("*.safetensors")).read_bytes())
    else:
        save_file(load_file(file), file)
    with pytest.warns(UserWarning, match="corrupted, or from another run, and is left out"):
        loaded = lv.load(run.path, toy_model())
    assert 0 < len(loaded) < 20


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "can't be read"), ("[]", "is not the manifest"), ("{}", "is not the manifest"), (None, "contains no run")],
)
def test_a_bad_manifest_is_refused(run, text, words):
    file = run.path / "manifest.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(lv.RunError, match=words):
        lv.load(run.path, toy_model())


def test_another_format_is_refused_by_name(run):
    file = run.path / "manifest.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "format": 99}))
    with pytest.raises(lv.RunError, match=r"format 99 by langevin .* this version reads the formats 3 and 4"):
        lv.load(run.path, toy_model())


def test_a_run_with_the_former_random_numbers_is_read_but_not_continued(run):
    before = run.predict(toy_data()[0]).probs
    saved = {**manifests.read(run.path), "format": 3}
    (run.path / "manifest.json").write_bytes(manifests.text(saved))
    assert torch.equal(lv.load(run.path, toy_model()).predict(toy_data()[0]).probs, before)
    with pytest.raises(lv.RunError, match="whose random numbers were others: it can be read and predicted with"):
        lv.resume(run.path, toy_posterior(), toy_data(), steps=60, progress=False)
    again = draw(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, steps=5, init=lv.load(run.path, toy_model()), chains=2)
    assert len(again) > 0


def test_a_corrupted_checkpoint_is_named(run):
    file = run.path / "checkpoints" / "0000-0000.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(lv.RunError, match="0000-0000"):
        lv.resume(run.path, toy_posterior(), toy_data(), steps=60, progress=False)
    assert len(lv.load(run.path, toy_model())) == 20


def test_the_wrong_model_is_refused(run):
    with pytest.raises(ValueError, match="has no tensor '0.weight' of shape"):
        lv.load(run.path, toy_model(classes=3)[2:])


def test_half_precision_samples(tmp_path):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 10, "burn_in": 0, "thin": 1}
    full = draw(toy_posterior(), toy_data(), out=tmp_path / "f", **options)
    half = draw(toy_posterior(), toy_data(), sample_dtype=torch.float16, out=tmp_path / "h", **options)
    assert half[0]["0.weight"].dtype == torch.float32
    for key, value in samples_of(full).items():
        torch.testing.assert_close(samples_of(half)[key], value, atol=1e-3, rtol=1e-3)

    def size(run):
        return sum(f.stat().st_size for f in (run.path / "samples").rglob("*.safetensors"))

    assert size(half) < size(full)
    store = store_at(tmp_path / "s", sample_dtype="float16")
    with pytest.raises(lv.RunError, match="beyond the range of float16"):
        store.add(0, 1, {"w": torch.full((3,), 1e6)}, {})


def test_keep_last(tmp_path):
    run = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=100,
        burn_in=0,
        thin=1,
        keep_last=7,
        checkpoint_steps=5,
        out=tmp_path / "r",
    )
    assert run.steps == list(range(94, 101))
    assert lv.load(tmp_path / "r", toy_model()).steps == run.steps
    assert len(list((tmp_path / "r" / "samples").rglob("*.safetensors"))) <= 3


def test_a_sample_counts_as_saved_once_it_is_on_disk(tmp_path):
    store = store_at(tmp_path / "s")
    store.add(0, 1, {"w": torch.arange(3.0)}, {"loss": 1.0})
    assert store.saved() == 0
    assert DirectoryStore.open(tmp_path / "s").saved() == 0
    store.flush()
    assert store.saved() == 1
    assert DirectoryStore.open(tmp_path / "s").records()[0].stats == {"loss": 1.0}


def test_samples_that_are_there_already_are_not_written_again(tmp_path):
    store = store_at(tmp_path / "s")
    for _ in range(2):
        store.add(0, 1, {"w": torch.zeros(3)}, {})
        store.flush()
    assert store.saved() == 1


def test_buffered_samples_are_bounded_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("langevin.storage.directory._FILE_BYTES", 12 * 4)
    store = store_at(tmp_path / "s")
    for step in range(1, 11):
        store.add(0, step, {"w": torch.zeros(3)}, {})
    assert store.saved() == 8
    assert store.buffered() == 2


def test_one_writer_at_a_time(run):
    store = DirectoryStore.open(run.path)
    with store.writing(), pytest.raises(lv.RunError, match=f"being written by process {os.getpid()}"):
        lv.resume(run.path, toy_posterior(), toy_data(), steps=60, progress=False)


def test_the_newest_checkpoint_of_a_chain_counts(tmp_path):
    store = store_at(tmp_path / "s")
    for chains, step in (([0, 1], 5), ([0], 9)):
        store.write_checkpoint({c: Checkpoint(step, {"w": torch.full((3,), float(step))}, {"a": 1}) for c in chains})
    assert store.checkpoint_steps() == {0: 9, 1: 5}
    assert [float(checkpoint.tensors["w"][0]) for checkpoint in store.checkpoints([0, 1])] == [9.0, 5.0]


@pytest.mark.parametrize("together", [1, 8], ids=["a file per chain", "a file for all"])
def test_restoring_many_chains_reads_every_file_once(tmp_path, monkeypatch, together):
    store = store_at(tmp_path / "s")
    for first in range(0, 8, together):
        numbers = range(first, first + together)
        store.write_checkpoint({c: Checkpoint(5, {"w": torch.full((3,), float(c))}, {"chain": c}) for c in numbers})
    read, opened = files.read, files.open_tensors
    reads, headers = [], []
    monkeypatch.setattr(files, "read", lambda path, *rest: reads.append(path) or read(path, *rest))
    monkeypatch.setattr(files, "open_tensors", lambda path: headers.append(path) or opened(path))
    checkpoints = store.checkpoints(range(8))
    assert [float(checkpoint.tensors["w"][0]) for checkpoint in checkpoints] == list(range(8))
    assert [checkpoint.values["chain"] for checkpoint in checkpoints] == list(range(8))
    assert len(reads) == len(set(reads)) == 8 // together
    assert len(headers) == 2 * len(reads)  # the header once to find the newest, then the tensors


def test_a_process_that_holds_the_run_reads_every_header_once(tmp_path, monkeypatch):
    """Chains that are restored one after another would read all headers for each of them."""
    store = store_at(tmp_path / "s")
    for chain in range(8):
        store.write_checkpoint({chain: Checkpoint(5, {"w": torch.full((3,), float(chain))}, {"chain": chain})})
    read, headers = checkpoint_files.read_headers, []
    monkeypatch.setattr(checkpoint_files, "read_headers", lambda *rest: headers.append(rest) or read(*rest))
    store = DirectoryStore.open(tmp_path / "s")
    headers.clear()
    with store.writing():
        for chain in range(8):
            (found,) = store.checkpoints([chain])
            assert found.values == {"chain": chain}
            store.write_checkpoint({chain: Checkpoint(6, found.tensors, {"chain": chain})})
        assert store.checkpoint_steps() == dict.fromkeys(range(8), 6)
    assert len(headers) == 8
    assert DirectoryStore.open(tmp_path / "s").checkpoint_steps() == dict.fromkeys(range(8), 6)


def test_plain_values_survive_json():
    from collections import Counter

    value = {"milestones": Counter({3: 1, 5: 2}), "lists": [1, (2.5, None)], "ints": {1: "a"}, "s": "x"}
    back = files.decode(json.loads(json.dumps(files.encode(value))))
    assert back == {"milestones": Counter({3: 1, 5: 2}), "lists": [1, [2.5, None]], "ints": {1: "a"}, "s": "x"}
    assert isinstance(back["milestones"], Counter)


def test_samples_that_do_not_fit_on_the_disk_are_refused_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: type("U", (), {"free": 1000})())
    with pytest.raises(lv.RunError, match=r"would take .* kB, but .* has 1.0 kB free. Save fewer \(thin=…"):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=100, out=tmp_path / "r")


def test_the_estimate_of_the_size_is_right(run):
    written = sum(f.stat().st_size for f in (run.path / "samples").rglob("*.safetensors"))
    estimate = checks.stored_size(run.store, RunSettings(**run.manifest["settings"]))
    assert estimate < written < estimate + 2000 * len(list((run.path / "samples").rglob("*.safetensors")))


FULL = textwrap.dedent(
    """
    import resource, signal, sys
    from functools import partial
    import torch
    torch.set_num_threads(1)
    import langevin as lv
    from langevin.errors import RunError
    from tests.helpers import toy_data, toy_posterior

    def fill(info):
        if info.step == 50:  # from here on no file can grow beyond a hundred bytes: every write fails
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=100, burn_in=0, thin=1,
                  out=sys.argv[1], progress=False, callbacks=[fill], checkpoint_steps=10)
    except RunError as error:
        print(error)
    """
)


def test_a_full_disk_leaves_saved_samples_intact(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "r")], capture_output=True, text=True, cwd=os.getcwd(), check=True
    )
    assert "could not be written: File too large. Existing samples are unaffected" in done.stdout
    assert lv.load(tmp_path / "r", toy_model()).steps == list(range(1, 51))
    assert not list((tmp_path / "r").rglob(".*safetensors*"))  # nothing half-written lies about
    again = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), progress=False)
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=100, burn_in=0, thin=1)
    assert all(torch.equal(samples_of(again)[key], value) for key, value in samples_of(whole).items())


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path, monkeypatch):
    """What is in memory per saved sample is its record: its place and a few numbers, not its tensors."""
    import tracemalloc

    monkeypatch.setattr("langevin.storage.directory._FILE_BYTES", 4000 * 4 * 10)
    store = DirectoryStore.create(tmp_path / "s", {"tensors": {"w": {"shape": [4000], "dtype": "float32"}}})
    tracemalloc.start()
    for step in range(1, 1001):
        store.add(0, step, {"w": torch.zeros(4000)}, {"loss": 0.0})
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.saved() == 1000
    assert held / 1000 < 1500  # bytes a sample, of 16,000 in its tensors
