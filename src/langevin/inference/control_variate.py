"""Control variates: gradients with less mini-batch noise (Baker et al. 2019).

With θ* a fixed point, such as the mode, and batch b,

    g(θ) = g_b(θ) − g_b(θ*) + g_all(θ*)

is unbiased, like g_b(θ), and its noise comes only from what distinguishes θ from θ*: near the mode it is small, and for
linear regression with whitened features it vanishes. g_all(θ*), the gradient over all data, is computed once, g_b(θ*)
in every step, which so takes two gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core.batches import Batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior

_PIECE = 4096  # examples of the full pass at once


@dataclass(frozen=True)
class ControlVariate:
    """θ* and the gradient of the loss over all data there, by name."""

    center: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]

    @classmethod
    def at(cls, center: Mapping[str, Tensor], posterior: Posterior, batches: Batches) -> ControlVariate:
        """With one pass over the data."""
        if posterior.incompatible_layers() or posterior.allow:
            raise ValueError(
                "control_variate subtracts the gradients of one batch at two points, which BatchNorm or dropout make "
                "incomparable. Leave out control_variate=…, or use the layers in evaluation mode: model.eval()."
            )
        posterior = copy.deepcopy(posterior)
        params = posterior.trainable_parameters()
        if missing := [name for name in params if name not in center or center[name].shape != params[name].shape]:
            raise ValueError(
                f"control_variate has no {missing[0]!r} of shape {tuple(params[missing[0]].shape)}; it has "
                f"{list(center)[:5]}… Give a state dict of this model: control_variate=lv.find_map(posterior, data)."
            )
        load_tensors(posterior, {name: center[name] for name in params})
        device = next(iter(params.values())).device
        total = [torch.zeros_like(p) for p in params.values()]
        for batch in batches.full_pass(_PIECE):
            x, y = tree_map(lambda t: t.to(device), batch)
            share = batch_size_of(y) / posterior.num_data
            torch._foreach_add_(total, torch.autograd.grad(posterior.loss(x, y), list(params.values())), alpha=share)
        kept = {name: p.detach().clone() for name, p in params.items()}
        return cls(kept, dict(zip(params, total, strict=True)))

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        parts = {"center": self.center, "gradient": self.gradient}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> ControlVariate:
        """The opposite."""
        parts: dict[str, dict[str, Tensor]] = {"center": {}, "gradient": {}}
        for name, tensor in tensors.items():
            part, _, of = name.partition("/")
            parts[part][of] = tensor.to(device)
        return cls(parts["center"], parts["gradient"])

    def __deepcopy__(self, memo: Any) -> ControlVariate:
        """Itself: it does not change."""
        return self
