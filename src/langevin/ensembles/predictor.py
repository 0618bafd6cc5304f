"""A model and its likelihood as a function of weights and inputs. The user's model is never modified.

A predictor has a copy of the model in evaluation mode, which shares the memory of frozen parameters with the original.
Every thread gets its own module, whose tensors share the memory of that copy until they are replaced by the weights of
a sample: prediction is thread-safe.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from langevin.core.batches import batch_size_of
from langevin.core.devices import as_tensor
from langevin.core.likelihoods import Likelihood
from langevin.core.likelihoods.base import gaussian
from langevin.core.outputs import call, output_of
from langevin.core.parameters import half_dtype, half_precision, internal_names, load_tensors, public_name
from langevin.core.pretrained import Watch, shared_frozen
from langevin.ensembles.prediction import Accumulator, ClassAccumulator, ValueAccumulator

Weights = Mapping[str, Tensor]
_Places = list[tuple[dict[str, Any], str, Any]]  # a dict of a module, the name in it, and the tensor that belongs there
_SMALL = 1 << 17  # largest number of weights for vectorised prediction
_AT_ONCE = 1 << 14  # pairs of a sample and an input in one vectorised computation: its activations stay small
_WORTHWHILE = 8  # samples in one; fewer are as fast one by one
_FEW = 128  # sequences that adapters of a large model predict at a time
_TOGETHER = 1 << 22  # largest number of weights and inputs that are read at a time


class _Outputs(nn.Module):
    """Maps inputs to class probabilities, the parameters of p(y|x), or its mean and variance; with y, to log p(y|x).

    With a `center` ŵ, whose buffers have the public names with / for dots, the model is linearized about it:
    f(x, ŵ) + J(x)(w − ŵ).
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model = model
        self.likelihood: Any = likelihood
        self.center: nn.Module | None = None
        self.moments = not describes_values(likelihood)

    def forward(self, x: Any, y: Any = None) -> Any:
        output = call(self.model, x) if self.center is None else self._linearized(x)
        if isinstance(output, Tensor) and output.dtype in (torch.float16, torch.bfloat16):
            output = output.float()
        if y is not None:
            return self.likelihood.log_prob(output, y)
        if hasattr(self.likelihood, "probs"):
            return self.likelihood.probs(output)
        return self.likelihood.moments(output) if self.moments else self.likelihood.parameters_of(output)

    def _linearized(self, x: Any) -> Tensor:
        assert self.center is not None
        center = dict(self.center.named_buffers())
        places = {name: public_name(name).replace(".", "/") for name, _ in self.model.named_parameters()}
        own = {name: p for name, p in self.model.named_parameters() if places[name] in center}
        at = {name: center[places[name]] for name in own}
        kwargs = dict(x) if isinstance(x, Mapping) else {}
        args = () if kwargs else tuple(x) if isinstance(x, tuple | list) else (x,)

        def output(weights: dict[str, Tensor]) -> Tensor:
            result: Tensor = output_of(functional_call(self.model, weights, args, kwargs))
            return result

        with sdpa_kernel(SDPBackend.MATH):  # fused attention can't be differentiated forward
            value, change = jvp(output, (at,), ({name: p - at[name] for name, p in own.items()},))[:2]
        linear: Tensor = value + change
        return linear


class Predictor:
    """Maps weights, named as in the model, and inputs to the parameters of the predictive distribution."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, fixed: Weights | None = None) -> None:
        shared = shared_frozen(model)
        module = _Outputs(copy.deepcopy(model, dict(shared)), copy.deepcopy(likelihood))
        load_tensors(module, fixed or {})
        mine = {id(p) for p in shared.values()}
        self._watch = Watch({public_name(n): p for n, p in module.named_parameters() if id(p) in mine})
        self._module = module.eval().requires_grad_(False)
        self._names = internal_names(module)
        self._local = threading.local()
        self._works_with_vmap: bool | None = None
        self._half = half_dtype(module)
        moving = [p.numel() for p in model.parameters() if p.requires_grad]
        everything = [p.numel() for p in module.parameters()]
        self._size = sum(moving or everything)  # of what differs from sample to sample
        self._adapts = self._size < sum(everything)  # of few weights of a large model
        self._convolves = any(isinstance(each, _ConvNd) for each in module.modules())

    @property
    def model(self) -> nn.Module:
        """The predictor's copy of the model."""
        return self._module.model

    @property
    def likelihood(self) -> Any:
        """The predictor's copy of the likelihood."""
        return self._module.likelihood

    @property
    def classifies(self) -> bool:
        """Whether it predicts class probabilities, not values."""
        return hasattr(self.likelihood, "probs")

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self._module.parameters()).device

    def own_weights(self) -> dict[str, Tensor]:
        """The parameters of the model when the predictor was made."""
        return {name: p.detach() for name, p in self._tensors().items() if isinstance(p, nn.Parameter)}

    def linearized(self, center: Weights) -> Predictor:
        """The same with the model linearized about these weights."""
        other = self._copied()
        other._module.center = nn.Module().to(self.device)
        for name, tensor in center.items():
            other._module.center.register_buffer(name.replace(".", "/"), tensor.detach().to(self.device))
        return other

    def double(self) -> Predictor:
        """The same in double precision."""
        other = self._copied()
        other._module.double()
        return other

    def check_weights(self, weights: Weights, others: Collection[str] | None = None) -> None:
        """Raise unless the model has these tensors, in these shapes, and besides them only `others`, if given."""
        tensors = self._tensors()
        wrong = [n for n, t in weights.items() if n not in tensors or tensors[n].shape != t.shape]
        if wrong:
            raise ValueError(
                f"The model has no tensor {wrong[0]!r} of shape {tuple(weights[wrong[0]].shape)} "
                f"({len(wrong)} of {len(weights)} do not match); is it the model that these weights belong to?"
            )
        if others is not None and (more := [n for n in tensors if n not in weights and n not in others]):
            raise ValueError(
                f"The model has tensors that the stored weights lack, such as {more[0]!r} ({len(more)} in all): it "
                f"would predict with untrained values. Give the model that was sampled."
            )

    def batch_of_samples(self, x: Any) -> int:
        """The number of samples to read at a time for these inputs."""
        if self._adapts:  # as many sequences at a time as one prediction may have
            return max(1, _FEW // batch_size_of(x))
        return max(1, min(128, _TOGETHER // (self._size + batch_size_of(x))))

    @property
    def family(self) -> Any:
        """Maps parameters to a distribution of y: the likelihood's own, else the Gaussian of its mean and variance."""
        return gaussian if self._module.moments else self.likelihood.distribution

    def with_moments(self) -> Predictor:
        """The same, which knows of p(y|x) its mean and variance only."""
        other = self._copied()
        other._module.moments = True
        return other

    def accumulator(self, samples: bool, members: int) -> Accumulator:
        """The accumulator of predictions of this many members; with `samples` it also stores those of each."""
        if not (self.classifies or hasattr(self.likelihood, "moments")):
            raise ValueError(
                f"{self.likelihood!r} can't predict: give it probs(output) for class probabilities or moments(output) "
                f"for mean and variance."
            )
        return ClassAccumulator(samples) if self.classifies else ValueAccumulator(samples, self.family, members)

    @torch.no_grad()
    def outputs(self, stack: Weights, x: Any, batch_size: int) -> list[Any]:
        """The outputs of stacked weights at x, (samples, inputs, …), as a list over batches of inputs."""
        device = self.device
        self._watch.check()
        named = {self._names[name]: tensor.to(device) for name, tensor in stack.items()}
        with half_precision(device, self._half):
            together = (_FEW if self._adapts else _AT_ONCE) // min(batch_size, batch_size_of(x))
            if self._can_vectorise(named, x, together):
                return [self._in_parts(named, batch, together) for batch in _split(x, batch_size, device)]
            return [self._one_by_one(named, batch) for batch in _split(x, batch_size, device)]

    def log_probs(self, weights: Iterable[Weights], x: Any, y: Any) -> Iterator[Tensor]:
        """log p(y|x,θ) for each of the weights in turn, (n,), differentiable with respect to x."""
        device = self.device
        x, y = tree_map(lambda t: as_tensor(t).to(device), (x, y))
        for sample in weights:
            named = {self._names[name]: tensor.to(device) for name, tensor in sample.items()}
            with half_precision(device, self._half):
                log_p = functional_call(self._mine(), named, (x, y))
            yield log_p

    def module_of(self, stack: Weights) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
        """A copy of the module, the stacked weights under its names, and its other tensors: for export."""
        module = copy.deepcopy(self._module)
        module.moments = True
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        sampled = {self._names[name]: tensor.to(own[self._names[name]]) for name, tensor in stack.items()}
        fixed = {name: tensor.detach().clone() for name, tensor in own.items() if name not in sampled}
        return module, sampled, fixed

    def _in_parts(self, named: Weights, x: Any, together: int) -> Any:
        """So many samples in one computation at a time."""
        count = len(next(iter(named.values())))
        if count <= together:
            return self._vectorised(named, x)
        starts = range(0, count, together)
        parts = [self._vectorised({n: t[s : s + together] for n, t in named.items()}, x) for s in starts]
        return tree_map(lambda *some: torch.cat(some), *parts)

    def _vectorised(self, named: Weights, x: Any) -> Any:
        """All weights in one computation: as `functional_call` does, whose search for the tensors takes longer."""
        module = self._mine()
        places = self._places(module, named)

        def outputs(weights: tuple[Tensor, ...], inputs: Any) -> Any:
            for places_of_one, weight in zip(places, weights, strict=True):
                for tensors, name, _ in places_of_one:
                    tensors[name] = weight
            return module(inputs)

        try:
            with sdpa_kernel(SDPBackend.MATH):  # fused attention is computed for one sample after another
                return vmap(outputs, (0, None))(tuple(named.values()), x)
        finally:
            for places_of_one in places:
                for tensors, name, own in places_of_one:
                    tensors[name] = own

    def _places(self, module: nn.Module, named: Weights) -> list[_Places]:
        """Where the tensors of these names are in this thread's module: several places, if they are tied."""
        found: dict[str, _Places] | None = getattr(self._local, "places", None)
        if found is None:
            of_tensor: dict[int, _Places] = {}
            for each in module.modules():
                for tensors in (each._parameters, each._buffers):
                    for name, own in tensors.items():
                        of_tensor.setdefault(id(own), []).append((tensors, name, own))
            named_tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            found = self._local.places = {name: of_tensor[id(tensor)] for name, tensor in named_tensors.items()}
        return [found[name] for name in named]

    def _one_by_one(self, named: Weights, x: Any) -> Any:
        """One forward pass per sample, with the weights in this thread's module: faster than `functional_call`."""
        module = self._mine()
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        places = [(own[name], stack) for name, stack in named.items()]
        outputs = []
        for row in range(len(places[0][1])):
            for place, stack in places:
                place.data = stack[row]
            outputs.append(module(x))
        return tree_map(lambda *rows: torch.stack(rows), *outputs)

    def _can_vectorise(self, named: Weights, x: Any, together: int = _AT_ONCE) -> bool:
        """True for a small network without convolutions, where calls cost more than arithmetic."""
        if together < (1 if self._adapts else _WORTHWHILE) or self._size > _SMALL or self._convolves:
            return False
        if self._works_with_vmap is None:
            try:
                two = {name: stack[:1].expand(2, *stack.shape[1:]) for name, stack in named.items()}
                self._vectorised(two, next(_split(x, 1, self.device)))
                self._works_with_vmap = True
            except RuntimeError:  # an operation without a batching rule for vmap
                self._works_with_vmap = False
        return self._works_with_vmap

    def _mine(self) -> nn.Module:
        """This thread's module."""
        found = getattr(self._local, "module", None)
        if found is None:
            found = self._local.module = copy.deepcopy(self._module, self._aliases())
        module: nn.Module = found
        return module

    def _copied(self) -> Predictor:
        """Another predictor, whose module shares the memory of this one's."""
        other = copy.copy(self)
        other._module = copy.deepcopy(self._module, self._aliases())
        return other

    def _aliases(self) -> dict[int, Any]:
        """A memo for `copy.deepcopy`: tensors of the copy are objects of their own, in the same memory.

        Not those that are more than numbers, such as quantized ones: they are never sampled, and the same objects.
        """
        aliases: dict[int, Any] = {
            id(p): nn.Parameter(p.data, False) if type(p) is nn.Parameter else p for p in self._module.parameters()
        }
        return aliases | {id(b): b.detach() for b in self._module.buffers()}

    def _tensors(self) -> dict[str, Tensor]:
        own = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        return {public: own[name] for public, name in self._names.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()


def describes_values(likelihood: Any) -> bool:
    """Whether the likelihood tells the distribution of values, not only their mean and variance."""
    return hasattr(likelihood, "parameters_of") and hasattr(likelihood, "distribution")


def _split(x: Any, batch_size: int, device: torch.device) -> Iterator[Any]:
    if batch_size_of(x) <= batch_size:
        yield x.to(device) if isinstance(x, Tensor) else tree_map(lambda t: t.to(device), x)
        return
    for start in range(0, batch_size_of(x), batch_size):
        yield tree_map(lambda t, s=start: t[s : s + batch_size].to(device), x)
