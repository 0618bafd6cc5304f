"""Between the host and a device: copies that do not make the host wait, what fits into its memory, waiting for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_SHARE = 0.5  # of the free memory of a device, that data may take


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device. From the host, by way of pinned memory, it is copied while the host goes on."""
    return tree_map(lambda t: _moved(t, device), batch)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.is_cpu:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def as_tensor(values: Any) -> Tensor:
    """A tensor as it is; an array, a list or a number as one on the CPU, whatever torch's default device is."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:  # columns of pandas
        values = values.copy()
    return values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")


def home_of(tensors: Iterable[Tensor], device: torch.device) -> torch.device:
    """Where data stay: on the device if they take at most half of its free memory, else in that of the host."""
    elsewhere = sum(t.nbytes for t in tensors if t.device != device)
    free = None if device.type == "cpu" else getattr(torch.get_device_module(device), "mem_get_info", None)
    if elsewhere == 0 or free is None or elsewhere <= _SHARE * free(device)[0]:
        return device
    return torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given, for timings."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
