"""A posterior over two weights: samples and contours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from langevin.plots.style import INK, MUTED, SERIES, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def ellipse(mean: Any, covariance: Any, mass: float, points: int = 100) -> np.ndarray:
    """The contour (points, 2) that encloses this mass of a Gaussian: (θ−μ)ᵀΣ⁻¹(θ−μ) = −2 log(1 − mass)."""
    mean, covariance = np.asarray(mean, dtype=float), np.asarray(covariance, dtype=float)
    if mean.shape != (2,) or covariance.shape != (2, 2):
        raise ValueError(
            f"An ellipse needs a mean (2,) and a covariance (2, 2); given {mean.shape}, {covariance.shape}."
        )
    if not 0 < mass < 1:
        raise ValueError(f"mass={mass}: give the enclosed mass, between 0 and 1, such as 0.9.")
    angle = np.linspace(0, 2 * np.pi, points)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1) * np.sqrt(-2 * np.log(1 - mass))
    return np.asarray(mean + circle @ np.linalg.cholesky(covariance).T)


def posterior_2d(
    samples: Any,
    axes: Axes | None = None,
    *,
    grid: tuple[Any, Any, Any] | None = None,
    laplace: tuple[Any, Any] | None = None,
    names: tuple[str, str] = ("θ₁", "θ₂"),
) -> Axes:
    """Samples (n, 2), contours of the density, and the ellipses of a Laplace approximation (50 and 90 %).

    `grid` is (x, y, log density), of shapes (nx,), (ny,) and (ny, nx), the density up to a constant: its contours
    enclose 50, 90 and 99 % of its mass. `laplace` is (mean, covariance).
    """
    points = np.asarray(samples, dtype=float)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"samples of two weights have shape (n, 2); given {points.shape}.")
    with drawing(axes, (4.0, 3.6)) as axes:
        axes.plot(*points.T, ".", color=SERIES[0], markersize=3, alpha=0.5, label="samples")
        if grid is not None:
            x, y, log_density = (np.asarray(part, dtype=float) for part in grid)
            axes.contour(x, y, log_density, levels=_levels(log_density), colors=MUTED, linewidths=1.0, linestyles="-")
            axes.plot([], [], color=MUTED, linewidth=1.0, linestyle="-", marker="", label="density: 50, 90, 99 %")
        if laplace is not None:
            for index, mass in enumerate((0.5, 0.9)):
                axes.plot(
                    *ellipse(*laplace, mass).T,
                    color=SERIES[1],
                    linestyle=(0, (5, 1.5)),
                    marker="",
                    label="Laplace: 50, 90 %" if index == 0 else None,
                )
            axes.plot(*np.asarray(laplace[0], dtype=float), "+", color=INK, markersize=9)
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.legend()
    return axes


def _levels(log_density: np.ndarray) -> list[float]:
    """Log densities above which lie 99, 90 and 50 % of the mass, ascending."""
    heights = np.sort(log_density.ravel())[::-1]
    mass = np.cumsum(np.exp(heights - heights[0]))
    found = {float(heights[np.searchsorted(mass / mass[-1], share)]) for share in (0.5, 0.9, 0.99)}
    return sorted(found)
