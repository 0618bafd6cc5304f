"""Where chains start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.run import Run

Init = Mapping[str, Tensor] | Ensemble | Callable[[int], Mapping[str, Tensor]] | None


def starting_weights(init: Init, chain: int, posterior: Posterior) -> dict[str, Tensor]:
    """The weights at which a chain starts."""
    current = {name: p.detach().clone() for name, p in posterior.trainable_parameters().items()}
    current |= {name: b.clone() for name, b in posterior.running_statistics().items()}
    if init is None:
        return current
    given: Any
    if isinstance(init, Run):
        given = init.chain(init.chains[chain % len(init.chains)])[-1]
    elif isinstance(init, Ensemble):
        given = init[chain % len(init)]
    else:
        given = init(chain) if callable(init) else init
    if not isinstance(given, Mapping):
        raise ValueError(f"init must be a state dict, a run or a function of the chain; given {type(given).__name__}.")
    for name, tensor in current.items():
        if name in given and given[name].shape == tensor.shape:
            current[name] = given[name].detach().to(tensor, copy=True)
        elif not name.startswith("likelihood."):
            raise ValueError(
                f"init has no {name!r} of shape {tuple(tensor.shape)}; it has {list(given)[:5]}… Give a state dict of "
                f"this very model."
            )
    return current


def load_fixed(init: Init, posterior: Posterior) -> None:
    """Frozen parameters and buffers start at a given state dict too."""
    if isinstance(init, Mapping):
        load_tensors(posterior, {name: init[name] for name in posterior.fixed_tensors() if name in init})
