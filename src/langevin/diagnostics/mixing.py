"""Did the chains mix? Effective sample sizes and rank-normalized R̂, of weights and of predictions.

Weights of a network are not identified (units can be permuted, ReLU layers rescaled), so chains that disagree about
weights may agree about every prediction: function space, log-probabilities on a probe set, is what counts for use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Mixing:
    """Diagnostics of q scalar quantities, each array (q,); nan where it can't be known, `unknown` says why.

    `ess` is MATH's rule (to the first negative autocorrelation), `ess_batch` that of batch means, `ess_bulk`,
    `ess_tail` and `rhat` are ArviZ's. All count the draws of all chains together.
    """

    space: str  # "weights" or "function"
    names: list[str]
    chains: int
    draws: int  # of each chain: the shortest chain's
    ess: np.ndarray
    ess_batch: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    rhat: np.ndarray
    mess_full: float = float("nan")  # n(|Λ|/|Σ|)^{1/q}, for few quantities
    unknown: dict[str, str] = field(default_factory=dict)  # field → why it is nan

    @property
    def mess(self) -> float:
        """mESS, diagonal: the geometric mean of `ess`; nan if unknown."""
        raise NotImplementedError

    @property
    def worst_rhat(self) -> float:
        """The largest R̂; nan if unknown."""
        raise NotImplementedError

    def share_above(self, limit: float = 1.01) -> float:
        """The share of the quantities with R̂ above a limit; nan if unknown."""
        raise NotImplementedError


def mixing(draws: np.ndarray, *, space: str = "weights", names: Sequence[str] = ()) -> Mixing:
    """Diagnostics of draws (chains, draws, quantities)."""
    raise NotImplementedError


def weight_mixing(
    chains: Sequence[Iterable[Mapping[str, Tensor]]],
    *,
    names: str | Sequence[str] | None = None,
    subset: int | None = 1000,
    seed: int = 0,
) -> Mixing:
    """In weight space, streamed: of the parameters whose names match (all by default), a random subset (None: all)."""
    raise NotImplementedError
