"""TensorBoard logging, as a callback of `lv.sample`.

```python
with TensorBoard(posterior, "runs/mine/tensorboard", validation=(x, y)) as log:
    run = lv.sample(posterior, train, …, out="runs/mine", callbacks=[log])
```
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core.arguments import COUNT, validated
from langevin.core.batches import batch_size_of
from langevin.core.posterior import Posterior
from langevin.core.statistics import effective_sample_size
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.run import Run
from langevin.inference.callbacks import StepInfo

_PROBES = 32
_BATCH = 1024  # validation examples per forward pass


class TensorBoard:
    """Logs loss, learning rate and temperature of each chain by step and, by the number of samples so far:

    - the predictive NLL on validation data, −mean log mean_s p(y|x,θ_s), over all chains;
    - the effective sample size: the median ESS of log p(y|x,θ) over up to 32 validation examples, summed over chains.
      Weights are not identified, so it is computed from predictions.

    Args:
        posterior: the sampled posterior; its model is not changed.
        directory: where event files are written; view them with `tensorboard --logdir`.
        validation: held-out data (x, y); without them NLL and ESS are not written.
        every: number of steps between values of loss and learning rate.
        begun: the run to resume; its samples count as well.
    """

    @validated(every=COUNT)
    def __init__(
        self,
        posterior: Posterior,
        directory: str | Path,
        *,
        validation: tuple[Any, Any] | None = None,
        every: int = 10,
        begun: Run | None = None,
    ) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ValueError("Logging needs tensorboard: pip install 'langevin[tensorboard]'.") from None
        if every < 1:
            raise ValueError(f"every={every}: give 1 or more steps.")
        self._writer = SummaryWriter(str(directory))
        self._every = every
        self._predictive = None if validation is None else _Predictive(posterior, *validation)
        if self._predictive is not None and begun is not None:
            for chain in begun.chains:
                self._predictive.add(chain, begun.chain(chain))

    def __call__(self, info: StepInfo) -> None:
        """Write the values of a step."""
        step = info.step
        if step % self._every == 0:
            for chain, loss in zip(info.chains, info.loss, strict=True):
                self._write(f"loss/chain {chain}", loss, step)
                self._write(f"lr/chain {chain}", info.lr, step)
        for chain, temperature in zip(info.chains, info.temperature, strict=False):  # empty at steps without a reading
            self._write(f"temperature/chain {chain}", temperature, step)
        if self._predictive is not None and info.settings.saves(step):
            for index, chain in enumerate(info.chains):
                self._predictive.add(chain, [info.weights(index)])
            so_far = self._predictive.count  # not the step, which restarts for every sequential chain
            self._write("validation/NLL of the samples so far", self._predictive.nll(), so_far)
            if math.isfinite(ess := self._predictive.ess()):
                self._write("validation/ESS of the samples so far", ess, so_far)
            self._writer.flush()

    def close(self) -> None:
        """Write buffered events and close the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)


class _Predictive:
    """log p(y|x,θ_s) of validation examples, accumulated over samples."""

    def __init__(self, posterior: Posterior, x: Any, y: Any) -> None:
        if batch_size_of(y) == 0:
            raise ValueError("validation has no examples: y is empty.")
        self._predictor = Predictor(posterior.model, posterior.likelihood)
        self._data = x, y
        self._probes = torch.linspace(0, batch_size_of(y) - 1, min(_PROBES, batch_size_of(y)), device="cpu").long()
        self.count = 0
        self._total: Tensor | None = None  # log Σ_s p(y|x,θ_s)
        self._traces: dict[int, list[Tensor]] = {}

    @torch.no_grad()
    def add(self, chain: int, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Add samples of a chain."""
        for weights in samples:
            batches = []
            for start in range(0, batch_size_of(self._data[1]), _BATCH):
                x, y = tree_map(lambda t, s=start: t[s : s + _BATCH], self._data)
                batches += [log_p.double().cpu() for log_p in self._predictor.log_probs([weights], x, y)]
            log_p = torch.cat(batches)
            self._total = log_p if self._total is None else torch.logaddexp(self._total, log_p)
            self.count += 1
            self._traces.setdefault(chain, []).append(log_p[self._probes])

    def nll(self) -> float:
        assert self._total is not None
        return math.log(self.count) - float(self._total.mean())

    def ess(self) -> float:
        """NaN while a chain has fewer than four samples."""
        if any(len(trace) < 4 for trace in self._traces.values()):
            return math.nan
        return float(sum(effective_sample_size(torch.stack(trace)).median() for trace in self._traces.values()))
