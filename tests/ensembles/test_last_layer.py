"""The posterior of the last layer: that of the whole model with all else frozen, and of a linear model."""

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_model


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def test_features_are_what_enters_the_layer_and_the_model_is_not_changed():
    model, (x, y) = toy_model().train(), toy_data()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    last = lv.last_layer(model)
    features, targets = last.features((x, y), batch_size=7)
    assert torch.equal(targets, y)
    torch.testing.assert_close(features, model[:-1](x))
    torch.testing.assert_close(last.head(features), model(x))
    assert torch.equal(last.features_of(x), last.features_of((x,)[0]))
    assert model.training
    assert not model[-1]._forward_pre_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_it_samples_and_predicts_as_the_whole_model_with_all_else_frozen():
    model, (x, y) = toy_model(), toy_data()
    last = lv.last_layer(model)
    prior = lv.priors.Gaussian(1.0)
    head = lv.Posterior(last.head, lv.likelihoods.Categorical(), prior, num_data=60)
    options = {"lr": 1e-2, "steps": 40, "burn_in": 0, "thin": 10, "batch_size": 20, "progress": False}
    run = lv.sample(head, last.features((x, y)), lv.SGLD, **options)
    whole = lv.Posterior(model, lv.likelihoods.Categorical(), prior, num_data=60, sampled="2.*")
    expected = lv.sample(whole, (x, y), lv.SGLD, **options)
    torch.testing.assert_close(run[-1]["weight"], expected[-1]["2.weight"], atol=1e-5, rtol=1e-4)
    probs = expected.predict(x).probs
    torch.testing.assert_close(last.predict(run, x).probs, probs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last.whole(run).predict(x).probs, probs, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_linear_head_has_the_conjugate_posterior():
    """Gaussian noise and prior: mean and covariance of the head are known in closed form."""
    model = network()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 4, generator=generator)
    y = model(x).detach() + 0.5 * torch.randn(80, 2, generator=generator)
    last = lv.last_layer(model)
    features, targets = last.features((x, y))
    posterior = lv.Posterior(last.head, lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(1.0), num_data=80)
    options = {"steps": 1800, "burn_in": 300, "thin": 1, "chains": 4, "seed": 0, "progress": False, "probe": 0.0}
    run = lv.sample(posterior, (features, targets), lv.HMC, mode="vectorised", compile=False, **options)
    design = torch.cat([features, torch.ones(80, 1)], 1).double()
    precision = design.T @ design / 0.25 + torch.eye(7, dtype=torch.float64)
    mean = torch.linalg.solve(precision, design.T @ targets.double() / 0.25)
    variance = torch.linalg.inv(precision).diagonal()
    draws = torch.stack([torch.cat([w["weight"].T, w["bias"][None]]) for w in run]).double()
    spread = variance.sqrt()[:, None]
    ess = min(run.convergence(subset=None).ess)
    assert ess > 400
    assert float(((draws.mean(0) - mean) / spread).abs().max()) < 4 / ess**0.5
    assert float((draws.var(0) / variance[:, None] - 1).abs().max()) < 4 * (2 / ess) ** 0.5


def test_what_follows_the_layer_is_refused():
    x, y = toy_data()
    with pytest.raises(ValueError, match=r"not that of its layer '0.2'.*let the model return logits"):
        lv.last_layer(nn.Sequential(toy_model(), nn.Softmax(1))).features((x, y))
    with pytest.raises(ValueError, match=r"layer='head' is not an nn.Linear of the model; these are: \['0', '2'\]"):
        lv.last_layer(toy_model(), "head")
    with pytest.raises(ValueError, match="no nn.Linear"):
        lv.last_layer(nn.Tanh())
    with pytest.raises(ValueError, match="not that of its layer '0'"):
        lv.last_layer(toy_model(), "0").features((x, y))
