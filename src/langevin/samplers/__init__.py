"""The samplers, and the registry that everything which runs over all of them reads.

Adding a method is one file here and one line in `METHODS`; the contract tests, the command line and the
citation follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from langevin.samplers.atmc import ATMC
from langevin.samplers.base import Group, Sampler
from langevin.samplers.bnpsgld import BNPSGLD
from langevin.samplers.fsgd import FSGD
from langevin.samplers.ksgld import KSGLD
from langevin.samplers.nld import NLD
from langevin.samplers.psgld import pSGLD
from langevin.samplers.sgd import SGD
from langevin.samplers.sghmc import SGHMC
from langevin.samplers.sgld import SGLD
from langevin.samplers.sgnht import SGNHT
from langevin.samplers.sngd import SNGD, batch_size_for, temperature_of


@dataclass(frozen=True)
class Method:
    """What a sampler promises; the contract tests hold it to that."""

    sampler: type[Sampler]
    target: Literal["posterior", "jeffreys", "none"]  # the density that its samples have as lr → 0
    order: int | None  # the bias falls as lr**order
    optimizer: Callable[[list[Any], Group], Optimizer] | None  # what it is at T = 0, for parameters and settings
    slope: bool = True  # the order shows on a Gaussian target; not if a thermostat cancels the leading term there


def _plain(params: list[Any], group: Group) -> Optimizer:
    return torch.optim.SGD(params, lr=group["lr"], momentum=group.get("momentum", 0.0))


def _heavy_ball(params: list[Any], group: Group) -> Optimizer:
    from math import log

    damping = -log(group["momentum"])
    rate = (1 - group["momentum"]) / damping * group["reference_lr"] ** 2 * group["num_data"]
    return torch.optim.SGD(params, lr=rate, momentum=group["momentum"])


def _rmsprop(params: list[Any], group: Group) -> Optimizer:
    return torch.optim.RMSprop(params, lr=group["lr"], alpha=0.99, eps=1e-5)


METHODS = {
    "sgd": Method(SGD, target="none", order=None, optimizer=_plain),
    "fsgd": Method(FSGD, target="none", order=None, optimizer=_plain),
    "sgld": Method(SGLD, target="posterior", order=1, optimizer=_plain),
    "sghmc": Method(SGHMC, target="posterior", order=2, optimizer=_heavy_ball),
    "sgnht": Method(SGNHT, target="posterior", order=2, optimizer=None, slope=False),
    "atmc": Method(ATMC, target="posterior", order=1, optimizer=None, slope=False),
    "psgld": Method(pSGLD, target="posterior", order=1, optimizer=_rmsprop),
    "ksgld": Method(KSGLD, target="posterior", order=1, optimizer=None),
    "bnpsgld": Method(BNPSGLD, target="posterior", order=1, optimizer=None),
    "nld": Method(NLD, target="posterior", order=1, optimizer=None),
    "sngd": Method(SNGD, target="none", order=None, optimizer=None),
}

__all__ = [
    "ATMC",
    "BNPSGLD",
    "FSGD",
    "KSGLD",
    "METHODS",
    "NLD",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNGD",
    "Method",
    "Sampler",
    "batch_size_for",
    "pSGLD",
    "temperature_of",
]
