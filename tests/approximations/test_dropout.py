"""MC dropout: masks of columns are what dropout layers do, in training and in predictions."""

from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.approximations.dropout import MaskedColumns
from tests.helpers import toy_data, toy_model, toy_posterior

ADAM = partial(torch.optim.Adam, lr=1e-2)


def with_dropout(rate=0.3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, 1))


def own(rate=0.3):
    return lv.Posterior(with_dropout(rate), lv.likelihoods.Gaussian(0.3), num_data=50, allow=["dropout"])


def values():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1] * x[:, 1:]


def test_draws_are_masks_of_columns():
    mean = {"a": torch.ones(3, 4, dtype=torch.float64), "b": torch.ones(2), "c": torch.ones(2, 3, 5, 5)}
    q = MaskedColumns(mean, {"a": 0.25, "c": 0.5})
    drawn = [q.draw(0, number) for number in range(4000)]
    a, c = torch.stack([w["a"] for w in drawn]), torch.stack([w["c"] for w in drawn])
    assert all(torch.equal(w["b"], mean["b"]) for w in drawn)
    assert set(a.unique().tolist()) == {0.0, 1 / 0.75}
    assert bool((a == a[:, :1]).all())
    assert bool((c == c[:, :1, :, :1, :1]).all())
    error = (0.25 / 0.75 / 4000) ** 0.5
    assert bool(((a.mean(0) - 1).abs() < 4 * error).all())
    rows = torch.stack([torch.cat([t.flatten() for t in w.values()]) for w in drawn]).double()
    torch.testing.assert_close(torch.cov(rows.T), q.covariance(), atol=0.12, rtol=0)
    assert all(torch.equal(q.draw(0, 7)[name], drawn[7][name]) for name in mean)
    assert not torch.equal(q.draw(1, 7)["c"], drawn[7]["c"])


def test_predictions_are_those_of_a_network_with_dropout_on():
    posterior, (x, y) = own(), values()
    fit = lv.fit(posterior, (x, y), lv.MCDropout(), optimizer=ADAM, steps=200, draws=4000, progress=False)
    model = with_dropout()
    model.load_state_dict(fit.distribution.mean)
    model.train()
    torch.manual_seed(1)
    with torch.no_grad():
        outputs = torch.stack([model(x) for _ in range(4000)])
    prediction = fit.predict(x)
    error = (2 * outputs.var(0) / 4000).sqrt()
    assert bool(((prediction.mean - outputs.mean(0)).abs() < 4.5 * error).all())
    torch.testing.assert_close(prediction.epistemic, outputs.var(0), rtol=0.2, atol=1e-3)
    assert bool((prediction.epistemic > 0).all())


def test_a_rate_is_a_dropout_layer_before_every_layer_but_the_first():
    x, y = values()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = lv.Posterior(plain, lv.likelihoods.Gaussian(0.3), num_data=50)
    losses = []
    for method, target in ((lv.MCDropout(0.3), posterior), (lv.MCDropout(), own())):
        objective = method.objective(target)
        torch.manual_seed(0)
        losses.append(torch.stack([objective.loss(x, y).detach() for _ in range(2000)]))
    error = (losses[0].var() / 2000 + losses[1].var() / 2000).sqrt()
    assert abs(losses[0].mean() - losses[1].mean()) < 4 * error
    assert losses[0].std() / losses[1].std() == pytest.approx(1, abs=0.1)
    fit = lv.fit(posterior, (x, y), lv.MCDropout(0.3), optimizer=ADAM, steps=10, progress=False)
    assert fit.distribution.rates == {"2.weight": pytest.approx(0.3)}
    assert len(fit) == 50


def test_it_repeats_and_resumes_bit_for_bit(tmp_path):
    data = toy_data()
    options = {"optimizer": ADAM, "batch_size": 16, "progress": False}
    whole = lv.fit(toy_posterior(), data, lv.MCDropout(0.2), steps=40, **options)
    lv.fit(toy_posterior(), data, lv.MCDropout(0.2), steps=20, out=tmp_path / "fit", **options)
    resumed = lv.resume(tmp_path / "fit", toy_posterior(), data, steps=40, progress=False)
    assert torch.equal(whole.predict(data[0]).probs, resumed.predict(data[0]).probs)
    loaded = lv.load(tmp_path / "fit", toy_model())
    assert torch.equal(whole.predict(data[0]).probs, loaded.predict(data[0]).probs)


def test_channels_of_convolutions_are_dropped():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=20)
    data = (torch.randn(20, 1, 8, 8), torch.arange(20) % 3)
    fit = lv.fit(posterior, data, lv.MCDropout(0.5), optimizer=ADAM, steps=4, progress=False)
    assert set(fit.distribution.rates) == {"2.weight", "4.weight"}
    assert bool((fit[0]["2.weight"].flatten(2).eq(0).all(2) == fit[0]["2.weight"][:, :, 0, 0].eq(0)).all())
    assert fit.predict(data[0]).probs.shape == (20, 3)


def test_what_can_not_be_masked_is_refused():
    data = values()
    with pytest.raises(ValueError, match=r"rate=1.5.*between 0 and 1"):
        lv.MCDropout(1.5)
    with pytest.raises(ValueError, match=r"no dropout layer in training mode; write lv.MCDropout\(rate=0.1\)"):
        lv.fit(toy_posterior(), toy_data(), lv.MCDropout(), optimizer=ADAM, steps=2)
    with pytest.raises(ValueError, match="dropout layers of its own"):
        lv.fit(own(), data, lv.MCDropout(0.1), optimizer=ADAM, steps=2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.3), num_data=50, allow=["dropout"])
    with pytest.raises(ValueError, match="the model has dropout elsewhere"):
        lv.fit(posterior, data, lv.MCDropout(), optimizer=ADAM, steps=2)
