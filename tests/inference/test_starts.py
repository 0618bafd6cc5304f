"""Chains start apart, at points that are functions of (seed, chain) alone."""

import itertools

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import assert_same_samples, toy_data, toy_model, toy_posterior

STILL = {"sampler": lv.SGLD, "lr": 1e-9, "temperature": 0.0, "steps": 1, "burn_in": 0, "thin": 1, "progress": False}


def starts(posterior=None, **options):
    run = lv.sample(posterior or toy_posterior(), toy_data(), **{**STILL, "chains": 4, **options})
    return [run.chain(c)[0] for c in run.chains]


def test_the_first_chain_starts_at_the_model_and_the_others_apart():
    model = toy_model()
    found = starts(toy_posterior(model))
    torch.testing.assert_close(found[0], dict(model.state_dict()))
    for one, other in itertools.combinations(found, 2):
        for name in one:
            assert not torch.allclose(one[name], other[name], atol=1e-3)
    for weights in found[1:]:  # as nn.Linear draws them
        assert float(weights["0.weight"].abs().max()) <= 0.5
        assert float(weights["0.weight"].std()) == pytest.approx(0.5 / 3**0.5, rel=0.4)


def test_starts_depend_on_seed_and_chain_alone():
    many = starts()
    torch.manual_seed(7)
    other_model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    few = starts(toy_posterior(other_model), chains=2)
    torch.testing.assert_close(few[1], many[1])
    assert not torch.equal(few[0]["0.weight"], many[0]["0.weight"])
    assert not torch.equal(starts(seed=1)[1]["0.weight"], many[1]["0.weight"])
    state = torch.get_rng_state()
    starts()
    assert torch.equal(torch.get_rng_state(), state)


def test_added_chains_are_those_of_a_run_that_had_them(tmp_path):
    options = {"steps": 12, "thin": 4, "progress": False}
    whole = lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, chains=3, mode="sequential", **options)
    lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, out=tmp_path / "r", **options)
    torch.manual_seed(8)  # of a model that was built again
    again = toy_posterior(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    more = lv.resume(tmp_path / "r", again, toy_data(), chains=3, progress=False)
    assert_same_samples(whole, more)


def test_the_models_weights_on_demand():
    model = toy_model()
    for weights in starts(toy_posterior(model), init="model"):
        torch.testing.assert_close(weights, dict(model.state_dict()))
    with pytest.raises(ValueError, match="or 'model'; given init='modell'"):
        starts(init="modell")


def test_only_what_is_sampled_is_initialized_again():
    found = starts(toy_posterior(sampled="2.weight"))
    assert set(found[1]) == {"2.weight"}
    assert not torch.allclose(found[0]["2.weight"], found[1]["2.weight"], atol=1e-3)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) * self.scale


def test_a_layer_without_reset_parameters_is_drawn_anew_and_named(capsys):
    model = Scaled()
    model.drawn = nn.Parameter(3 + 0.5 * torch.randn(4000, generator=torch.Generator().manual_seed(1)))
    model.zeros = nn.Parameter(torch.zeros(3))
    first, *others = starts(toy_posterior(model), progress=True)
    assert "(Scaled has no reset_parameters, so parameters there are drawn with" in capsys.readouterr().err
    torch.testing.assert_close(first, dict(model.state_dict()))
    for weights in others:
        for name in ("scale", "inner.weight", "drawn"):
            assert not torch.allclose(weights[name], first[name], atol=1e-3)
        assert 0 < float((weights["scale"] - 1).abs().max()) < 0.5
        assert float(weights["drawn"].mean()) == pytest.approx(3, abs=0.05)  # six standard errors
        assert float(weights["drawn"].std()) == pytest.approx(0.5, abs=0.04)
        assert not weights["zeros"].any()
    starts(progress=True)
    assert "the others at fresh initializations; init" in capsys.readouterr().err
    starts(progress=True, chains=1)
    assert "starts" not in capsys.readouterr().err


def test_attention_is_initialized_again():
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = attention, nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])

    one, other = starts(toy_posterior(Attending()), chains=2)
    assert not torch.allclose(one["attention.in_proj_weight"], other["attention.in_proj_weight"], atol=1e-3)
