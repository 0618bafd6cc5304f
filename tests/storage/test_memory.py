"""Runs without a directory: nothing is written to disk, and yet they resume, are saved, and survive an interruption."""

import math
import os
import re
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.kernels import updates
from langevin.storage import files
from langevin.storage.memory import MemoryStore
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"sampler": partial(lv.SGHMC, lr=1e-3), "burn_in": 4, "thin": 3, "chains": 2}
modes = pytest.mark.parametrize("mode", ["sequential", "vectorised"])


class Stop(Exception):
    """What a callback of a test raises."""


def stop_at(step, chains=None, error=Stop):
    def callback(info):
        if info.step == step and chains in (None, info.chains):
            raise error

    return callback


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty directory, in which temporary ones are made; it is the working directory too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(folder)
    return folder


def named_directory(capsys):
    """Where the message about an interrupted run says that it is."""
    (path,) = re.findall(r"resume from (\S+): lv\.resume\(.*\)\.$", capsys.readouterr().err, re.MULTILINE)
    return Path(path)


def sample_in_memory():
    return draw(toy_posterior(), toy_data(), steps=20, checkpoint_steps=3, **OPTIONS)


def fit_in_memory():
    adam = partial(torch.optim.Adam, lr=1e-2)
    return lv.fit(toy_posterior(), toy_data(), lv.SWAG(cycle=4, rank=2), optimizer=adam, steps=12, progress=False)


def record_in_memory():
    posterior = toy_posterior()
    sampler = lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60)
    with lv.Recorder(posterior, sampler) as recorder:
        for step in range(1, 5):
            posterior.loss(*toy_data()).backward()
            sampler.step()
            recorder.record(step)
        return recorder.run()


@pytest.mark.parametrize("use", [sample_in_memory, fit_in_memory, record_in_memory])
def test_without_out_nothing_is_written_to_disk(temporary, monkeypatch, use):
    def refuse(*args, **options):
        raise AssertionError(f"{args} {options}")

    use().predict(toy_data()[0])  # what compilers write at first use (their caches) is written
    before = set(temporary.iterdir())
    monkeypatch.setattr(files, "write", refuse)
    for name in ("fsync", "mkdir", "makedirs", "replace", "rename"):
        monkeypatch.setattr(os, name, refuse)
    run = use()
    assert len(run) > 0
    assert run.path is None
    assert run.predict(toy_data()[0]).probs.shape == (60, 3)
    assert set(temporary.iterdir()) == before


@modes
def test_a_run_in_memory_resumes_bit_for_bit(temporary, mode):
    whole = draw(toy_posterior(), toy_data(), steps=40, mode=mode, **OPTIONS)
    run = draw(toy_posterior(), toy_data(), steps=17, mode=mode, **OPTIONS)
    before = samples_of(run)
    for steps in (25, 40):
        run = resume(run, toy_posterior(), toy_data(), steps=steps)
    assert_same_samples(whole, run)
    assert all(torch.equal(value, samples_of(run)[key]) for key, value in before.items())
    assert whole.trace("loss") == run.trace("loss")
    np.testing.assert_equal(whole.trace("temperature"), run.trace("temperature"))
    assert len(run.manifest["resumed"]) == 2
    assert not list(temporary.glob("langevin-*"))


def test_chains_are_added_to_a_run_in_memory():
    whole = draw(toy_posterior(), toy_data(), steps=20, mode="sequential", **OPTIONS)
    run = draw(toy_posterior(), toy_data(), steps=12, mode="sequential", **{**OPTIONS, "chains": 1})
    assert_same_samples(whole, resume(run, toy_posterior(), toy_data(), steps=20, chains=2))


@modes
def test_a_saved_run_can_be_loaded_and_resumed(tmp_path, mode):
    whole = draw(toy_posterior(), toy_data(), steps=40, mode=mode, **OPTIONS)
    run = draw(toy_posterior(), toy_data(), steps=25, mode=mode, tags={"by": ["me"]}, **OPTIONS)
    saved = run.save(tmp_path / "r")
    assert saved.path == tmp_path / "r"
    loaded = lv.load(tmp_path / "r", toy_model())
    for other in (saved, loaded):
        assert_same_samples(run, other)
        assert run.trace("loss") == other.trace("loss")
    assert loaded.manifest["tags"] == {"by": ["me"]}
    x = toy_data()[0]
    assert torch.equal(loaded.predict(x).probs, run.predict(x).probs)
    assert_same_samples(whole, resume(tmp_path / "r", toy_posterior(), toy_data(), steps=40))
    assert run.manifest["resumed"] == []  # the saved run is another one from here on
    assert_same_samples(whole, resume(run, toy_posterior(), toy_data(), steps=40))
    with pytest.raises(lv.RunError, match="never overwritten"):
        run.save(tmp_path / "r")


def test_a_fit_in_memory_resumes_and_is_saved(tmp_path):
    adam = partial(torch.optim.Adam, lr=1e-2)
    fit = partial(lv.fit, toy_posterior(), toy_data(), lv.SWAG(cycle=4, rank=2), optimizer=adam, progress=False)
    whole, short = fit(steps=20), fit(steps=12)
    short.save(tmp_path / "f")
    for path in (tmp_path / "f", short):
        longer = resume(path, toy_posterior(), toy_data(), steps=20)
        assert_same_samples(whole, longer)
        assert torch.equal(longer[0]["0.weight"], whole[0]["0.weight"])
    assert lv.load(tmp_path / "f", toy_model()).approximation == lv.SWAG(cycle=4, rank=2)


@modes
def test_an_interrupted_run_resumes_from_the_directory_in_the_message(temporary, capsys, mode):
    whole = draw(toy_posterior(), toy_data(), steps=30, mode=mode, **OPTIONS)
    stop = stop_at(13, [1] if mode == "sequential" else [0, 1])
    with pytest.raises(Stop):
        draw(toy_posterior(), toy_data(), steps=30, mode=mode, callbacks=[stop], **OPTIONS)
    path = named_directory(capsys)
    assert path.parent == temporary
    assert_same_samples(whole, resume(path, toy_posterior(), toy_data()))


@updates.switched(False)  # a subclass with an update of its own takes no compiled one
def test_ctrl_c_within_a_step_waits_for_its_end(temporary, capsys):
    class Signalled(lv.SGHMC):
        def update(self, group, params, grads, normals):
            if group["step"] == 6:
                os.kill(os.getpid(), signal.SIGINT)  # momentum and position are about to change
            super().update(group, params, grads, normals)

    options = {**OPTIONS, "steps": 20, "mode": "sequential"}
    with pytest.raises(KeyboardInterrupt):
        draw(toy_posterior(), toy_data(), **{**options, "sampler": partial(Signalled, lr=1e-3)})
    path = named_directory(capsys)
    again = resume(path, toy_posterior(), toy_data(), sampler=partial(lv.SGHMC, lr=1e-3))
    assert_same_samples(draw(toy_posterior(), toy_data(), **options), again)


def test_an_error_within_a_step_leaves_the_checkpoint_before_it(temporary, capsys):
    class Broken(lv.SGHMC):
        broken = True

        def update(self, group, params, grads, normals):
            super().update(group, params, grads, normals)
            if group["step"] == 13 and Broken.broken:
                raise RuntimeError("half-way")

    options = {**OPTIONS, "steps": 30, "mode": "sequential", "sampler": partial(Broken, lr=1e-3), "checkpoint_steps": 5}
    with pytest.raises(RuntimeError, match="half-way"):
        draw(toy_posterior(), toy_data(), **options)
    path = named_directory(capsys)
    Broken.broken = False
    again = resume(path, toy_posterior(), toy_data(), sampler=partial(Broken, lr=1e-3))
    assert_same_samples(draw(toy_posterior(), toy_data(), **options), again)


def test_a_resume_that_fails_leaves_the_run_in_memory_as_it_was(temporary):
    """The stepper that continues from a checkpoint must not change it."""

    class Broken(lv.SGHMC):
        fails_at = None

        def update(self, group, params, grads, normals):
            super().update(group, params, grads, normals)
            if group["step"] == Broken.fails_at:
                raise RuntimeError("half-way")

    options = {**OPTIONS, "mode": "sequential", "sampler": partial(Broken, lr=1e-3)}
    whole = draw(toy_posterior(), toy_data(), steps=40, **options)
    run = draw(toy_posterior(), toy_data(), steps=20, **options)
    Broken.fails_at = 27
    with pytest.raises(RuntimeError, match="half-way"):
        resume(run, toy_posterior(), toy_data(), steps=40, sampler=options["sampler"])
    Broken.fails_at = None
    assert_same_samples(whole, resume(run, toy_posterior(), toy_data(), steps=40, sampler=options["sampler"]))


def test_a_state_that_is_lost_does_not_take_the_run_in_memory_with_it(temporary, capsys):
    def explode(info):
        if info.step == 12:
            next(iter(info.sampler.state.values()))["momentum"][0] = math.inf
            raise KeyboardInterrupt  # every weight is still finite

    options = {**OPTIONS, "chains": 1, "steps": 20, "checkpoint_steps": 5}
    with pytest.raises(KeyboardInterrupt):
        draw(toy_posterior(), toy_data(), callbacks=[explode], **options)
    again = resume(named_directory(capsys), toy_posterior(), toy_data())  # from the checkpoint of step 10
    assert_same_samples(draw(toy_posterior(), toy_data(), **options), again)


def test_a_run_that_cannot_be_written_says_so(temporary, capsys, monkeypatch):
    def full(path, *rest):
        raise lv.RunError("No space left on device")

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(Stop):
        draw(toy_posterior(), toy_data(), steps=20, callbacks=[stop_at(9)], **OPTIONS)
    said = capsys.readouterr().err
    assert "Stopped at step 9 of 20" in said
    assert "could not be written to disk: No space left on device" in said


def test_a_run_that_fails_in_its_first_step_writes_nothing(temporary, capsys):
    with pytest.raises(ValueError, match="grad_accumulation_steps=17 for a batch of 16 examples; give 1 to 16"):
        draw(toy_posterior(), toy_data(), steps=20, batch_size=16, grad_accumulation_steps=17, **OPTIONS)
    assert "Stopped at step 0 of 20; no step was completed, so nothing was written." in capsys.readouterr().err
    assert not list(temporary.glob("langevin-*"))


def test_a_divergence_names_no_directory(temporary):
    with pytest.raises(lv.DivergenceError, match="smaller lr") as raised:
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e6), steps=400)
    assert "memory" not in str(raised.value)
    assert not list(temporary.glob("langevin-*"))


def test_samples_that_do_not_fit_in_memory_are_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(MemoryStore, "free_bytes", lambda self: 1000.0)
    words = r"would take .* kB, but 1.0 kB of memory are free. Save fewer \(thin=….* to disk: out=\"runs/mine\""
    with pytest.raises(lv.RunError, match=words):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=100)


def test_what_a_recorder_recorded_cannot_be_resumed(tmp_path):
    run = record_in_memory()
    for other in (run, run.save(tmp_path / "r"), tmp_path / "r"):
        with pytest.raises(lv.RunError, match="recorded by a Recorder.*can't be resumed"):
            resume(other, toy_posterior(), toy_data())
    assert_same_samples(run, lv.load(tmp_path / "r", toy_model()))


def test_samples_before_a_divergence_are_written_to_disk(capsys):
    def lose(info):
        if info.step == 30:
            for p in info.sampler.param_groups[0]["params"]:
                p.data.fill_(float("nan"))

    with pytest.raises(lv.DivergenceError):
        lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, steps=40, burn_in=10, thin=5, callbacks=[lose])
    message = capsys.readouterr().err
    assert "The samples before it are saved: resume from" in message
    path = re.search(r"resume from (\S+langevin-\w+)", message)[1]
    steps = lv.load(path, toy_model()).steps
    assert len(steps) >= 3
    assert steps == [15, 20, 25, 30][: len(steps)]
    shutil.rmtree(path)
