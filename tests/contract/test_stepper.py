"""The contract of steppers: samplers, and plain torch optimizers beside them."""

import copy
from functools import partial

import pytest
import torch
from torch.optim import Optimizer

from langevin.inference.steppers import OptimizerFactory, read_recipe, sampler_factory, write_recipe
from langevin.samplers import SAMPLERS, Sampler
from tests.helpers import toy_data, toy_posterior

FACTORIES = {name: sampler_factory(name, {"lr": 1e-3}) for name in SAMPLERS}
FACTORIES |= {
    name: OptimizerFactory(partial(getattr(torch.optim, name), lr=1e-3)) for name in ("SGD", "Adam", "AdamW", "RMSprop")
}


def made(name):
    posterior = toy_posterior()
    stepper = FACTORIES[name](list(posterior.parameters()), num_data=60, seed=1, chain=0)
    if isinstance(stepper, Sampler):
        stepper.bind(posterior, toy_data())
    return posterior, stepper


def take(posterior, stepper, steps):
    x, y = toy_data()
    for _ in range(steps):
        stepper.zero_grad()
        posterior.loss(x, y).backward()
        stepper.step()
    return torch.cat([p.detach().flatten() for p in posterior.parameters()])


@pytest.mark.parametrize("name", FACTORIES)
def test_a_step_changes_the_parameters_in_place_from_their_gradients(name):
    posterior, stepper = made(name)
    assert isinstance(stepper, Optimizer)
    before = torch.cat([p.detach().flatten() for p in posterior.parameters()])
    places = [p.data_ptr() for p in posterior.parameters()]
    assert not torch.equal(take(posterior, stepper, 1), before)
    assert [p.data_ptr() for p in posterior.parameters()] == places


@pytest.mark.parametrize("name", FACTORIES)
def test_groups_and_state_are_all_that_it_is(name):
    posterior, stepper = made(name)
    take(posterior, stepper, 3)
    other, again = made(name)
    with torch.no_grad():
        for ours, theirs in zip(other.parameters(), posterior.parameters(), strict=True):
            ours.copy_(theirs)
    again.load_state_dict(copy.deepcopy(stepper.state_dict()))
    assert torch.equal(take(posterior, stepper, 3), take(other, again, 3))


@pytest.mark.parametrize("name", FACTORIES)
def test_a_manifest_can_name_it(name):
    recipe = write_recipe(FACTORIES[name])
    assert recipe is not None
    assert write_recipe(read_recipe(recipe)) == recipe


def test_an_optimizer_does_not_pretend_to_be_a_sampler():
    _, stepper = made("Adam")
    assert not isinstance(stepper, Sampler)
    assert type(stepper) is torch.optim.Adam


def test_a_subclass_of_a_registered_sampler_is_not_stored_as_that():
    class SGLD(SAMPLERS["sgld"]):
        pass

    assert write_recipe(partial(SGLD, lr=0.1)) is None
    assert write_recipe(partial(SAMPLERS["sgld"], lr=0.1)) == {"name": "SGLD", "options": {"lr": 0.1}}
