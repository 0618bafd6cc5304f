"""chains × data: the samples are those of one process, bit for bit along chains, to rounding along data."""

import os
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.inference.distributed import Mesh, Place, weights_hash
from langevin.storage.directory import DirectoryStore
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_model, toy_posterior
from tests.inference.distributed.launch import launch

draw = partial(lv.sample, progress=False)
resume = partial(lv.resume, progress=False)
OPTIONS = {"steps": 30, "burn_in": 6, "thin": 3, "checkpoint_steps": 10}
SGHMC = partial(lv.SGHMC, lr=3e-3)


def sampled(out, posterior=None, data=None, sampler=SGHMC, **options):
    run = draw(posterior or toy_posterior(), data or toy_data(), sampler, out=out, **{**OPTIONS, **options})
    return len(run), run.path == out


def assert_close_samples(a, b, tolerance=2e-5):
    first, second = samples_of(a), samples_of(b)
    assert first.keys() == second.keys()
    assert len(first) > 0
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], atol=tolerance, rtol=tolerance)


def test_chains_of_two_processes_are_those_of_one(tmp_path):
    whole = draw(toy_posterior(), toy_data(), SGHMC, chains=2, mode="sequential", **OPTIONS)
    results = launch(sampled, 2, tmp_path / "r", chains=2, mesh="chains=2,data=1")
    assert results == [(16, True), (16, True)]  # each sees the samples of both
    run = lv.load(tmp_path / "r", toy_model())
    assert_same_samples(whole, run)
    assert run.trace("loss") == whole.trace("loss")
    assert sorted(f.name for f in (tmp_path / "r" / "checkpoints").iterdir()) == [
        "0000-0000.safetensors",
        "0001-0001.safetensors",
    ]


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("sequential", {"batch_size": 17}),
        ("sequential", {"batch_size": 16, "grad_accumulation_steps": 2}),
        ("vectorised", {"batch_size": 17, "chains": 2, "mesh": "data=2"}),
    ],
)
def test_two_processes_along_data_are_one_to_rounding(tmp_path, mode, options):
    whole = draw(toy_posterior(), toy_data(), SGHMC, mode=mode, **{**OPTIONS, **options, "mesh": None})
    results = launch(sampled, 2, tmp_path / "r", mode=mode, **options)
    assert results == [(len(whole), True)] * 2
    run = lv.load(tmp_path / "r", toy_model())
    assert run.manifest["settings"]["mode"] == mode
    assert_close_samples(whole, run)
    torch.testing.assert_close(run.trace("loss")[0], whole.trace("loss")[0], atol=1e-5, rtol=1e-5)
    assert run.manifest["environment"]["replicas"] == 2
    with pytest.warns(UserWarning, match="replicas 2 → 1"):  # alone, so not bit for bit
        more = resume(tmp_path / "r", toy_posterior(), toy_data(), steps=36)
    bigger = {**OPTIONS, **options, "mesh": None, "steps": 36}
    assert_close_samples(draw(toy_posterior(), toy_data(), SGHMC, mode=mode, **bigger), more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgld", "sgnht", "atmc", "psgld", "sgd"])
def test_every_elementwise_sampler_on_two_by_two(tmp_path, name):
    from langevin.samplers import SAMPLERS

    sampler = partial(SAMPLERS[name], lr=1e-3)
    options = {"batch_size": 17, "chains": 2}
    whole = draw(toy_posterior(), toy_data(), sampler, mode="sequential", **{**OPTIONS, **options})
    launch(sampled, 4, tmp_path / "r", sampler=sampler, **options)
    assert_close_samples(whole, lv.load(tmp_path / "r", toy_model()), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data set", "loader"])
def test_all_kinds_of_data_are_shared(tmp_path, kind):
    x, y = toy_data()
    data, options = {
        "data set": (list(zip(x, y, strict=True)), {"batch_size": 17}),
        "loader": (DataLoader(TensorDataset(x, y), batch_size=17, shuffle=True), {}),
    }[kind]
    whole = draw(toy_posterior(), data, SGHMC, **{**OPTIONS, **options})
    launch(sampled, 2, tmp_path / "r", data=data, **options)
    assert_close_samples(whole, lv.load(tmp_path / "r", toy_model()))


def perturbed(out):
    def perturb(info):
        if info.step == 13 and os.environ["RANK"] == "1":
            with torch.no_grad():
                info.sampler.param_groups[0]["params"][0][0, 0] += 1e-6

    return sampled(out, callbacks=[perturb])


@pytest.mark.fault("replicas that drift apart")
def test_replicas_that_drift_apart_stop_the_run_with_both_hashes(tmp_path):
    said = launch(perturbed, 2, tmp_path / "r")
    hashes = {text.partition("weights are ")[2].partition(". ")[0] for text in said}
    assert all("drifted apart by step 15" in text for text in said)
    assert len(hashes) == 1
    first, second = hashes.pop().split(", ")
    assert first != second
    assert max(lv.load(tmp_path / "r", toy_model()).steps) == 12
    assert DirectoryStore.open(tmp_path / "r").checkpoint_steps() == {0: 10}


def test_the_hash_knows_every_bit_and_its_place():
    a, b = torch.randn(50, dtype=torch.float64), torch.randn(3, 4)
    known = weights_hash([a, b])
    assert known == weights_hash([a.clone(), b.clone()])
    swapped = b.clone()
    swapped[0, 0], swapped[0, 1] = b[0, 1], b[0, 0]
    negated = b.clone()
    negated[2, 3] *= -1
    for other in ([a, swapped], [a, negated], [torch.nextafter(a, a + 1), b]):
        assert weights_hash(other) != known


def interrupted(out, number):
    def stop(info):
        if info.step == 11 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), number)

    return sampled(out, callbacks=[stop])


@pytest.mark.fault("a signal to one of two replicas")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_signal_to_one_of_two_replicas(tmp_path, number):
    first, second = launch(interrupted, 2, tmp_path / "r", number)
    at = DirectoryStore.open(tmp_path / "r").checkpoint_steps()[0]
    if number == signal.SIGTERM:  # both stop, after the same step
        assert first.startswith("SystemExit" if "SystemExit" in first else "KeyboardInterrupt")
        assert second == "SystemExit: 143"
        assert at == 11
    else:
        assert second is None
        assert "RuntimeError" in first or "Connection" in first
        assert at >= 10
    whole = draw(toy_posterior(), toy_data(), SGHMC, **OPTIONS)
    with pytest.warns(UserWarning, match="replicas 2 → 1"):
        assert_close_samples(whole, resume(tmp_path / "r", toy_posterior(), toy_data()))


def continued(path, **options):
    return len(resume(path, toy_posterior(), toy_data(), **options))


def test_extended_and_continued_on_another_number_of_processes(tmp_path):
    """Two chains on one process, four on two, longer on one: bit for bit the run that had four from the beginning."""
    draw(toy_posterior(), toy_data(), SGHMC, chains=2, mode="sequential", out=tmp_path / "r", **OPTIONS)
    assert launch(continued, 2, tmp_path / "r", chains=4) == [32, 32]
    run = resume(tmp_path / "r", toy_posterior(), toy_data(), steps=36)
    whole = draw(toy_posterior(), toy_data(), SGHMC, chains=4, mode="sequential", **{**OPTIONS, "steps": 36})
    assert_same_samples(whole, run)
    with pytest.raises(ValueError, match="chains can't shrink: the run has 4, given chains=3"):
        resume(tmp_path / "r", toy_posterior(), toy_data(), chains=3)


@pytest.mark.fault("an extension by chains that fails")
def test_an_extension_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    options = {**OPTIONS, "mode": "vectorised"}
    draw(toy_posterior(), toy_data(), SGHMC, chains=2, out=tmp_path / "r", **options)
    zeros = {name: torch.zeros_like(t) for name, t in toy_model().state_dict().items()}
    monkeypatch.setattr(DirectoryStore, "write_manifest", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "r", toy_posterior(), toy_data(), chains=3, init=zeros)
    monkeypatch.undo()
    assert len(resume(tmp_path / "r", toy_posterior(), toy_data())) == 16
    run = resume(tmp_path / "r", toy_posterior(), toy_data(), chains=4)  # from other weights than the failed attempt
    whole = draw(toy_posterior(), toy_data(), SGHMC, chains=4, **options)
    assert_close_samples(whole, run)


def test_a_repeated_call_resumes(tmp_path):
    def stop(info):
        if info.step == 17:
            raise KeyboardInterrupt

    options = {**OPTIONS, "out": tmp_path / "r", "resume": "auto"}
    with pytest.raises(KeyboardInterrupt):
        draw(toy_posterior(), toy_data(), SGHMC, callbacks=[stop], **options)
    run = draw(toy_posterior(), toy_data(), SGHMC, **options)
    assert_same_samples(draw(toy_posterior(), toy_data(), SGHMC, **OPTIONS), run)
    with pytest.raises(lv.RunError, match="contains another run: its seed is 0, given 3"):
        draw(toy_posterior(), toy_data(), SGHMC, seed=3, **options)
    with pytest.raises(lv.RunError, match="A run keeps its sampler"):
        draw(toy_posterior(), toy_data(), partial(lv.SGHMC, lr=1e-4), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": "chains=2,data=2"}, "takes 4 processes; there are 2. Start them with torchrun --nproc-per-node 4"),
        ({"mesh": "chains=2,data=1"}, "places for 2 chains, the run has 1"),
        ({"mesh": "chains=2;data=1"}, "not of the form chains=2,data=2"),
        ({"mesh": "chains=0,data=2"}, "chains must be an integer, 1 or more"),
        ({"out": None}, "needs a directory that all of them see"),
        ({"sampler": partial(lv.KSGLD, lr=1e-3)}, "KSGLD learns from whole mini-batches"),
        ({"posterior": toy_posterior(nn.Sequential(nn.Linear(4, 3)), allow=["dropout"])}, "depend on how a mini-batch"),
        ({"batch_size": 1}, "A mini-batch of 1 examples can't be shared by 2 processes"),
    ],
)
def test_what_processes_cannot_do_together_is_refused(tmp_path, options, words):
    said = launch(sampled, 2, **{"out": tmp_path / "r", **options})
    assert all(words in text for text in said), said


def test_blocks_cover_all_chains():
    for chains in range(1, 9):
        for rows in range(1, chains + 1):
            blocks = Place(Mesh(chains=rows)).blocks(chains)
            assert [chain for block in blocks for chain in block] == list(range(chains))
            assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
