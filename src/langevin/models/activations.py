"""Activation functions by name. None is in-place: that would break `vmap` and hooks that store a layer's output."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "relu": F.relu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def activation_named(activation: str | Activation) -> Activation:
    """Return the function of that name; a function is returned unchanged."""
    if not isinstance(activation, str):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f'unknown activation="{activation}"; expected a function of a tensor or one of '
            f'{", ".join(ACTIVATIONS)}, for example activation="relu"'
        )
    return ACTIVATIONS[activation]
