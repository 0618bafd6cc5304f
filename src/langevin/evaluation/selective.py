"""Selective prediction: the error rate if only the most confident inputs are answered."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.core.arguments import validated
from langevin.evaluation.checks import checked


@dataclass(frozen=True)
class RiskCoverage:
    """Risk (error rate) of the most confident share `coverage` of the examples, coverage 1/n, 2/n, …, 1."""

    coverage: Tensor
    risk: Tensor
    aurc: float  # area under the curve: the mean of risk over all coverages k/n; lower is better
    excess_aurc: float  # aurc minus that of the oracle order (all correct predictions first)

    def risk_at(self, coverage: float) -> float:
        """The risk at a coverage in (0, 1]."""
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage={coverage}: give a share of the examples in (0, 1].")
        return float(self.risk[int((self.coverage >= coverage - 1e-12).nonzero()[0])])


@validated()
def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> RiskCoverage:
    """Examples ordered by uncertainty (1 − max probability by default); ties count with their mean error."""
    probs, labels = checked(probs, labels)
    confidence, predicted = probs.max(1)
    wrong = (predicted != labels).double()
    uncertainty = 1 - confidence if uncertainty is None else uncertainty
    if uncertainty.shape != wrong.shape:
        raise ValueError(f"uncertainty must have the shape {tuple(wrong.shape)}; given {tuple(uncertainty.shape)}.")
    _, tie, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    error_of_tie = torch.zeros(len(size), dtype=torch.float64, device=wrong.device).index_add_(0, tie, wrong) / size
    risk = _running_mean(error_of_tie[tie.sort().values])
    perfect = _running_mean(wrong.sort().values)
    count = len(wrong)
    return RiskCoverage(
        coverage=torch.arange(1, count + 1, dtype=torch.float64, device="cpu") / count,
        risk=risk.cpu(),
        aurc=float(risk.mean()),
        excess_aurc=float(risk.mean() - perfect.mean()),
    )


def _running_mean(values: Tensor) -> Tensor:
    return values.cumsum(0) / torch.arange(1, len(values) + 1, device=values.device)
