"""The contract of `Ensemble`, for every kind."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_model, toy_posterior


def _run(tmp_path):
    return lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=0.1, steps=40, chains=2, thin=3, progress=False)


def _stored(tmp_path):
    lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=0.1, steps=40, thin=3, out=tmp_path / "run", progress=False)
    return lv.load(tmp_path / "run", toy_model())


def _fit(tmp_path):
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    return lv.fit(toy_posterior(), toy_data(), lv.MeanField(), optimizer=optimizer, steps=20, draws=6, progress=False)


def _ivon(tmp_path):
    return lv.fit(toy_posterior(), toy_data(), lv.IVON(lr=1e-2), steps=20, draws=6, progress=False)


def _dropout(tmp_path):
    optimizer, method = partial(torch.optim.Adam, lr=1e-2), lv.MCDropout(rate=0.3)
    lv.fit(
        toy_posterior(),
        toy_data(),
        method,
        optimizer=optimizer,
        steps=20,
        draws=6,
        out=tmp_path / "fit",
        progress=False,
    )
    return lv.load(tmp_path / "fit", toy_model())


def _weights(tmp_path):
    weights = [copy.deepcopy(toy_model()).state_dict() for _ in range(5)]
    for number, state in enumerate(weights):
        state["0.bias"] = state["0.bias"] + number
    return lv.Ensemble.from_weights(toy_model(), lv.likelihoods.Categorical(), weights)


def _union(tmp_path):
    return lv.Ensemble.concat([_run(tmp_path)[:4], _fit(tmp_path)])


def _distilled(tmp_path):
    return lv.distill(_run(tmp_path), toy_model(), toy_data()[0], steps=5)


KINDS = {f.__name__[1:]: f for f in (_run, _stored, _fit, _ivon, _dropout, _weights, _union, _distilled)}


@pytest.fixture(params=KINDS)
def ensemble(request, tmp_path):
    return KINDS[request.param](tmp_path)


def mean_of(ensemble, x):
    """The mean over members, computed with a separate model."""
    model, total = toy_model(), 0
    for weights in ensemble:
        model.load_state_dict(weights)
        total = total + model(x).softmax(1).detach().double()
    return (total / len(ensemble)).float()


def test_it_is_a_sequence_whose_slices_are_ensembles(ensemble):
    members = list(ensemble)
    assert len(members) == len(ensemble)
    for part in (slice(None), slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(-2, None)):
        found = ensemble[part]
        assert isinstance(found, lv.Ensemble)
        assert len(found) == len(members[part])
        for ours, theirs in zip(found, members[part], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(torch.equal(ensemble[-1][name], t) for name, t in members[-1].items())
    with pytest.raises(IndexError):
        ensemble[len(members)]


def test_it_predicts_the_mean_over_its_members(ensemble):
    x = toy_data()[0]
    for found in (ensemble, ensemble[::2], ensemble[-1:]):
        torch.testing.assert_close(found.predict(x).probs, mean_of(found, x), rtol=1e-5, atol=1e-6)
    prediction = ensemble.predict(x, samples=True)
    torch.testing.assert_close(prediction.samples.mean(0), prediction.probs, rtol=1e-5, atol=1e-6)


def test_a_union_predicts_the_mean_over_all_members(ensemble):
    x = toy_data()[0]
    both = lv.Ensemble.concat([ensemble, ensemble[:1]])
    assert len(both) == len(ensemble) + 1
    expected = (mean_of(ensemble, x) * len(ensemble) + mean_of(ensemble[:1], x)) / len(both)
    torch.testing.assert_close(both.predict(x).probs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inputs", [5, 400])  # vectorised, and sample by sample
def test_prediction_is_thread_safe(ensemble, inputs):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(inputs, 4, generator=generator) for _ in range(8)]
    expected = [ensemble.predict(x).probs for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, right in zip(pool.map(lambda x: ensemble.predict(x).probs, batches), expected, strict=True):
                assert torch.equal(found, right)


def test_several_inputs_are_predicted_in_one_pass(ensemble):
    x = toy_data()[0]
    seen = []
    found = ensemble.predict_many(
        {"a": x, "b": x[:3]}, samples=["b"], observe=lambda stack: seen.append(len(stack["2.bias"]))
    )
    torch.testing.assert_close(found["a"].probs, ensemble.predict(x).probs)
    assert found["a"].samples is None
    assert len(found["b"].samples) == len(ensemble) == sum(seen)


def test_the_log_probabilities_of_members_are_differentiable(ensemble):
    x, y = toy_data()
    x = x[:4].clone().requires_grad_()
    each = list(ensemble.log_probs(x, y[:4]))
    assert len(each) == len(ensemble)
    (slope,) = torch.autograd.grad(sum(log_p.sum() for log_p in each), x)
    assert slope.abs().sum() > 0


def test_an_ensemble_in_memory_can_be_pickled():
    ensemble, x = _weights(None), toy_data()[0]
    for other in (pickle.loads(pickle.dumps(ensemble)), copy.deepcopy(ensemble)):
        assert torch.equal(other.predict(x).probs, ensemble.predict(x).probs)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    weights = [{"a.weight": torch.randn(4, 4), "a.bias": torch.zeros(4), "b.bias": torch.zeros(4)} for _ in range(3)]
    ensemble = lv.Ensemble.from_weights(Tied(), lv.likelihoods.Categorical(), weights)
    for x in (torch.randn(3, 4), torch.randn(300, 4)):
        each = torch.stack([(x @ w["a.weight"].T @ w["a.weight"].T).softmax(1) for w in weights])
        torch.testing.assert_close(ensemble.predict(x).probs, each.mean(0))


def test_invalid_members_of_a_union_are_refused():
    with pytest.raises(ValueError, match="takes ensembles"):
        lv.Ensemble.concat([_weights(None), "run"])
    with pytest.raises(ValueError, match="No ensemble given"):
        lv.Ensemble.concat([])
    with pytest.raises(ValueError, match="no tensor 'c'"):
        lv.Ensemble.from_weights(toy_model(), lv.likelihoods.Categorical(), [{"c": torch.zeros(1)}])


def test_load_refuses_a_model_with_additional_parameters(tmp_path):
    _stored(tmp_path)

    class More(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.extra = toy_model(), nn.Linear(3, 3)

        def forward(self, x):
            return self.extra(self.inner(x))

    model = toy_model()
    model.append(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="lack"):
        lv.load(tmp_path / "run", model)
    with pytest.raises(ValueError, match="no tensor"):
        lv.load(tmp_path / "run", More())
