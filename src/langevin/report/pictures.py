"""The pictures of a report, each with a sentence and a description in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from langevin import plots
from langevin.ensembles.predict import ClassPrediction, ValuePrediction
from langevin.evaluation.calibration import reliability
from langevin.evaluation.selective import risk_coverage
from langevin.report.contents import Picture
from langevin.report.findings import Findings
from langevin.report.theme import inline_svg


def pictures(findings: Findings) -> list[Picture]:
    """All that the findings allow."""
    found = []
    for index, (title, says, alt, draw) in enumerate(_all(findings)):
        drawn = draw()
        figure = getattr(drawn, "figure", None) or drawn
        found.append(Picture(title, says, alt, inline_svg(figure, alt, f"p{index}")))
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
        "Is confidence honest?",
        "On the diagonal it is; below it the model is too sure of itself, above it too cautious.",
        f"Reliability diagram, accuracy against confidence in bins of equal size. {means}.",
        lambda: plots.reliability(curves),
    )
    for name, by_run in findings.foreign.items():
        outside = {n: p for n, p in by_run.items() if isinstance(p, ClassPrediction)}
        sets = {
            f"{findings.name}, test": this.confidence,
            f"{findings.name}, {name}": outside[findings.name].confidence,
        }
        sets |= {f"{n}, {name}": p.confidence for n, p in outside.items() if n != findings.name}
        told = "; ".join(f"{n}: mean {float(values.mean()):.2f}" for n, values in sets.items())
        yield (
            f"How sure about {name}?",
            "The highest probability of each input: it should be low for inputs of another kind.",
            f"Histograms of the highest predicted probability. {told}.",
            partial(plots.histograms, sets),
        )
    risks = {name: risk_coverage(p.probs, y) for name, p in classes.items()}
    areas = "; ".join(
        f"{n}: area {curve.aurc:.4f}, error rate {float(curve.risk[-1]):.3f}" for n, curve in risks.items()
    )
    yield (
        "What if it answers only when sure?",
        "The error rate among the inputs that it answers, the surest first: the lower on the left, the better.",
        f"Risk-coverage curves, from the surest inputs to all of them. {areas}.",
        lambda: plots.risk_coverage(risks),
    )
    if isinstance(findings.x, Tensor) and _are_images(findings.x):
        wrong = this.labels != y
        captions = [f"{p:.2f}: {c}" for p, c in zip(this.confidence.tolist(), this.labels.tolist(), strict=True)]
        yield (
            "From the surest to the least sure",
            "Some test images in that order, with confidence and predicted class; thick frames are mistakes.",
            f"Test images from a confidence of {float(this.confidence.max()):.2f} down to "
            f"{float(this.confidence.min()):.2f}; {int(wrong.sum())} of {len(y)} test inputs are mistaken.",
            lambda: plots.ranked_images(findings.x, this.confidence, captions, wrong=wrong),
        )


def _of_values(findings: Findings) -> Iterator[_Drawing]:
    values = {n: p for n, p in findings.predictions.items() if isinstance(p, ValuePrediction)}
    said = torch.linspace(0.1, 0.9, 9)
    found = {n: [coverage_of(p, findings.y, float(s)) for s in said] for n, p in values.items()}
    told = "; ".join(f"{n}: {shares[-1]:.0%} in the 90 % intervals" for n, shares in found.items())
    yield (
        "Are the intervals honest?",
        "On the diagonal they are; below it the model is too sure of itself, above it too cautious.",
        f"Share of the targets inside central intervals, against the probability of the interval. {told}.",
        lambda: plots.coverage({name: (said, shares) for name, shares in found.items()}),
    )


def _of_chains(findings: Findings) -> Iterator[_Drawing]:
    chains, traces = findings.chains, findings.traces
    if "loss" in traces:
        last = "; ".join(f"chain {c} ends at {values[-1]:.3g}" for c, values in traces["loss"].items() if values)
        yield (
            "Did the loss settle?",
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
            "How long does a chain remember?",
            "The autocorrelation of the loss; in the grey band it is no more than chance.",
            "Autocorrelation of the loss of each chain against the distance of samples.",
            lambda: plots.autocorrelation(traces["loss"]),
        )
    heats = {c: [h for h in values if math.isfinite(h)] for c, values in traces.get("temperature", {}).items()}
    if chains.samples_posterior and math.isfinite(chains.asked) and any(heats.values()):
        mean, error = chains.temperature
        yield (
            "Is the temperature right?",
            "Each point is the mean over the steps since the sample before; the band is the mean ± 2 standard errors.",
            f"Temperature readings, measured {mean:.3g} ± {error:.1g}, asked {chains.asked:g}.",
            lambda: plots.temperature(heats, asked=chains.asked, measured=mean, error=error),
        )


def coverage_of(prediction: ValuePrediction, target: Tensor, probability: float) -> float:
    """The share of targets inside the central Gaussian interval of that probability."""
    half = math.sqrt(2) * float(torch.erfinv(torch.tensor(probability, dtype=torch.float64)))
    distance = (target.reshape(prediction.mean.shape).to(prediction.mean) - prediction.mean).abs()
    return float((distance <= half * prediction.variance.sqrt()).double().mean())


def _accuracy(prediction: ClassPrediction, y: Tensor) -> float:
    return float((prediction.labels == y).double().mean())


def _are_images(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)
