"""A model and its likelihood as a function of weights and inputs. The user's model is never touched.

A predictor owns a copy of the model in evaluation mode. Every thread that predicts gets a module of its own, whose
tensors share that copy's memory until weights are put in their place: so threads may predict side by side.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map

from langevin.core.batches import batch_size_of, call
from langevin.core.likelihoods import Likelihood
from langevin.core.parameters import internal_names, load_tensors
from langevin.ensembles.prediction import Accumulator, ClassAccumulator, ValueAccumulator

Weights = Mapping[str, Tensor]
_SMALL = 1 << 17  # weights of a network whose samples may be computed together
_FEW = 128  # inputs up to which that is faster
_TOGETHER = 1 << 22  # numbers, of weights and inputs, that are read together


class _Outputs(nn.Module):
    """Inputs to class probabilities, or to mean and variance; with y, to log p(y|x)."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model = model
        self.likelihood: Any = likelihood

    def forward(self, x: Any, y: Any = None) -> Any:
        output = call(self.model, x)
        if y is not None:
            return self.likelihood.log_prob(output, y)
        return self.likelihood.probs(output) if hasattr(self.likelihood, "probs") else self.likelihood.moments(output)


class Predictor:
    """From weights and inputs to what the likelihood says; weights are named as in the model."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, fixed: Weights | None = None) -> None:
        module = _Outputs(copy.deepcopy(model), copy.deepcopy(likelihood))
        load_tensors(module, fixed or {})
        self._module = module.eval().requires_grad_(False)
        self._names = internal_names(module)
        self._local = threading.local()
        self._works_with_vmap: bool | None = None

    @property
    def model(self) -> nn.Module:
        """The predictor's copy of the model."""
        return self._module.model

    @property
    def likelihood(self) -> Any:
        """How outputs are read."""
        return self._module.likelihood

    @property
    def classifies(self) -> bool:
        """Whether it predicts class probabilities, not values."""
        return hasattr(self.likelihood, "probs")

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self._module.parameters()).device

    def own_weights(self) -> dict[str, Tensor]:
        """The parameters that the model came with."""
        return {name: p.detach() for name, p in self._tensors().items() if isinstance(p, nn.Parameter)}

    def double(self) -> Predictor:
        """The same in double precision."""
        other = copy.deepcopy(self)
        other._module.double()
        return other

    def check_weights(self, weights: Weights, others: Collection[str] | None = None) -> None:
        """Raise unless the model has these tensors, in these shapes, and, given the names of the others, no more."""
        tensors = self._tensors()
        wrong = [n for n, t in weights.items() if n not in tensors or tensors[n].shape != t.shape]
        if wrong:
            raise ValueError(
                f"The model has no tensor {wrong[0]!r} of shape {tuple(weights[wrong[0]].shape)} "
                f"({len(wrong)} of {len(weights)} do not fit); is it the model that these weights are of?"
            )
        if others is not None and (more := [n for n in tensors if n not in weights and n not in others]):
            raise ValueError(
                f"The model has tensors that the stored weights lack, such as {more[0]!r} ({len(more)} in all): it "
                f"would predict with untrained values. Give the model that was sampled."
            )

    def batch_of_samples(self, x: Any) -> int:
        """How many samples are worth reading together for these inputs."""
        size = sum(p.numel() for p in self._module.parameters()) + batch_size_of(x)
        return max(1, min(128, _TOGETHER // size))

    def accumulator(self, samples: bool) -> Accumulator:
        """What gathers the outputs of samples; `samples` keeps each of them."""
        if not (self.classifies or hasattr(self.likelihood, "moments")):
            raise ValueError(
                f"{self.likelihood!r} can't predict: give it probs(output) for class probabilities or moments(output) "
                f"for mean and variance."
            )
        return ClassAccumulator(samples) if self.classifies else ValueAccumulator(samples)

    @torch.no_grad()
    def outputs(self, stack: Weights, x: Any, batch_size: int) -> list[Any]:
        """What stacked weights say about x, (samples, inputs, …), batch by batch of the inputs."""
        device = self.device
        named = {self._names[name]: tensor.to(device) for name, tensor in stack.items()}
        compute = self._vectorised if self._can_vectorise(x) else self._one_by_one
        return [compute(named, piece) for piece in _pieces(x, batch_size, device)]

    def log_probs(self, weights: Iterable[Weights], x: Any, y: Any) -> Iterator[Tensor]:
        """log p(y|x,θ) for each of the weights in turn, (n,); gradients with respect to x go through it."""
        device = self.device
        x, y = tree_map(lambda t: torch.as_tensor(t).to(device), (x, y))
        for sample in weights:
            named = {self._names[name]: tensor.to(device) for name, tensor in sample.items()}
            yield functional_call(self._mine(), named, (x, y))

    def module_of(self, stack: Weights) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
        """A module of outputs, the stacked weights under its names, and its other tensors: for export."""
        module = copy.deepcopy(self._module)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        sampled = {self._names[name]: tensor.to(own[self._names[name]]) for name, tensor in stack.items()}
        fixed = {name: tensor.detach().clone() for name, tensor in own.items() if name not in sampled}
        return module, sampled, fixed

    def _vectorised(self, named: Weights, x: Any) -> Any:
        """All weights as one computation."""
        module = self._mine()
        return vmap(lambda w, inputs: functional_call(module, w, (inputs,)), (0, None))(named, x)

    def _one_by_one(self, named: Weights, x: Any) -> Any:
        """A forward pass for each, the weights put into this thread's module: faster than `functional_call`."""
        module = self._mine()
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        places = [(own[name], stack) for name, stack in named.items()]
        outputs = []
        for row in range(len(places[0][1])):
            for place, stack in places:
                place.data = stack[row]
            outputs.append(module(x))
        return tree_map(lambda *rows: torch.stack(rows), *outputs)

    def _can_vectorise(self, x: Any) -> bool:
        """For a small network without convolutions and few inputs, where calls cost more than arithmetic."""
        if (
            batch_size_of(x) > _FEW
            or sum(p.numel() for p in self._module.parameters()) > _SMALL
            or any(isinstance(module, _ConvNd) for module in self._module.modules())
        ):
            return False
        if self._works_with_vmap is None:
            try:
                two = {name: p.expand(2, *p.shape) for name, p in self._module.named_parameters()}
                self._vectorised(two, next(_pieces(x, 1, self.device)))
                self._works_with_vmap = True
            except RuntimeError:  # an operation that has no rule for vmap
                self._works_with_vmap = False
        return self._works_with_vmap

    def _mine(self) -> nn.Module:
        """This thread's module."""
        found = getattr(self._local, "module", None)
        if found is None:
            aliases: dict[int, Any] = {id(p): nn.Parameter(p.data, False) for p in self._module.parameters()}
            aliases |= {id(b): b.detach() for b in self._module.buffers()}
            found = self._local.module = copy.deepcopy(self._module, aliases)
        module: nn.Module = found
        return module

    def _tensors(self) -> dict[str, Tensor]:
        own = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        return {public: own[name] for public, name in self._names.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()


def checked_inputs(x: Any, batch_size: int) -> Any:
    """The inputs as tensors, of which there must be some."""
    leaves = tree_leaves(x)
    if batch_size < 1 or not leaves or not all(isinstance(leaf, Tensor | np.ndarray) for leaf in leaves):
        raise ValueError(
            f"predict takes inputs as a tensor, or a tuple or dict of tensors, and a batch_size of 1 or more; given "
            f"{type(x).__name__} and batch_size={batch_size}. For a data set: torch.stack([x for x, _ in data])."
        )
    x = tree_map(torch.as_tensor, x)
    if batch_size_of(x) == 0:
        raise ValueError("There is no input to predict for: x is empty.")
    return x


def _pieces(x: Any, batch_size: int, device: torch.device) -> Iterator[Any]:
    for start in range(0, batch_size_of(x), batch_size):
        yield tree_map(lambda t, s=start: t[s : s + batch_size].to(device), x)
