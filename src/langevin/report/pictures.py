"""The figures of a report, each with a caption and alternative text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from langevin import plots
from langevin.ensembles.prediction import ClassPrediction, ValuePrediction
from langevin.evaluation.calibration import interval_coverage, reliability
from langevin.evaluation.selective import risk_coverage
from langevin.report.contents import Picture
from langevin.report.findings import Findings
from langevin.report.theme import inline_svg


def pictures(findings: Findings) -> list[Picture]:
    """All figures that apply to the findings."""
    found = []
    for index, (title, caption, alt, draw) in enumerate(_all(findings)):
        drawn = draw()
        figure = getattr(drawn, "figure", None) or drawn
        found.append(Picture(title, caption, alt, inline_svg(figure, alt, f"p{index}")))
    return found


_Drawing = tuple[str, str, str, Callable[[], Any]]


def _all(findings: Findings) -> Iterator[_Drawing]:
    if isinstance(findings.prediction, ClassPrediction):
        yield from _of_classes(findings)
    else:
        yield from _of_values(findings)
    yield from _of_chains(findings)


def _of_classes(findings: Findings) -> Iterator[_Drawing]:
    classes = {n: p for n, p in findings.predictions.items() if isinstance(p, ClassPrediction)}
    y, this = findings.y, classes[findings.name]
    curves = {name: reliability(p.probs, y, min(8, len(y))) for name, p in classes.items()}
    means = "; ".join(
        f"{n}: mean confidence {float(p.confidence.mean()):.2f}, accuracy {_accuracy(p, y):.2f}"
        for n, p in classes.items()
    )
    yield (
        "Reliability diagram: is confidence honest?",
        "On the diagonal confidence equals accuracy; below it the model is overconfident, above it underconfident.",
        f"Reliability diagram, accuracy against confidence in bins of equal size. {means}.",
        lambda: plots.reliability(curves),
    )
    for name, by_run in findings.ood.items():
        outside = {n: p for n, p in by_run.items() if isinstance(p, ClassPrediction)}
        sets = {
            f"{findings.name}, test": this.confidence,
            f"{findings.name}, {name}": outside[findings.name].confidence,
        }
        sets |= {f"{n}, {name}": p.confidence for n, p in outside.items() if n != findings.name}
        described = "; ".join(f"{n}: mean {float(values.mean()):.2f}" for n, values in sets.items())
        yield (
            f"Confidence on {name}",
            "The highest predicted probability of each input: it should be low for out-of-distribution inputs.",
            f"Histograms of the highest predicted probability. {described}.",
            partial(plots.histograms, sets),
        )
    risks = {name: risk_coverage(p.probs, y) for name, p in classes.items()}
    areas = "; ".join(
        f"{n}: area {curve.aurc:.4f}, error rate {float(curve.risk[-1]):.3f}" for n, curve in risks.items()
    )
    yield (
        "Selective prediction: risk against coverage",
        "The error rate among the most confident inputs, by the share of inputs that is answered: lower is better.",
        f"Risk-coverage curves, from the most confident inputs to all of them. {areas}.",
        lambda: plots.risk_coverage(risks),
    )
    if isinstance(findings.x, Tensor) and _are_images(findings.x):
        wrong = this.labels != y
        captions = [f"{p:.2f}: {c}" for p, c in zip(this.confidence.tolist(), this.labels.tolist(), strict=True)]
        yield (
            "Test images by confidence",
            "From the most to the least confident, with confidence and predicted class; thick frames are errors.",
            f"Test images from a confidence of {float(this.confidence.max()):.2f} down to "
            f"{float(this.confidence.min()):.2f}; {int(wrong.sum())} of {len(y)} test inputs are misclassified.",
            lambda: plots.ranked_images(findings.x, this.confidence, captions, wrong=wrong),
        )


def _of_values(findings: Findings) -> Iterator[_Drawing]:
    values = {n: p for n, p in findings.predictions.items() if isinstance(p, ValuePrediction)}
    found = {n: interval_coverage(p, findings.y) for n, p in values.items()}
    described = "; ".join(
        f"{n}: {shares[0.5]:.0%} in the 50% and {shares[0.9]:.0%} in the 90% intervals" for n, shares in found.items()
    )
    yield (
        "Interval coverage: are the intervals honest?",
        "On the diagonal coverage is nominal; below it the model is overconfident, above it underconfident.",
        f"Share of the targets inside central intervals, against the nominal coverage. {described}.",
        lambda: plots.coverage({name: (list(shares), list(shares.values())) for name, shares in found.items()}),
    )
    this = values[findings.name]
    inside = found[findings.name][0.9]
    yield (
        "Prediction intervals against targets",
        "Central 90% intervals of at most 100 test inputs, by predicted mean: nine of ten targets should be inside.",
        f"Prediction intervals with the targets of the test inputs. {inside:.0%} of all targets are inside.",
        lambda: plots.intervals(this, findings.y),
    )


def _of_chains(findings: Findings) -> Iterator[_Drawing]:
    chains, traces = findings.chains, findings.traces
    if "loss" in traces:
        last = "; ".join(f"chain {c} ends at {values[-1]:.3g}" for c, values in traces["loss"].items() if values)
        yield (
            "Training loss (trace)",
            "Chains that sample the same posterior overlap and do not drift."
            if chains is not None
            else "It should have stopped falling.",
            f"Trace of the loss. {last}.",
            lambda: plots.traces(traces["loss"]),
        )
    if chains is None:
        return
    if "loss" in traces and max(len(values) for values in traces["loss"].values()) >= 3:
        yield (
            "Autocorrelation",
            "Of the loss of each chain, by lag in samples; in the grey band it is compatible with 0.",
            "Autocorrelation of the loss of each chain against the lag.",
            lambda: plots.autocorrelation(traces["loss"]),
        )
    readings = {c: [h for h in values if math.isfinite(h)] for c, values in traces.get("temperature", {}).items()}
    target = chains.temperatures.target
    if chains.samples_posterior and math.isfinite(target) and any(readings.values()):
        mean, error = chains.temperatures.virial
        yield (
            "Temperature (trace)",
            "Each point is a mean over a part of a chain (virial); the band is the mean ± 2 standard errors.",
            f"Temperature readings, mean {chains.temperatures.virial}, target {target:g}.",
            lambda: plots.temperature(readings, target=target, measured=mean, error=error),
        )


def _accuracy(prediction: ClassPrediction, y: Tensor) -> float:
    return float((prediction.labels == y).double().mean())


def _are_images(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)
