"""The networks on which speed is measured, with random data: the cost of a step does not depend on the labels."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import langevin as lv
from langevin import models

MakeSampler = Callable[..., lv.Sampler]


@dataclass(frozen=True)
class Workload:
    """A network, its input and its batch."""

    key: str
    label: str
    name: str  # as `langevin.models` knows it
    options: Mapping[str, Any]
    shape: tuple[int, ...]
    batch_size: int
    channels_last: bool = False
    num_data: int = 50_000

    def model(self) -> nn.Module:
        """The network, always with the same weights."""
        torch.manual_seed(0)
        model = models.make(self.name, **self.options)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Random inputs and labels."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size or self.batch_size, *self.shape, generator=generator)
        y = torch.randint(10, (len(x),), generator=generator)
        return (x.to(memory_format=torch.channels_last) if self.channels_last else x), y

    def posterior(self, num_data: int | None = None) -> lv.Posterior:
        """The network with a Gaussian prior."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return lv.Posterior(
                self.model(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=num_data or self.num_data
            )


TINY = Workload(
    "tiny", "MLP 10-40-10, batch 64", "mlp", {"in_features": 10, "out_features": 10, "widths": (40,)}, (10,), 64
)
WIDE = Workload(
    "wide",
    "MLP 784-1024-1024-10, batch 64",
    "mlp",
    {"in_features": 784, "out_features": 10, "widths": (1024, 1024)},
    (784,),
    64,
)
CNN = Workload("cnn", "CNN 32-64-1024, batch 512", "cnn", {}, (1, 28, 28), 512)
CNN_64 = Workload("cnn64", "CNN 32-64-1024, batch 64", "cnn", {}, (1, 28, 28), 64)
RESNET = Workload(
    "resnet",
    "ResNet-20 (FRN), batch 128, channels-last",
    "resnet",
    {"norm": "frn"},
    (3, 32, 32),
    128,
    channels_last=True,
)
WORKLOADS = {w.key: w for w in (TINY, WIDE, CNN, CNN_64, RESNET)}

RATES = {"SGLD": 1e-6, "pSGLD": 1e-8, "SGHMC": 1e-6, "SGNHT": 1e-6, "ATMC": 1e-6, "BNPSGLD": 1e-8, "KSGLD": 1e-8}
"""Learning rates in the order of the tables, so small that weights hardly move: only time is measured."""


def _timed() -> dict[str, MakeSampler]:
    """Every registered sampler of mini-batches that injects noise, but for NLD: its full Fisher is for small ones."""
    names = {
        name: sampler
        for name, sampler in lv.samplers.SAMPLERS.exports().items()
        if "temperature" in inspect.signature(sampler).parameters and name != "NLD" and not sampler.full_batch
    }
    order = [*(name for name in RATES if name in names), *(name for name in names if name not in RATES)]
    return {name: partial(names[name], lr=RATES.get(name, 1e-8)) for name in order}


TIMED = _timed()


def plain_sgd(workload: Workload) -> Callable[[], None]:
    """A step of `torch.optim.SGD` in a plain training loop: no prior, no checks."""
    model, (x, y) = workload.model(), workload.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def sampler_step(workload: Workload, make: MakeSampler, **options: Any) -> Callable[[], None]:
    """A step of a sampler in a loop of one's own."""
    posterior, (x, y) = workload.posterior(), workload.batch()
    sampler = make(posterior.parameters(), num_data=workload.num_data, seed=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler.bind(posterior, (x, y))

    def step() -> None:
        sampler.zero_grad()
        posterior.loss(x, y).backward()  # type: ignore[no-untyped-call]
        sampler.step()

    return step


def copies(workload: Workload, count: int) -> list[dict[str, Tensor]]:
    """Sets of weights near those of the model, as samples to predict with."""
    generator = torch.Generator().manual_seed(2)
    named = dict(copy.deepcopy(workload.model()).named_parameters())
    return [
        {name: (p.detach() + 0.01 * torch.randn(p.shape, generator=generator)) for name, p in named.items()}
        for _ in range(count)
    ]
