"""The rules by which the autopilot decides, on numbers whose answer is known."""

import math

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference.autopilot.budget import Budget
from langevin.inference.autopilot.data_parts import DataParts
from langevin.inference.autopilot.plan import choose_regime, multiply_adds
from langevin.inference.autopilot.scales import posterior_scales
from langevin.inference.autopilot.stationary import Drift, drifts
from langevin.inference.autopilot.stopping import looked
from langevin.inference.autopilot.temperature import choose_temperature


def ar1(chains: int, length: int, phi: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.empty((chains, length))
    rows[:, 0] = rng.normal(size=chains)
    for i in range(1, length):
        rows[:, i] = phi * rows[:, i - 1] + math.sqrt(1 - phi**2) * rng.normal(size=chains)
    return rows


def series(values: np.ndarray) -> dict[int, list[list[float]]]:
    return {c: [[i + 1.0, v] for i, v in enumerate(row)] for c, row in enumerate(values)}


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ("10 min", Budget(seconds=600)),
        ("90 s", Budget(seconds=90)),
        (30, Budget(seconds=30)),
        ("2 h", Budget(seconds=7200)),
        ("5x", Budget(times=5)),
        ("4000 steps", Budget(steps=4000)),
        (None, Budget()),
    ],
)
def test_budgets_are_times_multiples_or_steps(given, budget) -> None:
    assert Budget.parse(given) == budget


@pytest.mark.parametrize("given", ["ten minutes", "-3 s", "0 s", "", "3 days", True, "1.2.3 s"])
def test_a_budget_that_is_none_is_refused_with_examples(given) -> None:
    with pytest.raises(ValueError, match='write a time, "10 min"'):
        Budget.parse(given)


def test_an_error_that_is_unknown_is_not_shown_as_0() -> None:
    assert str(Drift("prediction 4", -90.2, 0.0, 0.1)) == "prediction 4 changes by -90 (unknown error)"
    assert str(Drift("prediction 4", 1.0, 0.25, 0.1)) == "prediction 4 changes by +1 ± 0.2"


def test_stationary_chains_are_settled_and_drifting_ones_are_not() -> None:
    alarms = 0
    for seed in range(40):
        stationary = ar1(10, 400, 0.8, seed)
        alarms += not all(d.settled for d in drifts(series(stationary), 400))
        drifting = stationary + np.linspace(0, 3, 400)
        assert not all(d.settled for d in drifts(series(drifting), 400))
    assert alarms <= 7  # 5 % of 40 are 2; more than 7 have a probability below 0.001


def test_false_alarms_are_of_all_quantities_together() -> None:
    """With five of them at 5 % each, 45 of 200 looks would find a change."""
    alarms = 0
    for seed in range(200):
        values = np.random.default_rng(seed).normal(size=(10, 80, 5))
        rows = {c: np.column_stack([np.arange(1, 81), each]).tolist() for c, each in enumerate(values)}
        alarms += not all(d.settled for d in drifts(rows, 80))
    assert alarms <= 21  # 5 % of 200 are 10; more than 21 have a probability below 0.001


def test_one_chain_is_judged_by_the_errors_within_its_windows() -> None:
    rows = ar1(1, 2000, 0.5, 1)
    assert all(d.settled for d in drifts(series(rows), 2000))
    assert not all(d.settled for d in drifts(series(rows + np.linspace(0, 2, 2000)), 2000))


def test_the_error_of_the_predictive_density_is_that_of_replicates() -> None:
    """y ~ N(θ, 1), θ an AR(1) chain: the spread of the density over replicates is the mean of what is reported."""
    y = torch.tensor([0.5, -1.0, 2.0, 0.0])
    densities, errors, ess = [], [], []
    for seed in range(60):
        theta = torch.tensor(ar1(4, 400, 0.6, seed))
        logs = -0.5 * (y - theta[..., None]) ** 2 - 0.5 * math.log(2 * math.pi)
        look = looked(theta[..., None], logs)
        densities.append(look.density)
        errors.append(look.error)
        ess.append(look.ess)
    spread = float(np.std(densities, ddof=1))
    # three standard errors of the spread of 60, and a tenth that batches of 20 draws do not see
    assert np.mean(errors) == pytest.approx(spread, rel=3 / math.sqrt(2 * 59) + 0.1)
    expected = 1600 * (1 - 0.6) / (1 + 0.6)
    assert np.mean(ess) == pytest.approx(expected, rel=0.2)  # batches of 20 draws see nine tenths of the correlation


def test_samples_are_not_enough_before_fifty_of_each_chain() -> None:
    outputs = torch.randn(20, 49, 3, generator=torch.Generator().manual_seed(0))
    look = looked(outputs, outputs.clamp(-0.1, 0.1))
    assert look.ess > 400
    assert not look.enough


def test_the_largest_temperature_within_one_paired_error_of_the_best_is_chosen() -> None:
    base = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    noise = 0.1 * torch.randn(1000, generator=torch.Generator().manual_seed(1))
    noise -= noise.mean()  # a standard error of 0.0032
    chosen, rungs = choose_temperature({1.0: base - 0.01 + noise, 0.3: base - 0.002 + noise, 0.1: base, 0.03: base - 1})
    assert chosen == 0.3
    assert [rung.temperature for rung in rungs] == [1.0, 0.3, 0.1, 0.03]
    assert rungs[2].behind == 0


def test_a_part_is_held_out_and_watched_examples_are_of_the_other() -> None:
    x, y = torch.arange(100.0)[:, None], torch.arange(100)
    parts = DataParts.of((x, y), as_batches((x, y), 1, 0, torch.device("cpu")), seed=3)
    held, kept = set(parts.held_out[1].tolist()), set(parts.training[1].tolist())
    assert len(held) == 15
    assert held | kept == set(range(100))
    assert not held & kept
    assert set(parts.watched[1].tolist()) <= kept
    again = DataParts.of((x, y), as_batches((x, y), 1, 0, torch.device("cpu")), seed=3)
    assert set(again.held_out[1].tolist()) == held
    few = DataParts.of((x[:10], y[:10]), as_batches((x[:10], y[:10]), 1, 0, torch.device("cpu")), seed=3)
    assert few.held_out is None
    assert few.num_training == 10


def test_the_regime_is_chosen_by_multiply_adds() -> None:
    x, y = torch.zeros(50, 10), torch.zeros(50, dtype=torch.long)
    posterior = lv.Posterior(lv.models.MLP(10, 3, widths=(20,)), lv.likelihoods.Categorical(), num_data=50)
    batches = as_batches((x, y), None, 0, torch.device("cpu"))
    assert multiply_adds(posterior, batches) == 10 * 20 + 20 * 3
    assert choose_regime(posterior, batches)[0]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    full, _, why = choose_regime(posterior, as_batches(loader, None, 0, torch.device("cpu")))
    assert not full
    assert "can't be indexed" in why


def test_scales_are_those_of_a_linear_model() -> None:
    """At the true weights the empirical Fisher information of linear regression is XᵀX/σ² on average."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 3, generator=generator) * torch.tensor([1.0, 3.0, 0.0])
    model = torch.nn.Linear(3, 1)
    weights = {"weight": torch.tensor([[1.0, -1.0, 2.0]]), "bias": torch.tensor([0.5])}
    y = x @ weights["weight"].T + weights["bias"] + 0.5 * torch.randn(4000, 1, generator=generator)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(2.0), num_data=4000)
    ((weight, bias),) = posterior_scales(posterior, (x, y), [weights])
    expected = (4000 * torch.tensor([1.0, 9.0, 0.0]) / 0.25 + 0.25).rsqrt()
    assert torch.allclose(weight[0], expected, rtol=3 * math.sqrt(8 / 4000))  # kurtosis of g² with Gaussian x
    assert float(weight[0, 2]) == pytest.approx(2.0)  # no data: the prior's
    assert float(bias) == pytest.approx(0.5 / math.sqrt(4000), rel=0.1)
