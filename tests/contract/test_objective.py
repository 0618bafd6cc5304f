"""The contract of `Objective`: posteriors and variational objectives."""

import copy

import pytest
import torch

import langevin as lv
from langevin.core.objective import Objective
from tests.helpers import toy_data, toy_posterior

N = 60


def _posterior():
    return toy_posterior(n=N).double()


def _family(family):
    return family.objective(_posterior())


OBJECTIVES = {
    "posterior": _posterior,
    "mean field": lambda: _family(lv.MeanField(reparameterization="plain")),
    "IVON": lambda: _family(lv.IVON()),
    "low rank": lambda: _family(lv.LowRank(rank=2, reparameterization="plain")),
}


@pytest.fixture(params=OBJECTIVES)
def objective(request):
    return OBJECTIVES[request.param]()


def loss(objective, x, y):
    torch.manual_seed(3)
    return objective.loss(x, y)


def test_it_has_a_scalar_loss_parameters_and_num_data(objective):
    x, y = toy_data(N, dtype=torch.float64)
    assert isinstance(objective, Objective)
    assert objective.num_data == N
    value = loss(objective, x[:8], y[:8])
    assert value.shape == ()
    torch.manual_seed(3)
    torch.testing.assert_close(objective(x[:8], y[:8]), value)
    value.backward()
    parameters = objective.trainable_parameters()
    assert parameters
    assert all(p.requires_grad and p.grad is not None for p in parameters.values())


def test_the_loss_is_unbiased_over_mini_batches(objective):
    """The mean over a partition into batches is the loss of all data: the prior counts once."""
    x, y = toy_data(N, dtype=torch.float64)
    parts = torch.stack([loss(objective, x[i : i + 12], y[i : i + 12]) for i in range(0, N, 12)])
    torch.testing.assert_close(parts.mean(), loss(objective, x, y))


def test_a_copy_shares_no_parameters(objective):
    x, y = toy_data(N, dtype=torch.float64)
    other = copy.deepcopy(objective)
    torch.testing.assert_close(loss(other, x, y), loss(objective, x, y))
    with torch.no_grad():
        for p in other.trainable_parameters().values():
            p.add_(0.5)
    assert not torch.equal(loss(other, x, y), loss(objective, x, y))


def test_fixed_tensors_are_not_trainable(objective):
    assert not set(objective.fixed_tensors()) & set(objective.trainable_parameters())


def test_stochastic_forward_is_true_if_the_loss_is_random(objective):
    x, y = toy_data(N, dtype=torch.float64)
    values = {float(objective.loss(x, y).detach()) for _ in range(3)}
    assert (len(values) > 1) == objective.stochastic_forward
