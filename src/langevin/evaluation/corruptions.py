"""Covariate shift: images corrupted at five severities, in plain torch operations.

Four corruptions in the manner of Hendrycks & Dietterich (2019), with our own strengths, so results are not comparable
with theirs. Strengths are relative to the range of the inputs and to the size of the images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from langevin.core.arguments import COUNT, SEED, validated
from langevin.evaluation import scores
from langevin.evaluation.inputs import class_prediction_of


@dataclass(frozen=True)
class Shift:
    """Scores on inputs with one kind of corruption; severity 0 is the clean input."""

    kind: str
    severity: int
    accuracy: float
    nll: float
    calibration_error: float
    entropy: float  # mean


def gaussian_noise(x: Tensor, severity: int, seed: int) -> Tensor:
    """x + σ η, σ of 0.05 to 0.4 of the range; the same η at every severity."""
    low, high = x.amin(), x.amax()
    eta = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype, device="cpu").to(x.device)
    return (x + (0.05, 0.1, 0.15, 0.25, 0.4)[severity - 1] * (high - low) * eta).clamp(low, high)


def blur(x: Tensor, severity: int, seed: int) -> Tensor:
    """Gaussian blur, σ = 0.3 pixels plus 1/56 to 5/56 of the smaller side."""
    size = min(x.shape[2:])
    sigma = 0.3 + severity * size / 56
    reach = min(math.ceil(3 * sigma), size - 1)
    if reach == 0:
        return x
    place = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    kernel = torch.exp(-0.5 * (place / sigma) ** 2)
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, -1)
    padded = functional.pad(x, (reach,) * 4, mode="replicate")
    rows = functional.conv2d(padded, kernel.unsqueeze(2), groups=x.shape[1])
    return functional.conv2d(rows, kernel.unsqueeze(3), groups=x.shape[1])


def contrast(x: Tensor, severity: int, seed: int) -> Tensor:
    """Each image shrunk towards its mean, to 0.75 … 0.1 of its contrast."""
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + (0.75, 0.5, 0.35, 0.2, 0.1)[severity - 1] * (x - mean)


def rotation(x: Tensor, severity: int, seed: int) -> Tensor:
    """Counter-clockwise by 10 to 75 degrees about the centre, bilinear, padded with the lowest value."""
    angle = math.radians((10, 20, 30, 50, 75)[severity - 1])
    height, width = x.shape[2:]
    cos, sin = math.cos(angle), math.sin(angle)
    # grid coordinates run from −1 to 1 on both sides, so a rotation in pixels needs the aspect ratio
    to_source = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    matrix = torch.tensor(to_source, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    low = x.amin()
    return functional.grid_sample(x - low, grid, align_corners=False) + low


_CORRUPTIONS = {"gaussian noise": gaussian_noise, "blur": blur, "contrast": contrast, "rotation": rotation}
KINDS = tuple(_CORRUPTIONS)


@validated(seed=SEED)
def corrupt(x: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images (n, channels, height, width), or (n, height, width), corrupted at severity 1 … 5, same shape.

    Strengths are relative to the range of x, and the result stays in that range.
    """
    if kind not in _CORRUPTIONS:
        raise ValueError(f"kind={kind!r}: choose one of {list(KINDS)}.")
    if severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity={severity}: choose 1, 2, 3, 4 or 5.")
    if x.dim() not in (3, 4) or not x.is_floating_point() or len(x) == 0:
        raise ValueError(
            f"Corruptions take floating-point images, (n, channels, height, width) or (n, height, width); given "
            f"{x.dtype} of shape {tuple(x.shape)}. For flattened images give image_shape=(1, 8, 8)."
        )
    images = x if x.dim() == 4 else x.unsqueeze(1)
    return _CORRUPTIONS[kind](images, severity, seed).reshape(x.shape)


@validated(seed=SEED, batch_size=COUNT)
def under_shift(
    source: Any,
    x: Tensor,
    y: Tensor,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    image_shape: tuple[int, ...] | None = None,
    seed: int = 0,
    batch_size: int = 1024,
) -> list[Shift]:
    """Scores of a run for every kind and severity, after one row for the clean input (kind "clean", severity 0).

    `image_shape` is the shape of an image if x is flattened, (1, 8, 8) for digits.
    """
    images = x if image_shape is None else x.reshape(-1, *image_shape)
    rows = [_scored("clean", 0, source, x, y, batch_size)]
    for kind in kinds:
        for severity in severities:
            corrupted = corrupt(images, kind, severity, seed=seed).reshape(x.shape)
            rows.append(_scored(kind, severity, source, corrupted, y, batch_size))
    return rows


def _scored(kind: str, severity: int, source: Any, x: Tensor, y: Tensor, batch_size: int) -> Shift:
    prediction = class_prediction_of(source, x, batch_size=batch_size)
    found = scores.class_scores(prediction.probs, y)
    entropy = float(prediction.entropy.double().mean())
    return Shift(kind, severity, found["accuracy"], found["nll"], found["calibration error"], entropy)
