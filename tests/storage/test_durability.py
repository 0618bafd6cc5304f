"""Saved samples are never lost, and a step that was not completed leaves no trace."""

import itertools
import math
import os
import signal
from functools import partial
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference import settings
from langevin.kernels import updates
from langevin.storage import files
from langevin.storage.base import Checkpoint
from langevin.storage.directory import DirectoryStore
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)


def store_at(path, **more):
    store = DirectoryStore.create(path, {"tensors": {"w": {"shape": [3], "dtype": "float32"}}, **more})
    store.write_manifest()
    return store


class Crash(BaseException):
    """The power goes out."""


@pytest.mark.parametrize("data", [toy_data, lambda: list(zip(*toy_data(), strict=True))], ids=["tensors", "data set"])
def test_batches_differ_by_seed_chain_and_step_and_by_nothing_else(data):
    def batch(seed=0, chain=0, step=0):
        return as_batches(data(), 16, seed, torch.device("cpu")).fetch(chain, step)[0]

    assert torch.equal(batch(), batch())
    for other in ({"seed": 1}, {"chain": 1}, {"step": 1}):
        assert not torch.equal(batch(), batch(**other))


class Adaptive(lv.SGLD):
    frozen_at: ClassVar[list[int]] = []

    def freeze(self):
        Adaptive.frozen_at.append(self.param_groups[0]["step"])


@pytest.mark.parametrize(("burn_in", "freeze", "expected"), [(8, True, [8]), (8, False, [])])
def test_adaptation_ends_with_the_burn_in(burn_in, freeze, expected):
    Adaptive.frozen_at = []
    draw(toy_posterior(), toy_data(), partial(Adaptive, lr=1e-3), steps=20, burn_in=burn_in, thin=4, freeze=freeze)
    assert Adaptive.frozen_at == expected


def test_a_signal_within_a_step_waits_for_its_end(tmp_path):
    class Signalled(lv.SGHMC):
        def update(self, group, params, grads, normals):
            if group["step"] == 6:
                os.kill(os.getpid(), signal.SIGINT)  # momentum and position are about to change
            super().update(group, params, grads, normals)

    finished = []
    with pytest.raises(KeyboardInterrupt):
        draw(
            toy_posterior(),
            toy_data(),
            partial(Signalled, lr=1e-3),
            steps=20,
            burn_in=0,
            thin=1,
            out=tmp_path / "r",
            callbacks=[lambda info: finished.append(info.step)],
        )
    assert finished[-1] == 7
    assert DirectoryStore.open(tmp_path / "r").checkpoint_steps() == {0: 7}


@updates.switched(False)  # a subclass with an update of its own takes no compiled one
def test_an_error_within_a_step_does_not_become_a_checkpoint(tmp_path):
    class Broken(lv.SGHMC):
        def update(self, group, params, grads, normals):
            super().update(group, params, grads, normals)
            if group["step"] == 6:
                raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        draw(
            toy_posterior(),
            toy_data(),
            partial(Broken, lr=1e-3),
            steps=20,
            burn_in=0,
            thin=1,
            out=tmp_path / "r",
            checkpoint_steps=5,
        )
    assert DirectoryStore.open(tmp_path / "r").checkpoint_steps() == {0: 5}
    again = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), sampler=partial(lv.SGHMC, lr=1e-3), progress=False)
    assert_same_samples(
        draw(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), steps=20, burn_in=0, thin=1), again
    )


def test_a_weight_that_is_not_finite_never_enters_a_checkpoint(tmp_path):
    def explode(info):
        if info.step == 12:
            info.sampler.param_groups[0]["params"][0].data.fill_(math.inf)
            raise KeyboardInterrupt  # the loop saves on its way out

    with pytest.raises((KeyboardInterrupt, lv.DivergenceError)):
        draw(
            toy_posterior(),
            toy_data(),
            partial(lv.SGLD, lr=1e-2),
            steps=20,
            out=tmp_path / "r",
            callbacks=[explode],
            checkpoint_steps=5,
        )
    assert all(
        bool(t.isfinite().all()) for t in DirectoryStore.open(tmp_path / "r").checkpoints([0])[0].tensors.values()
    )


def test_a_sample_that_is_not_finite_is_refused(tmp_path):
    store = store_at(tmp_path / "s")
    with pytest.raises(FloatingPointError, match="not finite"):
        store.add(0, 1, {"w": torch.tensor([0.0, math.nan, 1.0])}, {})


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    store = store_at(tmp_path / "s")
    store.write_checkpoint({0: Checkpoint(5, {"w": torch.zeros(3)}, {})})

    def crash(_):
        raise Crash

    monkeypatch.setattr(files.os, "fsync", crash)  # the data are written, nothing is renamed yet
    with pytest.raises(Crash):
        store.write_checkpoint({0: Checkpoint(9, {"w": torch.ones(3)}, {})})
    monkeypatch.undo()
    assert DirectoryStore.open(tmp_path / "s").checkpoint_steps() == {0: 5}


def test_checkpoints_are_due_by_the_clock(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(settings.time, "monotonic", lambda: float(next(now)))
    interval = settings.CheckpointInterval(None, 5.0, last=0.0)
    assert [interval.is_due(step) for step in range(1, 13)].count(True) == 2


def test_resume_takes_frozen_weights_from_the_run(tmp_path):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "burn_in": 0, "thin": 5}
    whole = draw(toy_posterior(sampled="2.*"), toy_data(), steps=40, **options)
    draw(toy_posterior(sampled="2.*"), toy_data(), steps=20, out=tmp_path / "r", **options)
    torch.manual_seed(77)
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    assert_same_samples(
        whole, lv.resume(tmp_path / "r", toy_posterior(other, sampled="2.*"), toy_data(), steps=40, progress=False)
    )


def test_a_buffered_sample_is_a_copy(tmp_path):
    store = store_at(tmp_path / "s")
    live = torch.zeros(3)
    for step in (1, 2):
        live += 1
        store.add(0, step, {"w": live}, {})
    live += 1
    store.flush()
    assert [float(store.read(record)["w"][0]) for record in store.records()] == [1.0, 2.0]


def test_a_sample_on_disk_is_not_written_again(tmp_path):
    path = tmp_path / "s"
    store_at(path)
    for steps in ((1, 2, 3), (2, 3, 4)):  # the second time as after a resume from step 1
        store = DirectoryStore.open(path)
        for step in steps:
            store.add(0, step, {"w": torch.full((3,), float(step))}, {})
        store.flush()
    assert [r.step for r in DirectoryStore.open(path).records()] == [1, 2, 3, 4]
    assert sum(len(load_file(f)["w"]) for f in path.rglob("chain-*/*.safetensors")) == 4


@pytest.mark.parametrize(("burn_in", "saved"), [(20, [24, 32, 40]), (0, [8, 16, 24, 32, 40]), (None, [16, 24, 32, 40])])
def test_the_ends_of_cycles_are_saved_whatever_the_burn_in(burn_in, saved):
    run = draw(
        toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=40, burn_in=burn_in, schedule=lv.cyclical(8)
    )
    assert run.steps == saved
    lowest = 1e-2 * 0.5 * (1 + math.cos(math.pi * 7 / 8))
    assert run.trace("lr")[0] == pytest.approx([lowest] * len(saved))


def test_keep_last_survives_a_resume_from_an_earlier_checkpoint(tmp_path, monkeypatch):
    options = {"steps": 20, "burn_in": 0, "thin": 1, "keep_last": 3, "checkpoint_steps": 5}
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), **options)
    write = files.write

    def fail_once(path, *rest):
        if path.parent.name == "checkpoints" and DirectoryStore.open(tmp_path / "r").saved() and len(seen) == 1:
            raise lv.RunError("no checkpoint this time")
        if path.parent.name.startswith("chain"):
            seen.append(path)
        write(path, *rest)

    seen = []
    monkeypatch.setattr(files, "write", lambda path, *rest: fail_once(path, *rest) if made else write(path, *rest))
    made = []
    options["callbacks"] = [lambda info: made.append(1)]
    with pytest.raises(lv.RunError, match="this time"):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), out=tmp_path / "r", **options)
    monkeypatch.undo()
    assert lv.load(tmp_path / "r", toy_model()).steps == [3, 4, 5]  # flushed; the checkpoint is that of step 0
    again = resume(tmp_path / "r", toy_posterior(), toy_data())
    assert len(list(again)) == 3
    assert_same_samples(whole, again)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_samples_that_could_not_be_written_are_drawn_again(tmp_path, monkeypatch, error):
    options = {"steps": 20, "burn_in": 0, "thin": 1, "checkpoint_steps": 5}
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), **options)
    write = files.write
    count = itertools.count()

    def fail(path, *rest):
        if path.parent.name.startswith("chain") and next(count) == 1:
            raise error
        write(path, *rest)

    monkeypatch.setattr(files, "write", fail)
    with pytest.raises(error):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), out=tmp_path / "r", **options)
    monkeypatch.undo()
    assert_same_samples(whole, resume(tmp_path / "r", toy_posterior(), toy_data()))


class Stateful(lr_scheduler.ConstantLR):
    """A schedule whose state is not serializable."""

    def state_dict(self):
        return {**super().state_dict(), "lock": object()}


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_state_that_is_not_serializable_is_refused_before_the_start(tmp_path, where):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 10, "out": tmp_path / "r" if where == "disk" else None}
    with pytest.raises(lv.RunError, match="of its schedule .* is not serializable: Object of type object"):
        draw(toy_posterior(), toy_data(), schedule=Stateful, **options)
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_leaves_no_run(tmp_path, monkeypatch):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 10, "out": tmp_path / "r"}
    monkeypatch.setattr(files, "encode", lambda *_: {"state": object()} if (tmp_path / "r").exists() else {})
    with pytest.raises(lv.RunError, match="is not serializable: Object of type object"):
        draw(toy_posterior(), toy_data(), **options)
    assert not (tmp_path / "r" / "manifest.json").exists()
    monkeypatch.undo()
    assert len(draw(toy_posterior(), toy_data(), **options)) > 0


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(lv.RunError, match="can't be made a directory"):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=10, out=tmp_path / "file" / "r")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"posterior": toy_posterior(weight=0.5)}, "weight 1.0; given 0.5"),
        (
            {
                "posterior": lv.Posterior(
                    toy_model(), lv.likelihoods.Categorical(), lv.priors.Gaussian(0.01), num_data=60
                )
            },
            r"prior Gaussian\(std=1.0\)",
        ),
        ({"sampler": partial(lv.SGHMC, lr=1e-2)}, "A run keeps its sampler"),
        ({"sampler": partial(lv.SGLD, lr=1e-4)}, "A run keeps its sampler"),
        ({"schedule": lv.cyclical(5)}, "A run keeps its schedule"),
    ],
)
def test_resume_refuses_another_posterior_or_sampler(tmp_path, options, words):
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=10, out=tmp_path / "r")
    with pytest.raises(lv.RunError, match=words):
        resume(tmp_path / "r", options.pop("posterior", toy_posterior()), toy_data(), steps=20, **options)


@pytest.mark.filterwarnings("ignore:Layer")
def test_a_baseline_with_dropout_is_reproducible():
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))

    options = {"sampler": partial(lv.SGD, lr=1e-1), "steps": 10, "burn_in": 0, "thin": 5}
    assert_same_samples(
        draw(toy_posterior(net()), toy_data(), **options), draw(toy_posterior(net()), toy_data(), **options)
    )


class Backwards(RandomSampler):
    """An order of the user's."""


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: DataLoader(data, batch_size=16, sampler=RandomSampler(data, generator=torch.Generator())),
        lambda data: DataLoader(data, batch_size=16, sampler=Backwards(data)),
        lambda data: DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True),
    ],
    ids=["generator", "subclass", "persistent"],
)
def test_loaders_whose_order_is_not_known_are_not_called_exact(loader):
    data = TensorDataset(*toy_data())
    assert as_batches(DataLoader(data, shuffle=True), None, 0, torch.device("cpu")).exact_resume
    assert not as_batches(loader(data), None, 0, torch.device("cpu")).exact_resume


def test_buffers_that_change_with_every_pass_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(ValueError, match="change with every pass"):
        draw(toy_posterior(model), toy_data(), partial(lv.SGLD, lr=1e-2), steps=10)


def test_a_schedule_that_ends_too_early_is_refused(tmp_path):
    schedule = partial(lr_scheduler.OneCycleLR, max_lr=1e-2, total_steps=20, cycle_momentum=False)
    with pytest.raises(ValueError, match="OneCycleLR ends after 20 steps, the run after 30; write total_steps=30"):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=30, schedule=schedule)
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=20, schedule=schedule, out=tmp_path / "r")
    with pytest.raises(ValueError, match="ends after 20 steps"):
        resume(tmp_path / "r", toy_posterior(), toy_data(), steps=30)
    assert lv.load(tmp_path / "r", toy_model()).manifest["settings"]["steps"] == 20


def test_a_start_at_a_state_dict_takes_frozen_weights_too():
    other = {name: torch.full_like(t, 0.25) for name, t in toy_model().state_dict().items()}
    run = draw(toy_posterior(sampled="2.*"), toy_data(), partial(lv.SGLD, lr=1e-2), steps=5, init=other)
    assert torch.equal(run.store.fixed()["0.weight"], other["0.weight"])


def test_callbacks_get_weights_of_their_own():
    seen = []
    run = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=4,
        burn_in=0,
        thin=1,
        callbacks=[lambda info: seen.append(info.weights(0)["0.weight"])],
    )
    assert all(torch.equal(weights, sample["0.weight"]) for weights, sample in zip(seen, run, strict=True))


def test_find_map_checks_the_number_of_data():
    with pytest.raises(ValueError, match="num_data=600"):
        lv.find_map(toy_posterior(n=600), toy_data())


def test_regression_under_autocast_is_computed_in_full_precision():
    output, target = torch.zeros(3, 1, dtype=torch.bfloat16), torch.full((3, 1), 1.001)
    assert lv.likelihoods.Gaussian(1.0).log_prob(output, target).dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "words"), [([], "takes inputs"), (torch.zeros(0, 4), "is empty"), ("abc", "takes inputs")]
)
def test_invalid_inputs_of_predict_are_refused(x, words):
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=5)
    with pytest.raises(ValueError, match=words):
        run.predict(x)


def test_a_stop_between_the_samples_of_two_chains_is_repaired_by_resume(tmp_path, monkeypatch):
    options = {"steps": 12, "burn_in": 0, "thin": 2, "chains": 2, "mode": "vectorised"}
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), **options)
    add, count = DirectoryStore.add, itertools.count()

    def interrupted(self, chain, *rest):
        if next(count) == 5:  # chain 0 has its third sample, chain 1 not yet
            raise KeyboardInterrupt
        add(self, chain, *rest)

    monkeypatch.setattr(DirectoryStore, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), out=tmp_path / "r", **options)
    monkeypatch.undo()
    again = resume(tmp_path / "r", toy_posterior(), toy_data())
    assert samples_of(again).keys() == samples_of(whole).keys()
    assert_same_samples(whole, again)


@pytest.mark.parametrize(
    "sampler",
    [
        partial(lv.SGLD, lr=1e-3, preconditioner=lv.preconditioners.KFAC(damping=0.1)),
        partial(lv.KSGLD, lr=1e-3, damping=0.1),
    ],
    ids=["an object", "options"],
)
def test_a_preconditioner_is_read_from_the_manifest(tmp_path, sampler):
    options = {"steps": 20, "burn_in": 5, "thin": 5, "checkpoint_steps": 5}
    whole = draw(toy_posterior(), toy_data(), sampler, **options)
    draw(toy_posterior(), toy_data(), sampler, out=tmp_path / "r", **{**options, "steps": 15})
    assert_same_samples(whole, resume(tmp_path / "r", toy_posterior(), toy_data(), steps=20))


def test_an_adaptive_sampler_needs_a_burn_in_to_learn_from():
    with pytest.raises(ValueError, match="with burn_in=0 there is nothing to learn from"):
        draw(toy_posterior(), toy_data(), partial(lv.pSGLD, lr=1e-3), steps=10, burn_in=0)
    run = draw(toy_posterior(), toy_data(), partial(lv.pSGLD, lr=1e-3), steps=10, burn_in=0, freeze=False)
    assert len(run) > 0
