"""Ensembles and predictions in one line, and as notebooks show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from langevin.core import html

if TYPE_CHECKING:
    from langevin.ensembles.ensemble import Ensemble
    from langevin.ensembles.prediction import ClassPrediction, ValuePrediction

_ROWS = 5  # inputs of a prediction that are shown


def ensemble_html(ensemble: Ensemble) -> str:
    """What an ensemble is, from its manifest; the verdict, if it was asked for before."""
    manifest = ensemble.manifest
    settings = manifest.get("settings") or {}
    method = manifest.get("method") or manifest.get("sampler")
    verdict = vars(ensemble).get("_verdict")
    known = {
        "method": _call(method) if method else None,
        "members": f"{len(ensemble):,}",
        "chains": len(getattr(ensemble, "chains", ())) or None,
        "steps": settings.get("steps"),
        "training examples": manifest.get("num_data"),
        "directory": getattr(ensemble, "path", None),
        "verdict": verdict,
    }
    hint = "print(run.summary()): temperatures, convergence, stationarity" if hasattr(ensemble, "summary") else ""
    return html.facts(repr(ensemble), known, hint)


def _call(method: Any) -> str:
    if not isinstance(method, Mapping):
        return str(method)
    options = ", ".join(f"{key}={value}" for key, value in (method.get("options") or {}).items())
    return f"{method.get('name')}({options})"


def class_line(prediction: ClassPrediction) -> str:
    """The size of a prediction of classes, and its mean uncertainties."""
    return (
        f"<ClassPrediction of {len(prediction.probs):,} inputs, {prediction.probs.shape[1]} classes: mean confidence "
        f"{float(prediction.confidence.mean()):.3f}, entropy {float(prediction.entropy.mean()):.3f}, "
        f"mutual information {max(float(prediction.mutual_information.mean()), 0.0):.3f} nats>"
    )


def class_html(prediction: ClassPrediction) -> str:
    """The first inputs, each with class, confidence and uncertainties."""
    if prediction.probs.dim() != 2:
        return html.table(class_line(prediction), [])
    columns = ["input", "class", "confidence", "entropy", "mutual information"]
    values = zip(
        prediction.labels[:_ROWS].tolist(),
        *(_numbers(each) for each in (prediction.confidence, prediction.entropy, prediction.mutual_information)),
        strict=True,
    )
    return html.table(
        class_line(prediction), [(i, *row) for i, row in enumerate(values)], columns, _rest(prediction.probs)
    )


def value_line(prediction: ValuePrediction) -> str:
    """The size of a prediction of values, and its mean standard deviations."""
    deviation, epistemic = (float(v.double().sqrt().mean()) for v in (prediction.variance, prediction.epistemic))
    return (
        f"<ValuePrediction of {len(prediction.mean):,} inputs, values of shape {tuple(prediction.mean.shape[1:])}: "
        f"mean standard deviation {deviation:.3g}, of it epistemic {epistemic:.3g}>"
    )


def value_html(prediction: ValuePrediction) -> str:
    """The first inputs, each with mean and standard deviations; of several values the first."""
    columns = ["input", "mean", "standard deviation", "epistemic"]
    moments = (prediction.mean, prediction.variance.sqrt(), prediction.epistemic.sqrt())
    values = zip(*(_numbers(each.reshape(len(each), -1)[:, 0]) for each in moments), strict=True)
    return html.table(
        value_line(prediction), [(i, *row) for i, row in enumerate(values)], columns, _rest(prediction.mean)
    )


def _numbers(values: torch.Tensor) -> list[str]:
    return [f"{value:.3g}" for value in values[:_ROWS].tolist()]


def _rest(values: torch.Tensor) -> str:
    return f"and {len(values) - _ROWS:,} more" if len(values) > _ROWS else ""
