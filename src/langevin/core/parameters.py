"""Names of parameters, with and without the prefixes of wrappers; loading tensors by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_WRAPPERS = ("module.", "_orig_mod.")  # prefixes of DistributedDataParallel and torch.compile
_INSIDE = ("_orig_mod.", "_checkpoint_wrapped_module.")  # within a name: a compiled or checkpointed block


def public_name(name: str) -> str:
    """The name of a parameter in the unwrapped model."""
    name = name.removeprefix("model.")
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    for wrapper in _INSIDE:
        name = name.replace(f".{wrapper}", ".").removeprefix(wrapper)
    return name


def internal_names(module: nn.Module) -> dict[str, str]:
    """Maps public names of parameters and buffers to the names that `functional_call` on this module takes."""
    names = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
    return {public_name(name): name for name in names}


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters and buffers of these public names; the shapes must match."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    names = internal_names(module)
    wrong = [n for n, t in tensors.items() if n not in names or own[names[n]].shape != t.shape]
    if wrong:
        raise ValueError(
            f"The model has no tensor {wrong[0]!r} of shape {tuple(tensors[wrong[0]].shape)} "
            f"({len(wrong)} of {len(tensors)} do not match); is it the model that these tensors belong to?"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            place = own[names[name]]
            if type(place) is nn.Parameter and not place.requires_grad:
                place.data = tensor.detach().to(place, copy=True)  # its memory may be that of the user's model
            else:
                place.copy_(tensor)


def check_precision(name: str, parameter: Tensor) -> None:
    """Refuse half-precision parameters, in which rounding would swallow the noise."""
    if parameter.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"Parameter {name!r} is {parameter.dtype}, whose rounding swallows the noise of a sampler. "
            f"Keep the parameters in float32 (model.float(), or p.data = p.data.float() of those that are sampled) and "
            f"compute in half precision with autocast: lv.sample(…, autocast=torch.bfloat16)."
        )


def half_precision(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to this dtype; without one, nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def half_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of parameters in half precision, of a model that has some (a frozen base); it needs autocast."""
    return next((p.dtype for p in module.parameters() if p.dtype in (torch.bfloat16, torch.float16)), None)


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; without the memory of `isfinite().all()`, and many times faster."""
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    least, largest = torch.aminmax(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
    return math.isfinite(least.item()) and math.isfinite(largest.item())


def nonfinite_example(x: Any, y: Any, indices: Tensor | None) -> str:
    """Which example of a mini-batch contains NaN or infinity, in a sentence; empty if none does."""
    for what, part in (("input", x), ("target", y)):
        for leaf in tree_leaves(part):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                rows = (~leaf.isfinite()).reshape(len(leaf), -1).any(1).nonzero().flatten()
                if len(rows):
                    row = int(rows[0])
                    which = f"{row} of the mini-batch" if indices is None else f"{int(indices[row])} of the data set"
                    return f"The {what} of example {which} has NaN or infinity; repair it, or leave it out."
    return ""
