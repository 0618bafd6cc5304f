"""The contract of steppers: samplers and torch optimizers."""

import copy
import inspect
from functools import partial

import pytest
import torch
from torch.optim import Optimizer

from langevin.inference.sample import sample
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

    def closure():
        stepper.zero_grad()
        loss = posterior.loss(x, y)
        loss.backward()
        return loss

    for _ in range(steps):
        stepper.step(closure)
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
def test_the_state_dict_is_complete(name):
    posterior, stepper = made(name)
    take(posterior, stepper, 3)
    other, again = made(name)
    with torch.no_grad():
        for ours, theirs in zip(other.parameters(), posterior.parameters(), strict=True):
            ours.copy_(theirs)
    again.load_state_dict(copy.deepcopy(stepper.state_dict()))
    assert torch.equal(take(posterior, stepper, 3), take(other, again, 3))


@pytest.mark.parametrize("name", FACTORIES)
def test_it_can_be_stored_in_a_manifest(name):
    recipe = write_recipe(FACTORIES[name])
    assert recipe is not None
    assert write_recipe(read_recipe(recipe)) == recipe


def test_an_optimizer_is_not_wrapped_as_a_sampler():
    _, stepper = made("Adam")
    assert not isinstance(stepper, Sampler)
    assert type(stepper) is torch.optim.Adam


def test_a_subclass_of_a_registered_sampler_is_not_stored_under_its_name():
    class SGLD(SAMPLERS["sgld"]):
        pass

    assert write_recipe(partial(SGLD, lr=0.1)) is None
    assert write_recipe(partial(SAMPLERS["sgld"], lr=0.1)) == {"name": "SGLD", "options": {"lr": 0.1}}


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_option_of_a_sampler_has_the_name_of_an_option_of_sample(name):
    """They stand side by side in one call: lv.sample(posterior, data, lv.SGLD, lr=0.1, steps=100)."""
    own = set(inspect.signature(sample).parameters) - {"options"}
    assert set(inspect.signature(SAMPLERS[name]).parameters) & own <= {"seed"}
