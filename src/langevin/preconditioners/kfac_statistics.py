"""What K-FAC's factors are made of: inputs a and gradients δ of every layer, recorded by hooks."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from langevin.core import random
from langevin.core.likelihoods import sampled_labels
from langevin.core.posterior import Posterior
from langevin.preconditioners.base import Group
from langevin.preconditioners.layers import Layer, training_forward

Statistics = dict[Layer, tuple[Tensor, Tensor]]  # a and δ: (batch, positions, fan-in), (batch, positions, outputs)


class Source(ABC):
    """Computes a and δ; its hooks record only training forward passes with gradients enabled."""

    def __init__(self, posterior: Posterior, layers: list[Layer], examples: int | None) -> None:
        self.posterior = posterior
        self.examples = examples
        self.mode = posterior.model.training
        self.recording = True
        self.seen: dict[Layer, tuple[Tensor, Tensor]] = {}
        self.handles: list[Any] = []

    @abstractmethod
    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        """a and δ of the last mini-batch."""

    def forget(self, record_next: bool) -> None:
        """Discard the mini-batch; record the next one or not."""
        self.recording, self.seen = record_next, {}

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def see(self, layer: Layer, a: Tensor, s: Tensor) -> None:
        """Record a use of a layer; a second use is refused."""
        if layer in self.seen:
            raise ValueError(
                f"Layer {layer.name!r} is used twice in a forward pass; K-FAC's factors assume a single use. "
                f"Use a separate layer for each, or lv.SGLD or lv.pSGLD."
            )
        self.seen[layer] = (a.detach(), s)


class _Sampled(Source):
    """Labels sampled from the model, in an extra pass over the last mini-batch."""

    def __init__(self, posterior: Posterior, layers: list[Layer], examples: int | None) -> None:
        super().__init__(posterior, layers, examples)
        self.batch: tuple[Any, Any] | None = None
        self.handles = [posterior.model.register_forward_pre_hook(self._remember, with_kwargs=True)]

    def forget(self, record_next: bool) -> None:
        super().forget(record_next)
        self.batch = None

    def _remember(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.recording and training_forward(module, self.mode):
            self.batch = (args, kwargs)

    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        if self.batch is None:
            raise ValueError(
                "K-FAC recorded no forward pass: call posterior.loss(x, y).backward() on the posterior that it is "
                "bound to, in the mode (model.train() or model.eval()) that the model had in bind()."
            )
        self.seen = {}
        args, kwargs = tree_map(lambda t: t[: self.examples] if isinstance(t, Tensor) else t, self.batch)
        likelihood, model = self.posterior.likelihood, self.posterior.model
        with torch.enable_grad(), hooked(layers, self.see), preserved_buffers(model):
            output = model(*args, **kwargs)
            if not bool(output.isfinite().all()):
                raise FloatingPointError("K-FAC: the model's output is no longer finite; lower lr or raise damping.")
            source = random.Source(group["seed"], group["chain"], group["step"], random.Stream.LABELS)
            labels = sampled_labels(likelihood, output.detach(), source)
            energy = -likelihood.log_prob(output, labels).sum()
            used = [layer for layer in layers if layer in self.seen]
            deltas = torch.autograd.grad(energy, [self.seen[layer][1] for layer in used], materialize_grads=True)
        inputs = [self.seen[layer][0] for layer in used]
        return _as_rows(used, inputs, deltas)


class _Empirical(Source):
    """Training labels: a and δ are recorded in the forward and backward pass of the loss, one per step."""

    def __init__(self, posterior: Posterior, layers: list[Layer], examples: int | None) -> None:
        super().__init__(posterior, layers, examples)
        self.deltas: dict[Layer, Tensor] = {}
        self.accumulating = False
        self.handles = [posterior.model.register_forward_pre_hook(self._begin)]
        # partial objects, unlike closures, are copied with the model: its copy does not record for the original
        self.handles += [layer.module.register_forward_hook(partial(self._record, layer)) for layer in layers]

    def forget(self, record_next: bool) -> None:
        super().forget(record_next)
        self.deltas = {}

    def _begin(self, module: nn.Module, args: Any) -> None:
        self.on = self.recording and training_forward(module, self.mode)
        if self.on:
            self.accumulating = bool(self.deltas)
            self.seen, self.deltas = {}, {}

    def _record(self, layer: Layer, module: nn.Module, args: Any, s: Tensor) -> None:
        if self.on:
            self.see(layer, args[0], s)
            s.register_hook(partial(self.deltas.__setitem__, layer))  # type: ignore[no-untyped-call]

    def statistics(self, layers: list[Layer], group: Group) -> Statistics:
        used = [layer for layer in layers if layer in self.deltas]
        if len(used) < len(layers):
            raise ValueError("K-FAC recorded no backward pass of posterior.loss(x, y) through the model in bind().")
        if self.accumulating:
            raise ValueError(
                'With gradient accumulation the scale of δ is unknown: use fisher="sampled" (K-FAC then uses the '
                "last micro-batch)."
            )
        inputs = [self.seen[layer][0] for layer in used]
        # the loss is weight × mean over the batch: undo both
        deltas = [self.deltas[layer] * (len(a) / self.posterior.weight) for layer, a in zip(used, inputs, strict=True)]
        return _as_rows(used, inputs, deltas)


SOURCES: dict[str, type[Source]] = {"sampled": _Sampled, "empirical": _Empirical}


def supported(module: nn.Module) -> bool:
    """Whether all outputs share one Ā: no grouped convolution."""
    return getattr(module, "groups", 1) == 1


def _as_rows(layers: list[Layer], inputs: Sequence[Tensor], deltas: Sequence[Tensor]) -> Statistics:
    return {
        layer: (layer.input_rows(a), layer.output_rows(delta))
        for layer, a, delta in zip(layers, inputs, deltas, strict=True)
    }


def second_moment(rows: Tensor) -> Tensor:
    """Σ r rᵀ over batch and positions."""
    rows = rows.flatten(0, 1)
    return rows.T @ rows


@contextlib.contextmanager
def hooked(layers: list[Layer], see: Callable[[Layer, Tensor, Tensor], None]) -> Iterator[None]:
    """Pass a and s of every layer to `see`; later layers get a copy of s, in case they modify it in place."""

    def hook(layer: Layer) -> Callable[..., Tensor]:
        def forward(module: nn.Module, args: Any, s: Tensor) -> Tensor:
            see(layer, args[0], s)
            return s.clone()

        return forward

    handles = [layer.module.register_forward_hook(hook(layer)) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers (running statistics) on exit."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
