"""Helpers for the tests of all preconditioners."""

from __future__ import annotations

import copy

import torch
from torch import nn

import langevin as lv

torch.set_num_threads(1)


def matrix(sampler, method):
    """The matrix of `drift` or `noise` on all weights, column by column."""
    group = sampler.param_groups[0]
    params = group["params"]
    apply = getattr(sampler.preconditioner, method)
    sizes = [p.numel() for p in params]
    columns = []
    for unit in torch.eye(sum(sizes), dtype=params[0].dtype):
        parts = [part.reshape(p.shape) for part, p in zip(torch.split(unit, sizes), params, strict=True)]
        columns.append(torch.cat([v.flatten() for v in apply(sampler.state, group, params, parts)]))
    return torch.stack(columns, dim=1).detach()


def data(rows=24, features=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (rows,), generator=generator)


def network(seed=0, features=4, hidden=3, classes=3, bias=True):
    torch.manual_seed(seed)
    layers = [nn.Linear(features, hidden, bias=bias), nn.Tanh(), nn.Linear(hidden, classes, bias=bias)]
    return nn.Sequential(*layers).double()


def step(sampler, posterior, x, y, batch=None):
    sampler.zero_grad()
    chosen = slice(None) if batch is None else batch
    posterior.loss(x[chosen], y[chosen]).backward()
    sampler.step()


def run_and_resume(make, steps=7):
    """Weights after twice `steps` steps: uninterrupted, and through a state_dict into a new sampler and model."""
    x, y = data()
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=len(x))
    sampler = make(posterior.parameters())
    sampler.bind(posterior, (x, y))

    def proceed(sampler, posterior, start):
        for t in range(start, start + steps):
            step(sampler, posterior, x, y, torch.arange(t % 3, len(x), 3))

    proceed(sampler, posterior, 0)
    other = copy.deepcopy(posterior)
    fresh = make(other.parameters())
    fresh.bind(other, (x, y))
    fresh.load_state_dict(copy.deepcopy(sampler.state_dict()))
    proceed(sampler, posterior, steps)
    proceed(fresh, other, steps)
    return [torch.cat([p.detach().flatten() for p in owner.parameters()]) for owner in (posterior, other)]
