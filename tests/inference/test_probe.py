"""The gradient thermometer: its readings, its cost, and that it leaves the run as it is."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference import engine, probe
from langevin.inference.one_chain import OneChain
from langevin.inference.probe import GRADIENTS, plan
from tests.helpers import assert_same_samples, toy_data, toy_posterior

draw = partial(lv.sample, progress=False)
STIFFEST = "along the stiffest direction"


def regression(n=60):
    """Two inputs, correlated, and a bias: U is quadratic."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(1)) @ torch.tensor([[2.0, 0.0], [1.0, 0.5]])
    posterior = lv.Posterior(nn.Linear(2, 1), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(1.0), num_data=n)
    features = torch.cat([x, torch.ones(n, 1)], 1).double()
    return posterior, (x, x.sum(1, keepdim=True) + 1), features.T @ features + torch.eye(3).double()


@pytest.mark.parametrize(("mode", "chains"), [("sequential", 1), ("vectorised", 3), ("sequential", 2)])
def test_readings_of_a_quadratic(mode, chains):
    """All data: ‖∇U‖² of each tensor at the weights before the step, and zᵀHz; stiffest: λ, and (v·∇U)²."""
    posterior, data, hessian = regression()
    seen = {}
    run = draw(
        posterior,
        data,
        lv.SGLD,
        lr=1e-3,
        batch_size=60,
        steps=40,
        burn_in=0,
        thin=1,
        chains=chains,
        mode=mode,
        probe=0.9,
        callbacks=[
            lambda info: seen.update({(c, info.step): info.weights(i) for i, c in enumerate(info.chains)}),
        ],
    )
    every = run.manifest["settings"]["probe_interval"]
    assert run.manifest["settings"]["probe_size"] == 60
    mode_of_u = torch.linalg.solve(hessian, hessian_right(data))
    values, vectors = torch.linalg.eigh(hessian)
    for c in run.chains:
        step = [s for s in range(1, 40) if s % every == every // 2][-1]
        theta = torch.cat([seen[c, step]["weight"].flatten(), seen[c, step]["bias"]]).double()
        slope = hessian @ (theta - mode_of_u)
        at = lambda name, c=c, step=step: run.trace(name)[c][step]  # noqa: E731  (of the sample after the step)
        assert at("gradient/weight") == pytest.approx(float(slope[:2].square().sum()), rel=1e-3, abs=1e-2)
        assert at("gradient/bias") == pytest.approx(float(slope[2].square()), rel=1e-3, abs=1e-2)
        assert at("curvature/bias") == pytest.approx(float(hessian[2, 2]) + offsets(hessian, at), rel=1e-2)
        assert at(f"curvature {STIFFEST}") == pytest.approx(float(values[-1]), rel=1e-2)
        along = float(slope @ vectors[:, -1])
        assert at(f"gradient {STIFFEST}") == pytest.approx(along**2, rel=0.05, abs=0.5)
    assert math.isnan(run.trace("gradient/weight")[0][0])


def hessian_right(data):
    x, y = data
    features = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    return features.T @ y[:, 0].double()


def offsets(hessian, at):
    """z_bias Σ_j H_bias,j z_j for the signs that fit the reading."""
    possible = [s * float(hessian[2, 0]) + t * float(hessian[2, 1]) for s in (-1, 1) for t in (-1, 1)]
    return min(possible, key=lambda value: abs(float(hessian[2, 2]) + value - at("curvature/bias")))


def test_mini_batch_readings_are_unbiased(monkeypatch):
    """Ten of 60 examples: N²g₁·g₂ and zᵀHz, averaged over many readings at one place, against all data."""
    posterior, data, hessian = regression()
    monkeypatch.setattr(engine, "plan", lambda *args, **options: (1, 10))
    run = draw(posterior, data, lv.SGLD, lr=1e-12, batch_size=10, steps=20, burn_in=0, thin=1, chains=60, init="model")
    theta = torch.cat([run[0]["weight"].flatten(), run[0]["bias"]]).double()
    slope = hessian @ theta - hessian_right(data)
    for name, exact in (
        ("gradient/weight", float(slope[:2].square().sum())),
        ("curvature/weight", float(hessian[0, 0] + hessian[1, 1])),
        ("curvature/bias", float(hessian[2, 2])),
    ):
        values = torch.tensor(list(run.trace(name).values())).flatten()
        assert len(values) == 1200
        assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / math.sqrt(len(values)), name


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (lv.SGLD, {}),
        (lv.ATMC, {}),
        (lv.pSGLD, {"freeze": False}),
        (lv.KSGLD, {"freeze": False}),
        (partial(lv.KSGLD, fisher="empirical"), {"freeze": False}),
        (lv.BNPSGLD, {"freeze": False}),
        (partial(lv.NLD, kind="mc", target="as-printed"), {"freeze": False}),
    ],
    ids=["SGLD", "ATMC", "pSGLD", "KSGLD", "KSGLD empirical", "BNPSGLD", "NLD"],
)
def test_samples_are_the_same_with_and_without(sampler, options):
    options = {"lr": 1e-3, "steps": 24, "burn_in": 8, "thin": 1, "batch_size": 12, **options}
    with_probe, without = (draw(toy_posterior(), toy_data(), sampler, probe=p, **options) for p in (0.9, 0))
    assert "gradient/0.weight" in with_probe.traces
    assert "gradient/0.weight" not in without.traces
    assert_same_samples(with_probe, without)


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("stop", [9, 22])
def test_an_interrupted_run_has_the_same_readings(stop, chains, tmp_path):
    def callback(info):
        if info.step == stop:
            raise InterruptedError

    options = {"sampler": lv.SGLD, "lr": 1e-2, "steps": 40, "burn_in": 4, "thin": 2, "probe": 0.9, "chains": chains}
    options |= {"mode": "vectorised" if chains > 1 else "auto", "batch_size": 20}
    whole = draw(toy_posterior(), toy_data(), **options)
    with pytest.raises(InterruptedError):
        draw(toy_posterior(), toy_data(), out=tmp_path / "r", callbacks=[callback], **options)
    again = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), progress=False)
    assert whole.traces == again.traces
    for name in whole.traces:
        assert str(whole.trace(name)) == str(again.trace(name)), name  # NaN where nothing was read
    assert whole.temperature_readings() == again.temperature_readings()
    assert str(whole.gradient_temperature()) == str(again.gradient_temperature())


def test_stacked_chains_read_what_each_reads_alone():
    options = {"lr": 1e-3, "steps": 30, "burn_in": 0, "thin": 1, "probe": 0.9, "batch_size": 12, "chains": 3}
    monkeypatched = [
        draw(toy_posterior(), toy_data(), lv.SGLD, mode=m, **options) for m in ("vectorised", "sequential")
    ]
    if len({run.manifest["settings"]["probe_interval"] for run in monkeypatched}) == 1:
        for name in monkeypatched[0].traces:
            for c in range(3):
                one, other = (torch.tensor(run.trace(name)[c]) for run in monkeypatched)
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_the_cost_is_the_share_that_is_given():
    for weights in (10, 10**4, 10**8):
        for fraction in (0.01, 0.02, 0.1):
            every, size = plan(fraction, steps=15_000, batch_size=50, num_data=2000, weights=weights)
            overhead = 500_000 / weights
            assert GRADIENTS * (size + overhead) / (every * (50 + overhead)) <= fraction
            assert 50 <= size <= 2000


def test_gradients_are_counted(monkeypatch):
    """Examples of all forward passes of readings, as a share of the run's."""
    examples = []
    original = probe._of_one
    monkeypatch.setattr(probe, "_of_one", lambda g, v, x, y: (examples.append(len(y)), original(g, v, x, y))[1])
    monkeypatch.setattr(probe, "_OVERHEAD", 0)
    draw(toy_posterior(), toy_data(), lv.SGLD, lr=1e-3, steps=600, burn_in=0, batch_size=12, probe=0.1)
    first = 2 * probe._FIRST_ITERATIONS * 12  # of the stiffest direction
    one = GRADIENTS * max(examples)
    assert 0.05 < (sum(examples) - first - one) / (600 * 12) <= 0.1


def test_kinks_count():
    """U = Σ|θ x_i − 1| + θ²/2: between the kinks ∇²U = 1, yet E‖∇U‖² = E[tr ∇²U], which is far larger."""

    class Hinge(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.3]))

        def forward(self, x):
            return torch.relu(x * self.weight - 1) + torch.relu(1 - x * self.weight)

    class Linear:
        def log_prob(self, output, target):
            return -output[:, 0]

    x = torch.linspace(0.5, 3.0, 200)[:, None]
    posterior = lv.Posterior(Hinge(), Linear(), lv.priors.Gaussian(1.0), num_data=200)
    batches = as_batches((x, torch.zeros(200)), 200, 0, torch.device("cpu"))
    start = {"weight": torch.tensor([0.3])}
    chain = OneChain(posterior, [0], [start], batches, partial(lv.SGLD, lr=1e-3), None, seed=0)
    grid = torch.linspace(0.05, 2, 4000).double()
    energy = (x.double() * grid - 1).abs().sum(0) + 0.5 * grid**2
    density = torch.softmax(-energy, 0)
    exact = float((density * torch.gradient(energy, spacing=(grid,))[0].square()).sum())
    draws = grid[torch.searchsorted(density.cumsum(0), (torch.arange(150) + 0.5) / 150)]
    readings = []
    for theta in draws.tolist():
        chain.params[0].data.fill_(theta)
        readings.append(probe.read_gradients(chain, 200)["curvature/weight"][0])
    readings = torch.tensor(readings)
    assert exact > 1000
    assert abs(float(readings.mean()) - exact) < 4 * float(readings.std()) / math.sqrt(150) + 0.03 * exact


def test_curvature_of_heavy_tailed_noise_much_smaller_than_the_weights():
    """The likelihood bends on the scale of the noise, a hundredth of the weights here."""
    generator = torch.Generator().manual_seed(0)
    x, theta = torch.randn(300, 4, generator=generator), torch.tensor([1.0, -1.0, 2.0, 0.5])
    normal = torch.randn(300, generator=generator)
    chi2 = torch.randn(300, 4, generator=generator).square().sum(1)
    y = x @ theta + 0.01 * normal / (chi2 / 4).sqrt()
    posterior = lv.Posterior(nn.Linear(4, 1, bias=False), lv.likelihoods.StudentT(0.01), num_data=300)
    batches = as_batches((x, y), 300, 0, torch.device("cpu"))
    start = {"weight": theta[None].clone()}
    chain = OneChain(posterior, [0], [start], batches, partial(lv.SGLD, lr=1e-6), None, seed=0)
    likelihood = lv.likelihoods.StudentT(0.01)
    second = torch.func.hessian(lambda w: -likelihood.log_prob(x @ w, y).sum())(theta)
    readings = []
    for step in range(100):
        chain.step = step
        readings.append(float(probe.read_gradients(chain, 300)["curvature/weight"][0]))
    readings = torch.tensor(readings)
    error = float(readings.std()) / math.sqrt(100)
    assert abs(float(readings.mean()) / float(second.trace()) - 1) < 4 * error / float(second.trace()) + 0.03


def test_where_it_is_not_measured():
    options = {"lr": 1e-3, "steps": 60, "thin": 1, "probe": 0.9}
    loader = DataLoader(TensorDataset(*toy_data()), batch_size=10)
    dropout = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1), nn.Linear(5, 3))
    allowed = lv.Posterior(dropout, lv.likelihoods.Categorical(), num_data=60, allow=["dropout"])
    for run in (
        draw(toy_posterior(), loader, lv.SGLD, **options),
        draw(toy_posterior(), toy_data(), lv.SGD, **options),
        draw(toy_posterior(), toy_data(), lv.SGLD, temperature=0.0, **options),
        draw(allowed, toy_data(), lv.SGLD, **options),
        draw(toy_posterior(), toy_data(), lv.SGLD, **{**options, "probe": 0}),
    ):
        assert run.manifest["settings"]["probe_interval"] == 0
        assert not run.gradient_temperature().known
        assert run.gradient_temperatures() == {}
        assert not run.stiffest_temperature().known
    for wrong in (-0.1, 1.0, "much"):
        with pytest.raises(ValueError, match="probe="):
            draw(toy_posterior(), toy_data(), lv.SGLD, **{**options, "probe": wrong})
