"""When sampling may stop: enough effective samples, and a predictive density that is known well enough.

Both are of the spread within chains. The spread between chains is reported beside them and never required: chains of a
network sit in different modes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.inference.autopilot.evaluate import Evaluation
from langevin.storage.base import SampleStore

ESS = 400.0
ERROR = 0.005  # nats
FEWEST = 50  # samples of a chain
GROWTH = 1.25
_OUTPUTS = 256
_TOGETHER = 64


class Look(NamedTuple):
    """What a look at the samples found."""

    samples: int  # of each chain
    ess: float  # tenth percentile over predictions, summed over chains
    density: float  # mean log predictive density of the watched examples
    error: float  # its Monte-Carlo error, within chains
    between: float  # standard deviation of the chains' own densities

    @property
    def enough(self) -> bool:
        """Whether both targets are met."""
        return self.samples >= FEWEST and self.ess >= ESS and self.error <= ERROR

    def __str__(self) -> str:
        return (
            f"{self.ess:.0f} effective samples within chains, log predictive density {self.density:.3f} ± "
            f"{self.error:.1g} (between chains {self.between:.1g})"
        )


def numbers_of_samples(most: int) -> list[int]:
    """Samples of each chain at which to look."""
    numbers = [min(FEWEST, most)]
    while numbers[-1] < most:
        grown = max(numbers[-1] + 1, round(GROWTH * numbers[-1]))
        numbers.append(most if grown > most / GROWTH**0.5 else grown)
    return numbers


def met_twice(looks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last two looks found enough."""
    return len(looks) >= 2 and all(look["enough"] for look in looks[-2:])


class Watch:
    """The predictions of all samples on the watched examples; each sample is read once."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._seen: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}  # chain → step → outputs, log-likelihoods

    def look(self, store: SampleStore) -> Look:
        """Read what is new and look at all."""
        store.flush()
        for chain in sorted({record.chain for record in store.records()}):
            seen = self._seen.setdefault(chain, {})
            new = [record for record in store.records(chain) if record.step not in seen]
            for first in range(0, len(new), _TOGETHER):
                some = new[first : first + _TOGETHER]
                rows = [store.read(record) for record in some]
                outputs, log_probs = self._evaluation({n: torch.stack([row[n] for row in rows]) for n in rows[0]})
                flat = outputs.reshape(len(some), -1)
                flat = flat[:, :: max(1, flat.shape[1] // _OUTPUTS)]
                for record, f, ll in zip(some, flat, log_probs, strict=True):
                    seen[record.step] = f.clone(), ll.clone()
        length = min(len(seen) for seen in self._seen.values())
        outputs = torch.stack([torch.stack([f for f, _ in list(s.values())[-length:]]) for s in self._seen.values()])
        logs = torch.stack([torch.stack([ll for _, ll in list(s.values())[-length:]]) for s in self._seen.values()])
        return looked(outputs, logs)


def looked(outputs: Tensor, log_probs: Tensor) -> Look:
    """From outputs (chains, samples, m) and log-likelihoods (chains, samples, n)."""
    chains, samples, examples = log_probs.shape
    log_probs = log_probs.double()
    together = log_probs.reshape(-1, examples).logsumexp(0) - math.log(chains * samples)
    own = log_probs.logsumexp(1) - math.log(samples)
    between = float(own.mean(1).std()) if chains > 1 else math.nan
    density = float(together.mean())
    if samples < 4:
        return Look(samples, 0.0, density, math.inf, between)
    ess = pooled_ess(outputs.double())
    share = (log_probs - together).exp().mean(2, keepdim=True)  # of each sample in the density, whose mean is 1
    error = math.sqrt(float(share.var(1).mean() / pooled_ess(share).clamp_min(1.0)))
    return Look(samples, float(torch.quantile(ess, 0.1)), density, error, between)


def pooled_ess(draws: Tensor) -> Tensor:
    """Of draws (chains, n, …), the effective samples of all chains by batch means, variances pooled over chains.

    Chains one by one would give ratios of few degrees of freedom, whose mean is too large.
    """
    chains, n = draws.shape[:2]
    length = math.isqrt(n)
    first = n % length
    batches = draws[:, first:].reshape(chains, n // length, length, *draws.shape[2:]).mean(2)
    of_mean = (batches.var(1) * length / n).mean(0) / chains
    variance = draws.var(1).mean(0)
    return torch.where(variance > 0, variance / of_mean.clamp_min(torch.finfo(draws.dtype).tiny), 0.0)
