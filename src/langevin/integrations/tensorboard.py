"""Looking on while a run is sampled: TensorBoard, as a callback of the loop.

with TensorBoard(posterior, "runs/mine/tensorboard", validation=(x, y)) as log:
    run = lv.sample(posterior, train, …, out="runs/mine", callbacks=[log])
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from langevin.core.batches import batch_size_of, call
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior
from langevin.core.statistics import effective_sample_size
from langevin.ensembles.run import Run
from langevin.inference.settings import StepInfo

_PROBES = 32
_PIECE = 1024  # validation examples at a time


class TensorBoard:
    """Writes loss, learning rate and temperature of each chain by step, and of the samples so far, by their number:

    - their predictive NLL on validation data, −mean log mean_s p(y|x,θ_s), over all chains;
    - their effective number: over up to 32 of the validation examples the median of the ESS of log p(y|x,θ), summed
      over chains. The weights themselves are not identified, so what they predict is counted.

    Args:
        posterior: what is sampled; its model is left as it is.
        directory: where the event files go; look at them with `tensorboard --logdir`.
        validation: held-out data (x, y); without them neither NLL nor ESS can be told.
        every: write loss and rate every so many steps.
        begun: the run that is being resumed, whose samples count as well.
    """

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
            raise ValueError("Logging needs the package tensorboard: pip install 'langevin[live]'.") from None
        if every < 1:
            raise ValueError(f"every={every}: write every 1 or more steps.")
        self._writer = SummaryWriter(str(directory))
        self._every = every
        self._predictive = None if validation is None else _Predictive(posterior, *validation)
        if self._predictive is not None and begun is not None:
            for chain in begun.chains:
                for weights in begun.chain(chain):
                    self._predictive.take(chain, weights)

    def __call__(self, moment: StepInfo) -> None:
        """Write what there is to say after a step."""
        step = moment.step
        if step % self._every == 0:
            for chain, loss in zip(moment.chains, moment.loss, strict=True):
                self._write(f"loss/chain {chain}", loss, step)
                self._write(f"lr/chain {chain}", moment.lr, step)
        for chain, heat in zip(moment.chains, moment.temperature, strict=False):  # empty at most steps
            self._write(f"temperature/chain {chain}", heat, step)
        if self._predictive is not None and moment.plan.keeps(step):
            for index, chain in enumerate(moment.chains):
                self._predictive.take(chain, moment.weights(index))
            so_far = self._predictive.count  # chains that run one after another would go back in steps
            self._write("validation/NLL of the samples so far", self._predictive.nll(), so_far)
            if math.isfinite(ess := self._predictive.ess()):
                self._write("validation/effective samples so far", ess, so_far)
            self._writer.flush()

    def close(self) -> None:
        """Write out what waits."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)


class _Predictive(nn.Module):
    """log p(y|x,θ_s) of validation examples, gathered sample by sample."""

    def __init__(self, posterior: Posterior, x: Any, y: Any) -> None:
        super().__init__()
        self.model = copy.deepcopy(posterior.model)
        self.likelihood: Any = copy.deepcopy(posterior.likelihood)
        self.eval()
        if batch_size_of(y) == 0:
            raise ValueError("There is no validation example: y is empty.")
        self._data = x, y
        self._names = internal_names(self)
        self._probes = torch.linspace(0, batch_size_of(y) - 1, min(_PROBES, batch_size_of(y))).long()
        self.count = 0
        self._total: Tensor | None = None  # log Σ_s p(y|x,θ_s)
        self._traces: dict[int, list[Tensor]] = {}

    def forward(self, x: Any, y: Any) -> Tensor:
        log_p: Tensor = self.likelihood.log_prob(call(self.model, x), y)
        return log_p

    @torch.no_grad()
    def take(self, chain: int, weights: Mapping[str, Tensor]) -> None:
        device = next(self.parameters()).device
        named = {self._names[name]: tensor.to(device) for name, tensor in weights.items()}
        pieces = []
        for start in range(0, batch_size_of(self._data[1]), _PIECE):
            piece = tree_map(lambda t, s=start: torch.as_tensor(t[s : s + _PIECE]).to(device), self._data)
            pieces.append(functional_call(self, named, piece).double().cpu())
        log_p = torch.cat(pieces)
        self._total = log_p if self._total is None else torch.logaddexp(self._total, log_p)
        self.count += 1
        self._traces.setdefault(chain, []).append(log_p[self._probes])

    def nll(self) -> float:
        assert self._total is not None
        return math.log(self.count) - float(self._total.mean())

    def ess(self) -> float:
        """nan while a chain has fewer than four samples."""
        if any(len(trace) < 4 for trace in self._traces.values()):
            return math.nan
        return float(sum(effective_sample_size(torch.stack(trace)).median() for trace in self._traces.values()))
