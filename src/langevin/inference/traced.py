"""Losses and gradients of stacked chains as a list of tensor operations that is recorded once.

vmap and autograd find out in every step which operations to call, which takes longer than the operations of a small
network. From some step on they are recorded (`make_fx`) and then called one after another, without those that change
nothing, with matrix products in the faster of their two orders, and by PyTorch's own functions, which reach the same
operations in less time. What a forward pass does beside tensor operations is recorded as it was, so a recording is used
only if a second one is the same, and if it agrees with the function itself, at other weights too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

Function = Callable[..., list[Tensor]]
FIRST = 200  # the step from which on chains use recordings: one takes some tenths of a second
_NARROW = 16  # columns of a product, below which MKL takes up to ten times as long as for its transpose
_TOLERANCE = 1e-4  # of the largest number of a tensor, in single precision
aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default)


class Traced:
    """A function of tensors, the first of them weights, that returns a list of tensors; its recordings, by shapes."""

    def __init__(self, function: Function, weights: int) -> None:
        self._function, self._weights = function, weights
        self._recordings: dict[Any, Function | None] = {}

    @torch.no_grad()
    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Its value by a recording; None if it can't be recorded."""
        key = tuple((t.shape, t.dtype) for t in tensors)
        if key not in self._recordings:
            self._recordings[key] = recorded(self._function, tensors, self._weights)
        recording = self._recordings[key]
        return None if recording is None else recording(*tensors)


def recorded(function: Function, tensors: Sequence[Tensor], weights: int) -> fx.GraphModule | None:
    """A recording of the function, for arguments of these shapes, if it is that function."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        first, second = (make_fx(function)(*tensors) for _ in range(2))
        if first.code != second.code:
            return None
        simplify(first, tensors)
        elsewhere = [*(-0.5 * t for t in tensors[:weights]), *tensors[weights:]]
        if all(_close(function(*at), first(*at)) for at in (tensors, elsewhere)):
            return called_directly(first, (tensors, elsewhere))
    except Exception:  # whatever can't be recorded goes on as it is
        return None
    return None


def can_be_recorded(model: nn.Module) -> bool:
    """Whether no module has hooks, which a recording would not call."""
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def simplify(recording: fx.GraphModule, tensors: Sequence[Tensor]) -> None:
    """Leave out operations that change nothing, and turn narrow products around."""
    from torch.fx.passes.shape_prop import ShapeProp

    ShapeProp(recording).propagate(*tensors)
    for node in list(recording.graph.nodes):
        if node.op == "call_function" and _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            recording.graph.erase_node(node)
    for node in list(recording.graph.nodes):
        if node.target is aten.bmm.default:
            _, rows, columns = _meta(node).shape
            if columns < min(rows, _NARROW):
                _turn(recording.graph, node)
    recording.graph.eliminate_dead_code()
    recording.recompile()


def called_directly(recording: fx.GraphModule, at: Sequence[Sequence[Tensor]]) -> fx.GraphModule:
    """A recording of `torch.mul` for `torch.ops.aten.mul.Tensor`, if it has the same values, bit for bit."""
    direct = copy.deepcopy(recording)
    for node in direct.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten":
            name = node.target._schema.name.removeprefix("aten::")
            node.target = getattr(torch, name, None) or getattr(Tensor, name, node.target)
    direct.recompile()
    try:
        same = all(torch.equal(a, b) for each in at for a, b in zip(recording(*each), direct(*each), strict=True))
    except (TypeError, RuntimeError):  # a function of that name with other arguments
        same = False
    return direct if same else recording


def _changes_nothing(node: fx.Node) -> bool:
    if node.target is aten.detach.default:
        return True
    if node.target in (aten.mul.Scalar, aten.mul.Tensor) and not isinstance(node.args[1], fx.Node):
        return bool(node.args[1] == 1 and _meta(node) == _meta(node.args[0]))
    return bool(node.target in (*_VIEWS, aten.expand.default) and _meta(node) == _meta(node.args[0]))


def _turn(graph: fx.Graph, node: fx.Node) -> None:
    """AB as (BᵀAᵀ)ᵀ."""
    with graph.inserting_before(node):
        a, b = (graph.call_function(aten.transpose.int, (each, 1, 2)) for each in node.args[:2])
        turned = graph.call_function(aten.transpose.int, (graph.call_function(aten.bmm.default, (b, a)), 1, 2))
        if any(user.target in _VIEWS for user in node.users):  # of memory as the product had it
            turned = graph.call_function(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
    node.replace_all_uses_with(turned)


def _meta(node: Any) -> Any:
    """Shape, strides and precision of a node's tensor."""
    return node.meta.get("tensor_meta")


def _close(expected: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    return all(bool(((a - b).abs() <= _TOLERANCE * a.abs().max()).all()) for a, b in zip(expected, found, strict=True))
