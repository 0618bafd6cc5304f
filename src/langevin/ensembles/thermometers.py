"""What the thermometers of a run have recorded, read from its samples and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics.temperature import Ratio, Windows, keeps_windows, leave_one_out

if TYPE_CHECKING:
    from langevin.ensembles.run import Run


def sampled_examples(run: Run) -> int:
    """N of the energy that was sampled: without those examples that were held out to choose a temperature."""
    return int(run.manifest.get("num_sampled", run.manifest["num_data"]))


def virial_readings(run: Run) -> dict[str, dict[int, list[float]]]:
    """Virial temperatures by tensor and chain: about a constant point or, if unknown, as they were read."""
    names = [name.removeprefix("temperature/") for name in run.traces if name.startswith("temperature/")]
    return _about_other_chains(run, names) or {name: run.trace(f"temperature/{name}") for name in names}


def probed_tensors(run: Run) -> list[str]:
    """The tensors whose gradient temperature was measured."""
    return [name.removeprefix("gradient/") for name in run.traces if name.startswith("gradient/")]


def probed(run: Run, tensors: Sequence[str]) -> Ratio:
    """The readings of the gradient thermometer, of these tensors together."""

    def sums(kind: str) -> dict[int, list[float]]:
        traces = [run.trace(f"{kind}/{name}") for name in tensors]
        return {c: np.sum([trace[c] for trace in traces], axis=0).tolist() for c in run.chains} if traces else {}

    weights = sum(math.prod(run.manifest["tensors"][name]["shape"]) for name in tensors)
    return Ratio(sums("gradient"), sums("curvature"), weights)


def _about_other_chains(run: Run, names: Sequence[str]) -> dict[str, dict[int, list[float]]]:
    """Empty if this is a part of a chain, if there is one chain, or if the model is too large for it."""
    store = run.store
    chains = sorted({record.chain for record in store.records()} & set(store.checkpoint_steps()))
    sizes = {name: math.prod(run.manifest["tensors"][name]["shape"]) for name in names}
    complete = all(len(run.samples.of_chain(c)) == len(store.records(c)) for c in run.chains)
    if (
        len(chains) < 2
        or not complete
        or not set(run.chains) <= set(chains)
        or not keeps_windows(4 * sum(sizes.values()))
    ):
        return {}
    windows = {}
    for chain, checkpoint in zip(chains, store.checkpoints(chains), strict=True):
        if "thermometer" in checkpoint.values:
            windows[chain] = Windows.read(checkpoint.tensors, checkpoint.values["thermometer"], names)
    known = {chain: found for chain, found in windows.items() if found is not None}
    if not names or len(known) < 2 or not set(run.chains) <= set(known):
        return {}
    found = leave_one_out(known, sampled_examples(run))
    return {name: {c: each[c] for c in run.chains} for name, each in found.items()}
