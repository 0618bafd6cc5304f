"""K-FAC and KSGLD: factors against brute force and curvlinops, drift and noise, what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core import random
from langevin.preconditioners.kfac import _factorise
from tests.preconditioners.common import data, matrix, network, run_and_resume, step

FACTORS = ("input_factor", "output_factor")


def bound(model, likelihood, x, y, **options):
    posterior = lv.Posterior(model, likelihood, lv.priors.Gaussian(1.0), num_data=len(x))
    sampler = lv.KSGLD(posterior.parameters(), 1e-12, num_data=len(x), **options)
    sampler.bind(posterior, (x, y))
    return posterior, sampler


def images(rows=6, channels=2, size=5, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, size, size, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (rows,), generator=generator)


def convolutions(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=2, padding=1, bias=bias),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 2, 2, dilation=2, padding="same", padding_mode="reflect", bias=bias),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2 * 3 * 3, 3, bias=bias),
    ).double()


def brute_force(model, log_prob, x, y):
    """Ā ⊗ G example by example and position by position, by automatic differentiation.

    A row a of the input is the derivative ∂s[o, position]/∂(W, b)[o, :] = (a, 1).
    """
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
    products = []
    for layer in layers:
        params = list(layer.parameters())
        a_sum, g_sum, positions = 0.0, 0.0, 0
        for example, label in zip(x, y, strict=True):
            captured = []
            handle = layer.register_forward_hook(lambda m, i, o, c=captured: c.append(o) or o.clone())
            output = model(example[None])
            handle.remove()
            s = captured[0]
            (delta,) = torch.autograd.grad(-log_prob(output, label[None]).sum(), s, retain_graph=True)
            s, delta = s[0].reshape(s.shape[1], -1), delta[0].reshape(s.shape[1], -1)
            for t in range(s.shape[1]):
                row = torch.cat([v[0].flatten() for v in torch.autograd.grad(s[0, t], params, retain_graph=True)])
                a_sum = a_sum + torch.outer(row, row) / len(x)
                g_sum = g_sum + torch.outer(delta[:, t], delta[:, t])
                positions += 1
        products.append(torch.kron(a_sum, g_sum / positions))
    return products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_factors_agree_with_brute_force(kind, bias):
    model = network(bias=bias) if kind == "linear" else convolutions(bias)
    x, y = data() if kind == "linear" else images()
    expected = brute_force(model, lv.likelihoods.Categorical().log_prob, x, y)
    posterior, sampler = bound(model, lv.likelihoods.Categorical(), x, y, fisher="empirical")
    step(sampler, posterior, x, y)
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
    for layer, product in zip(layers, expected, strict=True):
        a, g = (sampler.state[layer.weight][name] for name in FACTORS)
        torch.testing.assert_close(torch.kron(a, g), product, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_sampled_labels_are_a_function_of_the_seed_and_do_not_change_gradients(kind):
    """The ReLU after the convolution is in place: it overwrites the output that K-FAC records."""
    make = network if kind == "linear" else convolutions
    x, y = data() if kind == "linear" else images()
    posterior, sampler = bound(make(), lv.likelihoods.Categorical(), x, y, seed=4)
    posterior.loss(x, y).backward()
    before = [p.grad.clone() for p in posterior.parameters()]
    source = random.Source(seed=4, chain=0, step=0, stream=random.Stream.LABELS)
    labels = lv.likelihoods.Categorical().sample(make()(x).detach(), source)
    expected = brute_force(make(), lv.likelihoods.Categorical().log_prob, x, labels)
    torch.manual_seed(123)  # the global generator has no effect
    sampler.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(posterior.parameters(), before, strict=True))
    layers = [m for m in posterior.model if isinstance(m, nn.Linear | nn.Conv2d)]
    for layer, product in zip(layers, expected, strict=True):
        a, g = (sampler.state[layer.weight][name] for name in FACTORS)
        torch.testing.assert_close(torch.kron(a, g), product, rtol=1e-9, atol=1e-12)


def test_the_block_of_a_linear_layer_with_gaussian_likelihood_is_exact():
    """F = Ā ⊗ I/σ²: Ā is exact, G is the average over sampled labels (20,000 of them: 1 % to 2 %)."""
    x, _ = data(rows=20_000)
    y = torch.zeros(len(x), 2, dtype=torch.float64)
    model = nn.Linear(4, 2, dtype=torch.float64)
    posterior, sampler = bound(model, lv.likelihoods.Gaussian(0.5).double(), x, y, examples=None)
    step(sampler, posterior, x, y)
    known = sampler.state[model.weight]
    rows = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(known["input_factor"], rows.T @ rows / len(x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(known["output_factor"], 4 * torch.eye(2, dtype=torch.float64), rtol=0.05, atol=0.12)
    jacobian = torch.kron(torch.eye(2, dtype=torch.float64), rows[:50])  # of 50 examples, by output
    brute = jacobian.T @ jacobian / 50 * 4
    a = rows[:50].T @ rows[:50] / 50
    torch.testing.assert_close(torch.kron(4 * torch.eye(2, dtype=torch.float64), a), brute)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_noise_covariance_is_the_matrix_of_the_drift(kind):
    model = network() if kind == "linear" else convolutions()
    x, y = data() if kind == "linear" else images()
    posterior, sampler = bound(model, lv.likelihoods.Categorical(), x, y, damping=1e-2)
    step(sampler, posterior, x, y)
    a, root = matrix(sampler, "drift"), matrix(sampler, "noise")
    torch.testing.assert_close(root @ root.T, a, rtol=1e-8, atol=1e-10)


def test_drift_is_the_inverse_of_the_damped_product():
    x, y = data()
    model = nn.Sequential(nn.Linear(4, 3)).double()
    posterior, sampler = bound(model, lv.likelihoods.Categorical(), x, y, damping=1e-2, prior_precision=12.0)
    step(sampler, posterior, x, y)
    a_bar, g = (sampler.state[model[0].weight][name] for name in FACTORS)
    gamma = 1e-2 + 12.0 / len(x)
    pi = ((a_bar.trace() / 5) / (g.trace() / 3)) ** 0.5
    a_bar = a_bar + pi * gamma**0.5 * torch.eye(5, dtype=torch.float64)
    g = g + gamma**0.5 / pi * torch.eye(3, dtype=torch.float64)
    # parameters are flattened as (W row by row, b), the block as (W | b) column by column
    order = [o * 4 + i for i in range(4) for o in range(3)] + [12, 13, 14]
    expected = torch.linalg.inv(torch.kron(a_bar, g))
    torch.testing.assert_close(matrix(sampler, "drift")[order][:, order], expected, rtol=1e-8, atol=1e-10)


def test_preconditioning_only_the_noise_is_sgd_at_zero_temperature():
    x, y = data()
    posterior, sampler = bound(network(), lv.likelihoods.Categorical(), x, y, precondition="noise", noise_power=1.0)
    step(sampler, posterior, x, y)
    assert torch.equal(matrix(sampler, "drift"), torch.eye(27, dtype=torch.float64))
    both, reference = bound(network(), lv.likelihoods.Categorical(), x, y)
    step(reference, both, x, y)
    torch.testing.assert_close(matrix(sampler, "noise"), matrix(reference, "drift"), rtol=1e-8, atol=1e-10)

    cold = lv.KSGLD(posterior.parameters(), 0.1, num_data=24, precondition="noise", temperature=0.0, warmup=0)
    cold.bind(posterior)
    twin = copy.deepcopy(posterior)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        step(cold, posterior, x, y)
        step(plain, twin, x, y)
    for p, q in zip(posterior.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_moving_averages_start_from_the_first_batch_and_are_updated_at_their_intervals():
    x, y = data()
    model = network()
    posterior, sampler = bound(
        model,
        lv.likelihoods.Categorical(),
        x,
        y,
        fisher="empirical",
        average=0.75,
        factor_interval=2,
        inverse_interval=4,
        warmup=0,
    )
    known = sampler.state[model[0].weight]
    halves = [torch.arange(12), torch.arange(12, 24)]
    rows = [torch.cat([x[h], torch.ones(12, 1, dtype=torch.float64)], 1) for h in halves]
    first, second = (r.T @ r / 12 for r in rows)
    inverses = []
    for t, half in enumerate([0, 1, 1, 0, 0]):
        step(sampler, posterior, x, y, halves[half])
        inverses.append(known["input_lower"].clone())
        expected = first if t < 2 else (0.75 * first + second) / (0.75 + 1)  # bias-corrected
        expected = expected if t < 4 else (0.75**2 * first + 0.75 * second + first) / (0.75**2 + 0.75 + 1)
        torch.testing.assert_close(known["input_factor"], expected, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(inverses[0], inverse) for inverse in inverses[1:4])
    assert not torch.equal(inverses[0], inverses[4])


@pytest.mark.parametrize("options", [{}, {"fisher": "empirical"}, {"factor_interval": 2, "inverse_interval": 3}])
def test_the_state_dict_is_complete(options):
    uninterrupted, resumed = run_and_resume(lambda params: lv.KSGLD(params, 1e-2, num_data=24, seed=3, **options))
    assert torch.equal(uninterrupted, resumed)


def test_copies_are_unbound_and_otherwise_equal():
    x, y = data()
    posterior, sampler = bound(network(), lv.likelihoods.Categorical(), x, y, damping=0.02)
    step(sampler, posterior, x, y)
    for twin in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert repr(twin.preconditioner) == repr(sampler.preconditioner)
        for p in twin.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        with pytest.raises(ValueError, match=r"sampler.bind\(posterior\)"):
            twin.step()
    unbound = lv.preconditioners.KFAC(damping=0.3)
    for twin in (copy.deepcopy(unbound), pickle.loads(pickle.dumps(unbound))):
        assert twin.damping == 0.3


def test_freezing_keeps_the_factors():
    x, y = data()
    posterior, sampler = bound(network(), lv.likelihoods.Categorical(), x, y, factor_interval=1, inverse_interval=1)
    with pytest.raises(ValueError, match="burn_in"):
        sampler.freeze()
    step(sampler, posterior, x, y)
    sampler.freeze()
    before = matrix(sampler, "drift")
    step(sampler, posterior, x[:7], y[:7])
    assert torch.equal(matrix(sampler, "drift"), before)


@pytest.mark.parametrize("sampler_class", [lv.KSGLD, lv.BNPSGLD])
def test_layers_may_be_in_several_parameter_groups(sampler_class):
    x, y = data()
    drifts = []
    for grouped in (False, True):
        posterior = lv.Posterior(network(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=len(x))
        first, last = (list(posterior.model[i].parameters()) for i in (0, 2))
        groups = [{"params": first}, {"params": last}] if grouped else [*first, *last]
        sampler = sampler_class(groups, 0.01, num_data=len(x), temperature=0.0)
        sampler.bind(posterior)
        for _ in range(12):
            step(sampler, posterior, x, y)
        drifts.append(torch.cat([p.detach().flatten() for p in posterior.parameters()]))
    torch.testing.assert_close(*drifts, rtol=1e-9, atol=1e-12)
    one = lv.Posterior(nn.Linear(4, 3).double(), lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=len(x))
    sampler = sampler_class([{"params": [p]} for p in one.parameters()], 0.1, num_data=len(x))
    sampler.bind(one)
    with pytest.raises(ValueError, match="same parameter group"):
        step(sampler, one, x, y)


# ---- warnings and errors


def test_uncovered_parameters_give_one_warning_and_get_a_scalar():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 3)).double()
    x, y = images()
    with pytest.warns(UserWarning, match=r"0\.weight, 0\.bias, 2\.weight, 2\.bias: these get A = 0\.25") as warnings:
        posterior, sampler = bound(model, lv.likelihoods.Categorical(), x, y, uncovered=0.25)
    assert len(warnings) == 1
    step(sampler, posterior, x, y)
    count = sum(p.numel() for p in list(model.parameters())[:4])
    a, root = matrix(sampler, "drift"), matrix(sampler, "noise")
    assert torch.equal(a[:count, :count], 0.25 * torch.eye(count, dtype=torch.float64))
    assert torch.equal(root[:count, :count], 0.5 * torch.eye(count, dtype=torch.float64))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inner(self.inner(x)))


@pytest.mark.parametrize("fisher", ["sampled", "empirical"])
def test_a_layer_used_twice_is_refused(fisher):
    x, y = data()
    posterior, sampler = bound(Twice().double(), lv.likelihoods.Categorical(), x, y, fisher=fisher)
    with pytest.raises(ValueError, match="'inner' is used twice"):
        step(sampler, posterior, x, y)


def test_shared_weights_are_refused():
    model = network(features=3)
    model[2].weight = model[0].weight
    x, y = data(features=3)
    with pytest.raises(ValueError, match=r"'0\.weight' is used by several"):
        bound(model, lv.likelihoods.Categorical(), x, y)


def test_forward_passes_without_gradients_or_in_evaluation_mode_are_not_recorded():
    x, y = data()
    posterior, sampler = bound(network(), lv.likelihoods.Categorical(), x, y, factor_interval=1)
    posterior.loss(x, y).backward()
    posterior.model.eval()
    posterior.model(100 * x)
    posterior.model.train()
    with torch.no_grad():
        posterior.model(100 * x)
    sampler.step()
    rows = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(sampler.state[posterior.model[0].weight]["input_factor"], rows.T @ rows / len(x))


def test_accumulated_gradients_need_sampled_labels():
    x, y = data()
    for fisher in ("sampled", "empirical"):
        posterior, sampler = bound(network(), lv.likelihoods.Categorical(), x, y, fisher=fisher)
        for half in (slice(0, 12), slice(12, 24)):
            (posterior.loss(x[half], y[half]) / 2).backward()
        if fisher == "sampled":
            sampler.step()
            continue
        with pytest.raises(ValueError, match='fisher="sampled"'):
            sampler.step()


def test_stacked_chains_are_refused():
    with pytest.raises(ValueError, match="sequential"):
        lv.KSGLD([nn.Parameter(torch.zeros(2, 3))], 1e-2, num_data=5, chain=(0, 1))


@pytest.mark.parametrize("options", [{"damping": 0.0}, {"average": 1.0}, {"fisher": "true"}, {"precondition": "drift"}])
def test_bad_settings(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        lv.KSGLD([nn.Parameter(torch.zeros(2, 3))], 1e-2, num_data=5, **options)


# ---- reference implementation


def test_products_agree_with_curvlinops():
    """`reference/curvlinops.json` was written by `python tests/preconditioners/reference/curvlinops_kfac.py`."""
    from tests.preconditioners.reference.curvlinops_kfac import model_and_data

    model, x, y = model_and_data()
    posterior, sampler = bound(model, lv.likelihoods.Categorical(), x, y, fisher="empirical")
    step(sampler, posterior, x, y)
    stored = json.loads((Path(__file__).parent / "reference" / "curvlinops.json").read_text())
    layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(stored["products"]) == len(layers)
    for layer, product in zip(layers, stored["products"], strict=True):
        a, g = (sampler.state[layer.weight][name] for name in FACTORS)
        expected = torch.tensor(product, dtype=torch.float64)
        torch.testing.assert_close(torch.kron(g, a), expected, rtol=1e-6, atol=1e-9)


def test_averages_that_are_indefinite_by_rounding_can_be_factored():
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    factor = rows @ rows.T
    factor -= 1e-5 * factor.trace() / 50 * torch.eye(50)
    known = {"input_factor": factor, "output_factor": torch.eye(2)}
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(factor.double())
    _factorise(known, 1e-30, None)
    lower = known["input_lower"]
    torch.testing.assert_close(lower @ lower.T, factor, rtol=1e-3, atol=1e-3)
    assert lower.dtype == torch.float32
    with pytest.raises(FloatingPointError, match=r"Lower lr, or raise damping to 0.01"):
        _factorise({**known, "input_factor": factor - factor.trace() * torch.eye(50)}, 1e-3, None)
