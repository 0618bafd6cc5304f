"""Out-of-distribution detection: does uncertainty tell inputs of another kind from those of the training data?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation.checks import checked_probs


class Detection(NamedTuple):
    """How well a score tells outside (positive) from inside: 1, 1 and 0 are perfect."""

    auroc: float
    aupr: float  # average precision, outside being the positive class; by chance it is the share of the outside
    fpr95: float  # share of the inside taken for outside at the threshold that finds 95 % of the outside


def detection(inside: Tensor, outside: Tensor) -> Detection:
    """From the scores (higher: more foreign) of inside and outside inputs."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.dim() != 1 or len(scores) == 0:
            raise ValueError(
                f"Detection needs the scores of one or more {name} inputs, (n,); given shape {tuple(scores.shape)}. "
                f"Leave an empty out-of-distribution set out."
            )
        if not bool(scores.isfinite().all()):
            raise ValueError(f"{int((~scores.isfinite()).sum())} of the {name} scores are not finite.")
    values = torch.cat([inside.double().cpu(), outside.double().cpu()]).numpy()
    foreign = np.repeat([0, 1], [len(inside), len(outside)])
    false_positive, true_positive, _ = roc_curve(foreign, values, drop_intermediate=False)
    return Detection(
        auroc=float(roc_auc_score(foreign, values)),
        aupr=float(average_precision_score(foreign, values)),
        fpr95=float(false_positive[np.argmax(true_positive >= 0.95)]),
    )


def uncertainties(prediction: ClassPrediction) -> dict[str, Tensor]:
    """Scores, higher where less is known: "max probability" (1 − it), "entropy", "mutual information".

    A prediction of one sample has no mutual information (entropy equals aleatoric everywhere): it is left out.
    """
    probs = checked_probs(prediction.probs)
    scores = {"max probability": 1 - probs.amax(1), "entropy": prediction.entropy}
    if bool((prediction.entropy != prediction.aleatoric).any()):
        scores["mutual information"] = prediction.mutual_information
    return scores


def out_of_distribution(inside: ClassPrediction, outside: ClassPrediction) -> dict[str, Detection]:
    """The detection by each of the `uncertainties` that both predictions have."""
    a, b = uncertainties(inside), uncertainties(outside)
    return {name: detection(a[name], b[name]) for name in a if name in b}


def confidence_histogram(probs: Tensor, bins: int = 20) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) from 0 to 1, and the share of the inputs whose highest probability lies in each bin."""
    if bins < 1:
        raise ValueError(f"bins={bins}: give 1 or more.")
    confidence = checked_probs(probs).amax(1).clamp(0, 1)
    counts, edges = np.histogram(confidence.cpu().numpy(), bins=bins, range=(0.0, 1.0))
    return torch.from_numpy(edges), torch.from_numpy(counts / len(confidence))
