"""Coverage of conformal sets and intervals, and temperature scaling."""

import math

import pytest
import torch

import langevin as lv
from langevin.ensembles.prediction import ClassPrediction, ValuePrediction
from langevin.evaluation.conformal import conformal
from langevin.evaluation.temperature_scaling import temperature_scaling

REPEATS, N = 200, 49


class Values:
    """Predicts N(x, std²)."""

    def __init__(self, std):
        self.std = std

    def predict(self, x, *, batch_size=1024, samples=False):
        return ValuePrediction(x, torch.full_like(x, self.std**2), torch.zeros_like(x))


class Classes:
    """Predicts softmax(x/τ)."""

    def __init__(self, tau):
        self.tau = tau

    def predict(self, x, *, batch_size=1024, samples=False):
        probs = (x / self.tau).softmax(1)
        entropy = torch.special.entr(probs).sum(1)
        return ClassPrediction(probs, entropy, entropy / 2)


def values(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator)
    return x, x + torch.randn(n, generator=generator)


def classes(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, 4, generator=generator)
    return x, torch.multinomial(x.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("std", [0.3, 3.0])
def test_intervals_cover_whatever_the_model(std):
    inside = []
    for seed in range(REPEATS):
        x, y = values(N + 20, seed)
        low, high = conformal(Values(std), (x[:N], y[:N]), coverage=0.8).intervals(x[N:])
        inside.append(float(((y[N:] >= low) & (y[N:] <= high)).double().mean()))
    mean, error = torch.tensor(inside).mean(), torch.tensor(inside).std() / math.sqrt(REPEATS)
    assert 0.8 - 4 * error < mean < 0.8 + 1 / (N + 1) + 4 * error


@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_sets_cover_whatever_the_model(tau):
    inside = []
    for seed in range(REPEATS):
        x, y = classes(N + 20, seed)
        sets = conformal(Classes(tau), (x[:N], y[:N]), coverage=0.8).sets(x[N:])
        inside.append(float(sets[torch.arange(20), y[N:]].double().mean()))
    mean, error = torch.tensor(inside).mean(), torch.tensor(inside).std() / math.sqrt(REPEATS)
    assert 0.8 - 4 * error < mean < 0.8 + 1 / (N + 1) + 4 * error


def test_too_few_calibration_examples_are_refused():
    conformal(Values(1.0), values(9, 0), coverage=0.9)
    with pytest.raises(ValueError, match=r"Give at least 9 examples, or coverage=0.88"):
        conformal(Values(1.0), values(8, 0), coverage=0.9)
    with pytest.raises(ValueError, match="coverage=0.9"):
        conformal(Values(1.0), values(8, 0), coverage=1.0)
    with pytest.raises(ValueError, match=r"\.intervals\(x\)"):
        conformal(Values(1.0), values(9, 0)).sets(torch.zeros(2))
    with pytest.raises(ValueError, match=r"\.sets\(x\)"):
        conformal(Classes(1.0), classes(9, 0)).intervals(torch.zeros(2, 4))


def test_temperature_scaling_finds_the_temperature():
    x, y = classes(20_000, 0)
    scaled = temperature_scaling(Classes(0.5), (x, y))
    assert scaled.tau == pytest.approx(2.0, rel=0.05)
    torch.testing.assert_close(scaled.predict(x[:9]).probs, (x[:9] / (0.5 * scaled.tau)).softmax(1))
    before, after = (
        lv.compare({"a": p}, (x, y)).scores["a"]["calibration error"].value for p in (Classes(0.5), scaled)
    )
    assert after < 0.02 < before
    prediction = scaled.predict(x[:9])
    torch.testing.assert_close(prediction.mutual_information, prediction.entropy / 2)


def test_temperature_scaling_of_values_sets_their_spread():
    x, y = values(20_000, 0)
    scaled = temperature_scaling(Values(0.25), (x, y))
    assert scaled.tau == pytest.approx(4.0, rel=0.03)
    assert float(scaled.predict(x[:1]).variance) == pytest.approx(1.0, rel=0.06)
