"""The loss landscape: coordinates and losses against direct computation."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import langevin as lv
from langevin.plots.landscape import compute_landscape
from tests.helpers import toy_data, toy_model, toy_posterior

sgd = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
fit = partial(lv.fit, progress=False)


def loss_at(model, weights, data):
    model.load_state_dict({**model.state_dict(), **weights})
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.eval()(data[0]), data[1]))


def lower_right(landscape, found):
    """The weights at that corner of the grid, and the centered snapshots, computed independently of the plot."""
    names = found.manifest["weights"]
    points = torch.stack([torch.cat([s[name].flatten() for name in names]) for s in found.snapshots]).double()
    centered = points - points.mean(0)
    directions = torch.linalg.lstsq(landscape.iterates, centered).solution
    flat = points.mean(0) + landscape.across[-1] * directions[0] + landscape.up[0] * directions[1]
    shapes = [found[0][name].shape for name in names]
    parts = flat.split([shape.numel() for shape in shapes])
    weights = {n: part.reshape(s).float() for n, part, s in zip(names, parts, shapes, strict=True)}
    return weights, centered.numpy()


def test_coordinates_and_losses():
    data = toy_data()
    test = data[0][:20] + 0.1, data[1][:20]
    found = fit(toy_posterior(), data, lv.SWA(cycle=5), optimizer=sgd, steps=60)
    landscape = compute_landscape(found, toy_posterior(), data, test, resolution=4, batch_size=7)
    weights, centered = lower_right(landscape, found)
    values, vectors = np.linalg.eigh(centered.T @ centered)
    expected = centered @ vectors[:, [-1, -2]]
    np.testing.assert_allclose(landscape.iterates.abs().numpy(), np.abs(expected), atol=1e-6)
    assert landscape.explained == pytest.approx(values[-2:].sum() / values.sum())
    np.testing.assert_allclose(landscape.average, [0, 0], atol=1e-5)  # SWA's mean is the origin of the plane
    for coordinates, grid in [(landscape.iterates[:, 0], landscape.across), (landscape.iterates[:, 1], landscape.up)]:
        assert grid[0] < coordinates.min()
        assert coordinates.max() < grid[-1]
    assert float(landscape.train[0, -1]) == pytest.approx(loss_at(toy_model(), weights, data), rel=1e-4)
    assert float(landscape.test[0, -1]) == pytest.approx(loss_at(toy_model(), weights, test), rel=1e-4)


def test_variational_parameters_are_shown_by_their_means(tmp_path):
    data = toy_data()
    method = lv.HWA(cycle=5, low=0.001)
    found = fit(toy_posterior(), data, method, optimizer=partial(torch.optim.Adam, lr=0.05), steps=40)
    figure = lv.plots.landscape(found, toy_posterior(), data, data, resolution=4)
    figure.savefig(tmp_path / "landscape.png")
    assert (tmp_path / "landscape.png").read_bytes().startswith(b"\x89PNG")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["train loss", "test loss"]


@pytest.mark.filterwarnings("ignore:.*couples the examples")
def test_batchnorm_gets_the_statistics_of_each_point():
    torch.manual_seed(0)
    data = toy_data()
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=60)
    found = fit(posterior, data, lv.SWA(cycle=5), optimizer=sgd, steps=20)
    landscape = compute_landscape(found, posterior, data, data, resolution=2)
    assert not model[1].running_mean.any()  # the user's model is unchanged
    weights, _ = lower_right(landscape, found)
    model.load_state_dict({**model.state_dict(), **weights})
    update_bn([data[0]], model)
    assert float(landscape.train[0, -1]) == pytest.approx(loss_at(model, weights, data), rel=1e-4)


def test_too_few_snapshots():
    found = fit(toy_posterior(), toy_data(), lv.SWA(cycle=5), optimizer=sgd, steps=10)
    with pytest.raises(ValueError, match="the fit has 2 snapshots"):
        compute_landscape(found, toy_posterior(), toy_data(), toy_data())
