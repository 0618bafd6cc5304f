"""Inverse roots of low rank plus identity, and K-FAC with them."""

import math

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.preconditioners.low_rank import inverse_root
from tests.preconditioners.common import run_and_resume


def spectrum(values, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    whole = torch.cat([torch.as_tensor(values, dtype=torch.float64), torch.full((n - len(values),), 0.1)])
    return (q * whole) @ q.T


def test_it_is_exact_for_low_rank_plus_identity():
    matrix = spectrum([30.0, 10.0, 3.0, 2.0], 40)
    dense = torch.linalg.inv(matrix + 0.05 * torch.eye(40))
    eye = torch.eye(40, dtype=torch.float64)
    root, errors = None, []
    for _ in range(6):  # each starts from the last
        root = inverse_root(matrix, 0.05, 4, None if root is None else root.basis)
        errors.append(float((root.after(root.after(eye)) - dense).abs().max() / dense.abs().max()))
    assert errors[0] < 0.01
    assert errors[-1] < 1e-7


def test_the_trace_is_kept_and_the_root_positive_definite():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 30, generator=generator) * torch.linspace(3, 0.1, 30)
    matrix = rows.T @ rows / 200
    root = inverse_root(matrix, 1e-3, 5, None).after(torch.eye(30))
    torch.testing.assert_close(root, root.T, rtol=1e-4, atol=1e-4)
    values = torch.linalg.eigvalsh(root.double())
    assert float(values.min()) > 0
    kept = (values**-2).sum() - 30 * 1e-3
    assert float(kept) == pytest.approx(float(matrix.trace()), rel=1e-3)


def wide(rank, seed=0):
    """A network whose layers have more than four times `rank` dimensions, with a bound sampler after some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 18), nn.Tanh(), nn.Linear(18, 12)).double()
    x, y = torch.randn(60, 20, dtype=torch.float64), torch.randint(12, (60,))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=60)
    sampler = lv.KSGLD(posterior.parameters(), 1e-12, num_data=60, rank=rank, inverse_interval=1, warmup=0)
    sampler.bind(posterior, (x, y))
    for _ in range(3):
        sampler.zero_grad()
        posterior.loss(x, y).backward()
        sampler.step()
    return sampler


def as_matrix(sampler, product):
    """The matrix of a map of vectors, column by column."""
    group = sampler.param_groups[0]
    params = group["params"]
    total, columns = sum(p.numel() for p in params), []
    for unit in torch.eye(total, dtype=torch.float64):
        parts = [v.view(p.shape) for v, p in zip(unit.split([p.numel() for p in params]), params, strict=True)]
        columns.append(torch.cat([v.flatten() for v in product(sampler.state, group, params, parts)]))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("rank", [2, 3])
def test_the_noise_is_a_root_of_the_drift_and_both_are_positive_definite(rank):
    """A^{1/2} A^{1/2}ᵀ = A is all that the target needs; the proofs of the contract hold for every such A."""
    sampler = wide(rank)
    assert all("input_basis" in sampler.state[p] for p in sampler.param_groups[0]["params"] if p.dim() == 2)
    drift = as_matrix(sampler, sampler.preconditioner.drift)
    noise = as_matrix(sampler, sampler.preconditioner.noise)
    torch.testing.assert_close(noise @ noise.T, drift)
    assert float(torch.linalg.eigvalsh((drift + drift.T) / 2).min()) > 0


def test_a_rank_that_covers_the_spectrum_is_the_exact_preconditioner():
    """The last layer's output factor has 12 dimensions, so rank 2 is used; None is exact."""
    exact, covered = wide(None), wide(100)
    a, b = (as_matrix(s, s.preconditioner.drift) for s in (exact, covered))
    torch.testing.assert_close(a, b)


def test_move_is_drift_and_noise(monkeypatch):
    sampler = wide(2)
    group = sampler.param_groups[0]
    params = group["params"]
    generator = torch.Generator().manual_seed(3)
    grads, etas = ([torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(2))
    a, before = sampler.preconditioner, [p.detach().clone() for p in params]
    drift = a.drift(sampler.state, group, params, grads)
    noise = a.noise(sampler.state, group, params, [e.clone() for e in etas])
    with torch.no_grad():
        a.move(sampler.state, group, params, grads, etas, 0.1, 0.2)
    for p, old, d, z in zip(params, before, drift, noise, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.1 * d + 0.2 * z)


def test_resume_is_exact():
    uninterrupted, resumed = run_and_resume(
        lambda params: lv.KSGLD(params, 1e-3, num_data=60, rank=1, warmup=0, inverse_interval=3, factor_interval=2)
    )
    assert torch.equal(uninterrupted, resumed)


@pytest.mark.slow
def test_the_posterior_of_a_linear_model_with_factors_of_rank_two():
    """Ridge regression with 12 inputs of very different scales: the covariance of the chain, exact for its step size.

    θ ← θ − ε A H θ + √(2ε/N) A^{1/2} η has the covariance A^{1/2} K⁻¹ (1 − εK/2)⁻¹ A^{1/2}/N, K = A^{1/2} H A^{1/2}.
    """
    torch.manual_seed(0)
    x = torch.randn(100, 12, dtype=torch.float64) * torch.logspace(0, -1, 12, dtype=torch.float64)
    model = nn.Linear(12, 1, bias=False).double()
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.3).double(), lv.priors.Gaussian(1.0), num_data=100)
    sampler = lv.KSGLD(posterior.parameters(), 0.3, num_data=100, rank=2, prior_precision=1.0, warmup=0, damping=0.1)
    sampler.bind(posterior, (x, x.sum(1, keepdim=True)))
    posterior.loss(x, x.sum(1, keepdim=True)).backward()
    sampler.step()
    sampler.freeze()
    hessian = (x.T @ x / 0.09 + torch.eye(12)) / 100
    half = as_matrix(sampler, sampler.preconditioner.noise)[:12, :12]
    k = half.T @ hessian @ half
    expected = half @ torch.linalg.inv(k @ (torch.eye(12) - 0.15 * k)) @ half.T / 100
    weight, blocks = model.weight, torch.zeros(100, 12, 12, dtype=torch.float64)
    for block in range(-1, 100):
        for _ in range(400):
            weight.grad = weight.detach() @ hessian
            sampler.step()
            if block >= 0:
                blocks[block] += torch.outer(weight.detach()[0], weight.detach()[0]) / 400
    vectors = torch.linalg.eigh(expected).eigenvectors
    ratios = torch.diagonal(vectors.T @ blocks @ vectors, dim1=1, dim2=2) / torch.diagonal(
        vectors.T @ expected @ vectors
    )
    mean, error = ratios.mean(0), ratios.std(0) / math.sqrt(100)
    assert float(error.max()) < 0.1
    assert ((mean - 1).abs() < 4 * error).all()
