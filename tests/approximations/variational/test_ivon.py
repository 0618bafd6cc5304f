"""IVON: the published updates, and the closed form of conjugate regression."""

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.approximations.variational.ivon import OnlineNewton

N, D, COPIES = 40, 3, 100
NOISE, PRIOR = 0.7, 0.4


def problem():
    """COPIES times the same regression, as the rows of one weight matrix: each row has its own noise."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]).double()
    x = torch.randn(N, D, generator=generator, dtype=torch.float64) @ mix
    y = x @ torch.tensor([0.5, -0.3, 0.2]).double() + NOISE * torch.randn(N, generator=generator, dtype=torch.float64)
    model = nn.Linear(D, COPIES, bias=False).double()
    nn.init.zeros_(model.weight)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(NOISE), lv.priors.Gaussian(PRIOR), num_data=N)
    precision = x.T @ x / NOISE**2 + torch.eye(D) / PRIOR**2
    return posterior, (x, y[:, None].repeat(1, COPIES)), precision, torch.linalg.solve(precision, x.T @ y) / NOISE**2


def moments(batch_size, seed=0):
    """Mean and precision of every weight, relative to the closed form: averages over the last 600 steps."""
    posterior, data, precision, mean = problem()
    method = lv.IVON(lr=0.05, beta2=0.995, init_std=0.2)
    options = {"batch_size": batch_size, "seed": seed, "progress": False}
    fit = lv.fit(posterior, data, method, steps=2000, burn_in=1400, **options)
    means, precisions = (
        torch.stack([snapshot[f"{kind}/weight"] for snapshot in fit.snapshots]).mean(0)
        for kind in ("mean", "precision")
    )
    torch.testing.assert_close(fit.distribution.variance["weight"], 1 / fit.snapshots[-1]["precision/weight"])
    return means - mean, precisions / precision.diag() - 1


def test_mean_and_variance_of_a_conjugate_posterior():
    """The best q of independent weights has the posterior's mean, and the diagonal of its precision as precisions."""
    off, ratio = moments(batch_size=N)
    for found, bias in ((off, 0.0), (ratio, 0.0075)):  # (ρ/2) Var(R)/P², Var(R) about 3P²
        error = found.std(0) / COPIES**0.5
        assert bool((error < 0.01).all())
        assert bool(((found.mean(0) - bias / 2).abs() < 4 * error + bias / 2).all())


@pytest.mark.slow
def test_mini_batches_leave_the_mean_and_bias_the_precision_by_their_variance():
    """All copies share the batches, so the error is that between seeds."""
    rows = [moments(batch_size=20, seed=seed) for seed in range(8)]
    off, ratio = (torch.stack([row[kind].mean(0) for row in rows]) for kind in (0, 1))
    assert bool((off.mean(0).abs() < 5 * off.std(0) / 8**0.5).all())
    assert bool((ratio.mean(0) > -5 * ratio.std(0) / 8**0.5).all())  # the bias is upward
    assert bool((ratio.mean(0) < 0.15).all())


def test_steps_are_those_of_the_paper():
    """ĝ and ĥ = ĝ ε √P from the loss at a draw, then the updates of g, h and m in the paper's symbols."""
    posterior, (x, y), _, _ = problem()
    delta, lam = 1 / (N * PRIOR**2), N
    method = lv.IVON(lr=0.1, beta1=0.8, beta2=0.9, init_std=0.3)
    objective = method.of(posterior)
    m, p = objective.trainable_parameters().values()
    stepper = method.stepper(problem()[0])([m, p], num_data=N, seed=0, chain=0)
    assert isinstance(stepper, OnlineNewton)
    own_m, g = m.detach().clone(), torch.zeros_like(m)
    h = torch.full_like(m, 1 / 0.3**2 / lam - delta)
    h0 = h.clone()
    for step in range(1, 6):
        torch.manual_seed(step)
        objective.loss(x, y).backward()
        stepper.step()
        stepper.zero_grad()
        torch.manual_seed(step)
        torch.randn(0)  # of the low-rank part
        epsilon = torch.randn_like(own_m)
        sigma = 1 / (lam * (h + delta)).sqrt()
        w = (own_m + sigma * epsilon).requires_grad_()
        loss = (((y - x @ w.T) / NOISE).square().sum(1) / 2).mean()
        (g_hat,) = torch.autograd.grad(loss, w)
        h_hat = g_hat * epsilon / sigma
        g = 0.8 * g + 0.2 * g_hat
        h = 0.9 * h + 0.1 * h_hat + 0.5 * 0.1**2 * (h - h_hat) ** 2 / (h + delta)
        own_m = own_m - 0.1 * (h0 + delta) * (g / (1 - 0.8**step) + delta * own_m) / (h + delta)
        torch.testing.assert_close(m.detach(), own_m, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(p.detach(), lam * (h + delta), rtol=1e-5, atol=0)


def test_it_resumes_bit_for_bit(tmp_path):
    posterior, data, _, _ = problem()
    options = {"batch_size": 8, "progress": False}
    whole = lv.fit(posterior, data, lv.IVON(), steps=40, **options)
    lv.fit(posterior, data, lv.IVON(), steps=20, out=tmp_path / "fit", **options)
    resumed = lv.resume(tmp_path / "fit", posterior, data, steps=40, progress=False)
    for name, tensor in whole.snapshots[-1].items():
        assert torch.equal(tensor, resumed.snapshots[-1][name])
    assert torch.equal(whole.predict(data[0]).mean, resumed.predict(data[0]).mean)


def test_wrong_calls_are_refused():
    posterior, data, _, _ = problem()
    for wrong in ({"lr": 0.0}, {"beta2": 1.0}, {"init_std": -1.0}, {"draws": 0}):
        with pytest.raises(ValueError, match="IVON"):
            lv.IVON(**wrong)
    with pytest.raises(ValueError, match="is an optimizer itself"):
        lv.fit(posterior, data, lv.IVON(), optimizer=torch.optim.Adam, steps=5)
    with pytest.raises(ValueError, match=r"how many steps.*lv.IVON\(lr=0.1\), steps=1000"):
        lv.fit(posterior, data, lv.IVON())
    posterior.prior = lv.priors.Laplace(1.0)
    other = lv.Posterior(posterior.model, posterior.likelihood, lv.priors.Laplace(1.0), num_data=N)
    with pytest.raises(ValueError, match="needs the decay of a Gaussian prior"):
        lv.fit(other, data, lv.IVON(), steps=5, progress=False)
