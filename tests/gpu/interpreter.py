"""The kernels for GPUs in Triton's interpreter, on tensors of the CPU; run by `test_simulated.py` in its own process.

TRITON_INTERPRET=1 is set there. With LANGEVIN_TEST_DEVICE=cuda they are compiled, and run on that device.
"""

import math
import os

import pytest
import torch

import langevin as lv
from langevin.core import random
from langevin.kernels import philox, triton_kernels, updates

DEVICE = os.environ.get("LANGEVIN_TEST_DEVICE", "cpu")
WHERE = {"seed": 0xF123456789ABCDEF, "step": 2**32 + 3, "stream": 1}
CHAINS = torch.tensor([7, 2**31 + 5], device=DEVICE)
SHAPES = {False: [(3, 1, 5), (), (0,), (1200,)], True: [(40, 7), (), (0,), (3, 1, 5), (2500,), (1,), (2, 1033)]}


def sghmc_with_metric(params, **options):
    lead = 0 if isinstance(options["chain"], int) else 1
    metric = [torch.linspace(0.5, 2, math.prod(p.shape[lead:])).reshape(p.shape[lead:]) for p in params]
    return lv.SGHMC(params, metric=metric, **options)


OPTIONS = {
    "SGLD": (lv.SGLD, {}),
    "pSGLD": (lv.pSGLD, {"warmup": 2}),
    "pSGLD, T = 0": (lv.pSGLD, {"temperature": 0.0, "warmup": 0}),
    "SGHMC": (lv.SGHMC, {}),
    "SGHMC, fused": (lv.SGHMC, {"integrator": "fused", "temperature": 0.3}),
    "SGHMC, metric": (sghmc_with_metric, {}),
    "SGNHT": (lv.SGNHT, {"thermostat_rate": 0.3}),
    "SGNHT, fused": (lv.SGNHT, {"integrator": "fused", "thermostat_rate": 0.3}),
    "ATMC": (lv.ATMC, {"thermostat_rate": 0.3}),
    "ATMC, Gaussian": (lv.ATMC, {"max_speed": None, "thermostat_rate": 0.3}),
    "ATMC, fused": (lv.ATMC, {"integrator": "fused", "thermostat_rate": 0.3}),
    "ATMC, T = 0": (lv.ATMC, {"temperature": 0.0}),
}


@pytest.fixture(autouse=True)
def _on_the_cpu_too(monkeypatch):
    monkeypatch.setattr(updates, "_TRITON", {DEVICE})


def test_words_are_the_integers_of_the_stream():
    found = triton_kernels.words(1000, CHAINS, **WHERE)
    chains = CHAINS.cpu()
    expected = philox._words(torch.arange(1000), WHERE["seed"], chains, WHERE["step"], WHERE["stream"])
    assert torch.equal(found.cpu(), torch.stack(expected, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("start", "count"), [(0, 10), (700, 1500), (2**34 + 3, 300)])
def test_normals_are_those_of_the_cpu_to_rounding(dtype, start, count):
    out = torch.full((2, count + 3), math.nan, dtype=dtype, device=DEVICE)[:, :count]  # rows that lie apart
    triton_kernels.normals(out, CHAINS, start=start, **WHERE)
    again = torch.empty_like(out)
    step = torch.tensor(WHERE["step"], device=DEVICE)
    triton_kernels.normals(again, CHAINS, start=start, **{**WHERE, "step": step})
    assert torch.equal(out, again)
    rounding = 8 * torch.finfo(dtype).eps
    for row, chain in zip(out, CHAINS.tolist(), strict=True):
        with updates.switched(True):
            here = random.normal(count, chain=chain, start=start, dtype=dtype, **WHERE)
        torch.testing.assert_close(row.cpu(), here, rtol=rounding, atol=rounding)


def test_mini_batches_are_the_same_integers():
    where = {"seed": 5, "stream": random.Stream.BATCH, "step": 7}
    there = philox.subsets(300, 101, chain=CHAINS, **where, device=torch.device(DEVICE))
    assert torch.equal(there.cpu(), random.random_subset(300, 101, chain=CHAINS.tolist(), **where))


def weights(dtype, chains, device):
    generator = torch.Generator().manual_seed(0)
    shapes = SHAPES[bool(chains)]
    drawn = [torch.randn((*chains, *shape), generator=generator, dtype=dtype) for shape in shapes]
    return [torch.nn.Parameter(p.to(device)) for p in drawn]


def run(make, params, on, steps):
    """Steps on gradients that depend on the weights, with an lr that changes and, at the end, a frozen A."""
    with updates.switched(on):
        sampler = make(params)
        for step in range(steps):
            for p in params:
                p.grad = p.detach() * (1.5 + 0.5 * math.sin(step)) + 0.1
            sampler.param_groups[0]["lr"] *= 1.02
            if step == steps - 1:
                sampler.freeze()
            sampler.step()
    return sampler


QUICK = {
    "SGLD": torch.float32,
    "pSGLD": torch.float64,
    "SGHMC": torch.float32,
    "SGNHT": torch.float64,
    "ATMC": torch.float32,
}
CASES = [
    pytest.param(option, dtype, stacked, marks=() if QUICK.get(option) == dtype and not stacked else pytest.mark.slow)
    for option in OPTIONS
    for dtype in (torch.float32, torch.float64)
    for stacked in (False, True)
]


@pytest.mark.parametrize(("option", "dtype", "stacked"), CASES)
def test_an_update_is_its_reference_to_rounding(option, dtype, stacked, monkeypatch):
    kind, settings = OPTIONS[option]
    chains, steps = ((2,), 4) if stacked else ((), 2)
    called = []
    real = triton_kernels.Programs.run
    monkeypatch.setattr(triton_kernels.Programs, "run", lambda self, *rest: called.append(1) or real(self, *rest))

    def make(params):
        return kind(params, lr=1e-2, num_data=500, seed=2**63 + 3, chain=[4, 1] if chains else 2, **settings)

    fast = run(make, weights(dtype, chains, DEVICE), True, steps)
    assert len(called) == steps
    reference = run(make, weights(dtype, chains, "cpu"), False, steps)
    tolerance = {torch.float32: 3e-5, torch.float64: 1e-12}[dtype]
    for p, q in zip(fast.param_groups[0]["params"], reference.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=tolerance, atol=tolerance)
        for name, value in fast.state[p].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    value.cpu(), reference.state[q][name], rtol=10 * tolerance, atol=10 * tolerance
                )


def test_a_strided_parameter_takes_the_torch_operations():
    transposed = torch.nn.Parameter(torch.ones(30, 70, device=DEVICE).T)
    plain = torch.nn.Parameter(torch.ones(70, 30, device=DEVICE))
    for p in (transposed, plain):
        p.grad = torch.zeros_like(p)
        lv.SGLD([p], lr=1e-2, num_data=10, seed=1).step()
    torch.testing.assert_close(transposed, plain, rtol=1e-6, atol=1e-6)


def test_autograd_notices_the_write():
    p = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    loss = (p * p).sum()
    p.grad = torch.ones(3, device=DEVICE)
    lv.SGLD([p], lr=0.1, num_data=10).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
