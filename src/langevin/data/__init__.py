"""The data sets of the papers, by name: `load("digits", split="train")`.

Files are searched in the directory of the environment variable LANGEVIN_DATA and in the cache (LANGEVIN_CACHE, by
default the user's cache directory), and downloaded into the cache if missing.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from langevin.core.arguments import validated
from langevin.data.cifar import cifar10
from langevin.data.digits import digits
from langevin.data.files import fetch
from langevin.data.folder import ImageFolder, image_folder
from langevin.data.images import ImageDataset
from langevin.data.mnist import fashion_mnist, mnist, notmnist, projected_mnist, small_mnist
from langevin.data.mushroom import mushroom
from langevin.data.synthetic import LogisticDataset, binary_logistic
from langevin.data.uci import FOLDS as _UCI
from langevin.data.uci import RegressionDataset, uci

__all__ = [
    "ImageDataset",
    "ImageFolder",
    "LogisticDataset",
    "RegressionDataset",
    "binary_logistic",
    "cifar10",
    "digits",
    "fashion_mnist",
    "fetch",
    "image_folder",
    "load",
    "mnist",
    "mushroom",
    "names",
    "notmnist",
    "projected_mnist",
    "small_mnist",
    "uci",
]

_DATA: dict[str, Callable[..., Dataset[tuple[Tensor, ...]]]] = {
    "binary-logistic": binary_logistic,
    "cifar10": cifar10,
    "digits": digits,
    "fashion-mnist": fashion_mnist,
    "mnist": mnist,
    "mnist-projected": projected_mnist,
    "mnist-small": small_mnist,
    "mushroom": mushroom,
    "notmnist": notmnist,
    **{name: functools.partial(uci, name) for name in _UCI},
}


def names() -> list[str]:
    """Return the names that `load` accepts."""
    return sorted(_DATA)


@validated()
def load(name: str, split: str = "train", **options: Any) -> Dataset[tuple[Tensor, ...]]:
    """Return a data set, by name; the options are the arguments of the function of that name.

    >>> len(load("digits", split="train"))
    1437
    """
    if name not in _DATA:
        raise ValueError(f'unknown data set "{name}"; expected one of: {", ".join(names())}')
    signature = inspect.signature(_DATA[name])
    try:
        signature.bind(split=split, **options)
    except TypeError as error:
        raise ValueError(
            f'load("{name}", …): {error}; expected load("{name}", …) with the arguments {signature}'
        ) from None
    return _DATA[name](split=split, **options)
