"""What half precision a sampler refuses: that which skips steps."""

import pytest
import torch

import langevin as lv
from tests.helpers import toy_data, toy_posterior


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_grad_scaler_is_refused_with_a_reason(unscaled):
    p = torch.nn.Parameter(torch.ones(3))
    sampler = lv.SGLD([p], lr=0.1, num_data=10)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(p.square().sum()).backward()
    if unscaled:
        scaler.unscale_(sampler)
    with pytest.raises(ValueError, match=r"GradScaler: it skips the steps .*torch.bfloat16"):
        scaler.step(sampler)
    assert torch.equal(p, torch.ones(3))


def test_a_disabled_grad_scaler_is_not():
    p = torch.nn.Parameter(torch.ones(3))
    sampler = lv.SGLD([p], lr=0.1, num_data=10)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(p.square().sum()).backward()
    scaler.step(sampler)
    assert not torch.equal(p, torch.ones(3))


def test_float16_is_refused():
    with pytest.raises(ValueError, match="autocast=torch.bfloat16, which has the range of float32"):
        lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=1e-3, steps=4, autocast=torch.float16, progress=False)
