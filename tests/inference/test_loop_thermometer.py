"""The temperature of a loop of one's own, on a regression whose temperature is known."""

import math

import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import toy_data, toy_posterior

N, STD = 100, 0.5


def regression() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=generator)
    return x, x @ torch.randn(4, 8, generator=generator) + STD * torch.randn(N, 8, generator=generator)


def posterior() -> lv.Posterior:
    torch.manual_seed(0)
    return lv.Posterior(nn.Linear(4, 8), lv.likelihoods.Gaussian(STD), lv.priors.Gaussian(1.0), num_data=N)


def loop(target, sampler, recorder, steps=6000, burn_in=1000, thin=25, chain=0, **record) -> None:
    x, y = regression()
    for step in range(1, steps + 1):
        sampler.zero_grad()
        loss = target.loss(x, y)
        loss.backward()
        sampler.step()
        if step > burn_in and step % thin == 0:
            recorder.record(step, chain=chain, loss=float(loss.detach()), **record)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_temperature_is_that_of_the_noise(factor) -> None:
    """Full batches and a small step: noise at temperature 2 under the name of 1 is read as 2: the verdict is bad."""
    target = posterior()
    sampler = lv.SGLD(target.parameters(), lr=0.01, num_data=N, seed=3)
    recorder = lv.Recorder(target, sampler)
    sampler.param_groups[0]["temperature"] = factor
    loop(target, sampler, recorder)
    run = recorder.run()
    # Langevin at curvature λ is hot by 1/(1 − εNλ/2); the mean over directions of a regression is known
    curvature = torch.linalg.eigvalsh(torch.cov(torch.cat([regression()[0], torch.ones(N, 1)], 1).T)).max() / STD**2
    found = run.temperature()
    assert found.known
    assert abs(found.mean - factor) < 3 * found.error + factor * 0.01 * float(curvature)
    assert found.error < 0.1
    assert set(run.temperatures()) == {"weight", "bias"}
    assert (run.verdict(regression()[0]).level == "bad") == (factor == 2.0)


def test_further_chains_are_watched() -> None:
    recorder = lv.Recorder(posterior())
    for chain in range(2):
        target = posterior()
        sampler = lv.SGHMC(target.parameters(), lr=0.02, num_data=N, seed=1, chain=chain)
        recorder.watch(sampler)
        loop(target, sampler, recorder, steps=1500, burn_in=300, chain=chain, weights=target.trainable_parameters())
    run = recorder.run()
    assert sorted(run.trace("temperature")) == [0, 1]
    assert run.target_temperature == 1
    assert run.manifest["sampler"]["name"] == "SGHMC"
    assert all(math.isfinite(value) for chain in (0, 1) for value in run.trace("temperature")[chain][1:])
    with pytest.raises(ValueError, match="parameters, or of those of another like it"):
        recorder.watch(lv.SGLD(nn.Linear(2, 1).parameters(), lr=1e-3, num_data=N))
    with pytest.raises(ValueError, match="watch takes the sampler"):
        recorder.watch(torch.optim.SGD(posterior().parameters(), lr=1e-3))


def test_every_sample_has_a_reading_however_often_one_is_recorded() -> None:
    target, (x, y) = toy_posterior(), toy_data()
    sampler = lv.SGLD(target.parameters(), lr=1e-3, num_data=len(x))
    recorder = lv.Recorder(target, sampler)
    for step in range(1, 61):
        sampler.zero_grad()
        target.loss(x, y).backward()
        sampler.step()
        if step > 20 and step % 3 == 0:
            recorder.record(step)
    readings = recorder.run().trace("temperature")[0]
    assert math.isnan(readings[0])  # before the first sample it was burn-in
    assert all(math.isfinite(value) for value in readings[1:])


def test_what_moves_without_noise_or_by_closures_has_no_thermometer() -> None:
    for make in (lv.SGD, lv.MCLMC):
        target = posterior()
        sampler = make(target.parameters(), lr=1e-3, num_data=N)
        lv.Recorder(target, sampler)
        assert not sampler._optimizer_step_pre_hooks
