"""The tables of a report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from langevin.core.statistics import Estimate
from langevin.diagnostics.convergence import Convergence
from langevin.diagnostics.verdict import RHAT_LIMIT
from langevin.ensembles.prediction import ClassPrediction, Prediction
from langevin.evaluation.attacks import Attack
from langevin.evaluation.compare import Interval
from langevin.report.contents import Table
from langevin.report.findings import Chains, Findings
from langevin.report.verdicts import attack_name

UNKNOWN = "unknown"
_METRICS = {
    "accuracy": "Accuracy",
    "nll": "Negative log-likelihood (nats)",
    "brier": "Brier score",
    "calibration error": "Calibration error (8 bins of equal mass)",
    "rmse": "Root mean square error",
    "crps": "CRPS",
}


def tables(findings: Findings, attack: Attack | None) -> list[Table]:
    """Scores, differences, out-of-distribution detection, attack, chains."""
    found = [_scores(findings)]
    if len(findings.predictions) > 1:
        found.append(_differences(findings))
    found += [_ood(findings, name) for name in findings.detections]
    if attack is not None:
        found.append(_attacked(findings, attack))
    if findings.chains is not None:
        found.append(_chains(findings.chains))
        found.append(_temperatures(findings.chains))
    return found


def number(value: float, digits: int = 3) -> str:
    """A number, or "unknown"."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return UNKNOWN if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def share(value: float) -> str:
    """A percentage, or "unknown"."""
    return f"{value:.1%}" if math.isfinite(value) else UNKNOWN


def estimate(value: Estimate) -> str:
    """Mean ± standard error, each "unknown" if it is NaN."""
    if not math.isfinite(value.mean):
        return UNKNOWN
    return f"{value.mean:.3f} ± {number(value.error)}"


def _scores(findings: Findings) -> Table:
    comparison, names = findings.comparison, list(findings.predictions)
    rows = [[_METRICS[m], *(_cell(m, comparison.scores[n][m].value) for n in names)] for m in comparison.metrics]
    uncertainties = {name: _uncertainties(prediction) for name, prediction in findings.predictions.items()}
    rows += [[what, *(number(uncertainties[n][what]) for n in names)] for what in uncertainties[names[0]]]
    better = "all but accuracy and the uncertainties" if "accuracy" in comparison.metrics else "the scores"
    caption = f"On {comparison.examples:,} test inputs. Lower is better for {better}."
    return Table("Scores", caption, ["Score", *names], rows)


def _cell(metric: str, value: float) -> str:
    return share(value) if metric == "accuracy" else number(value)


def _uncertainties(prediction: Prediction) -> dict[str, float]:
    """Mean uncertainties over the test inputs."""
    if isinstance(prediction, ClassPrediction):
        return {
            "Mean confidence": float(prediction.confidence.mean()),
            "Mean entropy (nats)": float(prediction.entropy.mean()),
            "Mean mutual information (epistemic, nats)": max(float(prediction.mutual_information.mean()), 0.0),
        }
    return {
        "Mean predictive standard deviation": float(prediction.variance.sqrt().mean()),
        "Mean epistemic standard deviation": float(prediction.epistemic.sqrt().mean()),
    }


def _differences(findings: Findings) -> Table:
    comparison, this = findings.comparison, findings.name
    others = list(comparison.differences)
    rows = [[_METRICS[m], *(_difference(comparison.differences[n][m]) for n in others)] for m in comparison.metrics]
    caption = (
        f"With {comparison.level:.0%} intervals of a paired bootstrap over the test inputs; they do not account for "
        f"variation between seeds. An interval without 0 is marked *."
    )
    return Table(f"Differences from {this}", caption, ["Score", *(f"{name} − {this}" for name in others)], rows)


def _difference(interval: Interval) -> str:
    if math.isnan(interval.low):
        return _signed(interval.value)
    mark = " *" if interval.excludes_zero else ""
    return f"{_signed(interval.value)} [{_signed(interval.low)}, {_signed(interval.high)}]{mark}"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def _ood(findings: Findings, name: str) -> Table:
    rows = [
        [f"{run}, by {score}", number(found.auroc), number(found.aupr), share(found.fpr95)]
        for run, by in findings.detections[name].items()
        for score, found in by.items()
    ]
    prediction = findings.ood[name][findings.name]
    count = len(prediction.probs if isinstance(prediction, ClassPrediction) else prediction.mean)
    caption = (
        f"Detection of {count:,} OOD inputs among the test inputs by uncertainty: 1 is perfect and 0.5 chance for the "
        f"AUROC; FPR95 is the false positive rate at a true positive rate of 95%."
    )
    return Table(f"Out-of-distribution inputs: {name}", caption, ["Score", "AUROC", "AUPR", "FPR95"], rows)


def _attacked(findings: Findings, attack: Attack) -> Table:
    rows = []
    for name, result in findings.attacked.items():
        best = max(found.auroc for found in result.detection.values())
        rows.append(
            [name, share(result.clean_accuracy), share(result.accuracy), number(result.nll), number(best)],
        )
    caption = (
        f"Accuracy on {findings.attacked_examples:,} test inputs, clean and attacked, with the attack computed on each "
        f"run's own predictive distribution; NLL under attack; AUROC of detecting attacked inputs by uncertainty."
    )
    return Table(f"Attack: {attack_name(attack)}", caption, ["Run", "Clean", "Attacked", "NLL", "AUROC"], rows)


def _chains(chains: Chains) -> Table:
    spaces = [chains.function, chains.weights]
    rows: list[list[Any]] = [
        ["Quantities", *(f"{len(m.names):,}" for m in spaces)],
        ["Chains × samples", *(f"{m.chains} × {m.draws}" for m in spaces)],
        ["R̂, largest", *(number(m.worst_rhat) for m in spaces)],
        *([f"R̂ above {limit}", *(share(m.share_above(limit)) for m in spaces)] for limit in (1.01, RHAT_LIMIT)),
        ["Bulk ESS, median", *(number(_median(m.ess_bulk), 0) for m in spaces)],
        ["Bulk ESS, smallest", *(number(_smallest(m.ess_bulk), 0) for m in spaces)],
        ["Tail ESS, median", *(number(_median(m.ess_tail), 0) for m in spaces)],
        ["ESS (to the first negative autocorrelation), median", *(number(_median(m.ess), 0) for m in spaces)],
        ["ESS by batch means, median", *(number(_median(m.ess_batch), 0) for m in spaces)],
        ["mESS, diagonal", *(number(m.mess, 0) for m in spaces)],
        ["mESS, full", *(number(m.mess_full, 0) for m in spaces)],
    ]
    caption = (
        "In function space (predictions for a few test inputs) and in weight space. Weights of a network are not "
        "identified: convergence of predictions is what matters for use." + _reasons(*spaces)
    )
    return Table("Convergence", caption, ["Quantity", "Function space", "Weight space"], rows)


def _reasons(*spaces: Convergence) -> str:
    reasons = dict.fromkeys(why for mixing in spaces for why in mixing.unknown.values())
    return f" Unknown: {'; '.join(reasons)}." if reasons else ""


def _temperatures(chains: Chains) -> Table:
    found = chains.temperatures
    rows = [["All weights", estimate(found.virial), estimate(found.gradient)]]
    if math.isfinite(found.stiffest.mean):
        rows.append(["Stiffest direction", "", estimate(found.stiffest)])
    rows += [[f"Softest direction {i}", estimate(soft.temperature), ""] for i, soft in enumerate(found.softest, 1)]
    rows += [
        [name, estimate(value), estimate(found.gradient_by_tensor[name]) if name in found.gradient_by_tensor else ""]
        for name, value in list(found.virial_by_tensor.items())[:24]
    ]
    if math.isfinite(found.kinetic.mean):
        rows.append(["Kinetic, all weights", estimate(found.kinetic), ""])
    caption = (
        f"Target temperature {number(found.target, 2)}. The virial temperature weighs all directions alike, the "
        f"gradient temperature by their curvature: too hot on the right is too large a step or too small a batch in "
        f"stiff directions, too cold on the left are soft directions that have not spread yet."
    )
    if math.isfinite(found.kinetic.mean) and found.kinetic_by_construction:
        caption += f" {chains.method}'s thermostat makes the kinetic temperature T by construction."
    return Table("Temperature", caption, ["Weights", "Virial", "Gradient"], rows)


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _smallest(values: np.ndarray) -> float:
    return float(np.min(values)) if len(values) else math.nan
