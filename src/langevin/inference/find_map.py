"""The most probable weights: a start for chains, and the point about which approximations are made."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils._pytree import tree_map

from langevin.core.arguments import COUNT, POSITIVE, SEED, validated
from langevin.core.batches import as_batches, batch_size_of
from langevin.core.posterior import Posterior
from langevin.inference.checks import check_num_data
from langevin.inference.distributed import Mesh
from langevin.inference.sample import sample
from langevin.samplers import SGD


@validated(steps=COUNT, lr=POSITIVE, batch_size=COUNT, tolerance=POSITIVE, seed=SEED)
def find_map(
    posterior: Posterior,
    data: Any,
    *,
    method: str = "lbfgs",
    steps: int = 1000,
    lr: float = 0.1,
    batch_size: int | None = None,
    tolerance: float = 1e-4,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Tensor]:
    """A (local) maximum of the posterior density, as a state dict for `sample(…, init=…)`.

    Args:
        posterior: what to maximize; its own model is left as it is.
        data: the training data, as for `sample`.
        method: "lbfgs" (full passes over the data; for small models) or "sgd" (momentum 0.9, cosine rate from lr).
        steps: iterations at most (lbfgs), or exactly (sgd).
        lr: for sgd.
        batch_size: for sgd as in `sample`; for lbfgs the size of the pieces of a full pass, for memory's sake.
        tolerance: lbfgs warns if the largest entry of the gradient of U/N is above this at the end.
        seed: for sgd.
        progress: for sgd.
    """
    if method == "sgd":
        run = sample(
            posterior,
            data,
            partial(SGD, lr=lr, momentum=0.9),
            batch_size=batch_size,
            steps=steps,
            burn_in=0,
            thin=steps,
            schedule=partial(CosineAnnealingLR, T_max=steps),
            seed=seed,
            progress=progress,
            mesh=Mesh(),
        )
        return run[-1]
    if method != "lbfgs":
        raise ValueError(f'method={method!r}: choose "lbfgs" or "sgd".')
    return _lbfgs(copy.deepcopy(posterior), data, steps, batch_size or 4096, tolerance)


def _lbfgs(posterior: Posterior, data: Any, steps: int, piece: int, tolerance: float) -> dict[str, Tensor]:
    params = posterior.trainable_parameters()
    device = next(posterior.parameters()).device
    batches = as_batches(data, None, 0, device)
    check_num_data(posterior, batches)
    optimizer = torch.optim.LBFGS(
        list(params.values()),
        max_iter=steps,
        tolerance_grad=tolerance / 10,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        total = 0.0
        for batch in batches.full_pass(piece):
            x, y = tree_map(lambda t: t.to(device), batch)
            loss = posterior.loss(x, y) * (batch_size_of(y) / posterior.num_data)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    closure()
    largest = max(float(p.grad.abs().max()) for p in params.values() if p.grad is not None)
    if not largest <= tolerance:
        warnings.warn(
            f"LBFGS stopped with a gradient of {largest:.2g} (of U/N; tolerance {tolerance:g}); give it more steps.",
            stacklevel=4,
        )
    return {name: p.detach() for name, p in params.items()}
