"""The end of a run: its verdict, in one line on stderr, and a warning if it is bad."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from langevin.core.batches import Batches, as_batches, batch_size_of
from langevin.core.posterior import Posterior
from langevin.core.progress import tqdm
from langevin.core.user_level import user_level
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.run import Run
from langevin.ensembles.summary import judge
from langevin.errors import ConvergenceWarning
from langevin.inference.distributed import Place
from langevin.inference.manifest import device_of
from langevin.storage.base import SampleStore

_INPUTS = 16  # training inputs on which chains are compared
_CHEAP = 1 << 31  # bytes of samples that are read for it
_SMALL = 1 << 26  # bytes of one sample; of larger ones nothing is read, which would need memory


def probe_inputs(posterior: Posterior, batches: Batches) -> Any:
    """A few training inputs, on which the predictions of the chains are compared; None if they can't predict."""
    if not (hasattr(posterior.likelihood, "probs") or hasattr(posterior.likelihood, "moments")):
        return None
    x, y = batches.peek()
    if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(x)):
        return None
    count = min(_INPUTS, batch_size_of(y))
    return tree_map(lambda t: t[:count].detach().cpu().clone(), x)


def autopilot_probe(posterior: Posterior, data: Any, seed: int) -> Any:
    """`probe_inputs` whatever the size of batches, which a run by autopilot chooses: a resumed run has the same."""
    return probe_inputs(posterior, as_batches(data, None, seed, device_of(posterior)))


def concluded(store: SampleStore, posterior: Posterior, probe: Any, place: Place, progress: bool) -> Run:
    """The run, after its verdict was said: a line if `progress`, a warning if it is bad."""
    run = Run(store, Predictor(posterior.model, posterior.likelihood), probe=probe)
    if not place.leads:
        return run
    try:
        size = store.bytes_per_sample()
        cheap = size <= _SMALL and size * len(run) <= _CHEAP
        verdict = run.verdict() if cheap else judge(run, run.all_temperatures(), None)
    except Exception as error:  # the samples are drawn, and must not be lost
        warnings.warn(f"The run is complete, but its verdict can't be computed: {error}", stacklevel=user_level())
        return run
    optimizes = run.sampler is not None and (run.sampler.target != "posterior" or run.target_temperature == 0)
    if progress and (verdict.level == "bad" or not optimizes):
        tqdm.write(f"verdict {verdict}", sys.stderr)
    if verdict.level == "bad":
        why = " ".join(f"{finding.message} {finding.advice}".rstrip() for finding in verdict.worst)
        warnings.warn(f"The verdict on this run is bad. {why}", ConvergenceWarning, stacklevel=user_level())
    return run
