"""Weight noise added to a layer's output: less gradient variance than one draw of the weights per batch.

For a layer s = W a + b with independent normal weights of standard deviations σ:

    local     s + √(a² σ_W² + σ_b²) ⊙ η        η drawn for every example (Kingma, Salimans & Welling 2015)
    flipout   s + ((a ⊙ u) ΔWᵀ + Δb) ⊙ v       ΔW = σ ⊙ η once per batch, signs u, v for every example (Wen et al. 2018)

Both give each example the output for its own draw of the weights. Local reparameterization is exact only if an example
uses the weights once: at several positions (convolutions, sequences) the outputs share one draw and are not
independent, so flipout is used there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PLAIN = 'Write reparameterization="plain", which draws the weights themselves.'


@dataclass(frozen=True, eq=False)
class NoisyLayer:
    """A linear or convolution layer, with the names of its random parameters."""

    name: str
    module: nn.Module
    weight: str
    bias: str | None

    @property
    def parameters(self) -> list[str]:
        """The weight, and the bias if it is random."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


def find_noisy_layers(model: nn.Module, names: Collection[str]) -> list[NoisyLayer]:
    """The linear and convolution layers (no subclasses) with parameters in `names` that no other module shares."""
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    found = []
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        if type(module) not in (nn.Linear, *_CONVOLUTIONS) or f"{prefix}weight" not in names or weight is None:
            continue
        if owners[id(weight)] == 1 and (bias is None or owners[id(bias)] == 1):
            random_bias = f"{prefix}bias" if f"{prefix}bias" in names else None
            found.append(NoisyLayer(name or type(module).__name__, module, f"{prefix}weight", random_bias))
    return found


@contextmanager
def noise_in(layers: list[NoisyLayer], std: Mapping[str, Tensor], batch_size: int, local: bool) -> Iterator[None]:
    """Inside the context these layers, whose parameters are the means, add noise to their outputs; once per pass."""
    seen: set[NoisyLayer] = set()

    def hook(layer: NoisyLayer) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def forward(module: nn.Module, args: Any, s: Tensor) -> Tensor:
            a = args[0]
            if layer in seen:
                raise ValueError(f"Layer {layer.name!r} is used twice in a pass, with one draw of weights. {_PLAIN}")
            if len(a) != batch_size:
                raise ValueError(
                    f"Layer {layer.name!r} is given {len(a)} rows for a batch of {batch_size} examples, so the rows "
                    f"of an example are unknown. {_PLAIN}"
                )
            seen.add(layer)
            add = _local if local and isinstance(module, nn.Linear) and a.dim() == 2 else _flipout
            return s + add(module, a, std[layer.weight], None if layer.bias is None else std[layer.bias])

        return forward

    handles = [layer.module.register_forward_hook(hook(layer)) for layer in layers]
    try:
        yield
        if missed := [layer.name for layer in layers if layer not in seen]:
            raise ValueError(f"Layer {missed[0]!r} was not called, though the model may use its weights. {_PLAIN}")
    finally:
        for handle in handles:
            handle.remove()


def _local(module: nn.Module, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    variance = functional.linear(a.square(), weight.square(), None if bias is None else bias.square())
    # for an input of zeros the variance is 0, where the derivative of the root is infinite
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return std * torch.randn_like(std)


def _flipout(module: nn.Module, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    drawn = weight * torch.randn_like(weight)
    if isinstance(module, nn.Linear):
        between = (1,) * (a.dim() - 2)
        u, v = _signs(a, (len(a), *between, a.shape[-1])), _signs(a, (len(a), *between, len(weight)))
        moved = functional.linear(a * u, drawn)
    else:
        after = (1,) * (a.dim() - 2)
        u, v = _signs(a, (len(a), a.shape[1], *after)), _signs(a, (len(a), len(weight), *after))
        moved = module._conv_forward(a * u, drawn, None)  # type: ignore[operator]  # with the module's padding
    if bias is not None:
        shift = bias * torch.randn_like(bias)
        moved = moved + (shift if isinstance(module, nn.Linear) else shift.reshape(-1, *after))
    return moved * v


def _signs(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1
