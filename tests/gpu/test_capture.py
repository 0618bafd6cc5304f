"""A step whose changing numbers are in tensors: recorded once, and replayed at other steps and learning rates."""

import pytest
import torch

import langevin as lv
from langevin.kernels import updates
from tests.gpu.recorded import Recorded

CAPTURABLE = {
    "SGLD": (lv.SGLD, {}),
    "SGHMC": (lv.SGHMC, {"gradient_variance": 1e-4}),
    "SGHMC, fused": (lv.SGHMC, {"integrator": "fused"}),
    "SGNHT": (lv.SGNHT, {}),
    "SGNHT, fused": (lv.SGNHT, {"integrator": "fused"}),
    "ATMC": (lv.ATMC, {}),
    "pSGLD": (lv.pSGLD, {"warmup": 0}),
    "SGD": (lv.SGD, {"momentum": 0.9}),
}


def made(kind, options, chain=3):
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in ((4, 3), (7,))]
    sampler = kind(params, lr=1e-2, num_data=50, seed=2, chain=chain, **options)
    for p in params:
        p.grad = torch.zeros_like(p)
    return params, sampler


def follow(params):
    """The gradient of ½Σθ², written where the last one was."""
    for p in params:
        p.grad.copy_(p.detach())


@pytest.mark.parametrize("name", CAPTURABLE)
def test_a_recorded_step_is_replayed_at_other_steps_and_rates(name):
    kind, options = CAPTURABLE[name]
    rates = [0.01, 0.01, 0.013, 0.017, 0.011, 0.02]
    with updates.switched(False):
        params, sampler = made(kind, options)
        captured, replayed = made(kind, options)
        for step, lr in enumerate(rates):
            sampler.param_groups[0]["lr"] = lr
            follow(params)
            sampler.step()
            if step == 0:
                sampler.freeze()
        replayed.param_groups[0]["lr"] = rates[0]
        follow(captured)
        replayed.step()  # makes the state
        replayed.freeze()
        replayed.make_capturable()
        graph = Recorded()
        for step, lr in enumerate(rates[1:]):
            replayed.param_groups[0]["lr"].fill_(lr)
            follow(captured)
            if step == 0:
                with graph:
                    replayed.step()
            else:
                graph.replay()
    assert int(replayed.param_groups[0]["step"]) == len(rates)
    for p, q in zip(params, captured, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
        for key, value in sampler.state[p].items():
            torch.testing.assert_close(value, replayed.state[q][key], rtol=1e-12, atol=1e-12)


def test_a_number_of_python_would_be_noticed():
    """With the step as a number, the replayed noise is that of the first step."""
    params, sampler = made(lv.SGLD, {})
    captured, replayed = made(lv.SGLD, {})
    with updates.switched(False):
        for _ in range(2):
            follow(params)
            sampler.step()
        replayed.make_capturable()
        replayed.param_groups[0]["step"] = 0
        follow(captured)
        with Recorded() as graph:
            replayed.step()
        follow(captured)
        graph.replay()
    assert not torch.allclose(params[0], captured[0])


def test_schedules_change_the_rate_in_place():
    _, sampler = made(lv.SGLD, {})
    sampler.make_capturable()
    lr = sampler.param_groups[0]["lr"]
    schedule = torch.optim.lr_scheduler.ExponentialLR(sampler, gamma=0.5)
    sampler.step()
    schedule.step()
    assert sampler.param_groups[0]["lr"] is lr
    assert float(lr) == 0.005


@pytest.mark.parametrize(("kind", "options", "why"), [(lv.pSGLD, {}, "freeze"), (lv.MCLMC, {}, "can't be captured")])
def test_what_reads_numbers_is_refused(kind, options, why):
    _, sampler = made(kind, options)
    with pytest.raises(ValueError, match=why):
        sampler.make_capturable()
