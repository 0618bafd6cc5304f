"""The networks of the papers, by name: `make("mlp", in_features=64, out_features=10)`."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from langevin.models.logistic import LogisticRegression
from langevin.models.mlp import MLP

__all__ = ["MLP", "LogisticRegression", "make", "names"]

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": LogisticRegression,
    "mlp": MLP,
}


def names() -> list[str]:
    """Return the names that `make` knows."""
    return sorted(_MODELS)


def make(name: str, **options: Any) -> nn.Module:
    """Return a new network, by name; the options are the arguments of its class.

    >>> make("mlp", in_features=64, out_features=10, widths=(50,))  # doctest: +ELLIPSIS
    MLP(...)
    """
    if name not in _MODELS:
        raise ValueError(f'model "{name}" is not known; expected one of: {", ".join(names())}')
    signature = inspect.signature(_MODELS[name])
    try:
        signature.bind(**options)
    except TypeError as error:
        given = "".join(f", {key}={value!r}" for key, value in options.items())
        raise ValueError(
            f'make("{name}"{given}): {error}; expected make("{name}", …) with the arguments {signature}'
        ) from None
    return _MODELS[name](**options)
