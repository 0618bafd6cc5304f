"""What stands in a manifest."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from langevin.core.batches import Batches, describe_inputs
from langevin.core.likelihoods import LIKELIHOODS
from langevin.core.posterior import Posterior
from langevin.core.pretrained import backbone_digest
from langevin.inference.environment import environment
from langevin.inference.steppers import write_recipe
from langevin.storage.base import tensor_specs

if TYPE_CHECKING:
    from langevin.inference.engine import Engine


def make_manifest(
    engine: Engine,
    posterior: Posterior,
    *,
    inputs: Any,
    sample_dtype: torch.dtype | str | None = None,
    keep_last: int | None = None,
    tags: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """The manifest of a run that an engine is to do; `tensors` are those of a sample."""
    if tensors is None:
        tensors = engine.objective.trainable_parameters() | engine.objective.running_statistics()
    return {
        "created": timestamp(),
        "tags": checked_tags(tags),
        "settings": asdict(engine.settings),
        "sampler": write_recipe(engine.make_stepper),
        "schedule": False if engine.make_scheduler is None else write_recipe(engine.make_scheduler),
        "num_data": posterior.num_data,
        **describe_posterior(posterior),
        "control_variate": engine.control is not None,
        "gradients_per_step": (2 if engine.control else 1) * getattr(engine.probe, "gradients_per_step", 1),
        "data": engine.batches.fingerprint(),
        "inputs": inputs,
        "sample_dtype": sample_dtype_name(sample_dtype),
        "keep_last": checked_keep_last(keep_last),
        "tensors": tensor_specs(tensors),
        "environment": environment(device_of(posterior))
        | {"replicas": engine.place.mesh.data, "repeatable_data": engine.batches.exact_resume},
        "resumed": [],
    }


def describe_posterior(posterior: Posterior) -> dict[str, Any]:
    """What tells this posterior from others with the same model."""
    likelihood, backbone = posterior.likelihood, posterior.backbone()
    own = type(likelihood).__name__ if type(likelihood) in LIKELIHOODS.values() else None
    return {
        "prior": _without_addresses(repr(posterior.prior)),
        "architecture": structure_digest(posterior.model),
        "weight": posterior.weight,
        "output": posterior.output,
        "backbone": {"digest": backbone_digest(backbone), "tensors": len(backbone)} if backbone else None,
        "likelihood": {"name": own, "options": likelihood.config() if own else {}},  # type: ignore[attr-defined]
    }


def _without_addresses(text: str) -> str:
    """A representation without the places in memory that Python's default one has: they differ in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def structure_digest(model: torch.nn.Module) -> str:
    """A digest of the layers as `print(model)` shows them, and of the `forward` code of those that are not torch's."""
    digest = hashlib.blake2b(_without_addresses(repr(model)).encode(), digest_size=16)
    for kind in sorted({type(module) for module in model.modules()}, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            with suppress(OSError, TypeError):  # no source, as in a notebook that is gone
                digest.update(inspect.getsource(kind.forward).encode())
    return digest.hexdigest()


def inputs_of(batches: Batches) -> Any:
    """What an input looks like."""
    return describe_inputs(batches.peek()[0])


def device_of(posterior: torch.nn.Module) -> torch.device:
    """Where its parameters are."""
    return next(posterior.parameters()).device


def timestamp() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def checked_tags(tags: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's tags as a manifest has them."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(tags or {})))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"tags={tags!r} are not JSON-serializable: {error}. Use strings, numbers, lists and dicts: "
            f'tags={{"data": "MNIST"}}.'
        ) from None
    return plain


def checked_keep_last(keep_last: int | None) -> int | None:
    """How many samples of a chain stay; None: all."""
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(
            f"keep_last={keep_last!r}: give an integer, 1 or more, to keep at least one sample, or leave it out to "
            f"keep all."
        )
    return keep_last


def sample_dtype_name(dtype: torch.dtype | str | None) -> str | None:
    """The storage precision as a manifest has it."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"sample_dtype={dtype!r}: write torch.float16 or torch.bfloat16, or leave it out.")
    return name
