"""The warm start: every chain at an optimum of its own.

Chains start at fresh initializations, or at the given weights if these are better than fresh ones: then the model is
pre-trained. AdamW minimizes the loss on the training part of the data, all chains at once; after each leg the loss on
the held-out part is looked at, and the best weights of each chain are kept. It ends when the best of every chain is
older than a third of the steps; a second phase at a fifth of the rate refines it. Where a limit is given the number of
steps is known, so the rate is higher the fewer there are, and decays to 0 with the last; if the likelihood has a
predicted scale, it begins with examples weighted by it. Together the best weights are a deep ensemble, which the run
keeps.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from langevin.core.batches import Batches, as_batches, batch_size_of
from langevin.core.likelihoods.heteroscedastic import PredictedScale
from langevin.core.posterior import Posterior
from langevin.core.priors import number_of_inputs
from langevin.inference.autopilot import stages
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.evaluate import Evaluation, stack
from langevin.inference.autopilot.stages import StageStores
from langevin.inference.engine import Engine
from langevin.inference.manifest import device_of, inputs_of, make_manifest
from langevin.inference.settings import CheckpointInterval, RunSettings
from langevin.inference.starts import fresh_weights, remark_on_redrawn, starting_weights
from langevin.inference.steppers import OptimizerFactory
from langevin.storage.base import SampleStore

Weights = Mapping[str, Tensor]

_LR = 5e-3
_SLOWER = 5  # the rate of the second phase is so many times smaller
_PRETRAINED = 10  # and that of given weights
_GROWTH = 1.1  # of the steps from one look at the held-out part to the next
_LEG = 100  # steps at least
_PATIENCE = 1.5  # ends when that many times the steps of the best have not bettered it
STEPS, EPOCHS = 3000, 60  # the first phase takes at most the larger of the two
# with a limit, of which the warm start has its share; without one its gradients are what the budget is counted in
SECOND_PHASE = 1.5  # all phases are so many times as long as the first of a run without a limit, at most
_LONGER, _FASTER = 2, 4  # times the steps of the first phase, and the rate, at most
_MOVES = 60.0  # lr × steps, by which AdamW moves a weight in all
_MOVE = 1.0  # lr × inputs, by which a step of AdamW moves a unit of the widest layer: with more, losses are worse
_WEIGHTED = 3  # one of so many steps, at first, in which examples are weighted by a predicted scale
_LEGS, _ANNEALED_LEGS = 8, 16  # of a phase whose length is known, and of one whose rate decays
_TOGETHER = 50  # sets of weights that are judged at a time
_FRESH = 200  # initializations that given weights are compared with: one more of these is best of all with chance 1/201
_LARGE, _FEW_FRESH = 10**5, 10  # of a large model, whose initialization takes time; there has to be a margin too


@dataclass(frozen=True)
class WarmStart:
    """The best weights of each chain, what they cost, and what was found."""

    weights: list[dict[str, Tensor]]
    losses: list[float]  # of the held-out part, or of the watched one, if none is
    example_gradients: int  # of each chain
    steps: int
    found: str
    pretrained: bool


def default_batch_size(num_data: int) -> int:
    """A fiftieth of the data, from 32 to 128."""
    return min(max(32, num_data // 50), 128, num_data)


def run_warm_start(
    posterior: Posterior,
    parts: DataParts,
    chains: int,
    *,
    seed: int,
    mode: str,
    batch_size: int | None,
    most: int | None = None,
    stores: StageStores,
    interval: CheckpointInterval,
    progress: bool,
) -> WarmStart:
    """All phases; those that have begun go on.

    `most`: steps of the first phase, if there is a limit. All phases together then take `SECOND_PHASE` times as many.
    """
    objective = copy.deepcopy(posterior)
    objective.num_data = parts.num_training
    judged = Evaluation(posterior, parts.watched if parts.held_out is None else parts.held_out)
    starts, pretrained = _starts(posterior, judged, chains, seed)
    loader = batch_size is None and not _can_be_indexed(parts)
    size = None if loader else min(batch_size or default_batch_size(parts.num_training), parts.num_training)
    batches = as_batches(parts.training, size, seed, device_of(posterior))
    per_step = size or batch_size_of(batches.fetch(0, 0)[1])
    usual = max(STEPS, math.ceil(EPOCHS * parts.num_training / per_step))
    train = partial(_train, batches, judged, chains, seed=seed, mode=mode, batch_size=size, stores=stores)
    train = partial(train, interval=interval, progress=progress)
    if most is None or pretrained:
        lr = _LR / _PRETRAINED if pretrained else _LR
        first = train(objective, "warm-start", starts, lr, most=usual if most is None else min(most, usual))
        slower = partial(train, objective, "warm-start-slower", first.weights, lr / _SLOWER, legs=_LEGS)
        last = slower(most=max(_LEG, first.longest // 2))
        steps = first.steps + last.steps
    else:
        steps = max(2, int(SECOND_PHASE * min(most, _LONGER * usual)))
        lr, begun = _limited_rate(posterior, steps), 0
        weights: Sequence[Weights] = starts
        if (weighted := _weighted(objective)) is not None:
            begun = max(1, steps // _WEIGHTED)
            weights = train(weighted, "warm-start-weighted", starts, lr, most=begun, legs=_LEGS).weights
        last = train(objective, "warm-start", weights, lr, most=steps - begun, legs=_ANNEALED_LEGS, anneal=True)
    where = "of the watched examples" if parts.held_out is None else "of the held-out part"
    mean, before = (sum(losses) / chains for losses in (last.losses, judged_losses(judged, starts)))
    return WarmStart(
        weights=last.weights,
        losses=last.losses,
        example_gradients=steps * per_step,
        steps=steps,
        found=f"mean loss {where} {before:.3g} → {mean:.3g}, AdamW, {steps} steps of {per_step} examples, "
        + ("from the given weights" if pretrained else "from fresh initializations")
        + (f"; {redrawn}" if not pretrained and (redrawn := remark_on_redrawn(posterior)) else ""),
        pretrained=pretrained,
    )


class _ScaleWeighted(nn.Module):
    """A likelihood whose log p is `weighted_log_prob`."""

    def __init__(self, likelihood: PredictedScale) -> None:
        super().__init__()
        self.log_prob = likelihood.weighted_log_prob


def _weighted(objective: Posterior) -> Posterior | None:
    """The posterior with examples weighted by their predicted scales, if they have one."""
    if not isinstance(objective.likelihood, PredictedScale):
        return None
    weighted = copy.deepcopy(objective)
    weighted.likelihood = _ScaleWeighted(objective.likelihood)
    return weighted


def _limited_rate(posterior: Posterior, steps: int) -> float:
    """The fewer steps the higher, unless a layer has many inputs: units move by lr × their inputs."""
    inputs = max(map(number_of_inputs, posterior.trainable_parameters().values()), default=0)
    return max(_LR, min(_MOVES / steps, _MOVE / max(inputs, 1), _FASTER * _LR))


def adamw(objective: Posterior, lr: float) -> partial[torch.optim.AdamW]:
    """AdamW without weight decay, beside a prior; in one pass where PyTorch has it."""
    fused = device_of(objective).type in ("cpu", "cuda")
    return partial(torch.optim.AdamW, lr=lr, weight_decay=0.0, fused=fused)


def judged_losses(judged: Evaluation, weights: Sequence[Weights]) -> list[float]:
    """The mean negative log-likelihood of each set of weights."""
    losses: list[float] = []
    for first in range(0, len(weights), _TOGETHER):
        _, log_probs = judged(stack(list(weights[first : first + _TOGETHER])))
        losses += (-log_probs.double().mean(1)).tolist()
    return losses


def _starts(posterior: Posterior, judged: Evaluation, chains: int, seed: int) -> tuple[list[Weights], bool]:
    """Fresh weights for each chain, or the given ones for all, and whether these are better than fresh ones can be."""
    given = starting_weights("model", 0, posterior)
    size = sum(tensor.numel() for tensor in given.values())
    few = size >= _LARGE
    count = max(chains, _FEW_FRESH if few else _FRESH)
    fresh: list[Weights] = list(fresh_weights(posterior, seed, range(count)))
    if not fresh:  # a sharded model
        return [given] * chains, True
    (own,) = judged_losses(judged, [given])
    losses = [loss for loss in judged_losses(judged, fresh) if math.isfinite(loss)]
    best = min(losses, default=math.inf)
    margin = statistics.median(losses) - best if few and losses else 0.0
    return ([given] * chains, True) if own < best - margin else (fresh[:chains], False)


@dataclass
class _Phase:
    weights: list[dict[str, Tensor]]
    losses: list[float]
    steps: int  # that were taken
    longest: int  # step of the best of the chain that needed most


def _train(
    batches: Batches,
    judged: Evaluation,
    chains: int,
    objective: Posterior,
    name: str,
    starts: Sequence[Weights],
    lr: float,
    *,
    most: int,
    legs: int | None = None,
    anneal: bool = False,
    seed: int,
    mode: str,
    batch_size: int | None,
    stores: StageStores,
    interval: CheckpointInterval,
    progress: bool,
) -> _Phase:
    """One phase, of the length `most` if its number of legs is given; its rate is constant, or decays to 0."""
    lengths = _lengths(most, legs)
    settings = stages.settings_of(chains, seed, batch_size, steps=lengths[-1], freeze=False)
    make = OptimizerFactory(adamw(objective, lr))
    schedule = partial(CosineAnnealingLR, T_max=most) if anneal else None
    engine = Engine(objective, batches, make, schedule, settings)
    store = stores.find(name)
    if store is None:
        engine.choose_mode(mode, starts)
        losses = judged_losses(judged, starts)
        about = {"best": {"losses": [_plain(loss) for loss in losses], "steps": [0] * chains, "leg": -1}}
        store = stores.create(name, make_manifest(engine, objective, inputs=inputs_of(batches)) | about)
        with store.writing():
            store.write_fixed(by_chain(dict(enumerate(starts))), "best")
            stages.begin(engine, store, objective.fixed_tensors(), dict(enumerate(starts)))
    else:
        engine.settings = RunSettings(**store.manifest["settings"])
    with store.writing():
        for leg, until in enumerate(lengths):
            if leg <= store.manifest["best"]["leg"]:
                continue
            if legs is None and leg and _is_over(store.manifest["best"]["steps"], lengths[leg - 1]):
                break
            stages.advance(engine, store, until, title="warm start", progress=progress, interval=interval)
            _look(store, judged, chains, leg, until)
    best = store.manifest["best"]
    weights = of_chains(store.fixed("best"), chains)
    return _Phase(weights, [_number(loss) for loss in best["losses"]], lengths[best["leg"]], max(best["steps"]))


def _look(store: SampleStore, judged: Evaluation, chains: int, leg: int, step: int) -> None:
    """Keep the weights of the chains that have become better on the held-out part."""
    best = store.manifest["best"]
    weights = stages.weights_of(store, chains)
    losses = judged_losses(judged, weights)
    better = [c for c, loss in enumerate(losses) if loss < _number(best["losses"][c])]
    if better:
        store.write_fixed(store.fixed("best") | by_chain({c: weights[c] for c in better}), "best")
    for c in better:
        best["losses"][c], best["steps"][c] = losses[c], step
    best["leg"] = leg
    store.write_manifest()


def _lengths(most: int, legs: int | None) -> list[int]:
    """After how many steps the held-out part is looked at."""
    if legs is not None:
        return sorted({max(1, most * part // legs) for part in range(1, legs + 1)})
    lengths = [min(_LEG, most)]
    while lengths[-1] < most:
        lengths.append(min(most, max(lengths[-1] + _LEG, math.ceil(_GROWTH * lengths[-1]))))
    return lengths


def _is_over(best: list[int], step: int) -> bool:
    return step >= 4 * _LEG and all(_PATIENCE * max(at, 1) < step for at in best)


def by_chain(weights: Mapping[int, Weights]) -> dict[str, Tensor]:
    """The weights of chains in one file: "3/0.weight"."""
    return {f"{chain}/{name}": tensor for chain, each in weights.items() for name, tensor in each.items()}


def of_chains(tensors: Mapping[str, Tensor], chains: int) -> list[dict[str, Tensor]]:
    """The opposite of `by_chain`."""
    found: list[dict[str, Tensor]] = [{} for _ in range(chains)]
    for place, tensor in tensors.items():
        chain, _, name = place.partition("/")
        found[int(chain)][name] = tensor
    return found


def _can_be_indexed(parts: DataParts) -> bool:
    return not isinstance(parts.training, torch.utils.data.DataLoader)


def _plain(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _number(loss: float | None) -> float:
    return math.inf if loss is None else loss
