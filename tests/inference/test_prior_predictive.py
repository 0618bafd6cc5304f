"""Draws from priors, and what networks predict under them."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

import langevin as lv
from langevin.inference.doctor import examine
from tests.helpers import toy_data, toy_model


@pytest.mark.parametrize(
    ("prior", "cdf"),
    [
        (lv.priors.Gaussian(0.5), stats.norm(scale=0.5).cdf),
        (lv.priors.Laplace(0.5), stats.laplace(scale=0.5).cdf),
        (lv.priors.StudentT(3.0, 0.5), stats.t(3, scale=0.5).cdf),
        (lv.priors.GroupLaplace(0.5), stats.laplace(scale=0.5).cdf),  # each element of a vector is a group
    ],
)
def test_draws_have_the_density(prior, cdf):
    drawn = prior.sample(torch.empty(4000), torch.Generator().manual_seed(0))
    assert stats.kstest(drawn.numpy(), cdf).pvalue > 1e-3


def test_draws_of_groups_have_the_lengths_of_their_density():
    generator = torch.Generator().manual_seed(0)
    lengths = lv.priors.GroupLaplace(0.5).sample(torch.empty(4000, 3), generator).norm(dim=1)
    assert stats.kstest(lengths.numpy(), stats.gamma(3, scale=0.5).cdf).pvalue > 1e-3
    lengths = lv.priors.UnitDirection().sample(torch.empty(4000, 3), generator).norm(dim=1).double()
    r = torch.linspace(0, 4, 100_001).double()
    density = r**2 * torch.exp(-1.5 * (r**2 - 1) ** 2)
    mean = float((r * density).sum() / density.sum())
    assert abs(float(lengths.mean()) - mean) < 4 * float(lengths.std()) / math.sqrt(4000)
    drawn = torch.stack([lv.priors.SampledGaussian(3.0, 2.0).sample(torch.empty(2), generator) for _ in range(4000)])
    assert stats.kstest(drawn[:, 0].numpy(), stats.t(6, scale=math.sqrt(2 / 3)).cdf).pvalue > 1e-3


def test_prior_predictions_average_over_draws_and_leave_the_model_as_it_is():
    model = toy_model()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x = toy_data()[0]
    narrow, wide = (
        lv.prior_predictive(
            lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(std), num_data=60), x, samples=200
        )
        for std in (0.01, 100.0)
    )
    assert narrow.samples.shape == (200, 60, 3)
    assert narrow.samples.amax(2).mean() < 0.4
    assert wide.samples.amax(2).mean() > 0.95
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    # a linear model: the variance of its output is that of the prior
    posterior = lv.Posterior(nn.Linear(4, 1), lv.likelihoods.Gaussian(0.1), lv.priors.Gaussian(0.5), num_data=60)
    found = lv.prior_predictive(posterior, x[:5], samples=2000)
    expected = 0.25 * (x[:5].square().sum(1) + 1)
    assert ((found.epistemic[:, 0] / expected - 1).abs() < 4 * math.sqrt(2 / 2000)).all()
    with pytest.raises(ValueError, match="can't be drawn from"):
        lv.prior_predictive(lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Flat(), num_data=60), x)


def test_the_doctor_warns_of_a_prior_that_saturates_the_network():
    def level(std):
        posterior = lv.Posterior(toy_model(), lv.likelihoods.Categorical(), lv.priors.Gaussian(std), num_data=60)
        return next(f.level for f in examine(posterior, toy_data()) if f.check == "prior predictive")

    assert level(100.0) == "warning"
    assert level(0.3) == "ok"
