"""Compiled updates equal the readable ones, to rounding, for every option; and take only what they can."""

import math
import os
import subprocess
import sys

import pytest
import torch

import langevin as lv
from langevin.core import random
from langevin.kernels import updates

N = 500


def sghmc_with_metric(params, **options):
    """A^{1/2} from ½ to 2, of every chain the same."""
    lead = 0 if isinstance(options["chain"], int) else 1
    metric = [torch.linspace(0.5, 2, math.prod(p.shape[lead:])).reshape(p.shape[lead:]) for p in params]
    return lv.SGHMC(params, metric=metric, **options)


OPTIONS = {
    "SGLD": (lv.SGLD, {}),
    "SGLD, T = 0": (lv.SGLD, {"temperature": 0.0}),
    "pSGLD": (lv.pSGLD, {}),
    "pSGLD, wide": (lv.pSGLD, {"eps": 0.1, "alpha": 0.9}),
    "SGHMC": (lv.SGHMC, {}),
    "SGHMC, fused": (lv.SGHMC, {"integrator": "fused", "temperature": 0.3}),
    "SGHMC, variance": (lv.SGHMC, {"gradient_variance": 1e-3}),
    "SGHMC, metric": (sghmc_with_metric, {"temperature": 0.3}),
    "SGNHT": (lv.SGNHT, {"thermostat_rate": 0.3}),
    "SGNHT, fused": (lv.SGNHT, {"integrator": "fused", "thermostat_rate": 0.3}),
    "SGNHT, relativistic": (lv.SGNHT, {"max_speed": 0.02, "thermostat_rate": 0.3}),
    "SGNHT, fused, relativistic": (lv.SGNHT, {"integrator": "fused", "max_speed": 0.02, "thermostat_rate": 0.3}),
    "ATMC": (lv.ATMC, {"thermostat_rate": 0.3}),
    "ATMC, Gaussian": (lv.ATMC, {"max_speed": None, "thermostat_rate": 0.3, "temperature": 2.0}),
    "ATMC, fused": (lv.ATMC, {"integrator": "fused", "thermostat_rate": 0.3}),
    "ATMC, T = 0": (lv.ATMC, {"temperature": 0.0}),
}
SHAPES = [(40, 7), (), (0,), (3, 1, 5), (2500,), (1,)]


def weights(dtype, shapes=SHAPES, chains=None):
    generator = torch.Generator().manual_seed(0)
    lead = () if chains is None else (chains,)
    return [torch.nn.Parameter(torch.randn((*lead, *s), generator=generator, dtype=dtype)) for s in shapes]


def run(make, params, on, steps=9, decays=None, schedule=True):
    """Steps on gradients that depend on the weights, with an lr that changes and, midway, a frozen preconditioner."""
    with updates.switched(on):
        sampler = make(params)
        if decays is not None:
            sampler.fuse_prior(dict(zip(params, decays, strict=True)))
        energies = []
        for step in range(steps):
            for p in params:
                p.grad = (p.detach() * (1.5 + 0.5 * math.sin(step)) + 0.1).clone(memory_format=torch.preserve_format)
            if schedule:
                sampler.param_groups[0]["lr"] *= 1.02
            if step == steps - 3 and step > 0:
                sampler.freeze()
            sampler.step()
            energies.append(sampler.prior_energies)
    return sampler, energies


def assert_same(a, b, dtype):
    """To rounding: a few units in the last place in each step, which thermostats with negative friction amplify."""
    tolerance = {torch.float32: 3e-5, torch.float64: 1e-12}[dtype]
    for p, q in zip(a.param_groups[0]["params"], b.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=tolerance, atol=tolerance)
        for name in a.state[p]:
            if isinstance(a.state[p][name], torch.Tensor):
                torch.testing.assert_close(a.state[p][name], b.state[q][name], rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_kernel_is_its_reference_to_rounding(option, dtype):
    kind, settings = OPTIONS[option]

    def make(params):
        return kind(params, lr=1e-2, num_data=N, seed=3, chain=2, **settings)

    assert make(weights(dtype)).kernel is not None
    steps = 5 if dtype == torch.float32 else 9
    assert_same(run(make, weights(dtype), True, steps)[0], run(make, weights(dtype), False, steps)[0], dtype)


@pytest.mark.parametrize("option", ["SGLD", "pSGLD", "SGHMC", "SGHMC, metric", "SGNHT", "ATMC"])
def test_the_prior_inside_the_pass(option):
    """g + decay θ, and ½ Σ decay θ² at the weights of the gradient, which is the prior's energy over N."""
    kind, settings = OPTIONS[option]
    decays = [0.3, 0.0, 0.1, 1.0, 0.2, 0.5]

    def make(params):
        return kind(params, lr=1e-2, num_data=N, seed=3, chain=[4, 1], **settings)

    fast, reference = (run(make, weights(torch.float64, SHAPES, 2), on, decays=decays) for on in (True, False))
    assert_same(fast[0], reference[0], torch.float64)
    assert fast[1][-1] == pytest.approx(reference[1][-1], rel=1e-12)
    start = [p.detach() for p in weights(torch.float64, SHAPES, 2)]
    expected = [sum(d / 2 * float(p[c].square().sum()) for d, p in zip(decays, start, strict=True)) for c in (0, 1)]
    assert fast[1][0] == pytest.approx(expected, rel=1e-12)

    plain = weights(torch.float64, SHAPES, 2)
    sampler = make(plain)
    for p, decay in zip(plain, decays, strict=True):
        p.grad = p.detach() * 1.5 + 0.1 + decay * p.detach()
    sampler.param_groups[0]["lr"] *= 1.02
    sampler.step()
    once = run(make, weights(torch.float64, SHAPES, 2), True, steps=1, decays=decays)[0]
    assert_same(once, sampler, torch.float64)


@pytest.mark.parametrize("option", ["SGLD", "pSGLD", "SGHMC", "SGHMC, metric", "SGNHT", "ATMC"])
@pytest.mark.parametrize("on", [True, False])
def test_a_stacked_chain_is_the_chain_alone(option, on):
    kind, settings = OPTIONS[option]
    numbers = [5, 0, 2]
    together = weights(torch.float32, chains=3)
    alone = [[torch.nn.Parameter(p.detach()[c].clone()) for p in together] for c in range(3)]
    run(lambda p: kind(p, lr=1e-2, num_data=N, seed=3, chain=numbers, **settings), together, on)
    for c, number in enumerate(numbers):
        run(lambda p, n=number: kind(p, lr=1e-2, num_data=N, seed=3, chain=n, **settings), alone[c], on)
        assert all(torch.equal(p[c], q) for p, q in zip(together, alone[c], strict=True))


def test_threads_change_nothing():
    before, seen = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            params = weights(torch.float32, [(700_000,), (13,)])
            _, energies = run(
                lambda p: lv.ATMC(p, lr=1e-2, num_data=N, seed=3), params, True, steps=2, decays=[0.1, 0.2]
            )
            seen.append((torch.cat([p.detach() for p in params]), energies))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def channels_last(params):
    return [torch.nn.Parameter(params[0].detach().to(memory_format=torch.channels_last)), *params[1:]]


def transposed(params):
    return [torch.nn.Parameter(params[0].detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)), *params[1:]]


@pytest.mark.parametrize("layout", [channels_last, transposed])
@pytest.mark.parametrize("option", ["SGLD", "pSGLD", "SGHMC", "ATMC"])
def test_the_layout_in_memory_does_not_change_the_numbers(option, layout):
    """Noise is in logical order; what is not contiguous takes the reference, the rest the kernel."""
    kind, settings = OPTIONS[option]
    shapes = [(6, 5, 4, 3), (11,)]

    def make(params):
        return kind(params, lr=1e-2, num_data=N, seed=3, **settings)

    usual, other = weights(torch.float32, shapes), layout(weights(torch.float32, shapes))
    assert not other[0].is_contiguous()
    assert_same(run(make, usual, True)[0], run(make, other, True)[0], torch.float32)


def test_a_view_of_a_larger_tensor_and_mixed_precision():
    whole = torch.randn(30)
    before = whole.clone()
    params = [torch.nn.Parameter(whole[10:20]), torch.nn.Parameter(torch.randn(5, dtype=torch.float64))]
    params[0].grad, params[1].grad = torch.zeros(10), torch.zeros(5, dtype=torch.float64)
    start = params[1].detach().clone()
    lv.SGLD(params, lr=2.0, num_data=4, seed=1).step()
    assert torch.equal(whole[:10], before[:10])
    assert torch.equal(whole[20:], before[20:])
    torch.testing.assert_close(whole[10:20], before[10:20] + random.normal(10, seed=1, chain=0, step=0))
    eta = random.normal(5, seed=1, chain=0, step=0, start=10, dtype=torch.float64)
    torch.testing.assert_close(params[1].detach(), start + eta)


def test_parameters_without_a_gradient_keep_their_place_in_the_stream():
    params = weights(torch.float32, [(5,), (7,), (4,)])
    start = [p.detach().clone() for p in params]
    for p in params[::2]:
        p.grad = torch.zeros_like(p)
    lv.SGLD(params, lr=2.0, num_data=4, seed=1).step()
    assert torch.equal(params[1], start[1])
    torch.testing.assert_close(params[2].detach(), start[2] + random.normal(4, seed=1, chain=0, step=0, start=12))


def test_autograd_notices_the_write():
    p = torch.nn.Parameter(torch.ones(3))
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    lv.SGLD([p], lr=0.1, num_data=10).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


SCRIPT = """
import torch, langevin as lv
p = torch.nn.Parameter(torch.linspace(-1, 1, 3000)); p.grad = p.detach().clone()
lv.SGLD([p], lr=1e-2, num_data=100, seed=7).step()
print(p.detach().double().sum().item().hex(), p[1234].item().hex())
"""


def in_a_process(**environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.slow
def test_a_read_only_cache_a_cold_one_and_a_processor_without_vectors_give_the_same_numbers(tmp_path):
    expected, _ = in_a_process()
    cold, said = in_a_process(LANGEVIN_CACHE=str(tmp_path / "cold"))
    assert cold == expected
    assert "once per machine" in said
    kept = sorted(path.name for path in (tmp_path / "cold").rglob("*.nbi"))
    assert kept
    warm, said = in_a_process(LANGEVIN_CACHE=str(tmp_path / "cold"))
    assert warm == expected
    assert said == ""
    nowhere, said = in_a_process(LANGEVIN_CACHE="/proc/nowhere")
    assert nowhere == expected
    assert "not writable" in said
    generic, _ = in_a_process(NUMBA_CPU_NAME="generic", LANGEVIN_CACHE=str(tmp_path / "generic"))
    assert generic == expected


@pytest.mark.slow
def test_processes_that_start_together_share_a_cold_cache(tmp_path):
    environment = {**os.environ, "LANGEVIN_CACHE": str(tmp_path)}
    several = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = {process.communicate()[0] for process in several}
    assert outputs == {in_a_process()[0]}
    assert in_a_process(LANGEVIN_CACHE=str(tmp_path))[1] == ""


@pytest.mark.parametrize("kind", [lv.SGLD, lv.SGHMC, lv.SGNHT, lv.ATMC, lv.pSGLD])
def test_an_update_of_the_users_is_not_replaced_by_the_inherited_kernel(kind):
    """A subclass that overrides `update` is another method: the compiled update of its base class is not used."""
    called = []

    class Mine(kind):
        def update(self, *rest):
            called.append(1)
            super().update(*rest)

    (p,) = weights(torch.float32, [(4,)])
    sampler = Mine([p], lr=1e-3, num_data=N, seed=0, chain=0)
    p.grad = torch.ones_like(p)
    sampler.step()
    assert called == [1]


def test_a_preconditioner_of_the_users_is_not_replaced_by_the_inherited_kernel():
    class Mine(lv.preconditioners.RMSprop):
        def drift(self, state, group, params, grads):
            return [torch.zeros_like(g) for g in grads]

    (p,) = weights(torch.float32, [(4,)])
    before = p.detach().clone()
    sampler = lv.SGLD([p], lr=1e-3, num_data=N, seed=0, chain=0, preconditioner=Mine(), temperature=0.0)
    p.grad = torch.ones_like(p)
    sampler.step()
    assert torch.equal(p, before)
