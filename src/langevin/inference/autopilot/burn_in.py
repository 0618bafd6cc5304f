"""Burn-in: chains move away from their optima until losses and predictions are stationary; then all that adapts is
frozen.

It is looked at after lengths that grow by a half: it is over when the last two windows, of which the second is twice as
long, do not differ (see `stationary`), or when its share of the budget is spent, which is said. Full-batch samplers
take large steps until then, and settle after it, in a sixth as many steps, to small ones; SGHMC with mini-batches
settles to the metric and the rate that are found there. A chain whose potential is far above that of its start has
diverged, though no number was infinite.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from langevin.core.posterior import Posterior
from langevin.errors import DivergenceError
from langevin.inference.autopilot import stages
from langevin.inference.autopilot.evaluate import Evaluation, stack
from langevin.inference.autopilot.stages import StageStores, weights_at
from langevin.inference.autopilot.stationary import Drift, drifts
from langevin.inference.chains import Weights
from langevin.inference.engine import Engine
from langevin.inference.manifest import inputs_of, make_manifest
from langevin.inference.monitor import Monitor
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.storage.base import Checkpoint, SampleStore

_WATCHED = 64  # times in the first leg
SETTLING = 100  # steps at least: large steps heat stiff directions, and small ones have to cool them
_WITHOUT_TEST = 250  # if no Metropolis test cools them, and at most a tenth of all steps
_SETTLED_IN = 6  # the part of the steps before, at least
_GROWTH = 1.5  # of the steps from one look to the next
_PREDICTIONS = 4  # random combinations of outputs


@dataclass(frozen=True)
class BurnIn:
    """Chains, and how burn-in ended."""

    checkpoints: dict[int, Checkpoint]
    steps: int
    settled: bool
    found: str
    mode: str
    compiled: bool
    evaluations: int  # of all chains


def run_burn_in(
    engine: Engine,
    posterior: Posterior,
    evaluation: Evaluation,
    starts: Mapping[int, Mapping[str, Tensor]],
    *,
    name: str,
    compile: bool | None,
    first: int,
    most: int,
    freeze: bool,
    stores: StageStores,
    interval: CheckpointInterval,
    progress: bool,
) -> BurnIn:
    """Legs that grow from `first` on; the last ends at `most` steps."""
    engine.monitor = Monitor(_watcher(evaluation, engine.settings.seed), max(1, first // _WATCHED))
    store = stores.find(name)
    if store is None:
        engine.choose_mode(engine.settings.mode, list(starts.values()), compile)
        store = stores.create(name, make_manifest(engine, posterior, inputs=inputs_of(engine.batches)))
        store.manifest["looks"] = []
        with store.writing():
            stages.begin(engine, store, posterior.fixed_tensors(), starts)
    else:
        engine.settings = RunSettings(**store.manifest["settings"])
    lengths = _lengths(first, most)
    with store.writing():
        for leg in range(len(store.manifest["looks"]), len(lengths)):
            if leg and store.manifest["looks"][-1]["settled"]:
                break
            stages.advance(engine, store, lengths[leg], title="burn-in", progress=progress, interval=interval)
            _look(store, engine, lengths[leg])
        chains = _ended(engine, store, freeze=freeze)
    looks = store.manifest["looks"]
    last, settings = looks[-1], engine.settings
    return BurnIn(
        checkpoints=chains,
        steps=lengths[len(looks) - 1],
        settled=last["settled"],
        found=last["found"],
        mode=settings.mode,
        compiled=settings.compile,
        evaluations=stages.evaluations(chains.values()),
    )


def settle(
    engine: Engine,
    posterior: Posterior,
    burnt: BurnIn,
    metrics_at: Callable[[Sequence[Weights]], list[list[Tensor]] | None] | None,
    *,
    name: str,
    least: int,
    stores: StageStores,
    interval: CheckpointInterval,
    progress: bool,
) -> BurnIn:
    """The rest of burn-in, `least` steps or more, in the metric at these weights: steps become small, or, of samplers
    that do not adapt them, have the rate that was found there. Then all is frozen."""
    steps = max(least, burnt.steps // _SETTLED_IN)
    engine.settings = replace(engine.settings, steps=steps, mode=burnt.mode, compile=burnt.compiled)
    store = stores.find(name)
    if store is None:
        store = stores.create(name, make_manifest(engine, posterior, inputs=inputs_of(engine.batches)))
        names = list(posterior.trainable_parameters())
        chains = list(burnt.checkpoints.values())
        metrics = None if metrics_at is None else metrics_at([weights_at(each, names) for each in chains])
        for each, own in zip(chains, metrics, strict=True) if metrics is not None else ():
            each.tensors.update({f"state/{n}/metric": m.cpu() for n, m in zip(names, own, strict=True)})
        small = {} if metrics_at is None else {"adapt_steps": steps, "held": 0.0, "window": 0}
        with store.writing():
            store.write_fixed(posterior.fixed_tensors())
            stages.hand_over(engine, store, burnt.checkpoints, small)
            store.write_manifest()
    with store.writing():
        stages.advance(engine, store, steps, title="settling", progress=progress, interval=interval)
        ended = _ended(engine, store, freeze=True)
    spent = burnt.evaluations + stages.evaluations(ended.values())
    return replace(burnt, checkpoints=ended, steps=burnt.steps + steps, evaluations=spent)


def fewest_settling(sampler: str, total: int) -> int:
    """Steps of settling at least, for a sampler with so many steps in all."""
    return max(SETTLING, min(_WITHOUT_TEST, total // 10)) if sampler == "MCLMC" else SETTLING


def refuse_diverged(
    posterior: Posterior, evaluation: Evaluation, starts: Sequence[Weights], burnt: BurnIn, temperature: float
) -> None:
    """Raise if a chain has a potential far above that of its start: no number was infinite, but it is not there."""
    names = list(posterior.trainable_parameters())
    before = potentials(posterior, evaluation, starts)
    after = potentials(posterior, evaluation, [weights_at(each, names) for each in burnt.checkpoints.values()])
    spread = 2 * temperature * sum(w.numel() for w in starts[0].values()) / posterior.num_data
    for chain, start, value in zip(burnt.checkpoints, before, after, strict=True):
        if not value <= start + abs(start) + 1 + spread:
            raise DivergenceError(
                f"Chain {chain}: after burn-in the loss is {value:.3g}, far above the {start:.3g} of its start. "
                f"Sample again with a smaller lr; `langevin doctor` estimates the largest stable one."
            )


@torch.no_grad()
def potentials(posterior: Posterior, evaluation: Evaluation, weights: Sequence[Weights]) -> list[float]:
    """U/N of each set of weights, by the watched examples."""
    posterior = copy.deepcopy(posterior)
    _, log_probs = evaluation(stack(list(weights)))
    found = []
    for each, log_prob in zip(weights, log_probs, strict=True):
        for name, parameter in posterior.trainable_parameters().items():
            parameter.copy_(each[name])
        nll = -posterior.weight * float(log_prob.double().mean())
        found.append(nll - float(posterior.log_prior()) / posterior.num_data)
    return found


def _lengths(first: int, most: int) -> list[int]:
    lengths = [min(first, most)]
    while lengths[-1] < most:
        longer = math.ceil(_GROWTH * lengths[-1])
        lengths.append(longer if _GROWTH * longer <= most else most)
    return lengths


def _look(store: SampleStore, engine: Engine, steps: int) -> None:
    """Record whether the last two windows differ."""
    assert engine.monitor is not None
    series = {chain: c.values["watched"] for chain, c in _checkpoints(store, engine).items()}
    found = drifts(series, steps)
    worst = max(found, key=_relative)
    settled = all(drift.settled for drift in found)
    store.manifest["looks"].append({"steps": steps, "settled": settled, "found": str(worst)})
    store.write_manifest()


def _relative(drift: Drift) -> float:
    return abs(drift.change) / max(2 * drift.error, drift.negligible, 1e-300)


def _checkpoints(store: SampleStore, engine: Engine) -> dict[int, Checkpoint]:
    chains = range(engine.settings.chains)
    return dict(zip(chains, store.checkpoints(chains), strict=True))


def _ended(engine: Engine, store: SampleStore, *, freeze: bool) -> dict[int, Checkpoint]:
    """Every chain as it is; `freeze`: with what adapts frozen."""
    found: dict[int, Checkpoint] = {}
    for group in engine.groups(store.checkpoint_steps()):
        chains = engine.restored(store, group)
        if freeze:
            chains.freeze()
        for index, number in enumerate(group):
            found[number] = chains.checkpoint(index, {})
    return found


def _watcher(evaluation: Evaluation, seed: int):  # type: ignore[no-untyped-def]
    """The mean log-likelihood, and a few random combinations of outputs, of each set of weights."""
    combinations: list[Tensor] = []

    def watch(stacked: Mapping[str, Tensor]) -> list[list[float]]:
        outputs, log_probs = evaluation(stacked)
        flat = outputs.reshape(len(outputs), -1).double()
        if not combinations:
            generator = torch.Generator().manual_seed(seed % 2**63)
            signs = torch.randint(2, (flat.shape[1], _PREDICTIONS), generator=generator, device="cpu").double() * 2 - 1
            combinations.append(signs / math.sqrt(flat.shape[1]))
        columns = torch.cat([log_probs.double().mean(1, keepdim=True), flat @ combinations[0]], 1)
        rows: list[list[float]] = columns.tolist()
        return rows

    return watch
