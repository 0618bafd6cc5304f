"""Averages agree with the moments of the stored iterates, computed independently."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.approximations.averaging import Moments
from langevin.approximations.variational.objective import normal_of
from langevin.core.schedules import sawtooth
from tests.helpers import toy_data, toy_model, toy_posterior

sgd = partial(torch.optim.SGD, lr=0.2, momentum=0.9)
fit = partial(lv.fit, progress=False, optimizer=sgd)
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def rows(tensors):
    """Named tensors as one vector in double precision."""
    return torch.cat([tensors[name].flatten().double() for name in NAMES])


def test_swa_is_the_mean_of_the_iterates_and_agrees_with_torch():
    averaged = AveragedModel(toy_model())

    def collect(moment):
        if moment.step % 5 == 0 and moment.step > 12:
            model = toy_model()
            model.load_state_dict(moment.weights(0))
            averaged.update_parameters(model)

    found = fit(toy_posterior(), toy_data(), lv.SWA(cycle=5), steps=42, burn_in=12, callbacks=[collect])
    assert found.snapshots.steps == [15, 20, 25, 30, 35, 40]
    stored = torch.stack([rows(s) for s in found.snapshots])
    torch.testing.assert_close(rows(found[0]), stored.mean(0), rtol=1e-6, atol=0)
    theirs = {name.removeprefix("module."): p for name, p in averaged.named_parameters()}
    torch.testing.assert_close(rows(found[0]), rows(theirs).detach(), rtol=1e-5, atol=1e-6)


def test_swag_has_the_moments_of_the_iterates():
    found = fit(toy_posterior(), toy_data(), lv.SWAG(cycle=3, rank=4), steps=30)
    q = found.distribution
    iterates = torch.stack([rows(s) for s in found.snapshots]).numpy()
    assert len(iterates) == 10
    np.testing.assert_allclose(rows(q.mean), iterates.mean(0), rtol=1e-5, atol=1e-8)
    running = np.stack([iterates[: i + 1].mean(0) for i in range(10)])
    deviations = (iterates - running)[-4:].T  # columns
    expected = np.diag(iterates.var(0) / 2) + deviations @ deviations.T / (2 * 3)
    np.testing.assert_allclose(q.covariance(), expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("variance", ["total", "between"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("family", [lv.MeanField(), lv.LowRank(rank=2)], ids=["mean-field", "low-rank"])
def test_hwa_has_the_moments_of_the_variational_parameters(variance, rank, family):
    method = lv.HWA(cycle=4, variance=variance, rank=rank, family=family)
    found = fit(toy_posterior(), toy_data(), method, steps=24, optimizer=partial(torch.optim.Adam, lr=0.05))
    each = [normal_of(s, NAMES) for s in found.snapshots]
    means = torch.stack([rows(q.mean) for q in each]).numpy()
    between = np.cov(means.T, bias=True)
    expected = np.diag(between.diagonal())
    if rank:
        running = np.stack([means[: i + 1].mean(0) for i in range(6)])
        deviations = (means - running)[-3:].T
        expected = expected / 2 + deviations @ deviations.T / (2 * 2)
    if variance == "total":
        expected = expected + torch.stack([q.covariance().double() for q in each]).mean(0).numpy()
    np.testing.assert_allclose(rows(found.distribution.mean), means.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.distribution.covariance(), expected, rtol=1e-3, atol=1e-7)


def test_total_variance_is_that_of_the_mixture_of_all_snapshots():
    method = lv.HWA(cycle=5)
    found = fit(toy_posterior(), toy_data(), method, steps=20, optimizer=partial(torch.optim.Adam, lr=0.1))
    mixture = torch.cat(
        [
            torch.stack([rows(normal_of(s, NAMES).draw(i, n)) for n in range(2000)])
            for i, s in enumerate(found.snapshots)
        ]
    )
    total = rows(found.distribution.variance)
    error = (mixture - mixture.mean(0)).square().std(0) / len(mixture) ** 0.5
    assert bool(((mixture.var(0) - total).abs() < 4.5 * error).all())


def test_a_small_variance_around_a_large_mean_is_accurate():
    moments = Moments(["w"])
    values = torch.tensor([1e4, 1e4 + 0.5, 1e4 + 1.0])  # in float32 the squares differ by less than their rounding
    for value in values:
        moments.add({"w": value})
    assert float(moments.variance("w")) == pytest.approx(1 / 6)
    assert float(values.square().mean() - values.mean().square()) != pytest.approx(1 / 6, rel=0.5)


def test_the_learning_rate_decreases_from_the_optimizers_lr_to_low_in_each_cycle():
    found = []
    method = lv.HWA(cycle=5, low=0.02)
    fit(toy_posterior(), toy_data(), method, steps=10, callbacks=[lambda m: found.append(m.lr)])
    np.testing.assert_allclose(found, [0.2, 0.155, 0.11, 0.065, 0.02] * 2)
    with pytest.raises(ValueError, match="at least two steps"):
        sawtooth(1, 0.1)


def normed_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def normed_posterior(**options):
    return lv.Posterior(normed_model(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=60, **options)


@pytest.mark.filterwarnings("ignore:.*couples the examples")
@pytest.mark.parametrize("loader", [False, True], ids=["tensors", "loader"])
def test_batchnorm_statistics_are_reestimated_for_every_draw(loader, tmp_path):
    x, y = toy_data()
    data = DataLoader(TensorDataset(x, y), batch_size=60) if loader else (x, y)
    found = fit(normed_posterior(), data, lv.SWAG(cycle=4, rank=2), steps=20, draws=3, out=tmp_path / "f")
    for weights in found:
        model = normed_model()
        model.load_state_dict({**model.state_dict(), **weights})
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        update_bn([x], model)
        torch.testing.assert_close(dict(model.state_dict()), own)
    assert not torch.equal(found[0]["1.running_mean"], found[1]["1.running_mean"])
    again = lv.load(tmp_path / "f", normed_model())
    assert torch.equal(again.predict(x).probs, found.predict(x).probs)
    with pytest.raises(ValueError, match="available for draws 0 … 2 of seed 0"):
        found.predict(x, draws=4)
    found.reestimate(normed_posterior(), data, draws=4)
    assert found.predict(x, draws=4, samples=True).samples.shape[0] == 4


@pytest.mark.filterwarnings("ignore:.*couples the examples")
def test_swa_accepts_batchnorm_and_variational_methods_refuse_it():
    x, y = toy_data()
    found = fit(normed_posterior(), (x, y), lv.SWA(cycle=4), steps=12)
    assert len(found) == 1
    assert found.predict(x).probs.shape == (60, 3)
    with pytest.raises(ValueError, match="couples the examples"):
        fit(normed_posterior(), (x, y), lv.HWA(cycle=4), steps=12)
    allowed = fit(normed_posterior(allow=["batchnorm"]), (x, y), lv.HWA(cycle=4), steps=12, draws=2)
    assert "1.running_var" in allowed[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lv.SWA(cycle=0), "at least one step"),
        (lambda: lv.HWA(variance="within"), 'choose "total" or "between"'),
        (lambda: lv.HWA(family=lv.SWA()), r"give lv\.MeanField"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
