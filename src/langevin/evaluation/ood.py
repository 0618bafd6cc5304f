"""Out-of-distribution (OOD) detection by predictive uncertainty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.core.arguments import COUNT, validated
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation.checks import checked_probs


class Detection(NamedTuple):
    """OOD (positive) against in-distribution inputs: 1, 1 and 0 are perfect."""

    auroc: float
    aupr: float  # average precision; by chance it is the share of OOD inputs
    fpr95: float  # false positive rate at a true positive rate of 95 %


@validated()
def detection(inside: Tensor, outside: Tensor) -> Detection:
    """From the uncertainty scores of in-distribution (`inside`) and OOD (`outside`) inputs, higher for OOD."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.dim() != 1 or len(scores) == 0:
            raise ValueError(
                f"Detection needs the scores (n,) of at least one {name} input; given shape {tuple(scores.shape)}. "
                f"Leave out an empty out-of-distribution set."
            )
        if not bool(scores.isfinite().all()):
            raise ValueError(f"{int((~scores.isfinite()).sum())} of the {name} scores are not finite.")
    values = torch.cat([inside.double().cpu(), outside.double().cpu()]).numpy()
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    false_positive, true_positive, _ = roc_curve(is_ood, values, drop_intermediate=False)
    return Detection(
        auroc=float(roc_auc_score(is_ood, values)),
        aupr=float(average_precision_score(is_ood, values)),
        fpr95=float(false_positive[np.argmax(true_positive >= 0.95)]),
    )


@validated()
def uncertainties(prediction: ClassPrediction) -> dict[str, Tensor]:
    """Uncertainty scores: "max probability" (1 − max p), "entropy", "mutual information".

    With one sample the mutual information is 0 everywhere (entropy equals aleatoric), so it is left out.
    """
    probs = checked_probs(prediction.probs)
    scores = {"max probability": 1 - probs.amax(1), "entropy": prediction.entropy}
    if bool((prediction.entropy != prediction.aleatoric).any()):
        scores["mutual information"] = prediction.mutual_information
    return scores


@validated()
def out_of_distribution(inside: ClassPrediction, outside: ClassPrediction) -> dict[str, Detection]:
    """Detection by each of the `uncertainties` that both predictions have."""
    a, b = uncertainties(inside), uncertainties(outside)
    return {name: detection(a[name], b[name]) for name in a if name in b}


@validated(bins=COUNT)
def confidence_histogram(probs: Tensor, bins: int = 20) -> tuple[Tensor, Tensor]:
    """Edges (bins + 1,) from 0 to 1, and the share of inputs whose max probability lies in each bin."""
    if bins < 1:
        raise ValueError(f"bins={bins}: give 1 or more.")
    confidence = checked_probs(probs).amax(1).clamp(0, 1)
    counts, edges = np.histogram(confidence.cpu().numpy(), bins=bins, range=(0.0, 1.0))
    return torch.from_numpy(edges), torch.from_numpy(counts / len(confidence))
