"""Parameters that are sharded over processes (FSDP2's `fully_shard`), and the local shard of this process.

Such a parameter is a `DTensor`. Importing its module is slow, so it is looked up in `sys.modules`: unless it has been
imported, no tensor is sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether any of them is a `DTensor`."""
    return "torch.distributed.tensor" in sys.modules and any(map(is_sharded, tensors))


def local(tensor: Any) -> Tensor:
    """The local shard of a tensor."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def locals_of(tensors: list[Tensor]) -> list[Tensor]:
    """The local shards of tensors."""
    return [local(t) for t in tensors] if any_sharded(tensors) else tensors


def whole(number: Any) -> Tensor:
    """A scalar computed on a sharded parameter, summed over the shards."""
    total: Tensor = number.full_tensor() if is_sharded(number) else number
    return total


def alike(part: Tensor, parameter: Any) -> Tensor:
    """A tensor sharded like the parameter, with the local shard `part`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part.view(local(parameter).shape),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def start(parameter: Any) -> int:
    """The index, in the flattened full parameter, of the first weight of the local shard, which must be contiguous."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not all(type(p) is Replicate or (type(p) is Shard and p.dim == 0) for p in parameter.placements):
        raise ValueError(
            f"Samplers need parameters that are sharded along their first dimension, as fully_shard does; given "
            f"{parameter.placements}."
        )
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if parameter.dim() == 0 or parameter.numel() == 0:
        return 0
    weights: int = offset[0] * (parameter.numel() // parameter.shape[0])
    return weights
