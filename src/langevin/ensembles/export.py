"""Export an ensemble as one module that returns predictions with uncertainties, for use without langevin.

`EnsembleModule` contains the samples, stacked along a first axis, and evaluates all of them at once
(`torch.func.vmap`), so the size of the exported graph does not depend on the number of samples.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from langevin.ensembles.predictor import Predictor
from langevin.storage.folders import make_directory


class EnsembleModule(nn.Module):
    """The predictive distribution of several sets of weights as one module, differentiable with respect to its inputs.

    It returns a dict. Classification: `probs` (n, classes), `entropy` and `mutual_information` (n,), in nats.
    Regression: `mean`, `variance` and its epistemic part `epistemic`, in the shape of the model's output.
    """

    def __init__(self, predictor: Predictor, samples: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        stack = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        template, sampled, fixed = predictor.module_of(stack)
        self._classifies = predictor.classifies
        self._sampled, self._fixed = list(sampled), list(fixed)
        self._template = (template,)  # in a tuple, so that its weights are not registered and exported
        for index, tensor in enumerate([*sampled.values(), *fixed.values()]):
            self.register_buffer(f"tensor_{index}", tensor)

    def forward(self, x: Any) -> dict[str, Tensor]:
        """The prediction at x: a tensor, or a tuple or dict of tensors, as in `run.predict(x)`."""
        (template,) = self._template
        tensors = list(self.buffers())
        sampled = dict(zip(self._sampled, tensors, strict=False))
        fixed = dict(zip(self._fixed, tensors[len(sampled) :], strict=True))
        each = vmap(lambda weights: functional_call(template, {**weights, **fixed}, (x,)))(sampled)
        return _classes(each) if self._classifies else _values(*each)


def _classes(each: Tensor) -> dict[str, Tensor]:
    probs = each.mean(0)
    entropy = _entropy(probs, classes=1)
    return {"probs": probs, "entropy": entropy, "mutual_information": entropy - _entropy(each, classes=2).mean(0)}


def _entropy(probs: Tensor, classes: int) -> Tensor:
    tiny = torch.finfo(probs.dtype).tiny  # p log p is 0 at p = 0
    return -(probs * probs.clamp_min(tiny).log()).sum(classes)


def _values(means: Tensor, noise: Tensor) -> dict[str, Tensor]:
    epistemic = (means - means.mean(0)).square().mean(0)
    return {"mean": means.mean(0), "variance": noise.mean(0) + epistemic, "epistemic": epistemic}


def _traced(module: EnsembleModule, inputs: Any, batch_sizes: Any) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(module, (inputs,), dynamic_shapes=(batch_sizes,), strict=False)
    except RuntimeError as error:
        if "inside of vmap" not in str(error):
            raise
        raise ValueError(
            f"PyTorch {torch.__version__} cannot export vectorized networks (2.6, 2.7 cannot; 2.13 can): upgrade it."
        ) from error


def write_module(module: EnsembleModule, path: str | Path, inputs: Any) -> None:
    """Write the module, for any batch size of inputs like these: by torch.export (.pt2) or as ONNX (.onnx)."""
    path = Path(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"export writes .pt2 (torch.export) or .onnx; given {str(path)!r}. Write 'model.pt2'.")
    if path.suffix == ".onnx" and importlib.util.find_spec("onnxscript") is None:
        raise ValueError("Writing ONNX needs the packages onnx and onnxscript: pip install 'langevin[onnx]'.")
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    batch_sizes = tree_map(lambda _: {0: torch.export.Dim.DYNAMIC}, inputs)
    make_directory(path.parent)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        program = _traced(module, inputs, batch_sizes)
        beside = Path(folder) / path.name
        if path.suffix == ".pt2":
            torch.export.save(program, beside)
        else:
            names = list(module(inputs))
            torch.onnx.export(program, (), beside, output_names=names, dynamo=True, verbose=False, external_data=False)
        os.replace(beside, path)
