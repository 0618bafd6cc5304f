"""The layers of a model that K-FAC and BNP support, and their inputs as rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from langevin.core.parameters import public_name
from langevin.core.posterior import Posterior

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear or convolution layer whose weight, and bias if there is one, is sampled."""

    name: str
    module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    weight: nn.Parameter
    bias: nn.Parameter | None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weight, and the bias if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def input_rows(self, x: Tensor) -> Tensor:
        """The inputs of each output position, (batch, positions, fan-in), in the order of `weight.flatten(1)`."""
        if isinstance(self.module, nn.Linear):
            return x.reshape(x.shape[0], -1, x.shape[-1])
        return _patches(self.module, x)

    def output_rows(self, s: Tensor) -> Tensor:
        """(batch, positions, outputs)."""
        if isinstance(self.module, nn.Linear):
            return s.reshape(s.shape[0], -1, s.shape[-1])
        return s.flatten(2).transpose(1, 2)


def find_layers(
    posterior: Posterior, params: Sequence[Tensor], method: str, supported: Callable[[nn.Module], bool], scalar: float
) -> list[Layer]:
    """The supported layers; a warning names the parameters that no such layer covers."""
    sampled = {id(p) for p in params}
    names = {id(p): public_name(name) for name, p in posterior.named_parameters()}
    owners = Counter(id(p) for _, p in posterior.model.named_parameters(remove_duplicate=False))
    layers: list[Layer] = []
    covered: set[int] = set()
    for name, module in posterior.model.named_modules():
        weight = module._parameters.get("weight")
        if not isinstance(module, (nn.Linear, *_CONVOLUTIONS)) or weight is None or id(weight) not in sampled:
            continue
        bias = module._parameters.get("bias")
        layer = Layer(public_name(name), module, weight, bias if bias is not None and id(bias) in sampled else None)
        if shared := [p for p in layer.parameters if owners[id(p)] > 1]:
            raise ValueError(
                f"{method} does not support shared weights, but {names[id(shared[0])]!r} is used by several "
                f"modules. Give them separate weights, or use lv.SGLD or lv.pSGLD."
            )
        if supported(module):
            layers.append(layer)
            covered.update(id(p) for p in layer.parameters)
    if missing := [names.get(id(p), "?") for p in params if id(p) not in covered]:
        warnings.warn(
            f"{method} has no block for {', '.join(missing)}: these get A = {scalar:g}·I (its argument `uncovered`).",
            stacklevel=4,
        )
    return layers


def _patches(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """The input patch at every position of the kernel, (batch, positions, channels·taps)."""
    padding = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = functional.pad(x, padding, mode=mode) if any(padding) else x
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        x = x.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    dims = len(module.kernel_size)
    positions, taps = range(2, 2 + dims), range(2 + dims, 2 + 2 * dims)
    return x.permute(0, *positions, 1, *taps).flatten(1 + dims).flatten(1, dims)


def training_forward(module: nn.Module, mode: bool) -> bool:
    """Whether to record this forward pass: gradients are enabled, and the model is in the mode it had when bound."""
    return torch.is_grad_enabled() and module.training == mode
