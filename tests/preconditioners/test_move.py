"""The fused `move` of a preconditioner equals `drift` plus `noise`."""

import copy

import pytest
import torch
from torch import nn

import langevin as lv

SAMPLERS = {
    "KSGLD": lambda p: lv.KSGLD(p, 1e-2, num_data=24, damping=1e-2, uncovered=0.7),
    "KSGLD, A η": lambda p: lv.KSGLD(p, 1e-2, num_data=24, damping=1e-1, noise_power=1.0, uncovered=0.7),
    "BNPSGLD": lambda p: lv.BNPSGLD(p, 1e-2, num_data=24, uncovered=0.7),
    "pSGLD": lambda p: lv.pSGLD(p, 1e-2, num_data=24),
}


@pytest.mark.filterwarnings("ignore:.*has no block for")
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("zero_temperature", [False, True])
def test_a_move_is_drift_and_noise(name, bias, zero_temperature):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=bias), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4, bias=bias)
    ).double()
    x, y = torch.randn(24, 2, 6, 6, dtype=torch.float64), torch.randint(4, (24,))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
    sampler = SAMPLERS[name](posterior.parameters())
    sampler.bind(posterior)
    posterior.loss(x, y).backward()
    sampler.step()  # to estimate A
    a, group = sampler.preconditioner, sampler.param_groups[0]
    params, grads = list(posterior.parameters()), [torch.randn_like(p) for p in posterior.parameters()]
    normals = None if zero_temperature else [torch.randn_like(p) for p in params]
    with torch.no_grad():
        drift = a.drift(sampler.state, group, params, grads)
        noise = [0] * len(params) if zero_temperature else a.noise(sampler.state, group, params, copy.deepcopy(normals))
        expected = [p - 0.3 * d + 0.2 * n for p, d, n in zip(params, drift, noise, strict=True)]
        a.move(sampler.state, group, params, grads, normals, rate=0.3, spread=0.2)
    for p, e in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=1e-9, atol=1e-11)
