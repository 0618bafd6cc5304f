"""`Recorder`: from a loop of one's own to a run.

recorder = lv.Recorder(posterior, sampler)
for step, (x, y) in enumerate(loader, 1):
    sampler.zero_grad()
    loss = posterior.loss(x, y)
    loss.backward()
    sampler.step()
    if step > burn_in and step % 10 == 0:
        recorder.record(step, loss=float(loss))
run = recorder.run()
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from langevin.core.arguments import COUNT, NATURAL, validated
from langevin.core.posterior import Posterior
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.inference import checks
from langevin.inference.environment import environment
from langevin.inference.loop_thermometer import LoopThermometer, names_of
from langevin.inference.manifest import (
    checked_keep_last,
    checked_tags,
    describe_posterior,
    device_of,
    sample_dtype_name,
    timestamp,
)
from langevin.samplers import SAMPLERS, Sampler
from langevin.storage import manifest as manifests
from langevin.storage.base import SampleStore, tensor_specs
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore


class Recorder:
    """Collects the weights that a loop of one's own visits; `run()` gives a run with predictions and diagnostics.

    Args:
        posterior: what is sampled; its present weights are recorded.
        sampler: what moves them: its lr and the temperature of its steps are recorded with every sample, its name and T
            stand in the manifest. Make the recorder before burn-in; `watch` takes the samplers of further chains.
        out: the directory of the run. Without one, it is in memory.
        sample_dtype: store samples in this precision (`torch.float16`), to save space.
        keep_last: keep only the last so many samples of each chain.
        tags: anything of yours, JSON-serializable, to be stored in the manifest.
        resume: "auto" goes on in `out` if it contains the run of this posterior already; a step that was recorded there
            is not recorded again.

    Samples are written when enough of them are buffered, and at the latest by `run()`, `close()` or the end of a `with`
    block. Such a run can't be resumed by `lv.resume`: its loop is yours.
    """

    @validated(keep_last=COUNT)
    def __init__(
        self,
        posterior: Posterior,
        sampler: Optimizer | None = None,
        *,
        out: str | Path | None = None,
        sample_dtype: torch.dtype | None = None,
        keep_last: int | None = None,
        tags: Mapping[str, Any] | None = None,
        resume: Literal["auto"] | None = None,
    ) -> None:
        checks.check_posterior(posterior)
        if sampler is not None and not isinstance(sampler, Optimizer):
            raise ValueError(
                f"sampler={type(sampler).__name__} is not a sampler; pass the object that your loop steps."
            )
        self._posterior, self._sampler = posterior, sampler
        manifest = {
            "created": timestamp(),
            "tags": checked_tags(tags),
            "sampler": _describe_sampler(sampler),
            "schedule": None,
            "num_data": posterior.num_data,
            **describe_posterior(posterior),
            "inputs": None,
            "sample_dtype": sample_dtype_name(sample_dtype),
            "keep_last": checked_keep_last(keep_last),
            "tensors": tensor_specs(self._weights()),
            "environment": environment(device_of(posterior)),
            "recorded": True,
            "resumed": [],
        }
        goes_on = resume == "auto" and out is not None and manifests.exists(Path(out))
        self._store: SampleStore
        if out is None:
            self._store = MemoryStore(manifest)
        else:
            self._store = _continued(out, manifest) if goes_on else DirectoryStore.create(out, manifest)
        self._thermometers: dict[int, LoopThermometer] = {}
        if isinstance(sampler, Sampler):
            self._read(sampler)
        self._stack = ExitStack()
        self._stack.enter_context(self._store.writing())
        if not goes_on:
            self._store.write_fixed(posterior.fixed_tensors())
            self._store.write_manifest()

    def watch(self, sampler: Sampler) -> None:
        """Read the temperature of another chain's sampler, before its burn-in; `sampler` has the chain's number."""
        if not isinstance(sampler, Sampler):
            raise ValueError(f"watch takes the sampler that your loop steps; given {type(sampler).__name__}.")
        if names_of(self._posterior, sampler) is None:
            raise ValueError(
                "watch takes a sampler of this posterior's parameters, or of those of another like it, in their order: "
                "lv.SGHMC(other.parameters(), …)."
            )
        self._read(sampler)
        if self._store.manifest["sampler"] is None:
            self._store.manifest["sampler"] = _describe_sampler(sampler)
            self._store.write_manifest()

    def _read(self, sampler: Sampler) -> None:
        if (found := LoopThermometer.of(self._posterior, sampler)) is not None:
            self._thermometers[sampler.param_groups[0]["chain"]] = found

    @validated(step=NATURAL, chain=NATURAL)
    def record(self, step: int, *, chain: int = 0, weights: Mapping[str, Tensor] | None = None, **stats: float) -> None:
        """Record the posterior's present weights (or those given, by name) as the sample of a step.

        Further keywords are statistics of that step, such as `loss=…`: `run.trace("loss")` gives them back.
        """
        if self._sampler is not None:
            stats = {"lr": float(self._sampler.param_groups[0]["lr"]), **stats}
        plain: dict[str, Any] = dict(stats)
        if wrong := [name for name, value in plain.items() if not isinstance(value, Real | Tensor)]:
            raise ValueError(f"{wrong[0]} is a statistic, a number; given {wrong[0]}={plain[wrong[0]]!r}.")
        numbers = {name: float(value) for name, value in stats.items()}
        own = self._weights()
        if weights is not None and {n: getattr(t, "shape", None) for n, t in weights.items()} != {
            n: t.shape for n, t in own.items()
        }:
            raise ValueError(f"weights must have the names and shapes of the posterior's, {list(own)[:3]}…")
        if (thermometer := self._thermometers.get(chain)) is not None:
            numbers = thermometer.take() | numbers
        self._store.add(chain, step, own if weights is None else weights, numbers)

    def run(self) -> Run:
        """The samples so far, as a run; recording may go on."""
        self._write()
        return Run(self._store, Predictor(self._posterior.model, self._posterior.likelihood))

    def flush(self) -> None:
        """Write what is buffered."""
        self._write()

    def close(self) -> None:
        """Write what is buffered, and let go of the directory."""
        self._write()
        self._stack.close()

    def _write(self) -> None:
        """Write what is buffered, and how many samples there are, so that none can vanish unnoticed."""
        if self._store.buffered():
            self._store.flush()
            self._store.write_manifest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _weights(self) -> dict[str, Tensor]:
        weights = {name: p.detach() for name, p in self._posterior.trainable_parameters().items()}
        return weights | self._posterior.running_statistics()


def _continued(out: str | Path, manifest: Mapping[str, Any]) -> DirectoryStore:
    """The run in a directory, if it was recorded from the same posterior and sampler."""
    store = DirectoryStore.open(out)
    if not store.manifest.get("recorded"):
        raise RunError(f"{out} contains a run of lv.sample, which lv.resume continues; give another directory.")
    for name in ("tensors", "num_data", "architecture", "prior", "weight", "backbone", "likelihood", "sample_dtype"):
        if store.manifest.get(name) != manifest[name]:
            raise RunError(
                f"{out} contains a run of another posterior ({name} differs). Choose another directory: "
                f"out={str(out) + '-2'!r}."
            )
    before, now = (each.get("sampler") or {} for each in (store.manifest, manifest))
    if before.get("name") != now.get("name"):
        raise RunError(f"{out} was recorded with {before.get('name')}, not {now.get('name')}; give another directory.")
    return store


def _describe_sampler(sampler: Optimizer | None) -> dict[str, Any] | None:
    """The name and the plain settings of a registered sampler."""
    if not isinstance(sampler, Sampler) or type(sampler) not in SAMPLERS.values():
        return None
    group = sampler.param_groups[0]
    plain = {
        k: v for k, v in group.items() if k not in ("params", "step", "chain") and isinstance(v, int | float | str)
    }
    return {"name": type(sampler).__name__, "options": plain}
