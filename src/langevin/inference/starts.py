"""Where chains start.

Chains that all start at one point agree until they have spread, which makes R̂ too small. So, unless the user says
where, the first chain starts at the model's weights and every other one at a fresh initialization, a function of its
number and the seed alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from langevin.core import random, sharding
from langevin.core.batches import GENERATORS
from langevin.core.parameters import load_tensors
from langevin.core.posterior import Posterior
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.run import Run
from langevin.inference.checks import preserve_rng_state

Init = Mapping[str, Tensor] | Ensemble | Callable[[int], Mapping[str, Tensor]] | Literal["model"] | None


def starting_points(init: Init, chains: Iterable[int], posterior: Posterior, seed: int) -> dict[int, dict[str, Tensor]]:
    """The weights at which each of these chains starts."""
    apart = [chain for chain in chains if chain > 0] if init is None and not _is_sharded(posterior) else []
    fresh = dict(zip(apart, _initialized(posterior, seed, apart), strict=True))
    return {chain: fresh[chain] if chain in fresh else starting_weights(init, chain, posterior) for chain in chains}


def starting_weights(init: Init, chain: int, posterior: Posterior) -> dict[str, Tensor]:
    """Weights as `init` gives them for a chain, or the model's."""
    current = _current(posterior)
    if init is None or (isinstance(init, str) and init == "model"):
        return current
    given: Any
    if isinstance(init, Run):
        given = init.chain(init.chains[chain % len(init.chains)])[-1]
    elif isinstance(init, Ensemble):
        given = init[chain % len(init)]
    elif callable(init) and not isinstance(init, nn.Module | type):
        given = init(chain)
    else:
        given = init
    if not isinstance(given, Mapping):
        raise ValueError(
            f'init must be a state dict, a run, a function of the chain or "model"; given '
            f"{init if isinstance(init, str) else type(given).__name__!r}."
        )
    for name, tensor in current.items():
        if name in given and getattr(given[name], "shape", None) == tensor.shape:
            current[name] = given[name].detach().to(tensor, copy=True)
        elif not name.startswith("likelihood."):
            raise ValueError(
                f"init has no {name!r} of shape {tuple(tensor.shape)}; it has {list(given)[:5]}… Give a state dict of "
                f"this very model."
            )
    return current


def fresh_weights(posterior: Posterior, seed: int, chains: Sequence[int]) -> Iterator[dict[str, Tensor]]:
    """Fresh initializations for these chains; none of a sharded model."""
    return iter(()) if _is_sharded(posterior) else _initialized(posterior, seed, chains)


def remark_on_starts(init: Init, posterior: Posterior, chains: int) -> str:
    """Where the chains start, in a sentence; empty if there is nothing to tell."""
    if chains == 1 or init is not None:
        return ""
    if _is_sharded(posterior):
        return "All chains start at the model's weights, since it is sharded; give init=function_of_the_chain."
    return (
        "Chain 0 starts at the model's weights, the others at fresh initializations"
        + (f" ({redrawn})" if (redrawn := remark_on_redrawn(posterior)) else "")
        + '; init="model" starts all at the model\'s weights.'
    )


def remark_on_redrawn(posterior: Posterior) -> str:
    """How layers without `reset_parameters` are initialized, if there are any."""
    kinds = sorted({type(layer).__name__ for layer in _sampled_layers(posterior.model) if not callable(_reset(layer))})
    if not kinds:
        return ""
    return (
        f"{', '.join(kinds[:3])} {'has' if len(kinds) == 1 else 'have'} no reset_parameters, so parameters there are "
        f"drawn with the mean and standard deviation that they have"
    )


def _current(posterior: Posterior) -> dict[str, Tensor]:
    weights = {name: p.detach().clone() for name, p in posterior.trainable_parameters().items()}
    return weights | {name: b.clone() for name, b in posterior.running_statistics().items()}


def _initialized(posterior: Posterior, seed: int, chains: Sequence[int]) -> Iterator[dict[str, Tensor]]:
    """Weights as the layers' own `reset_parameters` draw them, on the CPU: the same for every device."""
    if not chains:
        return
    current = _current(posterior)
    scratch = copy.deepcopy(posterior).cpu()
    layers = _sampled_layers(scratch.model)
    for p in {p for layer in layers for p in layer.parameters(recurse=False) if not p.requires_grad}:
        p.data = p.data.clone()  # a layer initializes all of its parameters; these are shared with the original
    for chain in chains:
        load_tensors(scratch, current)  # what a layer does not initialize stays as it was
        with preserve_rng_state(), GENERATORS:
            random.seed_generators(random.integer(seed=seed, chain=chain, step=0, stream=random.Stream.START))
            for layer in layers:
                if callable(_reset(layer)):
                    _reset(layer)()
                else:
                    _redraw(layer)
            adapted: Any
            for adapted in scratch.model.modules():
                if hasattr(adapted, "reset_lora_parameters"):  # of PEFT: B = 0, so that the start is the base model
                    for adapter in adapted.lora_A:
                        adapted.reset_lora_parameters(adapter, True)
        yield {name: fresh.to(current[name]) for name, fresh in _current(scratch).items()}


@torch.no_grad()
def _redraw(layer: nn.Module) -> None:
    """Parameters of a layer that can't initialize itself: normal, of the mean and standard deviation that they have.

    Of equal numbers, such as a scale of ones, the deviation is a tenth of their size; zeros stay zeros.
    """
    for p in layer.parameters(recurse=False):
        if p.requires_grad:
            mean = p.mean()
            std = p.std() if p.numel() > 1 else torch.zeros_like(mean)
            p.copy_(
                mean
                + torch.where(std > 1e-6 * mean.abs(), std, 0.1 * mean.abs()) * torch.randn(p.shape, device="cpu").to(p)
            )


def _is_sharded(posterior: Posterior) -> bool:
    return sharding.any_sharded(posterior.parameters())


def _sampled_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]


def _reset(layer: nn.Module) -> Any:
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)  # MultiheadAttention


def load_fixed(init: Init, posterior: Posterior) -> None:
    """Frozen parameters and buffers start at a given state dict too."""
    if isinstance(init, Mapping):
        load_tensors(posterior, {name: init[name] for name in posterior.fixed_tensors() if name in init})
