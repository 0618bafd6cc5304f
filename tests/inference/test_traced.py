"""Recordings of losses and gradients: the same numbers to rounding, refused where they are another function."""

import random

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.inference import traced
from langevin.inference.traced import Traced, can_be_recorded, recorded
from tests.helpers import assert_same_samples, samples_of


def problem(prior=None, likelihood=None, outputs=2):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    y = x[:, :1].sin() + 0.1 * torch.randn(60, 1, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, outputs))
    likelihood = likelihood or lv.likelihoods.HeteroscedasticGaussian()
    return lv.Posterior(model, likelihood, prior or lv.priors.Gaussian(1.0), num_data=60), (x, y)


def draw(sampler=lv.MCLMC, steps=40, **options):
    posterior, data = problem()
    options = {"chains": 3, "mode": "vectorised", "thin": 1, "progress": False, "burn_in": 0, **options}
    if sampler is not lv.SGHMC:
        options["freeze"] = False
    return lv.sample(posterior, data, sampler, steps=steps, lr=0.01, **options)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(traced, "FIRST", 10)


def product(w, x):
    return [(torch.bmm(x.expand(3, 50, 20), w.transpose(1, 2)) * 1).view(3, 50, 2).sum((1, 2))]


def test_a_recording_has_turned_products_and_no_idle_operations():
    w, x = torch.randn(3, 2, 20), torch.randn(1, 50, 20)
    recording = recorded(product, [w, x], 1)
    assert recording is not None
    called = [node.target for node in recording.graph.nodes if node.op == "call_function"]
    assert torch.mul not in called
    assert torch.Tensor.view not in called
    assert called.count(torch.transpose) == 4  # one of the function's, three of the turned product
    torch.testing.assert_close(recording(w, x), product(w, x))


def test_another_shape_is_another_recording():
    function = Traced(product, 1)
    w = torch.randn(3, 2, 20)
    for inputs in (torch.randn(1, 50, 20), torch.randn(3, 50, 20)):
        torch.testing.assert_close(function([w, inputs]), product(w, inputs))


def test_what_python_decides_is_not_recorded():
    calls = []

    def counting(x):
        calls.append(1)
        return [x * len(calls)]

    def by_chance(x):
        return [x * random.random()]

    def by_value(x):
        return [x if float(x.sum()) > 0 else -x]

    for function in (counting, by_chance, by_value):
        assert recorded(function, [torch.ones(3)], 1) is None


def test_a_recording_that_gives_other_numbers_is_not_used(monkeypatch):
    def spoil(recording, tensors):
        (node,) = (each for each in recording.graph.nodes if each.target is torch.ops.aten.mul.Tensor)
        node.args = (node.args[0], 3)
        recording.recompile()

    assert recorded(lambda x: [x * 2], [torch.ones(3)], 1) is not None
    monkeypatch.setattr(traced, "simplify", spoil)
    assert recorded(lambda x: [x * 2], [torch.ones(3)], 1) is None


def test_a_recording_calls_functions_of_pytorch_where_they_give_the_same_bits(monkeypatch):
    def called(function):
        recording = recorded(function, [torch.randn(3)], 1)
        assert recording is not None
        return {node.target for node in recording.graph.nodes if node.op == "call_function"}

    assert called(lambda x: [x.exp() * x]) == {torch.exp, torch.mul}
    monkeypatch.setattr(torch, "exp", lambda x: torch.ops.aten.exp(x) * (1 + 1e-6))
    assert called(lambda x: [x.exp() * x]) == {torch.ops.aten.exp.default, torch.ops.aten.mul.Tensor}
    monkeypatch.setattr(torch, "exp", lambda: None)  # it takes other arguments
    assert called(lambda x: [x.exp() * x]) == {torch.ops.aten.exp.default, torch.ops.aten.mul.Tensor}


def test_hooks_are_called():
    model = nn.Linear(2, 2)
    assert can_be_recorded(model)
    model.register_forward_hook(lambda *_: None)
    assert not can_be_recorded(model)


@pytest.mark.parametrize("sampler", [lv.MCLMC, lv.HMC, lv.SGHMC])
def test_a_run_is_the_same_to_rounding(monkeypatch, sampler):
    options = {"batch_size": 20} if sampler is lv.SGHMC else {}
    runs = []
    for first in (10**9, 0):
        monkeypatch.setattr(traced, "FIRST", first)
        runs.append(samples_of(draw(sampler, steps=5, **options)))
    for key, theta in runs[0].items():
        torch.testing.assert_close(theta, runs[1][key], rtol=1e-3, atol=1e-4)


def test_recordings_are_used(monkeypatch, at_once):
    used = []
    original = Traced.__call__
    monkeypatch.setattr(Traced, "__call__", lambda self, tensors: used.append(original(self, tensors)) or used[-1])
    draw(lv.SGHMC, steps=15, batch_size=20)
    assert len(used) == 5
    assert all(found is not None for found in used)


def test_a_sampled_prior_and_other_likelihoods_are_recorded(monkeypatch, at_once):
    used = []
    original = Traced.__call__
    monkeypatch.setattr(Traced, "__call__", lambda self, tensors: used.append(original(self, tensors)) or used[-1])
    prior = lv.priors.SampledGaussian()
    options = {"chains": 2, "mode": "vectorised", "steps": 13, "lr": 1e-3, "batch_size": 20, "progress": False}
    for given in ({"prior": prior}, {"likelihood": lv.likelihoods.Gaussian(0.3, sampled=True), "outputs": 1}):
        posterior, data = problem(**given)
        lv.sample(posterior, data, lv.SGHMC, **options)
    assert len(used) == 6
    assert all(found is not None for found in used)


@pytest.mark.parametrize("stop", [9, 10, 11, 17])
@pytest.mark.parametrize("sampler", [lv.MCLMC, lv.SGHMC])
def test_a_resumed_run_is_that_without_a_stop(tmp_path, at_once, sampler, stop):
    options = {"batch_size": 20} if sampler is lv.SGHMC else {}
    whole = draw(sampler, steps=25, **options)

    class Killed(Exception):
        pass

    def kill(info):
        if info.step == stop:
            raise Killed

    with pytest.raises(Killed):
        draw(sampler, steps=25, out=tmp_path / "run", callbacks=[kill], checkpoint_steps=1, **options)
    posterior, data = problem()
    assert_same_samples(lv.resume(tmp_path / "run", posterior, data, progress=False), whole)
