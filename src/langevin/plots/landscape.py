"""The loss landscape around a trajectory, as in the HWA paper.

The plane is spanned by the first two principal components of the snapshots (of the means, if they are distributions).
It shows the mean negative log-likelihood of the training and of the test data, the snapshots, and their average.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.approximations.averaging.batchnorm import estimate_statistics
from langevin.approximations.distributions import split_like
from langevin.core.batches import as_batches, batch_size_of
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.ensembles.fit import Fit


@dataclass(frozen=True)
class Landscape:
    """Losses on a grid of the plane, and points in the same coordinates, which are distances in weight space."""

    across: Tensor  # (columns,), along the first component
    up: Tensor  # (rows,), along the second
    train: Tensor  # (rows, columns)
    test: Tensor  # (rows, columns)
    iterates: Tensor  # (snapshots, 2)
    average: Tensor  # (2,), the mean of the fitted distribution
    explained: float  # the share of the snapshots' variance explained by the plane


def landscape(fit: Fit, posterior: Posterior, train: Any, test: Any, *, resolution: int = 15) -> Any:
    """A figure of the training and the test loss on the plane of the fit's snapshots.

    >>> import langevin as lv  # doctest: +SKIP
    >>> fit = lv.fit(posterior, train, lv.HWA(cycle=50), optimizer=…, steps=2000)  # doctest: +SKIP
    >>> lv.plots.landscape(fit, posterior, train, test).savefig("landscape.png")  # doctest: +SKIP
    """
    from matplotlib.figure import Figure

    found = compute_landscape(fit, posterior, train, test, resolution=resolution)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, which in zip(figure.subplots(1, 2), ("train", "test"), strict=True):
        draw_landscape(axes, found, which)
    return figure


def draw_landscape(axes: Any, found: Landscape, which: str = "test") -> None:
    """The loss of "train" or "test" as filled contours, the iterates as a line, their average as a star."""
    losses = {"train": found.train, "test": found.test}[which]
    shades = axes.contourf(found.across.tolist(), found.up.tolist(), losses.numpy(), levels=20, cmap="viridis_r")
    axes.figure.colorbar(shades, ax=axes, label="mean negative log-likelihood")
    axes.plot(*found.iterates.T.tolist(), "o-", color="white", markeredgecolor="0.2", markersize=4, label="snapshots")
    axes.plot(*found.average.tolist(), "*", color="tab:red", markeredgecolor="white", markersize=14, label="average")
    axes.set(
        title=f"{which} loss",
        xlabel=f"first component (the plane explains {found.explained:.0%} of the variance)",
        ylabel="second component",
    )
    axes.legend()


@torch.no_grad()
def compute_landscape(
    fit: Fit,
    posterior: Posterior,
    train: Any,
    test: Any,
    *,
    resolution: int = 15,
    margin: float = 0.3,
    batch_size: int = 1024,
) -> Landscape:
    """The data of the figure. The grid extends beyond the snapshots by `margin` times their range."""
    names = fit.manifest["weights"]
    means = [fit.approximation.center(snapshot, names) for snapshot in fit.snapshots]
    if len(means) < 3 or resolution < 2:
        raise ValueError(
            f"A landscape needs at least 3 snapshots and resolution=2 or more; the fit has {len(means)} snapshots, "
            f"given resolution={resolution}. Fit more steps, or with a shorter cycle."
        )
    points = torch.stack([_flat(mean) for mean in means])
    center = points.mean(0)
    _, spread, directions = torch.linalg.svd(points - center, full_matrices=False)
    plane = directions[:2]
    iterates = (points - center) @ plane.T
    average = plane @ (_flat(fit.distribution.mean) - center)
    shown = torch.cat([iterates, average[None]])
    low, high = shown.amin(0), shown.amax(0)
    reach = margin * (high - low).clamp_min(1e-12)
    ends = torch.stack([low - reach, high + reach], dim=1).tolist()
    across, up = (torch.linspace(first, last, resolution, device="cpu") for first, last in ends)
    evaluated = copy.deepcopy(posterior).eval()
    train_losses, test_losses = torch.empty(2, resolution, resolution, device="cpu")
    for row, v in enumerate(up):
        for column, u in enumerate(across):
            flat = center + u * plane[0] + v * plane[1]
            parts = split_like(flat, means[0])
            weights = {name: part.to(means[0][name]) for name, part in zip(names, parts, strict=True)}
            load_tensors(evaluated, weights | _statistics(posterior, weights, train, batch_size))
            train_losses[row, column] = _mean_loss(evaluated, train, batch_size)
            test_losses[row, column] = _mean_loss(evaluated, test, batch_size)
    explained = float(spread[:2].square().sum() / spread.square().sum())
    return Landscape(across, up, train_losses, test_losses, iterates, average, explained)


def _flat(weights: Any) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in weights.values()])


def _statistics(posterior: Posterior, weights: dict[str, Tensor], train: Any, batch_size: int) -> dict[str, Tensor]:
    """The BatchNorm statistics for these weights; empty without BatchNorm."""
    if not posterior.running_statistics():
        return {}
    device = next(posterior.parameters()).device
    inputs = [x for x, _ in as_batches(train, None, 0, device).full_pass(batch_size)]
    return {name: rows[0] for name, rows in estimate_statistics(posterior, [weights], inputs).items()}


def _mean_loss(posterior: Posterior, data: Any, batch_size: int) -> float:
    batches = as_batches(data, None, 0, next(posterior.parameters()).device)
    losses = [(posterior.data_loss(x, y), batch_size_of(y)) for x, y in batches.full_pass(batch_size)]
    return sum(float(loss) * size for loss, size in losses) / sum(size for _, size in losses)
