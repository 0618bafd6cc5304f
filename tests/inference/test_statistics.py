"""The statistics that are stored with samples: loss and temperature."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_posterior

draw = partial(lv.sample, progress=False)


@pytest.mark.parametrize(("mode", "chains"), [("sequential", 1), ("vectorised", 8)])
def test_the_temperature_of_a_run_is_the_target_temperature(mode, chains):
    x = torch.linalg.qr(torch.randn(60, 4)).Q * math.sqrt(60)
    posterior = lv.Posterior(
        nn.Linear(4, 1, bias=False), lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(), num_data=60
    )
    lr = 0.2 / (4 + 1 / 60)  # a tenth of the limit: after the step the reading would be wrong by 2/10·…
    run = draw(
        posterior,
        (x, x.sum(1, keepdim=True)),
        partial(lv.SGLD, lr=lr, temperature=2.0),
        batch_size=60,
        steps=6000 if chains == 1 else 2000,
        burn_in=400,
        thin=5,
        chains=chains,
        mode=mode,
    )
    got = run.temperature()
    assert got.error < 0.12
    assert abs(got.mean - 2.0 / 0.9) < 4 * got.error  # SGLD's own bias: 1/(1 − ελ/2)


def test_loss_is_the_mean_since_the_sample_before_or_the_end_of_burn_in():
    seen = []
    run = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=12,
        burn_in=4,
        thin=4,
        callbacks=[lambda info: seen.append(info.loss[0])],
    )
    assert run.trace("loss")[0] == pytest.approx([sum(seen[4:8]) / 4, sum(seen[8:]) / 4])


def test_the_anchor_is_the_mean_of_the_second_eighth_of_burn_in(tmp_path):
    weights = []
    run = draw(
        toy_posterior(),
        toy_data(),
        partial(lv.SGLD, lr=1e-2),
        steps=40,
        burn_in=32,
        thin=1,
        out=tmp_path / "r",
        callbacks=[lambda info: weights.append(info.weights(0)["0.weight"].clone())],
    )
    anchor = run.store.checkpoints([0])[0].tensors["anchor/0.weight"]
    torch.testing.assert_close(anchor, torch.stack(weights[3:7]).mean(0))  # before steps 4 … 7


@pytest.mark.parametrize("stop", [3, 17, 25])
def test_a_run_interrupted_in_burn_in_has_the_same_anchor(stop, tmp_path):
    def callback(info):
        if info.step == stop:
            raise InterruptedError

    options = {"sampler": partial(lv.SGLD, lr=1e-2), "steps": 30, "burn_in": 20, "thin": 1}
    whole = draw(toy_posterior(), toy_data(), **options)
    with pytest.raises(InterruptedError):
        draw(toy_posterior(), toy_data(), out=tmp_path / "r", callbacks=[callback], **options)
    again = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), progress=False)
    assert whole.trace("temperature") == again.trace("temperature")
