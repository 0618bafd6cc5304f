"""The compiled sums of probabilities and entropies are those in torch operations."""

from __future__ import annotations

import pytest
import torch

from langevin.kernels import probabilities


def sums(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total, entropies = (torch.zeros_like(probs[0], dtype=torch.float64) for _ in range(2))
    probabilities.add_probabilities(probs, total, entropies)
    probabilities.add_probabilities(probs, total, entropies)  # they are added to what is there
    return total, entropies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "classes first", "strided", "several positions"])
def test_sums_are_those_in_torch_operations(dtype: torch.dtype, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape = (7, 300, 10, 3) if layout == "several positions" else (7, 1030, 10)
    probs = torch.randn(shape, dtype=dtype).mul(20).softmax(2)  # many underflow to 0 or round to 1
    assert bool((probs == 0).any()) or dtype == torch.float64
    if layout == "classes first":
        probs = probs.mT.contiguous().mT
    if layout == "strided":
        probs = probs[:, ::2]
    compiled = sums(probs)
    monkeypatch.setattr(probabilities, "_MANY", probs.numel() + 1)
    reference = sums(probs)
    for got, expected in zip(compiled, reference, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_one_member_has_no_epistemic_part() -> None:
    probs = torch.randn(1, 5000, 10).softmax(2)
    total, entropies = (torch.zeros_like(probs[0], dtype=torch.float64) for _ in range(2))
    probabilities.add_probabilities(probs, total, entropies)
    torch.testing.assert_close(torch.special.entr(total).sum(1), entropies.sum(1), rtol=1e-13, atol=1e-13)
