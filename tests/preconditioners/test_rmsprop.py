"""RMSprop and pSGLD."""

from __future__ import annotations

import pytest
import torch

import langevin as lv
from langevin.core import random
from tests.preconditioners.common import matrix, run_and_resume


def test_at_zero_temperature_it_is_rmsprop_with_bias_correction():
    start = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    sampler = lv.pSGLD([ours], 1e-2, num_data=7, temperature=0.0, warmup=0)
    optimizer = torch.optim.Adam([theirs], lr=1e-2, betas=(0.0, 0.99), eps=1e-5)
    for _ in range(100):
        for p, stepper in ((ours, sampler), (theirs, optimizer)):
            p.grad = torch.sin(3 * p.detach()) + 0.01 * p.detach()
            stepper.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_noise_is_a_root_of_the_drift():
    p = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    sampler = lv.pSGLD([p], 1e-2, num_data=7)
    p.grad = torch.logspace(-6, 2, 6, dtype=torch.float64)
    sampler.step()
    root, a = matrix(sampler, "noise"), matrix(sampler, "drift")
    torch.testing.assert_close(root @ root.T, a, rtol=1e-12, atol=0)
    torch.testing.assert_close(a.diagonal(), 1 / (p.grad + 1e-5), rtol=1e-12, atol=0)


def test_preconditioning_only_the_noise_is_sgd_at_zero_temperature():
    """Also the exact update of Palacci & Hess, with noise A η of half the variance."""
    p = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    options = {"eps": 0.5, "precondition": "noise", "noise_power": 1.0, "temperature": 0.5, "warmup": 0}
    sampler = lv.pSGLD([p], 1e-2, num_data=7, seed=2, **options)
    p.grad = torch.logspace(-6, 2, 6, dtype=torch.float64)
    sampler.step()
    a = 1 / (p.grad + 0.5)
    eta = random.normal(6, seed=2, chain=0, step=0, dtype=torch.float64)
    torch.testing.assert_close(p.detach(), -1e-2 * p.grad + (1e-2 / 7) ** 0.5 * a * eta, rtol=1e-12, atol=0)
    assert torch.equal(matrix(sampler, "drift"), torch.eye(6, dtype=torch.float64))
    assert sampler.stability_limit(4.0) == 0.5

    cold = torch.nn.Parameter(torch.ones(6))
    sampler = lv.pSGLD([cold], 0.1, num_data=7, precondition="noise", temperature=0.0, warmup=0)
    cold.grad = torch.arange(6.0)
    sampler.step()
    assert torch.equal(cold.detach(), 1 - 0.1 * torch.arange(6.0))


def test_an_unknown_precondition_is_refused():
    with pytest.raises(ValueError, match='choose "both" or "noise"'):
        lv.pSGLD([torch.nn.Parameter(torch.zeros(2))], 1e-2, num_data=7, precondition="drift")


@pytest.mark.parametrize("precondition", ["both", "noise"])
def test_stacked_chains_equal_single_chains(precondition):
    start = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    together = torch.nn.Parameter(start.clone())
    alone = [torch.nn.Parameter(row.clone()) for row in start]
    pairs = [(together, (3, 8)), *zip(alone, (3, 8), strict=True)]
    samplers = [lv.pSGLD([p], 1e-2, num_data=7, chain=c, precondition=precondition) for p, c in pairs]
    for _ in range(10):
        for p, sampler in zip([together, *alone], samplers, strict=True):
            p.grad = torch.sin(p.detach())
            sampler.step()
    torch.testing.assert_close(together, torch.stack(list(alone)), rtol=1e-6, atol=1e-7)


def test_freezing_keeps_the_diagonal():
    p = torch.nn.Parameter(torch.zeros(3))
    sampler = lv.pSGLD([p], 1e-2, num_data=7)
    p.grad = torch.ones(3)
    sampler.step()
    sampler.freeze()
    before = sampler.state[p]["square"].clone()
    p.grad = 100 * torch.ones(3)
    sampler.step()
    assert torch.equal(sampler.state[p]["square"], before)


def test_the_state_dict_is_complete():
    uninterrupted, resumed = run_and_resume(lambda params: lv.pSGLD(params, 1e-2, num_data=24, seed=3))
    assert torch.equal(uninterrupted, resumed)
