import math

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.diagnostics.curvature import conditioning


def regression(scales, n=200, rotated=False):
    """Inputs with XᵀX/n = diag(scales²), or that rotated, and unit noise: it is the Fisher matrix."""
    x = torch.linalg.qr(torch.randn(n, len(scales), dtype=torch.float64)).Q * math.sqrt(n) * torch.tensor(scales)
    if rotated:
        x = x @ torch.linalg.qr(torch.randn(len(scales), len(scales), dtype=torch.float64)).Q
    posterior = lv.Posterior(
        nn.Linear(len(scales), 1, bias=False), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(), num_data=n
    )
    return posterior, (x.float(), (x @ torch.ones(len(scales), 1).double()).float())


def test_the_condition_number_of_a_known_fisher_matrix():
    posterior, data = regression([1.0, 10.0, 3.0])
    found = conditioning(posterior, data)
    assert found.eigenvalues.tolist() == pytest.approx([1, 9, 100], rel=1e-5)
    assert found.condition == pytest.approx(100, rel=1e-5)
    assert math.isnan(found.preconditioned_condition)
    assert conditioning(posterior, data, damping=10).condition == pytest.approx(110 / 11, rel=1e-5)


def test_the_exact_preconditioner_makes_it_one():
    posterior, data = regression([1.0, 10.0, 3.0], rotated=True)
    for preconditioner in (lv.preconditioners.Fisher(damping=1e-8), lv.preconditioners.KFAC(damping=1e-8)):
        found = conditioning(posterior, data, preconditioner=preconditioner, damping=1e-8)
        # K-FAC averages over mini-batches of 128, Fisher over all 200
        assert found.preconditioned_condition == pytest.approx(
            1, abs=1e-3 if isinstance(preconditioner, lv.preconditioners.Fisher) else 1
        )
        assert found.condition == pytest.approx(100, rel=1e-5)
    assert all(p.grad is None for p in posterior.parameters())
    assert next(posterior.parameters()).dtype == torch.float32


def test_rmsprop_is_diagonal():
    """P is diag((λ + √V)^{−1/2}); √V is about |g|, which the test recomputes for one update."""
    posterior, data = regression([1.0, 10.0], n=100)  # fewer than 128: the mini-batch is all data
    found = conditioning(posterior, data, preconditioner=lv.preconditioners.RMSprop(alpha=0.0), updates=1)
    posterior.loss(*data).backward()
    g = posterior.model.weight.grad.double().abs().flatten() + 1e-5
    expected = torch.tensor([1.0, 100.0]).double() / g
    assert found.preconditioned_condition == pytest.approx(float(expected.max() / expected.min()), rel=1e-4)


def test_the_empirical_fisher_is_the_second_moment_of_the_gradients():
    torch.manual_seed(1)
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    posterior = lv.Posterior(nn.Linear(3, 2), lv.likelihoods.Categorical(), lv.priors.Gaussian(), num_data=40)
    rows = []
    for i in range(40):
        posterior.zero_grad()
        nn.functional.cross_entropy(posterior.model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in posterior.model.parameters()]))
    g = torch.stack(rows).double()
    found = conditioning(posterior, (x, y), kind="empirical")
    expected = torch.linalg.eigvalsh(g.T @ g / 40)
    torch.testing.assert_close(found.eigenvalues, expected, rtol=1e-4, atol=1e-6)
    assert found.condition == math.inf  # a constant added to both logits changes nothing
    assert math.isfinite(conditioning(posterior, (x, y), kind="empirical", damping=1e-3).condition)


def test_bad_input_is_refused():
    posterior, data = regression([1.0, 10.0])
    with pytest.raises(ValueError, match="max_parameters=1"):
        conditioning(posterior, data, max_parameters=1)
    with pytest.raises(ValueError, match="kind='mc'"):
        conditioning(posterior, data, kind="mc")
