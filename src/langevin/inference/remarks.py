"""What is probably a mistake in data or model, but can be sampled: it is warned of before the first step."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, SequentialSampler

from langevin.core.batches import Batches, LoaderBatches, seeded
from langevin.core.likelihoods import Bernoulli, Categorical, Gaussian, MultiLabel, StudentT
from langevin.core.likelihoods.heteroscedastic import HeteroscedasticGaussian, PredictedScale
from langevin.core.outputs import call
from langevin.core.posterior import Posterior
from langevin.inference.checks import preserve_rng_state

_FAR = 10.0  # mean or standard deviation of a column
_REPEATED = 0.05  # share of the targets, that are one value
_FEW = 10  # examples, which may be equal by chance of rounding


def remark_on_data(posterior: Posterior, batches: Batches, *, stacklevel: int) -> None:
    """Warn of inputs or targets that are not standardized, of equal targets, and of probabilities as logits.

    The data of a DataLoader are not looked at, since its workers would have to start once more.
    """
    if isinstance(batches, LoaderBatches):
        if (remark := _on_loader(batches.loader)) is not None:
            warnings.warn(remark, stacklevel=stacklevel + 1)
        return
    with preserve_rng_state():
        x, y = batches.peek()
        targets = batches.targets()
        targets = y if targets is None else targets
        remarks = [_on_inputs(x), _on_targets(targets), _on_values(posterior, targets), _on_outputs(posterior, x)]
        remarks.append(_on_repeated(posterior, targets))
    for remark in remarks:
        if remark is not None:
            warnings.warn(remark, stacklevel=stacklevel + 1)


def _on_loader(loader: DataLoader[Any]) -> str | None:
    """Of examples that no epoch has."""
    if not (loader.drop_last and loader.batch_size and isinstance(loader.sampler, SequentialSampler)):
        return None
    left = len(loader.sampler) % loader.batch_size
    if left == 0:
        return None
    return (
        f"The DataLoader has drop_last=True and does not shuffle, so its last {left} examples are in no batch. Make it "
        f"with shuffle=True."
    )


def _on_inputs(x: Any) -> str | None:
    if not (isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2 and len(x) > 1):
        return None
    x = x.detach().double()
    mean, spread = x.mean(0).abs(), x.std(0)
    worst = float(torch.maximum(mean, spread).max())
    if not math.isfinite(worst) or worst <= _FAR:
        return None
    if constant := ((x == x[:1]).all(0) & (mean > _FAR)).nonzero().flatten().tolist():
        some = ", ".join(map(str, constant[:5])) + (", …" if len(constant) > 5 else "")
        columns = f"column {some} of the inputs is" if len(constant) == 1 else f"columns {some} of the inputs are"
        return (
            f"{columns.capitalize()} constant and far from 0, and says nothing: leave it out, and standardize the "
            f"others, (x - x.mean(0)) / x.std(0)."
        )
    return (
        f"The inputs are not standardized (a column has mean or standard deviation {worst:.3g}): networks learn and "
        f"mix badly then. Subtract the mean of each column and divide by its standard deviation: "
        f"(x - x.mean(0)) / x.std(0)."
    )


def _on_targets(y: Any) -> str | None:
    if not (isinstance(y, Tensor) and y.numel() and len(y) > 1 and bool((y == y[:1]).all())):
        return None
    value = f"{y[0].item():g}" if y[0].numel() == 1 else f"in each of {y[0].numel()} numbers"
    return (
        f"All {len(y)} targets are the same ({value}): there is nothing to learn from them. Check how they were read "
        f"or selected; a classifier needs examples of every class."
    )


def _on_values(posterior: Posterior, y: Any) -> str | None:
    """Of real values that a network can hardly reach with weights of the prior's size."""
    if not isinstance(posterior.likelihood, Gaussian | StudentT | PredictedScale) or not isinstance(y, Tensor):
        return None
    y = y.detach().double()
    mean, spread = float(y.mean()), float(y.std()) if y.numel() > 1 else 0.0
    if not max(abs(mean), spread) > _FAR or bool((y == y[:1]).all()):  # of equal targets there is another remark
        return None
    return (
        f"The targets are not standardized (mean {mean:.3g}, standard deviation {spread:.3g}): a network whose weights "
        f"have the size of the prior hardly reaches them. Sample with (y - y.mean()) / y.std(), and multiply "
        f"predictions by y.std() and add y.mean()."
    )


def _on_repeated(posterior: Posterior, y: Any) -> str | None:
    """Of a value that many targets have: a predicted scale becomes certain of it, and a Gaussian has no tails."""
    if not isinstance(posterior.likelihood, HeteroscedasticGaussian) or not isinstance(y, Tensor) or y.numel() == 0:
        return None
    values, counts = torch.unique(y.detach(), return_counts=True)
    most, count = int(counts.argmax()), int(counts.max())
    if len(values) == 1 or count < _FEW or count < _REPEATED * y.numel():
        return None
    return (
        f"{count / y.numel():.0%} of the targets are {values[most].item():.3g}. A predicted scale shrinks where it is "
        f"certain of such a value, and with Gaussian noise one test example that has another value then costs hundreds "
        f"of nats. Write lv.likelihoods.HeteroscedasticStudentT(), whose tails are heavier."
    )


@torch.no_grad()
def _on_outputs(posterior: Posterior, x: Any) -> str | None:
    """A softmax (sigmoid) in the model before that of the likelihood."""
    likelihood = posterior.likelihood
    if not isinstance(likelihood, Categorical | Bernoulli | MultiLabel):
        return None
    before = {buffer: buffer.clone() for buffer in posterior.buffers()}
    device = next(posterior.parameters()).device
    try:
        with seeded(0, 0, 0):
            output = call(posterior.model, tree_map(lambda t: t.to(device), x)).double()
    except RuntimeError:  # it runs under autocast only
        return None
    finally:
        for buffer, value in before.items():
            buffer.copy_(value)
    if not bool(((output >= 0) & (output <= 1)).all()):
        return None
    name = type(likelihood).__name__
    if not isinstance(likelihood, Categorical):
        if not isinstance(list(posterior.model.modules())[-1], nn.Sigmoid):
            return None
        return (
            f"The model ends in a sigmoid. {name}() takes logits and has one of its own; with two every probability is "
            f"between 0.50 and 0.73. Leave out the model's last layer."
        )
    classes = output.shape[1]
    if classes < 2 or bool(((output.sum(1) - 1).abs() > 1e-3).any()):
        return None
    most = math.e / (math.e + classes - 1)
    return (
        f"The outputs of the model are probabilities: they sum to 1. {name}() takes logits and has a softmax of its "
        f"own; with two no probability exceeds {most:.2f}. Leave out the model's last softmax."
    )
