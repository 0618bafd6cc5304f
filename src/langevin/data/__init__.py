"""The data of the papers, by name: `load("digits", split="train")`."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from langevin.data.digits import digits
from langevin.data.images import ImageDataset

__all__ = ["ImageDataset", "digits", "load", "names"]

_DATA: dict[str, Callable[..., Dataset[tuple[Tensor, ...]]]] = {
    "digits": digits,
}


def names() -> list[str]:
    """Return the names that `load` knows."""
    return sorted(_DATA)


def load(name: str, split: str = "train", **options: Any) -> Dataset[tuple[Tensor, ...]]:
    """Return a data set, by name; the options are the arguments of the function of that name.

    >>> len(load("digits", split="train"))
    1437
    """
    if name not in _DATA:
        raise ValueError(f'data "{name}" is not known; expected one of: {", ".join(names())}')
    signature = inspect.signature(_DATA[name])
    try:
        signature.bind(split=split, **options)
    except TypeError as error:
        raise ValueError(f'load("{name}", …): {error}; expected the arguments {signature}') from None
    return _DATA[name](split=split, **options)
