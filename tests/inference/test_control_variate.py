"""Control variates: the gradient, what it does to the stationary distribution, exact resume, what is refused."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference.control_variate import ControlVariate
from langevin.inference.one_chain import OneChain
from langevin.inference.stacked_chains import StackedChains
from langevin.inference.steppers import sampler_factory
from langevin.samplers import SAMPLERS
from tests.helpers import assert_same_samples, toy_data, toy_posterior

OPTIONS = {"lr": 1e-3, "steps": 30, "burn_in": 10, "thin": 5, "batch_size": 12, "progress": False}


def other_weights(seed=3):
    generator = torch.Generator().manual_seed(seed)
    params = toy_posterior().trainable_parameters()
    return {name: torch.randn(p.shape, generator=generator) for name, p in params.items()}


def gradient(weights, x, y):
    posterior = toy_posterior()
    params = posterior.trainable_parameters()
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(weights[name])
    return dict(zip(params, torch.autograd.grad(posterior.loss(x, y), list(params.values())), strict=True))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("kind", [OneChain, StackedChains])
def test_the_gradient_is_that_of_its_equation(kind, parts, whole):
    x, y = toy_data()
    batches = as_batches((x, y), 12, 0, torch.device("cpu"))
    theta, center = other_weights(3), other_weights(4)
    numbers = [2] if kind is OneChain else [2, 5]
    chains = kind(
        toy_posterior(),
        numbers,
        [theta] * len(numbers),
        batches,
        sampler_factory(lv.SGLD, {"lr": 1e-3}),
        None,
        seed=0,
        grad_accumulation_steps=parts,
        control=ControlVariate.at(center, toy_posterior(), batches),
    )
    chains.backward(whole=whole)
    for index, number in enumerate(numbers):
        batch = batches.fetch(number, 0)
        here, there, everywhere = gradient(theta, *batch), gradient(center, *batch), gradient(center, x, y)
        for name, p in zip(chains.names, chains.params, strict=True):
            expected = here[name] - there[name] + everywhere[name]
            if not whole:  # the update adds the gradient of the Gaussian prior
                expected = expected - theta[name] / 60
            torch.testing.assert_close(chains._slice(p.grad, index), expected, rtol=1e-4, atol=1e-5)


def logistic(num_data, features=8):
    """Logistic regression with correlated features, of condition number about 100."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-0.5, 0.5, features, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64)).Q
    x = torch.randn(num_data, features, generator=generator, dtype=torch.float64) * scales
    logits = x @ (torch.randn(features, generator=generator, dtype=torch.float64) / scales / 3)
    y = (torch.rand(num_data, generator=generator, dtype=torch.float64) < torch.sigmoid(logits)).double()
    model = nn.Linear(features, 1, bias=False).double()
    posterior = lv.Posterior(model, lv.likelihoods.Bernoulli(), lv.priors.Gaussian(1.0), num_data=num_data)
    return posterior, x @ rotation.T, y[:, None]


def hmc(x, y, mode, covariance, steps=200, chains=300):
    """Mean and covariance by HMC with the Laplace approximation as its metric and start."""
    generator = torch.Generator().manual_seed(1)
    root = torch.linalg.cholesky(covariance)

    def energy(w):
        logits = w @ x.T
        return (nn.functional.softplus(logits) - logits * y[:, 0]).sum(1) + w.square().sum(1) / 2

    def force(w):
        return ((y[:, 0] - torch.sigmoid(w @ x.T)) @ x - w) @ root

    q = mode + torch.randn(chains, len(mode), generator=generator, dtype=torch.float64) @ root.T
    kept = []
    for _ in range(steps):
        p = torch.randn(q.shape, generator=generator, dtype=torch.float64)
        new, moving = q, p + 0.2 * force(q)
        for leap in range(4):
            new = new + 0.4 * moving @ root.T
            moving = moving + (0.4 if leap < 3 else 0.2) * force(new)
        change = energy(q) + p.square().sum(1) / 2 - energy(new) - moving.square().sum(1) / 2
        accepted = torch.rand(chains, generator=generator, dtype=torch.float64).log() < change
        q = torch.where(accepted[:, None], new, q)
        kept.append(q)
    draws = torch.stack(kept[20:]).flatten(0, 1)
    return draws.mean(0), torch.cov(draws.T)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGNHT", "ATMC"])
def test_at_equal_gradients_the_stiffest_variance_is_right_with_a_control_variate(name):
    """Logistic regression, B = N/20, against B = N/40 with two gradients a step."""
    posterior, x, y = logistic(1000)
    best = lv.find_map(posterior, (x, y))
    mode = best["weight"][0]
    weight = torch.sigmoid(x @ mode) * torch.sigmoid(-x @ mode)
    hessian = x.T @ (weight[:, None] * x) + torch.eye(len(mode), dtype=torch.float64)
    mean, covariance = hmc(x, y, mode, torch.linalg.inv(hessian))
    variances, vectors = torch.linalg.eigh(covariance)
    root = torch.linalg.cholesky(covariance)

    def init(chain):
        generator = torch.Generator().manual_seed(chain)
        return {"weight": (mean + root @ torch.randn(len(mean), generator=generator, dtype=torch.float64))[None]}

    stiffest = {}
    for control, batch_size in ((None, 50), (best, 25)):
        run = lv.sample(
            posterior,
            (x, y),
            getattr(lv, name),
            lr=0.08 * 2 * float(variances[0]) ** 0.5,
            thermostat_rate=1e-2,
            steps=3000,
            burn_in=600,
            thin=5,
            batch_size=batch_size,
            chains=32,
            init=init,
            control_variate=control,
            mode="vectorised",
            compile=False,
            progress=False,
        )
        draws = torch.stack([torch.stack([s["weight"][0] for s in run.chain(c)[:]]) for c in run.chains]) - mean
        ratios = (draws @ vectors[:, 0]).square().mean(1) / variances[0]
        stiffest[batch_size] = float(ratios.mean())
        error = float(ratios.std()) / math.sqrt(32)
        assert error < 0.05
    assert stiffest[50] > 1.5
    assert stiffest[25] < 1.05


def test_with_a_control_variate_mini_batches_heat_less():
    """Linear regression, SGLD: the variances of both are those of the linear recursion with their gradient noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    y = y + torch.randn(200, 1, generator=generator, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    precision = x.T @ x + eye
    mean = torch.linalg.solve(precision, x.T @ y)[:, 0]
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    model = nn.Linear(2, 1, bias=False).double()
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(1.0).double(), lv.priors.Gaussian(1.0), num_data=200)
    lr, chains = 0.05, 64

    def near(seed):
        return root @ torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def expected(batch_size, residuals):
        """tr(ΛS)/d with S = (I−εH) S (I−εH) + 2ε/N I + ε² C, C the covariance of the batch's gradient."""
        covariance = torch.stack([torch.cov((x * r[:, None]).T) for r in residuals]).mean(0)
        noise = 2 * lr / 200 * eye + lr**2 * covariance / batch_size * (1 - batch_size / 200)
        step = eye - lr * precision / 200
        lyapunov = torch.eye(4, dtype=torch.float64) - torch.kron(step, step)
        return float((precision * torch.linalg.solve(lyapunov, noise.flatten()).view(2, 2)).sum()) / 2

    plain = expected(10, [y[:, 0] - x @ (mean + near(seed)) for seed in range(200)])
    reduced = expected(5, [x @ near(seed) for seed in range(200)])
    for control, batch_size, truth in ((None, 10, plain), ({"weight": mean[None]}, 5, reduced)):
        run = lv.sample(
            posterior,
            (x, y),
            lv.SGLD,
            lr=lr,
            steps=300,
            burn_in=30,
            thin=2,
            batch_size=batch_size,
            chains=chains,
            init=lambda chain: {"weight": (mean + near(chain))[None]},
            control_variate=control,
            mode="vectorised",
            compile=False,
            progress=False,
        )
        draws = torch.stack([torch.stack([s["weight"][0] for s in run.chain(c)[:]]) for c in run.chains]) - mean
        each = ((draws @ precision) * draws).sum(-1).mean(1) / 2
        ratio, error = float(each.mean()), float(each.std()) / math.sqrt(chains)
        assert error < 0.06
        assert ratio == pytest.approx(truth, abs=4 * error)
        assert run.manifest["gradients_per_step"] == (1 if control is None else 2)
    assert plain > 1.4
    assert reduced < 1.06


@pytest.mark.filterwarnings("ignore:.*is frozen after")
@pytest.mark.parametrize("name", [name for name in SAMPLERS if not SAMPLERS[name].full_batch])
def test_every_sampler_takes_it_and_resumes_exactly(name, tmp_path):
    mode = "vectorised" if SAMPLERS[name].stackable else "sequential"
    special = {"nld": {"target": "as-printed", "batch_size": 30}, "sngd": {"batch_size": 30}}
    sampler = sampler_factory(SAMPLERS[name], {"lr": 1e-3, **special.get(name, {})})
    options = {**{k: v for k, v in OPTIONS.items() if k != "lr"}, "chains": 2, "mode": mode, "seed": 1}
    center = other_weights(4)
    whole = lv.sample(toy_posterior(), toy_data(), sampler, control_variate=center, **options)
    plain = lv.sample(toy_posterior(), toy_data(), sampler, **options)
    assert not torch.equal(whole[-1]["0.weight"], plain[-1]["0.weight"])
    lv.sample(
        toy_posterior(), toy_data(), sampler, control_variate=center, out=tmp_path / "r", **options | {"steps": 15}
    )
    assert_same_samples(whole, lv.resume(tmp_path / "r", toy_posterior(), toy_data(), steps=30, progress=False))


def test_a_run_in_memory_keeps_it_when_saved(tmp_path):
    run = lv.sample(toy_posterior(), toy_data(), lv.SGLD, control_variate=other_weights(4), **OPTIONS)
    run.save(tmp_path / "r")
    whole = lv.sample(toy_posterior(), toy_data(), lv.SGLD, control_variate=other_weights(4), **OPTIONS | {"steps": 60})
    assert_same_samples(whole, lv.resume(tmp_path / "r", toy_posterior(), toy_data(), steps=60, progress=False))
    (tmp_path / "r" / "control_variate.safetensors").unlink()
    with pytest.raises(lv.RunError, match="control_variate"):
        lv.resume(tmp_path / "r", toy_posterior(), toy_data(), steps=80, progress=False)


def test_map_finds_the_point():
    run = lv.sample(toy_posterior(), toy_data(), lv.SGLD, control_variate="map", **OPTIONS)
    found = lv.find_map(toy_posterior(), toy_data())
    stored = run.store.fixed("control_variate")
    for name, tensor in found.items():
        torch.testing.assert_close(stored[f"center/{name}"], tensor)
        assert stored[f"gradient/{name}"].abs().max() < 1e-4


def test_a_repeated_call_with_another_choice_is_refused(tmp_path):
    lv.sample(toy_posterior(), toy_data(), lv.SGLD, out=tmp_path / "r", **OPTIONS)
    with pytest.raises(lv.RunError, match="control_variate is False, given True"):
        lv.sample(
            toy_posterior(),
            toy_data(),
            lv.SGLD,
            control_variate=other_weights(),
            out=tmp_path / "r",
            resume="auto",
            **OPTIONS,
        )


@pytest.mark.parametrize(
    ("control", "data", "message"),
    [
        ("mode", None, r"control_variate must be a mapping or 'map'"),
        ({"0.weight": torch.zeros(5, 4)}, None, "has no '0.bias' of shape"),
        (other_weights(), DataLoader(TensorDataset(*toy_data()), batch_size=12), "full pass needs tensors"),
    ],
)
def test_bad_points_are_refused(control, data, message):
    options = {k: v for k, v in OPTIONS.items() if k != "batch_size"}
    with pytest.raises(ValueError, match=message):
        lv.sample(toy_posterior(), data or toy_data(), lv.SGLD, control_variate=control, **options)


def test_dropout_is_refused():
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3))
    posterior = toy_posterior(model, allow=["dropout"])
    weights = {name: p.detach() for name, p in posterior.trainable_parameters().items()}
    with pytest.raises(ValueError, match="BatchNorm or dropout"):
        lv.sample(posterior, toy_data(), lv.SGLD, control_variate=weights, **OPTIONS)
