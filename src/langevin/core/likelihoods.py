"""Likelihoods: log p(y | output), one value per example.

A likelihood is any object with `log_prob(output, target)` that returns one number per example; to be used in
`Run.predict` it also has `probs(output)` (class probabilities) or `moments(output)` (mean and variance). One with
parameters of its own that are to be sampled is an `nn.Module`. Methods that need the Fisher information ask for
`sample(output, generator)`, targets drawn from p(y | output), or `output_fisher(output)`, the covariance
E[∇log p ∇log pᵀ] with respect to the output, of shape (batch, outputs, outputs).
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

_NO_LABEL = -(2**63)  # no label is ignored, not even torch's usual −100
_FEW_CLASSES = 64  # up to which it shows how they lie in memory


@runtime_checkable
class Likelihood(Protocol):
    """What a posterior needs of a likelihood."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log p(target | output), of shape (batch,)."""
        ...


class Categorical:
    """Classes 0 … C−1 with logits of shape (batch, C); with further dimensions (batch, C, …) positions are summed.

    >>> Categorical().log_prob(torch.zeros(3, 4), torch.tensor([0, 1, 3]))
    tensor([-1.3863, -1.3863, -1.3863])
    """

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log softmax(output)[target]."""
        chosen = -self._cross_entropy(output, target, "none")
        return chosen.flatten(1).sum(1) if chosen.dim() > 1 else chosen

    def mean_energy(self, output: Tensor, target: Tensor) -> Tensor:
        """Minus the mean of `log_prob` over the examples, in one operation where it can be."""
        if output.dim() > 2:
            return -self.log_prob(output, target).mean()
        return self._cross_entropy(output, target, "mean")

    def _cross_entropy(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        if target.is_floating_point() or target.dim() != output.dim() - 1:
            raise ValueError(
                f"Categorical() needs integer class labels of shape (batch,) beside logits of shape (batch, classes); "
                f"it was given {target.dtype} labels of shape {tuple(target.shape)} beside logits of shape "
                f"{tuple(output.shape)}. One-hot labels: pass y.argmax(1). A single logit: use Bernoulli()."
            )
        try:
            return functional.cross_entropy(output, target.long(), reduction=reduction, ignore_index=_NO_LABEL)
        except (RuntimeError, IndexError):
            self.validate(output, target)
            raise

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse labels that are no class of this output."""
        if target.is_floating_point():
            raise ValueError(
                f"Categorical() needs integer class labels, not {target.dtype}. Real targets: GaussianNoise."
            )
        classes = output.shape[1]
        outside = (target < 0) | (target >= classes)
        if bool(outside.any()):
            raise ValueError(
                f"The model has {classes} outputs, so labels must lie in 0 … {classes - 1}; found label "
                f"{int(target[outside][0])} ({int(outside.sum())} of {target.numel()} labels are out of range). "
                f"Give the model {int(target.max()) + 1} outputs or renumber the labels."
            )

    def probs(self, output: Tensor) -> Tensor:
        """Class probabilities, (batch, C, …)."""
        if output.dim() > 2 or output.shape[1] > _FEW_CLASSES:
            return output.softmax(1)
        # side by side in memory a few classes are slow to go through; with the examples side by side it takes a tenth
        return output.T.contiguous().softmax(0).T

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Labels drawn from softmax(output)."""
        p = output.softmax(1).movedim(1, -1)
        drawn = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator)
        return drawn.reshape(p.shape[:-1])

    def output_fisher(self, output: Tensor) -> Tensor:
        """diag(p) − p pᵀ."""
        if output.dim() != 2:
            raise ValueError(f"The exact Fisher needs logits of shape (batch, classes); given {tuple(output.shape)}.")
        p = output.softmax(1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        return {}

    def __repr__(self) -> str:
        return "Categorical()"


class Bernoulli:
    """Labels 0 or 1 with one logit an example, of shape (batch,) or (batch, 1)."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log σ(output) where the label is 1, log σ(−output) where it is 0."""
        logit = _one_column("Bernoulli()", output)
        return -functional.binary_cross_entropy_with_logits(
            logit, _like("Bernoulli()", logit, target), reduction="none"
        )

    def validate(self, output: Tensor, target: Tensor) -> None:
        """Refuse labels other than 0 and 1."""
        outside = (target != 0) & (target != 1)
        if bool(outside.any()):
            raise ValueError(
                f"Bernoulli() needs labels 0 and 1; found label {target[outside][0].item()} "
                f"({int(outside.sum())} of {target.numel()} labels). Labels −1 and 1: pass (y + 1) / 2."
            )

    def probs(self, output: Tensor) -> Tensor:
        """Probabilities of label 0 and label 1, (batch, 2)."""
        p = _one_column("Bernoulli()", output).sigmoid()
        return torch.stack([1 - p, p], dim=1)

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """1 with probability σ(output), else 0."""
        return torch.bernoulli(_one_column("Bernoulli()", output).sigmoid(), generator=generator)

    def output_fisher(self, output: Tensor) -> Tensor:
        """p(1 − p)."""
        p = _one_column("Bernoulli()", output).sigmoid()
        return (p * (1 - p)).reshape(-1, 1, 1)

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        return {}

    def __repr__(self) -> str:
        return "Bernoulli()"


class GaussianNoise(nn.Module):
    """Regression: y = output + noise of standard deviation `std`, the dimensions of y independent.

    With `sampled=True` the logarithm of the noise is a parameter of the posterior, named `likelihood.log_std`, started
    at log(std). Its prior is the one that the posterior gives to that name: under `Gaussian(std=1)` the noise is
    log-normal around 1, which fits standardized targets.
    """

    log_std: Tensor

    def __init__(self, std: float, *, sampled: bool = False) -> None:
        super().__init__()
        if not (math.isfinite(std) and std > 0):
            raise ValueError(f"The noise must be positive; given std={std}. Write GaussianNoise(std=0.1).")
        value = torch.tensor(math.log(std))
        if sampled:
            self.log_std = nn.Parameter(value)
        else:
            self.register_buffer("log_std", value, persistent=False)
        self._config = {"std": std, "sampled": sampled}

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Σ −½((y − output)/σ)² − log σ − ½log 2π over the dimensions of y."""
        output = output.to(torch.promote_types(output.dtype, torch.float32))  # autocast leaves it in half precision
        residual = (_like(repr(self), output, target) - output) * torch.exp(-self.log_std)
        log_density = -0.5 * residual.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        return log_density.flatten(1).sum(1) if log_density.dim() > 1 else log_density

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        return output, torch.exp(2 * self.log_std).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """output + σ η."""
        eta = torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)
        return output + torch.exp(self.log_std) * eta

    def output_fisher(self, output: Tensor) -> Tensor:
        """I/σ²."""
        size = output[0].numel()
        identity = torch.eye(size, dtype=output.dtype, device=output.device)
        return (torch.exp(-2 * self.log_std) * identity).expand(len(output), size, size)

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        return dict(self._config)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"std={self._config['std']}, sampled={self._config['sampled']}"


def sampled_labels(likelihood: Any, output: Tensor, generator: torch.Generator) -> Tensor:
    """Targets from p(y | output), for the Fisher information."""
    if not hasattr(likelihood, "sample"):
        raise ValueError(
            f"{likelihood!r} has no sample(output, generator), so labels can't be drawn from the model. Give it "
            f'one, or use the training labels: "empirical".'
        )
    labels: Tensor = likelihood.sample(output, generator)
    return labels


def _one_column(name: str, output: Tensor) -> Tensor:
    if output.dim() == 2 and output.shape[1] == 1:
        return output.squeeze(1)
    if output.dim() != 1:
        raise ValueError(
            f"{name} needs one logit an example, (batch,) or (batch, 1); the model gave {tuple(output.shape)}. "
            f"Several classes: use Categorical()."
        )
    return output


def _like(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The target in the output's shape and type; (batch,) against (batch, 1) would broadcast to (batch, batch)."""
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise ValueError(
            f"{name}: the target has shape {tuple(target.shape)}, the model's output {tuple(output.shape)}; "
            f"they must hold the same number of values per example."
        )
    return target.to(output.dtype).reshape(output.shape)


BUILT_IN = {kind.__name__: kind for kind in (Categorical, Bernoulli, GaussianNoise)}
