"""How the benchmark on images judges: bars that are missed are written as missed."""

import pytest
import torch

from benchmarks import images
from benchmarks.images import Prediction, difference, is_better, is_worse, pooled, table


def row(name="digits", seed=0, budget="1x", chain=-0.1, ensemble=-0.1, error=0.01, gradients=1.9):
    scores = {"nll": 0.3, "calibration": 0.01, "auroc": 0.9, "accuracy": 0.9}
    return {
        "set": name,
        "seed": seed,
        "budget": budget,
        "scores": dict.fromkeys(("network", "chain", "ensemble", "run"), scores),
        "chain": {measure: [chain, error] for measure in images.MEASURES},
        "ensemble": {"nll": [ensemble, error], "calibration": [0.0, error], "auroc": [0.0, error]},
        "temperature": 0.1,
        "example_gradients": {"warm start": 100, "sampling": 100 * (gradients - 1)},
        "cpu_seconds": 1.0,
        "verdict": "bad: T 0.01",
    }


def test_the_larger_error_counts() -> None:
    rows = [row(seed=0, chain=-0.1), row(seed=1, chain=-0.3)]
    assert pooled(rows, "chain", "nll") == pytest.approx((-0.2, 0.1))
    assert is_better([row()], "chain", "nll")
    assert not is_better([row(error=0.06)], "chain", "nll")
    assert is_worse([row(chain=-0.1)], "chain", "auroc")  # of which more is better


def test_a_missed_bar_is_written_as_missed() -> None:
    met = table([row(seed=seed) for seed in range(3)])
    assert met.count("| yes |") == 4
    assert "**no**" not in met
    missed = table([row(seed=seed, chain=0.0, ensemble=0.1, gradients=2.1) for seed in range(3)])
    assert missed.count("| **no** |") == 4
    assert "| yes |" not in missed


def test_fewer_seeds_do_not_meet_a_bar() -> None:
    first = table([row()])
    assert first.count("not judged: 1 of 3 seeds, on which yes") == 4
    assert "| yes |" not in first
    assert "1 bad" in first


def test_differences_are_paired() -> None:
    """Of a prediction and itself the difference is 0 without error; a sharper one that is right is better."""
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(300, 3, generator=generator), torch.randint(3, (300,), generator=generator)
    right = (logits + 3 * torch.nn.functional.one_hot(y, 3)).softmax(1).double()
    other = Prediction(logits.softmax(1).double(), torch.rand(50, 3, generator=generator).softmax(1).double())
    assert all(each == [0.0, 0.0] for each in difference(other, other, y).values())
    found = difference(Prediction(right, other.outside), other, y)
    assert found["nll"][0] < -2 * found["nll"][1] < 0
    assert found["auroc"][0] > 0


def test_right_confidences_have_the_calibration_error_of_chance() -> None:
    """About 0.8·√(mean p(1 − p)·bins/n) for p near ½."""
    probs = torch.tensor([[0.5, 0.5]]).double().repeat(800, 1) + torch.linspace(-0.05, 0.05, 800)[
        :, None
    ] * torch.tensor([1.0, -1.0])
    assert images.by_chance(probs) == pytest.approx(0.8 * (0.25 * 8 / 800) ** 0.5, rel=0.1)
    assert images.by_chance(torch.tensor([[1.0, 0.0]]).double().repeat(80, 1)) == 0
