"""BNP and BNPSGLD: A = P Pᵀ against explicit matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import langevin as lv
from tests.preconditioners.common import data, matrix, network, run_and_resume, step


def bound(model, x, y, likelihood=None, **options):
    posterior = lv.Posterior(
        model, likelihood or lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=len(x)
    )
    sampler = lv.BNPSGLD(posterior.parameters(), 1e-12, num_data=len(x), **options)
    sampler.bind(posterior)
    return posterior, sampler


def p_matrix(mean, variance, q):
    """P = (1/q) [[1, −μᵀ], [0, I]] diag(1, 1/σ̃) for a row [b; w]; without a bias (mean None) diag(1/σ̃)/q."""
    variance = variance + 1e-2 * variance.max() + 1e-4
    if mean is None:
        return torch.diag(1 / variance.sqrt()) / q
    m = len(mean)
    shift = torch.eye(m + 1, dtype=torch.float64)
    shift[0, 1:] = -mean
    return shift @ torch.diag(torch.cat([torch.ones(1, dtype=torch.float64), 1 / variance.sqrt()])) / q


@pytest.mark.parametrize("rows", [24, 3], ids=["q=1", "q>1"])
def test_linear_layer(rows):
    x, y = data(rows)
    x = 3 * x + 5
    model = nn.Sequential(nn.Linear(4, 3)).double()
    posterior, sampler = bound(model, x, y)
    step(sampler, posterior, x, y)
    p = p_matrix(x.mean(0), x.var(0, unbiased=False), max(4 / rows, 1) ** 0.5)
    # parameters are flattened as W row by row, then b; P acts on a row (b; w)
    order = [[12 + o, *range(4 * o, 4 * o + 4)] for o in range(3)]
    a, root = matrix(sampler, "drift"), matrix(sampler, "noise")
    for i, rows_i in enumerate(order):
        for j, rows_j in enumerate(order):
            block = (p @ p.T) if i == j else torch.zeros(5, 5, dtype=torch.float64)
            torch.testing.assert_close(a[rows_i][:, rows_j], block, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(root @ root.T, a, rtol=1e-10, atol=1e-12)


def test_linear_layer_without_bias():
    x, y = data()
    x = 3 * x + 5
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).double()
    posterior, sampler = bound(model, x, y)
    step(sampler, posterior, x, y)
    p = p_matrix(None, x.square().mean(0), 1.0)
    torch.testing.assert_close(matrix(sampler, "drift"), torch.kron(torch.eye(3, dtype=torch.float64), p @ p.T))
    root = matrix(sampler, "noise")
    torch.testing.assert_close(root @ root.T, matrix(sampler, "drift"))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(groups):
    """Per input channel over batch and positions, shared by the taps; m = c_in/groups·taps, n = batch·positions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 4, 3, generator=generator, dtype=torch.float64)
    x = x * torch.tensor([1.0, 5, 0.1, 2]).reshape(4, 1, 1)
    x = x + torch.tensor([0.0, 1, -4, 2]).reshape(4, 1, 1)
    model = nn.Sequential(nn.Conv2d(4, 4, (3, 2), groups=groups), nn.Flatten(), nn.Linear(16, 2)).double()
    posterior, sampler = bound(model, x, torch.tensor([0, 1]))
    step(sampler, posterior, x, torch.tensor([0, 1]))
    channels = 4 // groups
    taps, size = 6, channels * 6
    a, root = matrix(sampler, "drift"), matrix(sampler, "noise")
    torch.testing.assert_close(root @ root.T, a, rtol=1e-9, atol=1e-11)
    variance = x.var((0, 2, 3), unbiased=False)
    variance = variance + 1e-2 * variance.max() + 1e-4  # the maximum over all channels, not over a group's
    q = max(size / (2 * 4), 1) ** 0.5
    for row in range(4):
        first = row // (4 // groups) * channels
        own = slice(first, first + channels)
        mean = x.mean((0, 2, 3))[own].repeat_interleave(taps)
        shift = torch.eye(size + 1, dtype=torch.float64)
        shift[0, 1:] = -mean
        scale = 1 / variance[own].sqrt().repeat_interleave(taps)
        p = shift @ torch.diag(torch.cat([torch.ones(1, dtype=torch.float64), scale])) / q
        rows = [4 * size + row, *range(row * size, (row + 1) * size)]
        torch.testing.assert_close(a[rows][:, rows], p @ p.T, rtol=1e-9, atol=1e-11)


def test_running_averages_start_from_the_first_batch():
    x, y = data()
    posterior, sampler = bound(nn.Sequential(nn.Linear(4, 3)).double(), x, y, average=0.75)
    for part in (slice(0, 12), slice(12, 24)):
        step(sampler, posterior, x, y, part)
    known = sampler.state[posterior.model[0].weight]
    expected = (0.75 * x[:12].mean(0) + x[12:].mean(0)) / 1.75  # bias-corrected
    torch.testing.assert_close(known["mean"], expected)
    sampler.freeze()
    step(sampler, posterior, 100 * x, y, slice(0, 2))
    torch.testing.assert_close(known["mean"], expected)
    assert known["q"] == 1.0  # frozen: the last batch has fewer rows (2) than inputs (4)


def test_condition_number_falls_on_shifted_and_badly_scaled_inputs():
    generator = torch.Generator().manual_seed(0)
    scales, shifts = torch.logspace(-1, 1, 6, dtype=torch.float64), torch.linspace(-8, 8, 6, dtype=torch.float64)
    x = torch.randn(500, 6, generator=generator, dtype=torch.float64) * scales + shifts
    y = torch.zeros(500, 1, dtype=torch.float64)
    model = nn.Linear(6, 1).double()
    posterior, sampler = bound(model, x, y, lv.likelihoods.Gaussian(1.0).double())
    step(sampler, posterior, x, y)
    design = torch.cat([x, torch.ones(500, 1, dtype=torch.float64)], dim=1)
    fisher = design.T @ design / 500
    p = matrix(sampler, "noise")
    before, after = torch.linalg.cond(fisher), torch.linalg.cond(p.T @ fisher @ p)
    assert before > 1e4
    assert after < before / 100
    assert after < 200  # ε₁ = 0.01 limits the effect on scales below a tenth of the largest


def test_the_state_dict_is_complete():
    uninterrupted, resumed = run_and_resume(lambda params: lv.BNPSGLD(params, 1e-2, num_data=24, seed=3))
    assert torch.equal(uninterrupted, resumed)


def test_it_must_be_bound_and_names_uncovered_parameters():
    x, y = data()
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=len(x))
    sampler = lv.BNPSGLD(posterior.parameters(), 1e-2, num_data=len(x))
    with pytest.raises(ValueError, match=r"sampler.bind\(posterior\)"):
        step(sampler, posterior, x, y)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)).double()
    with pytest.warns(UserWarning, match=r"BNP has no block for 0\.weight, 0\.bias"):
        bound(model, x, y)
