"""The full Fisher: its kinds against explicit sums, its batches, its correction Γ, what is refused."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core import random
from langevin.preconditioners.fisher import _cholesky
from tests.preconditioners.common import data, matrix, network, run_and_resume, step


def gradients(posterior, x, y):
    """∇log p of every example, (examples, weights)."""
    rows = []
    for example, label in zip(x, y, strict=True):
        log_prob = posterior.likelihood.log_prob(posterior.model(example[None]), label[None]).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(log_prob, list(posterior.model.parameters()))]))
    return torch.stack(rows)


def bound(posterior, x, y, **options):
    options = {"damping": 0.1, "target": "as-printed", **options}
    sampler = lv.NLD(posterior.parameters(), 1e-12, num_data=len(x), **options)
    sampler.bind(posterior, (x, y))
    return sampler


def fisher_of(sampler):
    """F from the Cholesky factor in the sampler's state."""
    factor = sampler.state[sampler.param_groups[0]["params"][0]]["cholesky"]
    return factor @ factor.T - 0.1 * torch.eye(len(factor), dtype=factor.dtype)


def test_the_exact_fisher_is_the_expectation_over_classes():
    x, y = data(rows=10)
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=10)
    expected = 0
    probs = posterior.model(x).softmax(1).detach()
    for c in range(3):
        rows = gradients(posterior, x, torch.full((10,), c))
        expected = expected + rows.T @ (rows * probs[:, c : c + 1]) / 10
    sampler = bound(posterior, x, y)
    step(sampler, posterior, x, y)
    torch.testing.assert_close(fisher_of(sampler), expected, rtol=1e-9, atol=1e-12)


def test_the_exact_fisher_of_bernoulli():
    x, _ = data(rows=10)
    y = torch.ones(10, dtype=torch.float64)
    posterior = lv.Posterior(network(classes=1), lv.likelihoods.Bernoulli(), lv.priors.Gaussian(1.0), num_data=10)
    p = posterior.model(x).sigmoid().detach()
    ones, zeros = gradients(posterior, x, y), gradients(posterior, x, 0 * y)
    sampler = bound(posterior, x, y)
    step(sampler, posterior, x, y)
    expected = (ones.T @ (ones * p) + zeros.T @ (zeros * (1 - p))) / 10
    torch.testing.assert_close(fisher_of(sampler), expected, rtol=1e-9, atol=1e-12)


def test_the_exact_fisher_of_gaussian():
    x, _ = data(rows=10)
    posterior = lv.Posterior(
        nn.Linear(4, 2).double(), lv.likelihoods.Gaussian(0.5).double(), lv.priors.Gaussian(1.0), num_data=10
    )
    y = torch.zeros(10, 2, dtype=torch.float64)
    sampler = bound(posterior, x, y)
    step(sampler, posterior, x, y)
    rows = torch.kron(torch.eye(2, dtype=torch.float64), x)
    ones = torch.kron(torch.eye(2, dtype=torch.float64), torch.ones(10, 1, dtype=torch.float64))
    jacobian = torch.cat([rows, ones], dim=1)
    torch.testing.assert_close(fisher_of(sampler), 4 * jacobian.T @ jacobian / 10, rtol=1e-6, atol=1e-9)


def test_the_empirical_fisher_and_the_gradient_covariance():
    x, y = data(rows=10)
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=10)
    rows = gradients(posterior, x, y)
    for kind, centred in (("empirical", rows), ("covariance", rows - rows.mean(0))):
        twin = copy.deepcopy(posterior)
        sampler = bound(twin, x, y, kind=kind)
        step(sampler, twin, x, y)
        torch.testing.assert_close(fisher_of(sampler), centred.T @ centred / 10, rtol=1e-9, atol=1e-12)


def test_sampled_labels_average_to_the_exact_fisher():
    x, y = data(rows=10)
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=10)
    exact = bound(posterior, x, y)
    step(exact, posterior, x, y)
    expected = fisher_of(exact)
    sampler = bound(posterior, x, y, kind="mc", seed=1)
    draws = []
    for _ in range(400):
        step(sampler, posterior, x, y)
        draws.append(fisher_of(sampler).diagonal())
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 20
    assert ((mean - expected.diagonal()).abs() < 4.5 * error + 1e-12).all()


def test_its_batches_are_a_function_of_the_step_and_differ_from_those_of_the_gradient():
    x, y = data(rows=200)
    posterior = lv.Posterior(
        nn.Linear(4, 1).double(), lv.likelihoods.Gaussian(1.0).double(), lv.priors.Gaussian(1.0), num_data=200
    )
    y = torch.zeros(200, 1, dtype=torch.float64)
    sampler = bound(posterior, x, y, batch_size=8, seed=5, chain=2)
    for t in range(3):
        step(sampler, posterior, x, y)
        own = random.random_subset(200, 8, seed=5, chain=2, step=t, stream=random.Stream.FISHER)
        assert not torch.equal(own, random.random_subset(200, 8, seed=5, chain=2, step=t))
        torch.testing.assert_close(fisher_of(sampler)[:4, :4], x[own].T @ x[own] / 8, rtol=1e-6, atol=1e-9)


def test_noise_is_a_root_of_the_drift():
    x, y = data()
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
    sampler = bound(posterior, x, y)
    step(sampler, posterior, x, y)
    a, root = matrix(sampler, "drift"), matrix(sampler, "noise")
    torch.testing.assert_close(root @ root.T, a, rtol=1e-9, atol=1e-11)
    expected = torch.linalg.inv(fisher_of(sampler) + 0.1 * torch.eye(len(a), dtype=torch.float64))
    torch.testing.assert_close(a, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("target", ["posterior", "jeffreys"])
def test_divergence_by_finite_differences(target):
    x, y = data(rows=6)
    posterior = lv.Posterior(network(hidden=2), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=6)
    sampler = bound(posterior, x, y, target=target)
    group, params = sampler.param_groups[0], sampler.param_groups[0]["params"]
    a = sampler.preconditioner

    def inverse_metric(theta):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(theta, params)
            a.update(sampler.state, group, params, [])
        return matrix(sampler, "drift")

    theta = torch.nn.utils.parameters_to_vector(params).detach()
    step_size = 1e-5
    middle = inverse_metric(theta)
    gamma = torch.cat([v.flatten() for v in a.divergence(sampler.state, group, params)])
    expected, log_det = torch.zeros_like(theta), torch.zeros_like(theta)
    for j in range(len(theta)):
        shift = torch.zeros_like(theta)
        shift[j] = step_size
        up, down = inverse_metric(theta + shift), inverse_metric(theta - shift)
        expected += (up - down)[:, j] / (2 * step_size)
        log_det[j] = -(torch.logdet(up) - torch.logdet(down)) / (2 * step_size)
    if target == "jeffreys":
        expected += 0.5 * middle @ log_det
    torch.testing.assert_close(gamma, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"target": "as-printed", "kind": "mc", "average": 0.9, "interval": 3, "batch_size": 10}]
)
def test_the_state_dict_is_complete(options):
    uninterrupted, resumed = run_and_resume(lambda params: lv.NLD(params, 1e-3, num_data=24, seed=3, **options))
    assert torch.equal(uninterrupted, resumed)


def test_moving_average_and_interval():
    x, y = data()
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
    sampler = lv.NLD(
        posterior.parameters(), 2e-3, num_data=24, target="as-printed", kind="mc", average=0.95, interval=2, damping=0.1
    )
    sampler.bind(posterior, (x, y))
    known = sampler.state[sampler.param_groups[0]["params"][0]]
    step(sampler, posterior, x, y)
    first = known["fisher"].clone()
    step(sampler, posterior, x, y)
    assert torch.equal(known["fisher"], first)
    alone = lv.NLD(posterior.parameters(), 2e-3, num_data=24, target="as-printed", kind="mc", damping=0.1)
    alone.bind(posterior, (x, y))
    alone.param_groups[0]["step"] = 2
    alone.preconditioner.update(alone.state, alone.param_groups[0], alone.param_groups[0]["params"], [])
    fresh = fisher_of(alone)
    step(sampler, posterior, x, y)
    keep = 0.95**2
    expected = (keep * first + fresh) / (keep + 1)  # bias-corrected
    torch.testing.assert_close(known["fisher"], expected, rtol=1e-9, atol=1e-12)


def test_freezing_has_no_effect_on_jeffreys():
    x, y = data()
    for target, frozen in (("posterior", True), ("as-printed", True), ("jeffreys", False)):
        posterior = lv.Posterior(network(hidden=2), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
        sampler = bound(posterior, x, y, target=target)
        step(sampler, posterior, x, y)
        sampler.freeze()
        assert sampler.param_groups[0]["frozen"] is frozen


def test_copies_keep_their_settings():
    fisher = lv.preconditioners.Fisher("mc", damping=0.2)
    for twin in (copy.deepcopy(fisher), pickle.loads(pickle.dumps(fisher))):
        assert repr(twin) == repr(fisher)


# ---- bad input


def test_too_many_parameters_are_refused():
    posterior = lv.Posterior(nn.Linear(1000, 10), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=5)
    sampler = lv.NLD(posterior.parameters(), 1e-2, num_data=5, target="as-printed")
    with pytest.raises(ValueError, match=r"10,010 parameters takes 0\.4 GB.*KSGLD"):
        sampler.bind(posterior, (torch.zeros(5, 1000), torch.zeros(5).long()))
    small = lv.Posterior(nn.Linear(40, 10), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=5)
    with pytest.raises(ValueError, match="limit is 300"):
        lv.NLD(small.parameters(), 1e-2, num_data=5).bind(small, (torch.zeros(5, 40), torch.zeros(5).long()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mc"}, "kind='exact'"),
        ({"average": 0.9}, "average=0"),
        ({"interval": 2}, "interval=1"),
        ({"kind": "true", "target": "as-printed"}, "'exact', 'mc'"),
        ({"target": "flat"}, "'jeffreys'"),
        ({"damping": 0.0}, "damping"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        lv.NLD([nn.Parameter(torch.zeros(3))], 1e-2, num_data=5, **options)


def test_it_needs_data_one_parameter_group_and_a_supported_likelihood():
    x, y = data()
    posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
    with pytest.raises(ValueError, match=r"bind\(posterior, \(x, y\)\)"):
        lv.NLD(posterior.parameters(), 1e-2, num_data=24).bind(posterior)
    first, *rest = posterior.parameters()
    sampler = lv.NLD([{"params": [first]}, {"params": rest}], 1e-2, num_data=24)
    sampler.bind(posterior, (x, y))
    with pytest.raises(ValueError, match="one parameter group"):
        step(sampler, posterior, x, y)
    sampled = lv.Posterior(
        nn.Linear(4, 1).double(),
        lv.likelihoods.Gaussian(1.0, sampled=True).double(),
        lv.priors.Gaussian(1.0),
        num_data=24,
    )
    sampler = bound(sampled, x, torch.zeros(24, 1))
    with pytest.raises(ValueError, match="kind='mc'"):
        step(sampler, sampled, x, torch.zeros(24, 1))
    sampler = bound(sampled, x, torch.zeros(24, 1), kind="mc")
    step(sampler, sampled, x, torch.zeros(24, 1))


def test_a_fisher_that_rounding_made_indefinite_is_factored_all_the_same():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q
    values = torch.tensor([1e5, 10, 5, 3, 2, 1, 1, -0.01], dtype=torch.float64)
    fisher = (vectors * values @ vectors.T).float()
    lower = _cholesky(fisher, 1e-3).double()
    expected = vectors * (values.clamp_min(0) + 1e-3) @ vectors.T
    torch.testing.assert_close(lower @ lower.T, expected, rtol=0, atol=0.05)  # 1e-7 of 1e5 is 0.01
    assert torch.equal(lower, lower.tril())
    with pytest.raises(FloatingPointError, match="not finite"):
        _cholesky(fisher * math.inf, 1e-3)


def test_jeffreys_with_another_fisher_in_every_step_is_refused():
    x, y = data()
    posterior = lv.Posterior(network(hidden=2), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=24)
    for batch_size, target in ((24, "jeffreys"), (12, "posterior")):
        sampler = lv.NLD(posterior.parameters(), 1e-3, num_data=24, target=target, batch_size=batch_size)
        sampler.bind(posterior, (x, y))
    sampler = lv.NLD(posterior.parameters(), 1e-3, num_data=24, target="jeffreys", batch_size=12)
    with pytest.raises(ValueError, match="batch_size=24, or target='posterior'"):
        sampler.bind(posterior, (x, y))
