"""Parameters sharded by FSDP2: the result does not depend on the sharding."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import langevin as lv
from langevin.inference.distributed import Mesh
from langevin.samplers import SAMPLERS
from tests.helpers import toy_data, toy_model, toy_posterior
from tests.inference.distributed.launch import launch


class Bare:
    """A prior of the user's without a constant: on shards its value is a partial sum."""

    def log_prob(self, parameter):
        return -parameter.pow(4).sum()


PRIOR = {
    "0.weight": lv.priors.Gaussian(0.5),
    "0.bias": lv.priors.StudentT(3.0),
    "2.bias": lv.priors.Laplace(2.0),
    "*": Bare(),
}
ELEMENTWISE = [name for name in SAMPLERS if SAMPLERS[name].stackable]


def joined():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_world_size(), dist.get_rank()


def trained(name, shard, steps=12):
    """The weights after some steps of the user's own loop, and their log prior; a process sees its part of a batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    parts, part = joined() if shard else (1, 0)
    model = toy_model()
    if shard:
        mesh = init_device_mesh("cpu", (parts,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), PRIOR, num_data=60)
    sampler = SAMPLERS[name](posterior.parameters(), lr=1e-3, num_data=60, seed=5, chain=2)
    x, y = toy_data()
    for step in range(steps):
        rows = slice(step, step + 30)
        mine = slice(30 * part // parts, 30 * (part + 1) // parts)
        sampler.zero_grad()
        posterior.loss(x[rows][mine], y[rows][mine]).backward()
        sampler.step()
    whole = [p.full_tensor() if shard else p for p in posterior.parameters()]
    momentum = [s["momentum"] for s in sampler.state.values() if "momentum" in s]
    if shard and momentum:
        assert momentum[0].to_local().shape == next(model.parameters()).to_local().shape  # the state is sharded too
    return [p.detach().clone().numpy() for p in (*whole, posterior.log_prior())]


@pytest.mark.parametrize("name", [n if n == "sghmc" else pytest.param(n, marks=pytest.mark.slow) for n in ELEMENTWISE])
def test_sharded_parameters_move_like_whole_ones(name):
    whole = trained(name, shard=False)
    for processes in (2, 3) if name == "sghmc" else (2,):  # 5 rows over 2 or 3 processes: shards of different sizes
        for result in launch(trained, processes, name, True):
            assert not isinstance(result, str), result
            for a, b in zip(result, whole, strict=True):
                torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), atol=2e-5, rtol=2e-5)


def refused():
    from torch.distributed.fsdp import fully_shard

    joined()
    model = toy_model()
    fully_shard(model)
    said = []
    for use in (
        lambda: lv.KSGLD(model.parameters(), lr=1e-3, num_data=60),
        lambda: lv.sample(toy_posterior(model), toy_data(), partial(lv.SGLD, lr=1e-3), steps=5, mesh=Mesh()),
    ):
        try:
            use()
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_shards_cannot_do_is_refused():
    first, second = launch(refused, 2)
    assert first == second
    assert first[0].startswith("KSGLD ")
    assert "whole layers" in first[0]
    assert "use an element-wise sampler (lv.SGLD," in first[0]
    assert "fully_shard" in first[1]


def wrapped():
    joined()
    model = DistributedDataParallel(toy_model())
    posterior = lv.Posterior(
        model,
        lv.likelihoods.Categorical(),
        {"0.weight": lv.priors.Gaussian(2.0), "*": lv.priors.Gaussian(1.0)},
        num_data=60,
        sampled="0.*",
    )
    return list(posterior.trainable_parameters())


def test_ddp_hides_no_parameter_from_name_patterns():
    assert launch(wrapped, 2) == [["0.weight", "0.bias"]] * 2


def test_wrappers_within_a_model_hide_no_parameter():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 5)), nn.Tanh(), torch.compile(nn.Linear(5, 3)))
    posterior = toy_posterior(model)
    assert set(posterior.trainable_parameters()) == set(toy_posterior().trainable_parameters())
