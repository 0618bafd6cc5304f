"""`last_layer`: the cheapest posterior of a pre-trained network, that of its last layer.

The features that enter the last layer are computed once. What remains is a linear model, whose posterior the samplers
with full batches (MCLMC, HMC) draw thousands of samples of in seconds.

last = lv.last_layer(model)
data = last.features(train)
posterior = lv.Posterior(last.head, lv.likelihoods.Categorical(), num_data=len(train))
run = lv.sample(posterior, data, lv.MCLMC, steps=2000)
prediction = last.predict(run, test_inputs)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from langevin.core.arguments import COUNT, validated
from langevin.core.batches import as_batches, batch_size_of, split_batch
from langevin.core.outputs import call, named_output, plain_batch
from langevin.core.parameters import half_dtype, half_precision, public_name
from langevin.ensembles.ensemble import Ensemble, WeightList
from langevin.ensembles.inputs import checked_inputs
from langevin.ensembles.prediction import Prediction
from langevin.ensembles.predictor import Predictor

_NOT_HEADS = ("lora_", "original_module")  # within a name: parts of adapters


@validated()
def last_layer(model: nn.Module, layer: str | None = None, *, output: str | int | None = None) -> LastLayer:
    """The last linear layer of a model, with the features that enter it.

    Args:
        model: a trained network, whose output is that of the layer. It is not changed.
        layer: the name of the layer, such as "classifier"; by default the last `nn.Linear`.
        output: of a model that returns several tensors, the output of the layer, as in `lv.Posterior`.

    >>> import langevin as lv
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> last = lv.last_layer(model)
    >>> last.name, last.features((torch.zeros(5, 4), torch.zeros(5)))[0].shape
    ('2', torch.Size([5, 8]))
    """
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in name for part in _NOT_HEADS)
    }
    if layer is None and not linear:
        raise ValueError("The model has no nn.Linear, so no layer whose posterior is that of a linear model.")
    name = list(linear)[-1] if layer is None else layer
    if name not in linear:
        raise ValueError(f"layer={layer!r} is not an nn.Linear of the model; these are: {list(linear)}.")
    return LastLayer(model, name, output)


class LastLayer:
    """The last layer of a model: `head` is a copy of it to be sampled, `features` what enters it."""

    def __init__(self, model: nn.Module, name: str, output: str | int | None = None) -> None:
        self._model, self.name = named_output(model, output), name
        self._layer = model.get_submodule(name)
        self._output = output
        self.head: nn.Linear = copy.deepcopy(self._layer).float().requires_grad_(True)  # type: ignore[assignment]

    @validated(batch_size=COUNT)
    def features(self, data: Any, *, batch_size: int = 256) -> tuple[Tensor, Any]:
        """Features and targets of all data, by one pass through the model: the data of the posterior of the head."""
        rows, targets = [], []
        for x, y in _passes(data, batch_size, self._device):
            rows.append(self._of_batch(x))
            targets.append(tree_map(lambda t: t.cpu(), y))
        return torch.cat(rows), tree_map(lambda *parts: torch.cat(parts), *targets)

    @validated(batch_size=COUNT)
    def features_of(self, x: Any, *, batch_size: int = 256) -> Tensor:
        """The features of inputs, which have no targets."""
        x = checked_inputs(x, batch_size)
        starts = range(0, batch_size_of(x), batch_size)
        return torch.cat([self._of_batch(tree_map(lambda t, s=s: t[s : s + batch_size], x)) for s in starts])

    @validated(batch_size=COUNT)
    def predict(self, run: Ensemble, x: Any, *, batch_size: int = 256, samples: bool = False) -> Prediction:
        """The predictive distribution at the model's own inputs x: one pass through the model, then all samples."""
        return run.predict(self.features_of(x, batch_size=batch_size), samples=samples)

    def whole(self, run: Ensemble) -> Ensemble:
        """The samples as those of the whole model, with its own inputs: for export, and to be compared with others."""
        own = dict(self._model.named_parameters())
        names = {key: next(n for n in own if n.endswith(f"{self.name}.{key}")) for key in run[0] if "." not in key}
        weights = [
            {public_name(names[key]) if key in names else key: tensor for key, tensor in sample.items()}
            for sample in run
        ]
        return WeightList(Predictor(self._model, run.predictors[0][0].likelihood), weights)

    @property
    def _device(self) -> torch.device:
        return next(self._layer.parameters()).device

    @torch.no_grad()
    def _of_batch(self, x: Any) -> Tensor:
        """What enters the layer, in float32 on the CPU; raises unless the model's output is that of the layer."""
        entered: list[Tensor] = []
        hook = self._layer.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0].detach()))
        training = {module: module.training for module in self._model.modules()}
        self._model.eval()
        try:
            with half_precision(self._device, half_dtype(self._model)):
                output = call(self._model, tree_map(lambda t: t.to(self._device), plain_batch(x)))
                logits = None if len(entered) != 1 else self._layer(entered[0])
        finally:
            hook.remove()
            for module, was in training.items():
                module.training = was
        if logits is not None and logits.dim() == 3 and output.dim() == 2:
            features = _pooled(entered[0], logits, output)
        else:
            same = logits is not None and logits.shape == output.shape and _close(logits, output)
            features = entered[0] if same else None
        if features is None:
            raise ValueError(
                f"The model's output is not that of its layer {self.name!r} (called {len(entered)} times): something "
                f'follows it, or it is another layer. Name the last one: lv.last_layer(model, "classifier"), and let '
                f"the model return logits."
            )
        return features.float().cpu()


def _pooled(features: Tensor, logits: Tensor, output: Tensor) -> Tensor | None:
    """Of a layer that is applied at every position, the features of the position that is the model's output."""
    error = (logits - output[:, None]).abs().amax(-1)
    best = error.argmin(1)
    rows = torch.arange(len(best), device=best.device)
    return features[rows, best] if _close(logits[rows, best], output) else None


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-4 if a.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((a - b).abs().max() <= tolerance * (1 + b.abs().max()))


def _passes(data: Any, batch_size: int, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """All data once."""
    if isinstance(data, DataLoader):
        yield from (split_batch(batch) for batch in data)
        return
    yield from as_batches(data, None, 0, device).full_pass(batch_size)
