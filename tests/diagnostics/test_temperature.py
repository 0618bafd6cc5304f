import math

import numpy as np
import pytest
import torch

from langevin.core.statistics import mean_and_error
from langevin.diagnostics import temperature
from langevin.diagnostics.temperature import (
    Ratio,
    Thermometer,
    Windows,
    leave_one_out,
    over_tensors,
    ratio_of_means,
    virial_temperature,
)

NAMES = ["a", "b"]


def positions(chains, seed):
    """Parameters with gradients, of one chain or stacked."""
    generator = torch.Generator().manual_seed(seed)
    stack = () if chains is None else (chains,)
    params = [torch.randn((*stack, *shape), generator=generator) for shape in ((2, 3), ())]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    return params


@pytest.mark.parametrize("chains", [None, 3])
def test_the_temperature_is_the_mean_over_weights_not_over_tensors(chains):
    """N (θ−s)·g/dim, of tensors of different sizes, by hand; and the same of each tensor."""
    params = positions(chains, 1)
    thermometer = Thermometer([torch.zeros_like(p) for p in params], num_data=7, stacked=chains is not None)
    rows = torch.cat([(p * p.grad).reshape(chains or 1, -1) for p in params], 1).double()
    torch.testing.assert_close(thermometer.measure(params), 7 * rows.mean(1))
    torch.testing.assert_close(thermometer.measure_each(params), torch.stack([7 * rows[:, :6].mean(1), 7 * rows[:, 6]]))


def state(thermometer, index=0):
    return thermometer.tensors(index, NAMES), thermometer.values()


@pytest.mark.parametrize("readings", [5, 32, 33, 150])
def test_windows_about_any_point_are_the_means_of_the_readings_about_it(readings):
    """From sums of θ·g and g, against N (θ−a)·g/dim of every reading; pairs of windows are merged."""
    seen = [positions(2, seed) for seed in range(readings)]
    thermometer = Thermometer(positions(2, 999), num_data=7, stacked=True)
    for params in seen:
        thermometer.measure_each(params)
    windows = Windows.read(*state(thermometer, 1), NAMES)
    length = {5: 1, 32: 1, 33: 2, 150: 8}[readings]
    full = readings // length
    anchor = {"a": torch.randn(2, 3), "b": torch.randn(())}
    by_hand = torch.tensor(
        [
            [7 * float(((p[1] - anchor[n]) * p.grad[1]).mean()) for n, p in zip(NAMES, params, strict=True)]
            for params in seen
        ]
    )
    expected = by_hand[: full * length].reshape(full, length, 2).mean(1)
    found = torch.from_numpy(windows.about(anchor, 7)).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(windows.mean["a"], torch.stack([p[0][1] for p in seen]).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stacked", [True, False])
def test_a_restored_thermometer_continues(stacked):
    """Stacked chains, and each of them alone, to the same state."""
    whole = Thermometer(positions(2, 0), num_data=7, stacked=True)
    parts = [Thermometer([p[c].clone() for p in positions(2, 0)], num_data=7, stacked=False) for c in (0, 1)]

    def alone(params, c):
        chosen = [p[c].clone() for p in params]
        for p, q in zip(chosen, params, strict=True):
            p.grad = q.grad[c].clone()
        return chosen

    for step in range(40):
        params = positions(2, step)
        if step == 20:
            states = [state(whole, c) for c in (0, 1)] if stacked else [state(part) for part in parts]
            whole = Thermometer(positions(2, 0), num_data=7, stacked=True)
            whole.restore([tensors for tensors, _ in states], states[0][1], NAMES)
        if step < 4:
            whole.average(params)
            [part.average(alone(params, c)) for c, part in enumerate(parts)]
        whole.measure_each(params)
        [part.measure_each(alone(params, c)) for c, part in enumerate(parts)]
    for c, part in enumerate(parts):
        assert whole.values() == part.values()
        torch.testing.assert_close(state(whole, c)[0], state(part)[0])


def test_large_models_keep_no_windows(monkeypatch):
    monkeypatch.setattr(temperature, "_WINDOW_BYTES", 100)
    thermometer = Thermometer(positions(None, 0), num_data=7, stacked=False)
    thermometer.measure(positions(None, 1))
    tensors, values = state(thermometer)
    assert set(tensors) == {"anchor/a", "anchor/b"}
    assert Windows.read(tensors, values, NAMES) is None


def test_adapters_of_a_frozen_model_keep_no_windows_and_small_networks_do():
    sampled = [torch.zeros(3000)]  # 32 windows are 384 kB, a hundredth of what a model without frozen weights may keep
    assert Thermometer(sampled, num_data=7, stacked=False, frozen=3000).slopes
    assert not Thermometer(sampled, num_data=7, stacked=False, frozen=3001).slopes
    assert Thermometer([torch.zeros(2000)], num_data=7, stacked=False, frozen=10**6).slopes


def test_chains_that_hardly_move_are_read_about_each_other():
    """θ ~ N(0, T), U = θ²/2, every chain at its own place: about its own mean a chain would read 0."""
    generator = torch.Generator().manual_seed(0)
    places = 5.0 + math.sqrt(1.7) * torch.randn(200, 30, generator=generator)
    thermometer = Thermometer([places], num_data=1, stacked=True)
    for _ in range(40):
        moved = places + 0.01 * torch.randn(places.shape, generator=generator)
        moved.grad = moved - 5.0
        thermometer.measure_each([moved])
    own = {c: Windows.read(thermometer.tensors(c, ["a"]), thermometer.values(), ["a"]) for c in range(200)}
    about = leave_one_out(own, 1)["a"]
    means = torch.tensor([sum(about[c]) / len(about[c]) for c in range(200)])
    error = float(means.std()) / math.sqrt(200)
    assert abs(float(means.mean()) - 1.7) < 4 * error < 0.2
    about_itself = own[0].about({"a": own[0].mean["a"]}, 1)
    assert abs(float(about_itself.mean())) < 0.02


def test_virial_readings_of_few_chains_are_within_two_of_their_errors():
    """A hundred runs of four chains in four directions, the softest of which relaxes in a fifth of the run."""
    generator = torch.Generator().manual_seed(1)
    curvature, step, steps = torch.tensor([1.0, 0.3, 0.1, 0.05]), 0.1, 1000

    def normal():
        return torch.randn(400, 4, generator=generator)

    theta = 3.0 + normal() / curvature.sqrt()
    thermometer = Thermometer([theta], num_data=1, stacked=True)
    truth = 0.0
    for _ in range(steps):
        theta = theta.clone()
        truth += float(((theta - 3.0).square() * curvature).mean()) / steps
        theta.grad = curvature * (theta - 3.0) + 0.5 * normal()  # of a mini-batch
        thermometer.measure_each([theta])
        theta = theta - step * theta.grad + math.sqrt(2 * step) * normal()
    own = {c: Windows.read(thermometer.tensors(c, ["a"]), thermometer.values(), ["a"]) for c in range(400)}
    found = [leave_one_out({c: own[c] for c in range(first, first + 4)}, 1)["a"] for first in range(0, 400, 4)]
    scores = [(e.mean - truth) / e.error for e in (mean_and_error(*each.values()) for each in found) if e.known]
    assert len(scores) > 80
    assert sum(abs(score) < 2 for score in scores) / len(scores) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / len(scores))
    assert abs(sum(scores) / len(scores)) < 0.4


def test_over_tensors():
    each = {"a": {0: [1.0, 2.0], 3: [5.0]}, "b": {0: [3.0, 6.0], 3: [7.0]}}
    assert over_tensors(each, {"a": 1, "b": 3}) == {0: [2.5, 5.0], 3: [6.5]}


def test_the_ratio_of_means():
    """Numerators of mean 3, denominators of mean 2, correlated: 1.5 with the error of (above − 1.5 below)/2."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(300):
        below = 2 + torch.rand(4, 60, generator=generator)
        above = 1.5 * below + 0.5 * torch.randn(4, 60, generator=generator)
        found.append(
            ratio_of_means(Ratio(*({c: r.tolist() for c, r in enumerate(rows)} for rows in (above, below)), 10**6))
        )
    scores = torch.tensor([(e.mean - 1.5) / e.error for e in found])
    assert abs(float(torch.tensor([e.mean for e in found]).mean()) - 1.5) < 0.01
    assert float((scores.abs() < 2).float().mean()) > 0.92
    assert 0.75 < float(scores.std()) < 1.05
    assert not ratio_of_means(Ratio({}, {})).known
    assert not ratio_of_means(Ratio({0: [1.0] * 20}, {0: [-1.0] * 20})).known
    noise = torch.randn(20, generator=generator)
    assert not ratio_of_means(Ratio({0: [1.0] * 20}, {0: noise.tolist()})).known
    gaps = ratio_of_means(Ratio({0: [math.nan, 2.0, 4.0]}, {0: [1.0, 1.0, 1.0]}))
    assert gaps.mean == 3.0


def test_readings_along_one_direction_that_happen_to_agree_have_the_error_of_a_squared_gaussian():
    same = {0: [1.0] * 16, 1: [1.0] * 16}
    assert ratio_of_means(Ratio(same, same)).error == pytest.approx(math.sqrt(2 / 32))
    assert ratio_of_means(Ratio(same, same, weights=100)).error == pytest.approx(math.sqrt(2 / 3200))


@pytest.mark.parametrize("relative", [0.05, 0.1, 0.2, 0.3, 0.5])
def test_two_errors_of_a_skewed_reading_cover_the_truth(relative):
    """Readings as χ² has them, each from 4,000 values, with an error in proportion to the reading; truth 1."""
    rng = np.random.default_rng(0)
    readings = rng.gamma(relative**-2, relative**2, 2000)
    noise = rng.normal(size=4000)
    noise = (noise - noise.mean()) / noise.std() * relative * math.sqrt(4000)
    known = mean_and_error(noise).error / relative  # about 1: what autocorrelation is taken for
    found = [virial_temperature(reading * (1 + noise / known)) for reading in readings]
    covered = np.mean([abs(e.mean - 1) < 2 * e.error for e in found])
    assert covered > 0.94 - 2 * math.sqrt(0.06 * 0.94 / 2000)
    if relative == 0.3:
        assert np.mean([abs(r - 1) < 2 * relative * r for r in readings]) < 0.92  # without the widening


def test_a_certain_temperature_keeps_its_error_and_a_negative_one_is_known():
    values = 1 + np.random.default_rng(1).normal(size=4000)
    assert virial_temperature(values).error == pytest.approx(mean_and_error(values).error, rel=0.01)
    below = virial_temperature(values - 1.001)
    assert below.known
    assert below.error == pytest.approx(4 * mean_and_error(values).error, rel=0.3)
    assert virial_temperature([1.0] * 50) == (1.0, 0.0)
    assert not virial_temperature([1.0, 2.0]).known
