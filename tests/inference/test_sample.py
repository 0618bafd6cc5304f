import copy
import math
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import langevin as lv
from langevin.inference.engine import Engine
from langevin.samplers import SAMPLERS
from langevin.storage.directory import DirectoryStore
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)


class Stop(Exception):
    """What a callback of a test raises."""


def stop_at(step):
    def callback(info):
        if info.step == step:
            raise Stop

    return callback


def interrupted(step, out, *args, **options):
    with pytest.raises(Stop):
        draw(*args, out=out, callbacks=[stop_at(step)], **options)


@pytest.mark.parametrize("stop", [1, 7, 20, 39])
@pytest.mark.parametrize("name", [n for n in SAMPLERS if SAMPLERS[n].stackable and not SAMPLERS[n].full_batch])
def test_an_interrupted_run_resumes_bit_for_bit(name, stop, tmp_path):
    options = {
        "sampler": partial(SAMPLERS[name], lr=1e-3),
        "steps": 40,
        "burn_in": 8,
        "thin": 3,
        "batch_size": 16,
        "chains": 2,
        "mode": "vectorised",
        "schedule": None if SAMPLERS[name].constant_lr else lv.cyclical(10),
    }
    whole = draw(toy_posterior(), toy_data(), out=tmp_path / "a", **options)
    interrupted(stop, tmp_path / "b", toy_posterior(), toy_data(), **options)
    again = resume(tmp_path / "b", toy_posterior(), toy_data())
    assert_same_samples(whole, again)
    assert whole.trace("loss") == again.trace("loss")
    np.testing.assert_equal(whole.trace("temperature"), again.trace("temperature"))


@pytest.mark.parametrize("name", [n for n in SAMPLERS if SAMPLERS[n].stackable])
def test_the_trial_of_the_mode_leaves_no_trace(name, tmp_path, monkeypatch):
    """Chains that the trial built and reset are those that a resume builds anew from the checkpoint of step 0."""
    schedule = None if SAMPLERS[name].constant_lr else lv.cyclical(10)
    options = {"steps": 14, "burn_in": 4, "thin": 1, "chains": 2, "mode": "vectorised", "schedule": schedule}
    whole = draw(toy_posterior(), toy_data(), SAMPLERS[name], lr=1e-3, **options)
    monkeypatch.setattr(Engine, "run", raising)
    with pytest.raises(Stop):
        draw(toy_posterior(), toy_data(), SAMPLERS[name], lr=1e-3, out=tmp_path / "r", **options)
    monkeypatch.undo()
    store = DirectoryStore.open(tmp_path / "r")
    assert [(c.step, c.values) for c in store.checkpoints([0, 1])] == [(0, {}), (0, {})]  # weights alone
    again = resume(tmp_path / "r", toy_posterior(), toy_data())
    assert_same_samples(whole, again)
    np.testing.assert_equal(whole.trace("temperature"), again.trace("temperature"))


def raising(*args, **options):
    raise Stop


def test_every_chain_is_built_once(monkeypatch):
    """One probe, one sampler per chain; the user's model is copied once for the run and once for predictions."""
    samplers, copies = [], []

    class Counted(lv.SGLD):
        def __init__(self, *args, **options):
            samplers.append(options["chain"])
            super().__init__(*args, **options)

    class Copied(nn.Linear):
        def __deepcopy__(self, memo):
            copies.append(self)
            plain = self.__reduce_ex__(4)
            made = plain[0](*plain[1])
            memo[id(self)] = made
            made.__setstate__(copy.deepcopy(plain[2], memo))
            return made

    run = draw(toy_posterior(Copied(4, 3)), toy_data(), Counted, lr=1e-2, steps=8)
    assert run.predict(toy_data()[0]).probs.shape == (60, 3)
    assert samplers == [0, 0]
    assert len(copies) <= 3
    samplers.clear()
    copies.clear()
    draw(toy_posterior(Copied(4, 3)), toy_data(), Counted, lr=1e-2, steps=8, chains=3, mode="sequential")
    assert samplers == [0, 0, 1, 2]
    assert len(copies) <= 4 + 2  # the verdict predicts, with a copy of this thread


@pytest.mark.parametrize(
    "schedule",
    [
        partial(lr_scheduler.MultiStepLR, milestones=[5, 15, 25]),
        partial(lr_scheduler.CyclicLR, base_lr=1e-4, max_lr=1e-2, step_size_up=5, cycle_momentum=False),
        partial(lr_scheduler.OneCycleLR, max_lr=1e-2, total_steps=40, cycle_momentum=False),
        lambda s: lr_scheduler.SequentialLR(
            s, [lr_scheduler.ConstantLR(s, total_iters=2), lr_scheduler.ExponentialLR(s, gamma=0.9)], milestones=[12]
        ),
    ],
    ids=["MultiStepLR", "CyclicLR", "OneCycleLR", "SequentialLR"],
)
def test_schedules_resume_where_they_were(schedule, tmp_path):
    options = {"steps": 40, "burn_in": 0, "thin": 5, "schedule": schedule, "sampler": partial(lv.SGLD, lr=1e-2)}
    whole = draw(toy_posterior(), toy_data(), **options)
    interrupted(17, tmp_path / "b", toy_posterior(), toy_data(), **options)
    again = {} if isinstance(schedule, partial) else {"schedule": schedule}
    if again:
        with pytest.raises(lv.RunError, match="schedule=…"):
            resume(tmp_path / "b", toy_posterior(), toy_data())
    assert_same_samples(whole, resume(tmp_path / "b", toy_posterior(), toy_data(), **again))
    assert len(set(whole.trace("lr")[0])) > 1


def test_a_run_can_be_extended(tmp_path):
    options = {"sampler": partial(lv.SGHMC, lr=1e-3), "burn_in": 10, "thin": 5, "chains": 2, "mode": "sequential"}
    whole = draw(toy_posterior(), toy_data(), steps=60, **options)
    draw(toy_posterior(), toy_data(), steps=30, out=tmp_path / "b", **options)
    assert_same_samples(whole, resume(tmp_path / "b", toy_posterior(), toy_data(), steps=60))
    with pytest.raises(ValueError, match="can't shrink"):
        resume(tmp_path / "b", toy_posterior(), toy_data(), steps=20)


def test_chains_do_not_depend_on_each_other_nor_on_how_they_run():
    options = {"sampler": partial(lv.SGLD, lr=1e-3), "steps": 30, "burn_in": 0, "thin": 10, "batch_size": 7}
    three = draw(toy_posterior(), toy_data(), chains=3, mode="sequential", **options)
    one = draw(toy_posterior(), toy_data(), chains=1, **options)
    assert_same_samples(three.chain(0), one.chain(0))
    stacked = draw(toy_posterior(), toy_data(), chains=3, mode="vectorised", **options)
    for key, value in samples_of(three).items():
        torch.testing.assert_close(value, samples_of(stacked)[key], atol=1e-5, rtol=1e-5)  # to rounding
    assert not torch.equal(samples_of(three)[0, 10], samples_of(three)[1, 10])


def test_the_users_model_and_generators_are_left_alone():
    model = toy_model()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = torch.randn(1), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    draw(toy_posterior(model), toy_data(), partial(lv.SGLD, lr=0.1), steps=5)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert (torch.randn(1), random.random(), np.random.rand()) == expected


class Noisy(Dataset):
    """A data set with a random transform."""

    def __init__(self):
        self.x, self.y = toy_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        shift = torch.randn(()) + random.random() + np.random.rand()
        return self.x[index] + 0.1 * shift, self.y[index]


@pytest.mark.parametrize(
    "data",
    [
        lambda: Noisy(),
        lambda: TensorDataset(*toy_data()),
        lambda: list(zip(*toy_data(), strict=True)),
        lambda: {"input": toy_data()[0], "label": toy_data()[1]},
        lambda: tuple(t.numpy() for t in toy_data()),
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=True),
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=True, generator=torch.Generator()),
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=1),
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=False, drop_last=True),
    ],
    ids=["dataset", "TensorDataset", "list", "dict", "numpy", "loader", "generator", "worker", "in-order"],
)
def test_all_kinds_of_data_resume_exactly(data, tmp_path):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 14, "burn_in": 0, "thin": 2}
    whole = draw(toy_posterior(), data(), **options)
    interrupted(9, tmp_path / "b", toy_posterior(), data(), **options)
    assert_same_samples(whole, resume(tmp_path / "b", toy_posterior(), data()))


class StatefulLoader(DataLoader):
    """A loader over an iterable data set that knows its position, as torchdata's does."""

    def __init__(self):
        super().__init__(TensorDataset(*toy_data()), batch_size=10, sampler=[*range(30, 60), *range(30)])
        self.at = 0

    def __iter__(self):
        batches = list(super().__iter__())
        while self.at < len(batches):
            self.at += 1
            yield batches[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_stateful_loader_resumes_from_its_state(tmp_path):
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 14, "burn_in": 0, "thin": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = draw(toy_posterior(), StatefulLoader(), **options)
    interrupted(9, tmp_path / "b", toy_posterior(), StatefulLoader(), **options)
    assert_same_samples(whole, resume(tmp_path / "b", toy_posterior(), StatefulLoader()))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=True),
        lambda: DataLoader(Noisy(), batch_size=16, shuffle=True, generator=torch.Generator()),
        StatefulLoader,
    ],
    ids=["loader", "generator", "stateful"],
)
def test_the_batches_of_a_chain_do_not_depend_on_the_chain_before(loader, tmp_path):
    """A chain that ends within an epoch leaves the next one at the beginning of the data."""
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 14, "burn_in": 0, "thin": 2, "chains": 2}
    whole = draw(toy_posterior(), loader(), **options)
    interrupted(14, tmp_path / "b", toy_posterior(), loader(), **options)  # at the end of chain 0
    assert_same_samples(whole, resume(tmp_path / "b", toy_posterior(), loader()))
    used = loader()
    interrupted(5, tmp_path / "c", toy_posterior(), used, **options)
    assert_same_samples(whole, resume(tmp_path / "c", toy_posterior(), used))  # the loader is where it was left


class Stream(IterableDataset):
    def __iter__(self):
        return iter(list(zip(*toy_data(), strict=True)))


def test_a_loader_that_cannot_be_repeated_is_warned_of_first():
    with pytest.warns(UserWarning, match="can't be repeated"):
        run = draw(toy_posterior(), DataLoader(Stream(), batch_size=16), partial(lv.SGLD, lr=1e-2), steps=6)
    assert len(run) > 0


def test_gradient_accumulation_and_autocast():
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 10, "burn_in": 0, "thin": 1, "batch_size": 30}
    plain = draw(toy_posterior(), toy_data(), **options)
    pieces = draw(toy_posterior(), toy_data(), grad_accumulation_steps=4, **options)
    rough = draw(toy_posterior(), toy_data(), autocast=torch.bfloat16, **options)
    for key, value in samples_of(plain).items():
        torch.testing.assert_close(samples_of(pieces)[key], value, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(samples_of(rough)[key], value, atol=1e-2, rtol=1e-2)
    assert not torch.equal(samples_of(rough)[0, 10], samples_of(plain)[0, 10])
    with pytest.raises(ValueError, match="grad_accumulation_steps=31"):
        draw(toy_posterior(), toy_data(), grad_accumulation_steps=31, **options)


def test_a_subset_is_sampled_and_the_rest_is_stored_once(tmp_path):
    model = toy_model()
    posterior = toy_posterior(model, sampled=["2.*"])
    run = draw(posterior, toy_data(), partial(lv.SGLD, lr=1e-2), steps=20, out=tmp_path / "r")
    assert set(run[0]) == {"2.weight", "2.bias"}
    assert set(run.store.fixed()) == {"0.weight", "0.bias"}
    torch.manual_seed(99)
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    loaded = lv.load(tmp_path / "r", other)
    x = toy_data()[0]
    assert torch.equal(loaded.predict(x).probs, run.predict(x).probs)


def test_starting_points():
    options = {"sampler": partial(lv.SGLD, lr=1e-9, temperature=0.0), "steps": 1, "burn_in": 0, "thin": 1}
    ones = {name: torch.ones_like(p) for name, p in toy_model().state_dict().items()}
    run = draw(toy_posterior(), toy_data(), init=ones, **options)
    torch.testing.assert_close(run[0]["0.weight"], torch.ones(5, 4))

    def by_chain(chain):
        return {name: torch.full_like(t, chain) for name, t in ones.items()}

    two = draw(toy_posterior(), toy_data(), init=by_chain, chains=2, **options)
    torch.testing.assert_close(two.chain(1)[0]["0.weight"], torch.ones(5, 4))
    torch.testing.assert_close(two.chain(0)[0]["0.weight"], torch.zeros(5, 4))
    four = draw(toy_posterior(), toy_data(), init=two, chains=4, **options)
    assert [float(four.chain(c)[0]["0.weight"][0, 0].round()) for c in range(4)] == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="init has no '0.weight'"):
        draw(toy_posterior(), toy_data(), init={"other": torch.zeros(1)}, **options)


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_find_map_is_an_optimum(method):
    x, y = toy_data()
    posterior = toy_posterior()
    best = lv.find_map(posterior, (x, y), method=method, steps=3000, lr=0.3, batch_size=60, progress=False)
    posterior.model.load_state_dict(best)
    posterior.loss(x, y).backward()
    assert max(float(p.grad.abs().max()) for p in posterior.parameters()) < 1e-4
    run = draw(toy_posterior(), (x, y), partial(lv.SGLD, lr=1e-3), steps=5, init=best)
    assert len(run) > 0


def test_the_last_iterate_of_each_cycle_is_the_sample():
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=50, burn_in=10, schedule=lv.cyclical(10))
    assert run.steps == [20, 30, 40, 50]
    lowest = 1e-2 * 0.5 * (1 + math.cos(math.pi * 9 / 10))
    assert run.trace("lr")[0] == pytest.approx([lowest] * 4)


def test_callbacks_see_every_step():
    seen = []
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=6, callbacks=[seen.append])
    assert [info.step for info in seen] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(info.loss[0]) for info in seen)
    assert torch.equal(seen[-1].weights(0)["0.weight"], run[-1]["0.weight"])


def test_the_mode_is_chosen_by_a_trial_and_announced(capsys):
    lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=6, chains=2)
    said = capsys.readouterr().err
    assert re.search(
        r"2 chains, (vectorised|sequential) \(a step of all chains takes .* s vectorised and .* s one after", said
    )
    assert "in memory" in said

    class NoVmap(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(4, 3)

        def forward(self, x):
            return self.w(x) * (1.0 if float(x.sum()) > -1e9 else 2.0)  # data-dependent control flow

    run = lv.sample(toy_posterior(NoVmap()), toy_data(), partial(lv.SGLD, lr=1e-2), steps=6, chains=2)
    assert run.manifest["settings"]["mode"] == "sequential"
    assert "2 chains, sequential (" in capsys.readouterr().err
    with pytest.raises(ValueError, match='mode="vectorised" is not possible'):
        draw(toy_posterior(NoVmap()), toy_data(), partial(lv.SGLD, lr=1e-2), steps=6, chains=2, mode="vectorised")


def with_layer(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 3))


@pytest.mark.filterwarnings("ignore:Layer")
def test_batchnorm_is_refused_for_samplers_and_stored_by_baselines(tmp_path):
    data = toy_data()
    with pytest.raises(ValueError, match="does not factorize over examples. Use GroupNorm"):
        draw(toy_posterior(with_layer(nn.BatchNorm1d(5))), data, partial(lv.SGLD, lr=1e-2), steps=5)
    options = {"sampler": partial(lv.SGD, lr=1e-1), "steps": 20, "burn_in": 0, "thin": 5, "chains": 2}
    run = draw(toy_posterior(with_layer(nn.BatchNorm1d(5))), data, out=tmp_path / "a", **options)
    assert run.manifest["settings"]["mode"] == "sequential"
    assert not torch.equal(run[0]["1.running_mean"], run[-1]["1.running_mean"])
    assert lv.load(tmp_path / "a", with_layer(nn.BatchNorm1d(5))).predict(data[0]).probs.shape == (60, 3)
    interrupted(13, tmp_path / "b", toy_posterior(with_layer(nn.BatchNorm1d(5))), data, **options)
    assert_same_samples(run, resume(tmp_path / "b", toy_posterior(with_layer(nn.BatchNorm1d(5))), data))
    allowed = toy_posterior(with_layer(nn.BatchNorm1d(5)), allow=["batchnorm"])
    assert len(draw(allowed, data, partial(lv.SGLD, lr=1e-2), steps=5)) > 0


@pytest.mark.filterwarnings("ignore:Layer")
def test_dropout_is_refused_unless_allowed_and_then_reproducible(tmp_path):
    data = toy_data()
    with pytest.raises(ValueError, match="there is no fixed posterior to sample"):
        draw(toy_posterior(with_layer(nn.Dropout(0.5))), data, partial(lv.SGLD, lr=1e-2), steps=5)
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 20, "burn_in": 0, "thin": 5}
    make = partial(toy_posterior, allow=["dropout"])
    whole = draw(make(with_layer(nn.Dropout(0.5))), data, **options)
    interrupted(7, tmp_path / "b", make(with_layer(nn.Dropout(0.5))), data, **options)
    assert_same_samples(whole, resume(tmp_path / "b", make(with_layer(nn.Dropout(0.5))), data))

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(4, 3)

        def forward(self, x):
            return nn.functional.dropout(self.w(x), 0.5)

    with pytest.raises(ValueError, match="two passes over one batch differ"):
        draw(toy_posterior(Hidden()), data, partial(lv.SGLD, lr=1e-2), steps=5)


def test_divergence_names_step_and_lr_and_leaves_earlier_samples_intact(tmp_path):
    out = tmp_path / "r"

    def explode(info):
        if info.step == 25:
            with torch.no_grad():
                info.sampler.param_groups[0]["params"][0].fill_(math.nan)

    words = r"Chain 0: the loss is nan at step 25, with lr=0.01. No longer finite: 0.weight. Samples before it"
    with pytest.raises(lv.DivergenceError, match=words):
        draw(
            toy_posterior(),
            toy_data(),
            partial(lv.SGLD, lr=1e-2),
            steps=40,
            burn_in=0,
            thin=5,
            out=out,
            callbacks=[explode],
            checkpoint_steps=10,
        )
    run = lv.load(out, toy_model())
    assert run.steps == [5, 10, 15, 20, 25]
    uninterrupted = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=40, burn_in=0, thin=5)
    assert_same_samples(uninterrupted, resume(out, toy_posterior(), toy_data()))  # from the last good checkpoint


def test_a_real_divergence_is_found():
    with pytest.raises(lv.DivergenceError, match="smaller lr"):
        draw(
            lv.Posterior(nn.Linear(4, 1), lv.likelihoods.Gaussian(0.1), lv.priors.Gaussian(), num_data=60),
            (toy_data()[0], torch.zeros(60, 1)),
            partial(lv.SGLD, lr=10.0),
            steps=400,
        )


def test_a_failing_data_set_leaves_a_run_that_resumes(tmp_path):
    class Broken(Noisy):
        broken = True
        count = 0

        def __getitem__(self, index):
            self.count += 1
            if self.broken and self.count > 400:
                raise OSError("the disk went away")
            return super().__getitem__(index)

    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 40, "burn_in": 0, "thin": 4, "batch_size": 16}
    whole = draw(toy_posterior(), Noisy(), **options)
    with pytest.raises(OSError, match="the disk went away"):
        draw(toy_posterior(), Broken(), out=tmp_path / "r", **options)
    assert_same_samples(whole, resume(tmp_path / "r", toy_posterior(), Noisy()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))}, "The data set is empty"),
        ({"data": (toy_data()[0], toy_data()[1] + 7)}, "labels must lie in 0 … 2; found label"),
        ({"data": (toy_data()[0][:50], toy_data()[1][:50])}, r"num_data=60, but the data set has 50.*num_data=50"),
        ({"data": (toy_data()[0], toy_data()[1][:50])}, "equal lengths"),
        ({"data": 7}, "map-style data set or a DataLoader; given int"),
        ({"data": Stream()}, "wrap it: DataLoader"),
        ({"data": DataLoader(Noisy()), "batch_size": 4}, "its own batch size"),
        ({"data": (toy_data()[0] * math.nan, toy_data()[1])}, "before the first step"),
        ({"batch_size": 0}, "batch_size must be an integer or 'full', 1 or more"),
        ({"batch_size": 61}, "batch_size=61 does not fit"),
        ({"steps": 0}, "steps must be an integer, 1 or more"),
        ({"steps": 10, "burn_in": 10}, "leaves nothing of steps=10"),
        ({"steps": 10, "burn_in": 5, "thin": 6}, "No sample would be saved"),
        ({"chains": 0}, "chains must be an integer"),
        ({"mode": "fast"}, "mode must be one of 'auto', 'vectorised', 'sequential'"),
        ({"keep_last": 0}, "keep_last must be an integer, 1 or more"),
        ({"sampler": partial(lv.SGLD, lr=-1.0)}, "lr must be positive"),
        (
            {"sampler": lv.SGLD([torch.zeros(1)], lr=1.0, num_data=1)},
            "the sampler's class with its options beside it.*given an object of SGLD",
        ),
        ({"sampler": lambda p, **_: torch.optim.SGD(p, lr=1.0)}, "SGD is not a langevin.Sampler; write lv.sample"),
        ({"sampler": partial(lv.FSGD, lr=1.0), "schedule": lv.cyclical(5)}, "constant learning rate by definition"),
        ({"schedule": lr_scheduler.ReduceLROnPlateau}, "needs a validation loss"),
    ],
)
def test_bad_input_is_refused(options, words):
    given = {"data": toy_data(), "sampler": partial(lv.SGLD, lr=1e-2), "steps": 20, **options}
    with pytest.raises((ValueError, FloatingPointError), match=words):
        draw(toy_posterior(), given.pop("data"), given.pop("sampler"), **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"sampler": lv.SGLD, "lr": 1e-2, "friction": 0.1},
            "SGLD: got an unexpected keyword argument 'friction'; its options are lr",
        ),
        (
            {"sampler": partial(lv.SGHMC, lr=1e-2, speed=2)},
            "SGHMC: got an unexpected keyword argument 'speed'.*momentum",
        ),
        ({"sampler": lv.KSGLD, "lr": 1e-2, "speed": 2, "burn_in": 5}, "KSGLD has no option 'speed'"),
        ({"sampler": lv.SGLD, "lr": 1e-2, "seed": 0, "num_data": 60}, "num_data=60 is not an option of the sampler"),
        ({"sampler": "sgdl", "lr": 1e-2}, "'sgdl' is not a registered sampler; choose one of"),
        ({"sampler": torch.optim.Adam, "lr": 1e-2}, "Adam is not a langevin.Sampler.*lv.SGLD, lr=1e-2.*lv.fit"),
        ({"sampler": partial(torch.optim.SGD, lr=1e-2)}, "SGD is not a langevin.Sampler"),
        ({"sampler": torch.optim.SGD([torch.zeros(1)], lr=1e-2)}, "class with its options beside it.*an object of SGD"),
        (
            {"posterior": nn.Linear(4, 3)},
            r"posterior must be a Posterior; given posterior=<Linear>. Write lv.Posterior\(model",
        ),
        ({"sampler": lv.SGLD, "lr": "0.1"}, "lr must be a positive number; given lr='0.1'. Write lr=1e-2"),
        ({"sampler": lv.SGLD, "lr": None}, "lr must be a positive number; given lr=None"),
        (
            {"sampler": lv.SGLD, "lr": 1e-2, "temperature": "hot"},
            "temperature='hot': give a number",
        ),
        ({"schedule": 7}, "schedule must be a function; given schedule=7"),
        ({"steps": None}, "Give lr and steps to sample with your own"),
        ({"steps": 10.0}, "steps must be an integer, 1 or more; given steps=10.0"),
        ({"burn_in": "5"}, "burn_in must be an integer, 0 or more; given burn_in='5'"),
        ({"thin": 1.5}, "thin must be an integer, 1 or more; given thin=1.5"),
        ({"chains": "2"}, "chains must be an integer, 1 or more; given chains='2'"),
        ({"keep_last": 1.5}, "keep_last must be an integer, 1 or more; given keep_last=1.5"),
        ({"keep_last": True}, "keep_last must be an integer, 1 or more; given keep_last=True"),
        ({"checkpoint_steps": 0}, "checkpoint_steps must be an integer, 1 or more; given checkpoint_steps=0"),
        ({"checkpoint_seconds": None}, "checkpoint_seconds must be a number"),
        ({"sample_dtype": "int8"}, "sample_dtype must be a dtype, such as torch.float16"),
        ({"tags": {"model": nn.Linear(1, 1)}}, "not JSON-serializable: Object of type Linear.*Use strings, numbers"),
        ({"tags": [1]}, "tags must be a mapping"),
        ({"resume": True}, "resume must be 'auto'; given resume=True"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(options, words, tmp_path):
    given = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 20, **options}
    for out in (None, tmp_path / "r"):
        with pytest.raises(ValueError, match=words) as raised:
            draw(
                given.get("posterior", toy_posterior()),
                toy_data(),
                out=out,
                **{k: v for k, v in given.items() if k != "posterior"},
            )
        assert str(raised.value).endswith((".", ")"))
    assert not (tmp_path / "r").exists()


def test_bad_arguments_of_a_recorder_are_refused_in_a_sentence():
    posterior = toy_posterior()
    with pytest.raises(ValueError, match="keep_last must be an integer"):
        lv.Recorder(posterior, keep_last=1.5)
    with pytest.raises(ValueError, match="not JSON-serializable: Object of type Linear"):
        lv.Recorder(posterior, tags={"model": nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="posterior must be a Posterior; given posterior=<Sequential>"):
        lv.Recorder(posterior.model)
    with pytest.raises(ValueError, match="sampler must be an optimizer"):
        lv.Recorder(posterior, lv.SGLD)


def test_bad_arguments_of_resume_are_refused_in_a_sentence(tmp_path):
    run = draw(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, steps=10, out=tmp_path / "r")
    for options, words in (
        ({"steps": "40"}, "steps must be an integer, 1 or more; given steps='40'"),
        ({"chains": 2.5}, "chains must be an integer, 1 or more; given chains=2.5"),
        ({"chains": 0}, "chains must be an integer, 1 or more; given chains=0"),
        ({"optimizer": torch.optim.Adam}, "is a run, not a fit: it has a sampler. Leave out optimizer="),
        ({"sampler": torch.optim.Adam}, "Adam is not a langevin.Sampler"),
        ({"checkpoint_seconds": "x"}, "checkpoint_seconds must be a number"),
    ):
        with pytest.raises(ValueError, match=words):
            resume(run.path, toy_posterior(), toy_data(), **options)
    with pytest.raises(ValueError, match="run must be a string or a path or a Run or a Fit; given run={}"):
        resume({}, toy_posterior(), toy_data())
    with pytest.raises(ValueError, match="posterior must be a Posterior; given posterior=<Sequential>"):
        resume(run.path, toy_model(), toy_data())
    assert lv.load(run.path, toy_model()).manifest["resumed"] == []


def test_resume_of_a_run_object_reads_the_manifest_on_disk(tmp_path):
    """The run may have been extended by another process since the object was made."""
    options = {"sampler": partial(lv.SGLD, lr=1e-2), "burn_in": 0, "thin": 5}
    run = draw(toy_posterior(), toy_data(), steps=10, out=tmp_path / "r", **options)
    resume(tmp_path / "r", toy_posterior(), toy_data(), steps=20)
    with pytest.raises(ValueError, match="20 were planned, given steps=15"):
        resume(run, toy_posterior(), toy_data(), steps=15)
    again = resume(run, toy_posterior(), toy_data())
    assert again.steps == [5, 10, 15, 20]


def test_resume_refuses_another_model_or_other_data(tmp_path):
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=10, out=tmp_path / "r")
    x, y = toy_data()
    with pytest.raises(lv.RunError, match="these tensors differ: \\['0.weight'"):
        resume(tmp_path / "r", toy_posterior(nn.Sequential(nn.Linear(4, 3))), toy_data(), steps=20)
    with pytest.raises(lv.RunError, match="data are not those"):
        resume(tmp_path / "r", toy_posterior(), (x + 1, y), steps=20)
    with pytest.raises(lv.RunError, match="num_data=60"):
        resume(tmp_path / "r", toy_posterior(n=50), (x[:50], y[:50]), steps=20)


def test_resume_warns_when_the_environment_differs(tmp_path):
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-2), steps=10, out=tmp_path / "r")
    torch.set_num_threads(2)
    try:
        with pytest.warns(UserWarning, match="threads 1 → 2"):
            resume(tmp_path / "r", toy_posterior(), toy_data(), steps=20)
    finally:
        torch.set_num_threads(1)


SCRIPT = textwrap.dedent(
    """
    import sys, os, time
    from functools import partial
    import torch
    torch.set_num_threads(1)
    import langevin as lv
    from tests.helpers import toy_data, toy_posterior

    def slowly(info):
        time.sleep(0.002)
        if info.step == 60:
            print("ready", flush=True)

    lv.sample(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-3), steps=400, burn_in=20, thin=3, chains=2,
              mode=sys.argv[2], out=sys.argv[1], progress=False, callbacks=[slowly], checkpoint_steps=25)
    """
)


def start_and_signal(out, mode, number):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), mode], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    return process.wait(timeout=60)


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_resumes_bit_for_bit(number, mode, tmp_path):
    code = start_and_signal(tmp_path / "r", mode, number)
    assert code in {signal.SIGKILL: (-9,), signal.SIGINT: (-2, 1, 130), signal.SIGTERM: (143,)}[number]
    before = samples_of(lv.load(tmp_path / "r", toy_model()))
    again = resume(tmp_path / "r", toy_posterior(), toy_data())
    whole = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGHMC, lr=1e-3),
        steps=400,
        burn_in=20,
        thin=3,
        chains=2,
        mode=mode,
    )
    assert_same_samples(whole, again)
    assert len(before) > 0
    assert all(torch.equal(value, samples_of(again)[key]) for key, value in before.items())


@pytest.mark.slow  # compiling takes its time
@pytest.mark.parametrize("chains", [1, 2])
def test_a_compiled_run_is_the_same_to_rounding(chains, capsys):
    settings = {"steps": 12, "burn_in": 2, "thin": 5, "chains": chains, "batch_size": 8, "seed": 4}
    mode = "sequential" if chains == 1 else "vectorised"
    arguments = (toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-3))
    plain = lv.sample(*arguments, mode=mode, progress=False, **settings)
    compiled = lv.sample(*arguments, mode=mode, compile=True, **settings)
    assert "compiled in" in capsys.readouterr().err
    for a, b in zip(plain, compiled, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)
    assert compiled.manifest["settings"]["compile"] is True
