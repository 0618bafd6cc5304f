"""A scale of the noise that is fixed or sampled."""

from __future__ import annotations

import math

import torch
from torch import nn


def set_log_scale(likelihood: nn.Module, name: str, value: float, sampled: bool) -> None:
    """Give a likelihood the logarithm of a positive number: a parameter if it is sampled, else a buffer."""
    log_scale = torch.tensor(math.log(value))
    if sampled:
        likelihood.register_parameter(name, nn.Parameter(log_scale))
    else:
        likelihood.register_buffer(name, log_scale, persistent=False)
