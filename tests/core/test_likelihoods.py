"""The likelihoods against torch.distributions, their gradients, and what they refuse."""

import math

import pytest
import torch
from torch.distributions import Normal
from torch.func import vmap
from torch.nn import functional

import langevin as lv


def _outputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_heteroscedastic_gaussian_has_the_mean_and_scale_of_the_outputs():
    output, y = _outputs(7, 6), _outputs(7, 3, seed=1)
    likelihood = lv.likelihoods.HeteroscedasticGaussian()
    mean, scale = output[:, :3], functional.softplus(output[:, 3:]) + 1e-3
    torch.testing.assert_close(likelihood.log_prob(output, y), Normal(mean, scale).log_prob(y).sum(1))
    predicted, variance = likelihood.moments(output)
    torch.testing.assert_close(predicted, mean)
    torch.testing.assert_close(variance, scale.square())
    stacked = vmap(likelihood.log_prob, (0, None))(torch.stack([output, 2 * output]), y)
    torch.testing.assert_close(stacked[1], likelihood.log_prob(2 * output, y))


def test_the_fisher_of_heteroscedastic_outputs_is_the_mean_of_the_squared_scores():
    likelihood = lv.likelihoods.HeteroscedasticGaussian()
    output = _outputs(1, 2).double().expand(200_000, 2).contiguous().requires_grad_()
    y = likelihood.sample(output.detach(), torch.Generator().manual_seed(3))
    (scores,) = torch.autograd.grad(likelihood.log_prob(output, y).sum(), output)
    fisher = likelihood.output_fisher(output[:1].detach())[0]
    products = scores[:, :, None] * scores[:, None, :]
    error = products.std(0) / math.sqrt(len(products))
    assert ((products.mean(0) - fisher).abs() < 4 * error).all()


@pytest.mark.parametrize(
    ("output", "target", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4), r"nn\.Linear\(…, 2\)"),
        (torch.full((4, 2), math.inf), torch.randn(4), "overflow"),
        (torch.zeros(4, 2), torch.tensor([0.0, 1e-4, 2e-4, 0.0]), "Standardize them"),
        (torch.zeros(4, 2), torch.tensor([0.0, math.nan, 1.0, 2.0]), "finite targets"),
    ],
)
def test_heteroscedastic_gaussian_refuses(output, target, message):
    with pytest.raises(ValueError, match=message):
        lv.likelihoods.HeteroscedasticGaussian().validate(output, target)
