"""A small Hamiltonian Monte Carlo, written for itself, as a reference: no code of langevin's samplers is in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def hmc(
    energy: Callable[[Tensor], Tensor], start: Tensor, *, adapt: int, iterations: int, leapfrogs: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Positions and energies of all chains after the adaptation, (iterations, chains, d) and (iterations, chains).

    `energy` maps (chains, d) to (chains,); `start` is (chains, d). In the first `adapt` iterations the step size of
    each chain is adapted to an acceptance of 0.8. Step sizes and the number of leapfrogs are jittered.
    """
    generator = torch.Generator().manual_seed(seed)
    theta, step = start, torch.full((len(start), 1), 1e-3, dtype=start.dtype)
    u, slope = _gradient(energy, theta)
    positions, energies = [], []
    for iteration in range(adapt + iterations):
        momentum = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        before = u + momentum.square().sum(1) / 2
        h = step * (0.8 + 0.4 * torch.rand(step.shape, generator=generator, dtype=theta.dtype))
        count = int(torch.randint(leapfrogs // 2, leapfrogs + 1, (), generator=generator))
        new, new_slope = theta, slope
        for k in range(count):
            momentum = momentum - (h / 2 if k == 0 else h) * new_slope
            new = new + h * momentum
            new_u, new_slope = _gradient(energy, new)
        momentum = momentum - h / 2 * new_slope
        after = new_u + momentum.square().sum(1) / 2
        accepted = torch.nan_to_num((before - after).clamp(max=0).exp())
        taken = torch.rand(len(theta), generator=generator, dtype=theta.dtype) < accepted
        theta = torch.where(taken[:, None], new, theta)
        slope = torch.where(taken[:, None], new_slope, slope)
        u = torch.where(taken, new_u, u)
        if iteration < adapt:
            step = step * torch.exp(0.1 * (accepted[:, None] - 0.8))
        else:
            positions.append(theta)
            energies.append(u)
    return torch.stack(positions), torch.stack(energies)


def _gradient(energy: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[Tensor, Tensor]:
    leaf = theta.detach().requires_grad_()
    with torch.enable_grad():
        u = energy(leaf)
        (slope,) = torch.autograd.grad(u.sum(), leaf)
    return u.detach(), slope
