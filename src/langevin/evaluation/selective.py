"""Selective prediction: answering only where confident, what is the error on what is answered?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RiskCoverage:
    """Risk (error rate) on the `coverage` most confident share of the examples, coverage rising to 1."""

    coverage: Tensor
    risk: Tensor
    aurc: float  # area under the curve: the mean of risk over all coverages k/n; lower is better
    excess_aurc: float  # aurc minus that of the perfect order (all right answers first)

    def risk_at(self, coverage: float) -> float:
        """The risk at a coverage in (0, 1]."""
        raise NotImplementedError


def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> RiskCoverage:
    """By rising uncertainty (1 − highest probability unless given); ties count with their mean error."""
    raise NotImplementedError
