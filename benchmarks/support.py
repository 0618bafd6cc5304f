"""Which sampler supports which network: every registered sampler takes two steps on each.

The networks are tried at a small size (fewer channels, small images), with the layers of the full one; parameters are
counted at full size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import langevin as lv
from langevin import models


@dataclass(frozen=True)
class Network:
    """A network by name: its options at full size, those that make it small, and the shape of a small input."""

    name: str
    label: str
    shape: tuple[int, ...]
    full: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)


NETWORKS = [
    Network("logistic", "logistic regression, 64 → 10", (64,), {"in_features": 64, "out_features": 10}),
    Network("mlp", "MLP 10-40-10", (10,), {"in_features": 10, "out_features": 10, "widths": (40,)}),
    Network("cnn", "CNN 32-64-1024", (1, 12, 12), {}, {"image_size": 12, "kernel_size": 3}),
    Network("cnn-strided", "CNN 10-10-10, no biases", (1, 28, 28)),
    Network("lenet", "LeNet-5", (1, 28, 28)),
    Network("vgg11", "VGG-11 (VGG-16 has the same layers)", (3, 32, 32)),
    Network("resnet", "ResNet-20, FRN and swish", (3, 8, 8), {"norm": "frn"}, {"norm": "frn", "depth": 8, "width": 4}),
    Network("resnet", "ResNet-20, BatchNorm", (3, 8, 8), {}, {"depth": 8, "width": 4}),
    Network("resnet++", "ResNet++-56, width 32", (3, 8, 8), {}, {"depth": 8, "width": 4}),
    Network("resnet50", "ResNet-50, BatchNorm", (3, 32, 32), {}, {"width": 4, "num_classes": 10}),
    Network("resnet++50", "ResNet++-50", (3, 32, 32), {}, {"width": 4, "num_classes": 10}),
]

# options for a sampler that refuses a network by default: it is supported once its preconditioner is frozen
IF_REFUSED: dict[str, dict[str, Any]] = {"nld": {"target": "as-printed"}}


@dataclass(frozen=True)
class Support:
    """Whether a sampler took two steps on a network.

    "yes", "partly" (some parameters are not preconditioned), "frozen" (with the options of `IF_REFUSED`) or "no".
    """

    answer: str
    why: str = ""


def count_parameters(network: Network) -> int:
    """At full size."""
    with torch.device("meta"):
        return sum(p.numel() for p in models.make(network.name, **network.full).parameters())


def try_sampler(network: Network, sampler: str, **options: Any) -> Support:
    """Two steps on eight random images."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, *network.shape, generator=generator), torch.randint(10, (8,), generator=generator)
    torch.manual_seed(0)
    model = models.make(network.name, **(network.small or network.full))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=8)
        try:
            run = lv.sample(
                posterior,
                (x, y),
                lv.samplers.SAMPLERS[sampler],
                lr=1e-5,
                **options,
                batch_size="full" if lv.samplers.SAMPLERS[sampler].full_batch else 4,
                steps=2,
                burn_in=0,
                thin=1,
                freeze=False,
                progress=False,
            )
        except ValueError as error:
            return Support("no", str(error).splitlines()[0])
    if not all(bool(tensor.isfinite().all()) for tensor in run[-1].values()):
        return Support("no", "not finite")
    partly = [str(w.message) for w in warned if "A =" in str(w.message) or "no block" in str(w.message)]
    return Support("partly", partly[0]) if partly else Support("yes")


def find_support(network: Network, sampler: str) -> Support:
    """With the default options or, if they are refused, with those of `IF_REFUSED`."""
    found = try_sampler(network, sampler)
    if (
        found.answer == "no"
        and sampler in IF_REFUSED
        and try_sampler(network, sampler, **IF_REFUSED[sampler]).answer == "yes"
    ):
        return Support("frozen", found.why)
    return found


def write_support(out: Path, say: Callable[[str], None] = print, networks: list[Network] = NETWORKS) -> None:
    """Try every sampler on every network and write the page."""
    labels = {name: sampler.__name__ for name, sampler in lv.samplers.SAMPLERS.items()}
    lines = [
        f"| network | `--model` | parameters | {' | '.join(labels.values())} |",
        "|---" * (len(labels) + 3) + "|",
    ]
    reasons: dict[str, None] = {}
    for network in networks:
        found = {name: find_support(network, name) for name in labels}
        answers = " | ".join(support.answer for support in found.values())
        lines.append(f"| {network.label} | `{network.name}` | {count_parameters(network):,} | {answers} |")
        for name, support in found.items():
            if support.why:
                reasons[f"- {network.label}, {labels[name]}: {support.why}"] = None
        say(lines[-1])
    out.write_text(
        "# Networks, and the samplers that support them\n\n"
        "Written by `python -m benchmarks support`, which takes two steps with each sampler on a small version of each "
        "network; parameters are those of the full one.\n\n"
        + "\n".join(lines)
        + "\n\n“partly”: some parameters are not covered by the preconditioner and move with A = 1. “frozen”: too many "
        'weights for the drift Γ, so `target="as-printed"`, which is exact once frozen.\n\n' + "\n".join(reasons) + "\n"
    )
