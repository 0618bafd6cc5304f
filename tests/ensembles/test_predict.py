from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.ensembles import predictor
from langevin.ensembles.predictor import Predictor
from tests.helpers import toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)


@pytest.fixture(scope="module")
def run():
    return draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-1), steps=60, burn_in=20, thin=4, chains=2)


def outputs(run, x):
    """The model's class probabilities with each sample, loaded by `load_state_dict`."""
    model = toy_model()
    each = []
    for sample in run:
        model.load_state_dict(sample)
        each.append(model(x).softmax(1).detach())
    return torch.stack(each)


def test_probabilities_are_the_mean_over_samples(run):
    x = toy_data()[0]
    each = outputs(run, x)
    prediction = run.predict(x, batch_size=7, samples=True)
    torch.testing.assert_close(prediction.probs, each.mean(0))
    torch.testing.assert_close(prediction.samples, each)
    assert run.predict(x).samples is None
    assert torch.equal(prediction.labels, each.mean(0).argmax(1))
    torch.testing.assert_close(prediction.confidence, each.mean(0).amax(1))


def test_total_is_aleatoric_plus_epistemic(run):
    x = toy_data()[0]
    each = outputs(run, x).double()
    prediction = run.predict(x)
    entropy = -(each.mean(0) * each.mean(0).log()).sum(1)
    aleatoric = -(each * each.log()).sum(2).mean(0)
    torch.testing.assert_close(prediction.entropy.double(), entropy, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(prediction.aleatoric.double(), aleatoric, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.mutual_information)
    divergence = (each * (each.log() - each.mean(0).log())).sum(2).mean(0)  # mean KL to the average
    torch.testing.assert_close(prediction.mutual_information.double(), divergence, atol=1e-6, rtol=1e-4)
    assert (prediction.mutual_information > 0).all()


def test_probabilities_of_zero_and_one_have_zero_entropy():
    class Certain(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return torch.tensor([[1e4, 0.0]]).expand(len(x), 2) + 0 * self.w

    ensemble = lv.Ensemble.from_weights(Certain(), lv.likelihoods.Categorical(), [{"w": torch.zeros(1)}])
    prediction = ensemble.predict(torch.zeros(3, 1))
    assert torch.equal(prediction.entropy, torch.zeros(3))


@pytest.mark.parametrize("sampled", [False, True])
def test_regression_variance_is_aleatoric_plus_epistemic(sampled):
    x, _ = toy_data()
    y = x.sum(1, keepdim=True)
    posterior = lv.Posterior(
        nn.Linear(4, 1), lv.likelihoods.Gaussian(0.5, sampled=sampled), lv.priors.Gaussian(), num_data=60
    )
    run = draw(posterior, (x, y), partial(lv.SGLD, lr=1e-2), steps=60, burn_in=20, thin=4)
    means = torch.stack([x @ s["weight"].T + s["bias"] for s in run])
    noises = torch.stack([s["likelihood.log_std"].exp() if sampled else torch.tensor(0.5) for s in run])
    prediction = run.predict(x, samples=True)
    torch.testing.assert_close(prediction.mean, means.mean(0))
    torch.testing.assert_close(prediction.epistemic, means.var(0, correction=0), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(prediction.aleatoric, noises.square().mean().expand(60, 1))
    torch.testing.assert_close(prediction.variance, prediction.aleatoric + prediction.epistemic)
    torch.testing.assert_close(prediction.samples, means)
    assert (len(set(noises.tolist())) > 1) == sampled


def test_bernoulli_gives_two_classes():
    x, y = toy_data(classes=2)
    posterior = lv.Posterior(nn.Linear(4, 1), lv.likelihoods.Bernoulli(), lv.priors.Gaussian(), num_data=60)
    run = draw(posterior, (x, y), partial(lv.SGLD, lr=1e-1), steps=200)
    prediction = run.predict(x)
    assert prediction.probs.shape == (60, 2)
    assert (prediction.labels == y).float().mean() > 0.8


def test_prediction_uses_evaluation_mode_and_does_not_modify_the_model():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    sample = {"0.weight": torch.randn(3, 4), "0.bias": torch.zeros(3)}
    ensemble = lv.Ensemble.from_weights(model, lv.likelihoods.Categorical(), [sample])
    x = torch.randn(5, 4)
    a, b = (ensemble.predict(x).probs for _ in range(2))
    assert torch.equal(a, b)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_predicting_without_samples_is_refused(run):
    with pytest.raises(ValueError, match="has no sample yet"):
        run[:0].predict(toy_data()[0])


def test_a_likelihood_that_cannot_predict_is_refused():
    class Custom:
        def log_prob(self, output, target):
            return -(output[:, 0] - target).square()

    posterior = lv.Posterior(nn.Linear(4, 1), Custom(), lv.priors.Gaussian(), num_data=60)
    x, _ = toy_data()
    run = draw(posterior, (x, x.sum(1)), partial(lv.SGLD, lr=1e-2), steps=20)
    assert len(run) > 0
    with pytest.raises(ValueError, match="can't predict: give it probs"):
        run.predict(x)


def test_a_custom_likelihood_must_be_passed_to_load(tmp_path):
    class Custom:
        def log_prob(self, output, target):
            return -0.5 * (output[:, 0] - target).square()

        def moments(self, output):
            return output, torch.ones_like(output)

    posterior = lv.Posterior(nn.Linear(4, 1), Custom(), lv.priors.Gaussian(), num_data=60)
    x, _ = toy_data()
    run = draw(posterior, (x, x.sum(1)), partial(lv.SGLD, lr=1e-2), steps=20, out=tmp_path / "r")
    with pytest.raises(lv.RunError, match="custom likelihood; pass it"):
        lv.load(tmp_path / "r", nn.Linear(4, 1))
    loaded = lv.load(tmp_path / "r", nn.Linear(4, 1), Custom())
    assert torch.equal(loaded.predict(x).mean, run.predict(x).mean)


@pytest.mark.parametrize(("inputs", "at_once"), [(1, 1 << 14), (60, 1 << 14), (60, 60 * 9)])
def test_vectorised_prediction_equals_sample_by_sample(run, inputs, at_once, monkeypatch):
    x = toy_data()[0][:inputs]
    monkeypatch.setattr(predictor, "_AT_ONCE", at_once)
    together = run.predict(x, samples=True)
    monkeypatch.setattr(Predictor, "_can_vectorise", lambda *_: False)
    apart = run.predict(x, samples=True)
    torch.testing.assert_close(together.samples, apart.samples)
    torch.testing.assert_close(together.entropy, apart.entropy)


def test_tied_weights_are_replaced_in_all_their_places(monkeypatch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).tanh())

    torch.manual_seed(0)
    weights = [{name: torch.randn_like(p) for name, p in Tied().named_parameters()} for _ in range(5)]
    ensemble, x = lv.Ensemble.from_weights(Tied(), lv.likelihoods.Categorical(), weights), torch.randn(4, 3)
    together = ensemble.predict(x, samples=True).samples
    monkeypatch.setattr(Predictor, "_can_vectorise", lambda *_: False)
    torch.testing.assert_close(together, ensemble.predict(x, samples=True).samples)


def test_stacks_contain_the_samples_in_order(run):
    stacked = [{name: t[i] for name, t in s.items()} for s in run.samples.stacks(7) for i in range(len(s["0.weight"]))]
    assert len(stacked) == len(run)
    for ours, theirs in zip(stacked, run, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_stacks_leave_out_excluded_samples():
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-1), steps=20, burn_in=10, thin=1)
    run.samples._excluded[0, 14] = "not finite"
    stacked = torch.cat([stack["2.bias"] for stack in run.samples.stacks(100)])
    assert torch.equal(stacked, torch.stack([sample["2.bias"] for sample in run]))
    assert len(stacked) == 9


def test_a_model_that_vmap_does_not_support_is_computed_sample_by_sample():
    class Branches(nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            return output if float(output.sum()) > 0 else -output

    torch.manual_seed(0)
    weights = [{"weight": torch.randn(3, 4), "bias": torch.randn(3)} for _ in range(5)]
    ensemble = lv.Ensemble.from_weights(Branches(4, 3), lv.likelihoods.Categorical(), weights)
    prediction = ensemble.predict(torch.ones(2, 4), samples=True)
    model = Branches(4, 3)
    for sample, probs in zip(weights, prediction.samples, strict=True):
        model.load_state_dict(sample)
        torch.testing.assert_close(model(torch.ones(2, 4)).softmax(1).detach(), probs)


@pytest.mark.parametrize(("cache_size", "reads"), [(1 << 22, 0), (0, 1)])
def test_a_small_run_is_read_once_and_a_large_one_every_time(cache_size, reads, monkeypatch):
    settings = {"steps": 6, "burn_in": 0, "thin": 1, "batch_size": 8, "progress": False}
    run = lv.sample(toy_posterior(), toy_data(), partial(lv.SGLD, lr=1e-3), **settings)
    x = toy_data()[0]
    monkeypatch.setattr("langevin.storage.stored_samples._CACHED", cache_size)
    first, seen, read_rows = run.predict(x), [], run.store.read_rows
    monkeypatch.setattr(run.store, "read_rows", lambda records: seen.append(len(records)) or read_rows(records))
    assert torch.equal(run.predict(x).probs, first.probs)
    assert len(seen) == reads
