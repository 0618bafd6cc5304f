"""The peers that langevin is measured against, where they are installed (`pip install langevin[bench]`)."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.workloads import Workload

NAMES = ("posteriors", "blackjax")


def installed() -> dict[str, str | None]:
    """Version by name; None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in NAMES:
        try:
            _imported(name)
            versions[name] = importlib.metadata.version(name)
        except ImportError:
            versions[name] = None
    return versions


def _imported(name: str) -> Any:
    with warnings.catch_warnings():  # their deprecations
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def torch_steps(workload: Workload) -> dict[str, Callable[[], Any]]:
    """A step of each sampler that posteriors and langevin share, on the same model, batch and prior."""
    try:
        posteriors = _imported("posteriors")
    except ImportError:
        return {}
    model, batch, n = workload.model(), workload.batch(), workload.num_data
    params = {name: p.detach() for name, p in model.named_parameters()}

    def log_posterior(weights: dict[str, torch.Tensor], pair: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.func.functional_call(model, weights, (pair[0],))
        likelihood = -torch.nn.functional.cross_entropy(output, pair[1])
        prior = -0.5 * sum(w.square().sum() for w in weights.values())
        return likelihood + prior / n, torch.tensor([])

    steps: dict[str, Callable[[], Any]] = {}
    for name in ("sgld", "sghmc", "sgnht"):
        transform = getattr(posteriors.sgmcmc, name).build(log_posterior, lr=1e-9, temperature=1 / n)
        state = transform.init(params)

        def step(transform: Any = transform, state: Any = state) -> None:
            transform.update(state, batch)

        steps[f"posteriors {name.upper()}"] = step
    return steps


def blackjax_chain_steps(workload: Workload, chains: int) -> Callable[[], Any] | None:
    """One jitted step of so many vmapped blackjax SGLD chains, each with a mini-batch of its own, on a tiny MLP."""
    try:
        blackjax, jax = _imported("blackjax"), _imported("jax")
    except ImportError:
        return None
    jnp = jax.numpy
    model, (x, y), n = workload.model(), workload.batch(4096), 4096
    x, y = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    one = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    (w1, b1), (w2, b2) = [
        [name for name in one if name.startswith(layer)] for layer in sorted({k.rpartition(".")[0] for k in one})
    ]

    def log_density(weights: Any, pair: Any) -> Any:
        hidden = jax.nn.relu(pair[0] @ weights[w1].T + weights[b1])
        logits = jax.nn.log_softmax(hidden @ weights[w2].T + weights[b2])
        likelihood = jnp.take_along_axis(logits, pair[1][:, None], 1).mean() * n
        return likelihood - 0.5 * sum((w**2).sum() for w in weights.values())

    sampler = blackjax.sgld(jax.grad(log_density))

    def step_of_one(key: Any, weights: Any) -> Any:
        which, noise = jax.random.split(key)
        rows = jax.random.randint(which, (workload.batch_size,), 0, n)
        return sampler.step(noise, weights, (x[rows], y[rows]), 1e-9)

    advance = jax.jit(jax.vmap(step_of_one))
    state = {name: jnp.stack([value] * chains) for name, value in one.items()}
    key = [jax.random.PRNGKey(0)]

    def step() -> None:
        key[0], now = jax.random.split(key[0])
        jax.block_until_ready(advance(jax.random.split(now, chains), state))

    return step
