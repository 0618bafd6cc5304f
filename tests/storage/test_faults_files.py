"""Corrupted files are named and refused, and the rest stays usable; nothing that is read from disk is trusted."""

import errno
import json
import os
import shutil
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import langevin as lv
from langevin.cli.main import app
from langevin.storage import files, status
from langevin.storage import manifest as manifests
from langevin.storage.directory import DirectoryStore
from langevin.storage.verify import accept_manifest, quarantine, verify
from tests.helpers import samples_of, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"steps": 40, "burn_in": 0, "thin": 4, "chains": 2, "mode": "sequential", "checkpoint_steps": 10}
EXAMPLES = 25
fuzz = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "r"
    draw(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), out=path, **OPTIONS)
    return path


@pytest.fixture
def path(original, tmp_path):
    shutil.copytree(original, tmp_path / "r")
    return tmp_path / "r"


def sample_files(path, chain=0):
    return sorted((path / "samples" / f"chain-{chain:04}").glob("*.safetensors"))


def flip(file, place=-5):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_an_intact_run_has_no_problems(path):
    report = verify(path)
    assert report.problems == []
    assert report.samples == 20
    assert report.files == len(list(path.rglob("*.safetensors"))) + 1


@pytest.mark.fault("a flipped bit in a file of samples")
def test_one_flipped_bit_is_found_refused_and_quarantined(path):
    file = sample_files(path)[1]
    whole = samples_of(lv.load(path, toy_model()))
    flip(file)
    run = lv.load(path, toy_model())  # its header is intact
    with pytest.raises(lv.RunError, match=rf"{file.name} is corrupted: .*checksum differs.*verify .* --quarantine"):
        run.predict(toy_data()[0])
    report = verify(path)
    assert report.corrupted == [file]
    assert report.samples == 17
    shown = CliRunner().invoke(app, ["verify", str(path), "--quarantine"])
    assert shown.exit_code == 1
    assert str(file) in shown.output.replace("\n", "")
    with pytest.warns(UserWarning, match="Samples of chain 0 between the steps 8 and 24 are missing"):
        rest = lv.load(path, toy_model())
    assert rest.predict(toy_data()[0]).probs.shape == (60, 3)
    left = samples_of(rest)
    assert len(left) == 17
    assert all(torch.equal(value, whole[key]) for key, value in left.items())
    assert (path / "quarantine" / f"chain-0000-{file.name}").exists()


@pytest.mark.fault("files swapped, deleted, renamed, from another run, replaced by a pipe or a folder")
@pytest.mark.parametrize("kind", ["swapped", "from another run", "deleted", "renamed", "a pipe", "a folder"])
def test_files_that_moved_are_found(path, kind, tmp_path):
    first, second = sample_files(path)[:2]
    if kind == "swapped":
        first.rename(tmp_path / "x")
        second.rename(first)
        (tmp_path / "x").rename(second)
    elif kind == "from another run":
        other = draw(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), out=tmp_path / "o", **OPTIONS)
        shutil.copy(sample_files(other.path)[0], first)
    elif kind == "deleted":
        first.unlink()
    elif kind == "renamed":
        first.rename(first.with_name("0000000099.safetensors"))
    else:
        first.unlink()
        os.mkfifo(first) if kind == "a pipe" else first.mkdir()
    report = verify(path)
    assert report.problems
    with pytest.warns(UserWarning, match="corrupted, or from another run|missing"):
        run = lv.load(path, toy_model())
    assert len(list(run)) == report.samples < 20


@pytest.mark.fault("a corrupted checkpoint, fixed tensors from another run")
@pytest.mark.parametrize("name", ["fixed.safetensors", "checkpoints/0000-0000.safetensors"])
def test_other_files_are_checked_before_they_are_used(path, name):
    if name.startswith("fixed"):  # with no frozen tensor there is no data to flip
        files.write(path / name, files.tensors({"x": torch.zeros(3)}, {"run": "another"}))
    else:
        flip(path / name)
    assert any(name in problem for problem in verify(path).problems)
    with pytest.raises(lv.RunError, match=Path(name).name):
        resume(path, toy_posterior(), toy_data(), steps=60)
    if not name.startswith("fixed"):
        assert len(list(lv.load(path, toy_model()))) == 20


@pytest.mark.fault("a manifest edited by hand")
def test_a_manifest_edited_by_hand_is_refused_until_somebody_answers_for_it(path):
    file = path / "manifest.json"
    saved = json.loads(file.read_text())
    saved["settings"]["thin"] = 2
    file.write_text(json.dumps(saved))
    for use in (lambda: lv.load(path, toy_model()), lambda: resume(path, toy_posterior(), toy_data())):
        with pytest.raises(lv.RunError, match="was changed after langevin wrote it.*--accept-manifest"):
            use()
    accept_manifest(path)
    assert len(lv.load(path, toy_model())) == 20
    assert verify(path).problems == []


def test_a_chain_without_a_checkpoint_is_a_problem(path):
    (path / "checkpoints" / "0001-0001.safetensors").unlink()
    assert verify(path).problems == ["the chains [1] have no checkpoint, so they can't be resumed"]
    with pytest.raises(lv.RunError, match=r"has no checkpoint of the chains \[1\]"):
        resume(path, toy_posterior(), toy_data(), steps=60)


def test_a_manifest_can_be_written_in_another_layout(path):
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=1, sort_keys=True))
    assert verify(path).problems == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_an_error_of_the_system_is_not_taken_for_a_missing_file(path, monkeypatch, number):
    """safetensors says "no such file" of each of these."""

    genuine = files.open_regular

    def refuse(file):
        if "chain-0001" in str(file):
            raise OSError(number, os.strerror(number), str(file))
        return genuine(file)

    monkeypatch.setattr(files, "open_regular", refuse)
    with pytest.raises(lv.RunError, match=f"can't be read: {os.strerror(number)}"):
        DirectoryStore.open(path)


def test_a_run_resumes_without_the_samples_in_quarantine(path):
    sample_files(path)[0].write_bytes(b"")
    quarantine(path, verify(path))
    with pytest.warns(UserWarning, match="missing"):
        more = resume(path, toy_posterior(), toy_data(), steps=60)
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), **{**OPTIONS, "steps": 60})
    expected = samples_of(whole)
    assert len(more) == 28
    assert all(torch.equal(value, expected[key]) for key, value in samples_of(more).items())


# fuzzing


class Stop(Exception):
    """Enough seen."""


def stop(info):
    raise Stop


@contextmanager
def only_our_own_errors():
    """Nothing but a RunError, or another of the library's sentences, may come out."""
    with warnings.catch_warnings(action="ignore"), suppress(ValueError, lv.DivergenceError, Stop):
        yield


def use(path):
    """Everything that reads a run."""
    with only_our_own_errors():
        verify(path)
    with only_our_own_errors():
        status.describe(path)
    with only_our_own_errors():
        run = lv.load(path, toy_model())
        list(run)
        run.temperature()
        run.predict(toy_data()[0][:2])
    with only_our_own_errors():
        resume(path, toy_posterior(), toy_data(), steps=44, callbacks=[stop])


@st.composite
def corruption(draw, size):
    """A function from a file's bytes to others."""
    at = draw(st.integers(0, max(size - 1, 0)))
    some = draw(st.binary(min_size=1, max_size=16))
    how = draw(st.sampled_from(["overwrite", "cut", "insert", "remove", "replace"]))
    return {
        "overwrite": lambda b: b[:at] + some + b[at + len(some) :],
        "cut": lambda b: b[:at],
        "insert": lambda b: b[:at] + some + b[at:],
        "remove": lambda b: b[:at] + b[at + len(some) :],
        "replace": lambda b: some,
    }[how]


@pytest.mark.fault("files fuzzed (hypothesis)", EXAMPLES)
@fuzz
@given(data=st.data())
def test_corrupted_bytes_are_never_trusted(original, tmp_path, data):
    whole = samples_of(lv.load(original, toy_model()))
    path = tmp_path / "fuzzed"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(original, path)
    there = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    file = data.draw(st.sampled_from([str(f.relative_to(path)) for f in there]), label="file")
    before = (path / file).read_bytes()
    after = data.draw(corruption(min(len(before), 4000)), label="corruption")(before)
    (path / file).write_bytes(after)
    with warnings.catch_warnings(action="ignore"):
        if after != before and file.endswith("safetensors"):
            assert verify(path).problems
        with only_our_own_errors():
            for record in (run := lv.load(path, toy_model())).samples.records:
                with only_our_own_errors():
                    sample = run.store.read(record)
                    flat = torch.cat([t.flatten().double() for t in sample.values()])
                    assert torch.equal(flat, whole[record.chain, record.step])
    use(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.just("../../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.fault("files fuzzed (hypothesis)", EXAMPLES)
@fuzz
@given(data=st.data())
def test_a_forged_manifest_raises_only_our_own_errors(original, tmp_path, data):
    path = tmp_path / "forged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(original, path)
    honest = manifests.read(path)
    place = data.draw(st.sampled_from([p for p in places(honest) if p and p[0] != "format"]), label="place")
    forged = replaced(honest, place, data.draw(values, label="value"))
    (path / "manifest.json").write_bytes(manifests.text(forged))  # with a checksum that is right
    use(path)
    outside = [f for f in tmp_path.rglob("*") if path not in f.parents and f != path]
    assert outside == []


@pytest.mark.fault("files fuzzed (hypothesis)", EXAMPLES)
@fuzz
@given(data=st.data())
def test_forged_samples_and_heartbeats_raise_only_our_own_errors(original, tmp_path, data):
    path = tmp_path / "forged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(original, path)
    file = sample_files(path)[0]
    tensors, metadata = files.read(file)
    key = data.draw(st.sampled_from(["run", "chain", "after", "samples"]))
    honest = metadata[key] if key == "run" else json.loads(metadata[key])
    place = data.draw(st.sampled_from(list(places(honest))))
    forged = replaced(honest, place, data.draw(values))
    metadata[key] = json.dumps(forged)
    files.write(file, files.tensors(tensors, metadata))
    beat = {"process": 1, "host": "h", "chains": [0], "steps": {"0": 3}, "rate": 1.0, "at": 0.0}
    place = data.draw(st.sampled_from(list(places(beat))))
    (path / "writers" / "h-1-0.json").write_text(json.dumps(replaced(beat, place, data.draw(values))))
    (path / "writers" / "h-1-0.lock").write_text(json.dumps(data.draw(values)))
    use(path)


@pytest.mark.parametrize("name", ["sampler", "schedule", "likelihood", "method"])
@pytest.mark.parametrize("recipe", [{"name": ["SGLD"], "options": {}}, {"name": "SGLD", "options": [1]}])
def test_recipes_in_a_manifest_are_checked(path, name, recipe):
    (path / "manifest.json").write_bytes(manifests.text(manifests.read(path) | {name: recipe}))
    with pytest.raises(lv.RunError, match=f"'{name}' has the wrong type"):
        lv.load(path, toy_model())


@pytest.mark.fault("a manifest nested a hundred thousand deep")
def test_nesting_is_bounded(path):
    (path / "manifest.json").write_text('{"tensors": {}, "format": 3, "tags": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(lv.RunError, match="can't be read: nested too deeply"):
        DirectoryStore.open(path)


@pytest.mark.fault("a manifest that names functions to be called")
def test_no_function_that_a_manifest_names_is_called_without_consent(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('called', 'w')\ndef f(**_): pass")
    forged = manifests.read(path)
    forged["tags"] = {
        "command": {
            "model": "evil:f",
            "model_options": {},
            "data": "digits",
            "data_options": {},
            "likelihood": None,
            "likelihood_options": {},
            "prior": None,
            "prior_options": {},
            "num_data": None,
            "seed": 0,
        }
    }
    (path / "manifest.json").write_bytes(manifests.text(forged))
    for command in ("resume", "evaluate", "report"):
        refused = CliRunner().invoke(app, [command, str(path)])
        assert refused.exit_code != 0
        assert "evil:f" in f"{refused.exception} {refused.output}"
    with pytest.raises(lv.RunError, match="does not know its model by name"):
        lv.load(path)
    evil = {"name": "SGLD", "options": {"lr": 0.1, "preconditioner": {"preconditioner": "os", "options": {}}}}
    for forgery in ({"sampler": evil}, {"schedule": evil}, {"schedule": {"name": "os", "options": {}}}):
        (path / "manifest.json").write_bytes(manifests.text(forged | forgery))
        with pytest.raises(lv.RunError, match=f"The {next(iter(forgery))} .* is not known"):
            resume(path, toy_posterior(), toy_data())
    assert not (tmp_path / "called").exists()


def test_pickle_is_never_imported_to_read(path):
    """No source of the library calls pickle, torch.load or their like."""
    source = "".join(file.read_text() for file in Path(lv.__file__).parent.rglob("*.py"))
    for word in ("pickle.load", "torch.load(", "joblib.load", "allow_pickle", "eval(", "exec(", "_object_list"):
        lines = [line for line in source.splitlines() if word in line and ".eval()" not in line]
        assert lines == [], word
