"""The four networks on which speed is measured, with random data: what a step costs does not depend on its labels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from langevin import models
from langevin.core.likelihoods import Categorical
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian
from langevin.samplers import ATMC, BNPSGLD, KSGLD, SGHMC, SGLD, SGNHT, Sampler, pSGLD

MakeSampler = Callable[..., Sampler]


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

    def posterior(self, num_data: int | None = None) -> Posterior:
        """The network with a Gaussian prior."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Posterior(self.model(), Categorical(), Gaussian(1.0), num_data=num_data or self.num_data)


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

METHODS: dict[str, MakeSampler] = {
    "SGLD": partial(SGLD, lr=1e-6),
    "pSGLD": partial(pSGLD, lr=1e-8),
    "SGHMC": partial(SGHMC, lr=1e-6),
    "SGNHT": partial(SGNHT, lr=1e-6),
    "ATMC": partial(ATMC, lr=1e-6),
    "BNPSGLD": partial(BNPSGLD, lr=1e-8),
    "KSGLD": partial(KSGLD, lr=1e-8),
}
"""Rates so small that weights stay where they are, whatever the network: only time is looked at."""


def plain_sgd(workload: Workload) -> Callable[[], None]:
    """A step of `torch.optim.SGD` as anybody writes it: no prior, no check."""
    model, (x, y) = workload.model(), workload.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def sampler_step(
    workload: Workload, make: MakeSampler, *, compiled: bool = False, **options: Any
) -> Callable[[], None]:
    """A step of a sampler in a loop of one's own."""
    posterior, (x, y) = workload.posterior(), workload.batch()
    sampler = make(posterior.parameters(), num_data=workload.num_data, seed=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler.bind(posterior, (x, y))
    if compiled:
        sampler.compile()

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
