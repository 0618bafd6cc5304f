"""Compiled updates agree with eager ones up to rounding, also when the learning rate changes."""

import shutil

import pytest
import torch

import langevin as lv
from langevin.kernels.blocks import SIZE

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
SAMPLERS = {
    "ATMC": lambda p: lv.ATMC(p, 1e-2, num_data=100),
    "ATMC symmetric": lambda p: lv.ATMC(p, 1e-2, num_data=100, integrator="symmetric"),
    "SGNHT": lambda p: lv.SGNHT(p, 1e-2, num_data=100, temperature=0.5),
    "SGNHT cold": lambda p: lv.SGNHT(p, 1e-2, num_data=100, temperature=0.0),
    "pSGLD": lambda p: lv.pSGLD(p, 1e-2, num_data=100),
    "pSGLD noise": lambda p: lv.pSGLD(p, 1e-2, num_data=100, precondition="noise", noise="rademacher"),
}


def moved(make, *, compiled):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 4), (SIZE + 5,), (7,))]
    sampler = make(params)
    if compiled:
        sampler.compile()
    for step in range(6):
        for p in params:
            p.grad = p.detach() * torch.linspace(0.5, 2, p.numel()).view(p.shape)
        sampler.param_groups[0]["lr"] = 1e-2 / (1 + step)
        sampler.step()
    return params


@pytest.mark.parametrize(
    "name", [n if n in ("ATMC", "pSGLD") else pytest.param(n, marks=pytest.mark.slow) for n in SAMPLERS]
)
def test_compiled_and_eager_agree(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = moved(SAMPLERS[name], compiled=False), moved(SAMPLERS[name], compiled=True)
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
    frames = torch._dynamo.utils.counters["frames"]
    assert 1 <= frames["ok"] <= 4, frames  # one or two functions, recompiled at most once: not for every new lr
