"""The networks of the papers, by name: `make("mlp", in_features=64, out_features=10)`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from langevin.core.arguments import validated
from langevin.models.cnn import CNN, StridedCNN
from langevin.models.lenet import LeNet5
from langevin.models.logistic import LogisticRegression
from langevin.models.mlp import MLP
from langevin.models.resnet import CifarResNet, CifarResNetPP, ResNet50, ResNetPP50
from langevin.models.vgg import VGG

__all__ = [
    "CNN",
    "MLP",
    "VGG",
    "CifarResNet",
    "CifarResNetPP",
    "LeNet5",
    "LogisticRegression",
    "ResNet50",
    "ResNetPP50",
    "StridedCNN",
    "make",
    "names",
]

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": CNN,
    "cnn-strided": StridedCNN,
    "lenet": LeNet5,
    "logistic": LogisticRegression,
    "mlp": MLP,
    "resnet": CifarResNet,
    "resnet++": CifarResNetPP,
    "resnet++50": ResNetPP50,
    "resnet50": ResNet50,
    "vgg": VGG,
    "vgg11": partial(VGG, depth=11),
    "vgg16": partial(VGG, depth=16),
}


def names() -> list[str]:
    """Return the names that `make` accepts."""
    return sorted(_MODELS)


@validated()
def make(name: str, **options: Any) -> nn.Module:
    """Return a new network, by name; the options are the arguments of its class.

    >>> make("mlp", in_features=64, out_features=10, widths=(50,))  # doctest: +ELLIPSIS
    MLP(...)
    """
    if name not in _MODELS:
        raise ValueError(f'unknown model "{name}"; expected one of: {", ".join(names())}')
    signature = inspect.signature(_MODELS[name])
    try:
        signature.bind(**options)
    except TypeError as error:
        given = "".join(f", {key}={value!r}" for key, value in options.items())
        raise ValueError(
            f'make("{name}"{given}): {error}; expected make("{name}", …) with the arguments {signature}'
        ) from None
    return _MODELS[name](**options)
