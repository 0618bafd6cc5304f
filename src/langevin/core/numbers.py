"""Arithmetic with numbers that may be tensors: lr and the step counter of a sampler that is `capturable`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Number = Any  # a float, or a tensor of one


def root(x: Number) -> Number:
    """√x."""
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)


def exp(x: Number) -> Number:
    """e^x."""
    return x.exp() if isinstance(x, Tensor) else math.exp(x)


def expm1(x: Number) -> Number:
    """e^x − 1."""
    return x.expm1() if isinstance(x, Tensor) else math.expm1(x)


def positive_part(x: Number) -> Number:
    """max(x, 0)."""
    return x.clamp_min(0) if isinstance(x, Tensor) else max(x, 0.0)


def add(tensor: Tensor, other: Tensor, factor: Number) -> None:
    """tensor ← tensor + factor · other."""
    if isinstance(factor, Tensor):
        tensor.addcmul_(other, factor)
    else:
        tensor.add_(other, alpha=factor)


def add_each(tensors: list[Tensor], others: list[Tensor], factor: Number) -> None:
    """The same for lists."""
    if isinstance(factor, Tensor):
        torch._foreach_add_(tensors, list(torch._foreach_mul(others, factor)))
    else:
        torch._foreach_add_(tensors, others, alpha=factor)
