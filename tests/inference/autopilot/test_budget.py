"""A time as a budget: it is kept, with fewer chains if need be, or refused with one that would do."""

import re
import time

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference.autopilot import autopilot, begin, budget, warm_start
from langevin.inference.autopilot.budget import Budget, Pace
from langevin.storage.directory import DirectoryStore
from tests.inference.autopilot.test_autopilot import Killed, draws, linear_posterior, regression

OPTIONS = {"mode": "sequential", "compile": False, "progress": False}


def paced(monkeypatch, **seconds: float) -> None:
    monkeypatch.setattr(budget, "measured_pace", lambda posterior, data, plan: Pace(**seconds))
    monkeypatch.setattr(budget, "seconds_since", lambda then: 0.0)


def test_too_short_a_time_is_refused_with_one_that_would_do(monkeypatch) -> None:
    paced(monkeypatch, warm=0.8, sampling=0.8, alone=0.2)
    with pytest.raises(ValueError, match=r"too short for this model.*of 4 chains take about") as refused:
        lv.sample(linear_posterior(), regression(), lv.ATMC, batch_size=20, chains=4, budget="20 s", **OPTIONS)
    enough = Budget.parse(re.search(r'budget="(.*?)"', str(refused.value)).group(1)).seconds
    # 150 steps of the warm start, 250 of burn-in and samples, 8 rates of 100 steps with 80 % more gradients
    assert 400 * 0.8 + 800 * 1.8 * 0.2 < enough < 1.5 * (400 * 0.8 + 800 * 1.8 * 0.2)


def test_numbers_are_read_as_they_are_printed() -> None:
    for given in ("500,000 gradients", "500_000 gradients", "500 000 gradients", "5e5 gradients"):
        assert Budget.parse(given).gradients == 500_000
    assert Budget.parse("1,500 steps").steps == 1500
    for given in ("5,00 steps", "1,5 min", "5 0 s"):
        with pytest.raises(ValueError, match="write a time"):
            Budget.parse(given)


def test_a_time_that_is_short_for_all_chains_takes_fewer(monkeypatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 100)
    paced(monkeypatch, warm=0.01, sampling=0.01, alone=0.001)
    run = lv.sample(linear_posterior(), regression(), budget="6 s", **OPTIONS)
    assert 1 < len(run.chains) < 10
    assert "10 chains would take" in str(run.tuning)


@pytest.mark.parametrize("sampler", [None, lv.SGHMC])
def test_a_time_is_kept(sampler) -> None:
    """From the call to the run, on a network whose chains are computed one after another."""
    torch.manual_seed(0)
    x, y = regression()
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.3), lv.priors.Gaussian(1.0), num_data=len(x))
    began = time.process_time()
    run = lv.sample(posterior, (x, y), sampler, batch_size=None if sampler is None else 30, budget="8 s", **OPTIONS)
    assert time.process_time() - began < 16  # a factor of two for what was timed beside other tests
    pace = run.manifest["autopilot"]["plan"]["pace"]
    assert pace["sampling"] > 0
    assert run.manifest["autopilot"]["steps"] >= budget.FEWEST_STEPS


def test_a_resumed_run_does_not_ask_the_clock_again(tmp_path, monkeypatch) -> None:
    def sample(out) -> lv.Run:
        return lv.sample(linear_posterior(), regression(), chains=2, budget="4 s", out=out, **OPTIONS)

    monkeypatch.setattr(warm_start, "STEPS", 100)
    paced(monkeypatch, warm=0.002, sampling=0.002, alone=0.001)
    whole = sample(tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(autopilot, "run_burn_in", lambda *args, **options: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            sample(tmp_path / "cut")
    monkeypatch.setattr(budget, "measured_pace", None)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))


def test_with_a_limit_chains_train_longer_and_the_rate_decays(monkeypatch) -> None:
    trained = []

    def recorded(*args, **options):
        trained.append((args[4], args[6], options["most"], options.get("anneal", False)))
        raise Killed

    monkeypatch.setattr(warm_start, "_train", recorded)
    monkeypatch.setattr(warm_start, "STEPS", 100)
    monkeypatch.setattr(warm_start, "EPOCHS", 1)
    for options in ({}, {"budget": "1e6 gradients"}):
        with pytest.raises(Killed):
            lv.sample(linear_posterior(), regression(), chains=2, **options, **OPTIONS)
    (_, lr, most, constant), (_, faster, longer, annealed) = trained
    assert (faster, longer) == (4 * lr, 1.5 * 2 * most)
    assert (constant, annealed) == (False, True)


def test_a_decaying_rate_ends_at_zero_and_resumes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 100)
    options = {"chains": 2, "budget": "400000 gradients", **OPTIONS}
    whole = lv.sample(linear_posterior(), regression(), out=tmp_path / "whole", **options)
    checkpoint = DirectoryStore.open(tmp_path / "whole" / "stages" / "warm-start").checkpoints([0])[0]
    assert checkpoint.values["groups"][0]["lr"] == pytest.approx(0.0, abs=1e-9)
    advance = warm_start.stages.advance

    def dies(engine, store, *args, **more):
        if str(store.path).endswith("warm-start") and store.manifest["best"]["leg"] == 7:
            raise Killed
        advance(engine, store, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(warm_start.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.sample(linear_posterior(), regression(), out=tmp_path / "cut", **options)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))


@pytest.mark.parametrize(("num_data", "share"), [(30, 0.6), (50, 0.8)])
def test_many_examples_for_each_weight_leave_more_to_the_warm_start(num_data, share) -> None:
    """Ten for each of the four weights: samples gain less than a longer training."""
    posterior = lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(0.3), num_data=num_data)
    batches = as_batches((torch.zeros(num_data, 3), torch.zeros(num_data, 1)), 10, 0, torch.device("cpu"))
    options = {"chains": 2, "seed": 0, "mode": "auto", "compile": None, "batch_size": None, "steps": None}
    for options_of_sampler in ({}, {"temperature": "auto"}):
        plan = begin.make_plan(posterior, batches, None, options_of_sampler, budget="1e7 gradients", **options)
        plan = budget.within_limit(posterior, None, plan, chains_given=True, regime_given=False)
        spent = 1.5 * budget.warm_steps(plan) * plan.pace["warm"]
        assert spent == pytest.approx((0.6 if options_of_sampler else share) * 1e7, rel=1e-3)


def test_with_a_limit_a_predicted_scale_weights_examples_at_first_and_that_resumes(tmp_path, monkeypatch) -> None:
    """Only where there is a predicted scale, and within the limit."""
    monkeypatch.setattr(warm_start, "STEPS", 100)
    model = nn.Linear(3, 2)
    posterior = lv.Posterior(model, lv.likelihoods.HeteroscedasticGaussian(), lv.priors.Gaussian(1.0), num_data=120)
    options = {"chains": 2, "budget": "400000 gradients", **OPTIONS}
    weighted, train = [], warm_start._train

    def recorded(*args, **more):
        weighted.append((args[4], isinstance(args[3].likelihood, warm_start._ScaleWeighted), more["most"]))
        return train(*args, **more)

    monkeypatch.setattr(warm_start, "_train", recorded)
    whole = lv.sample(posterior, regression(), out=tmp_path / "whole", **options)
    (first, is_weighted, most), (second, *rest) = weighted[:2]
    assert (first, is_weighted, second, rest[0]) == ("warm-start-weighted", True, "warm-start", False)
    assert rest[1] == pytest.approx(2 * most, abs=2)  # of the steps
    assert sum(whole.manifest["autopilot"]["example_gradients"].values()) <= 400_000
    advance = warm_start.stages.advance

    def dies(engine, store, *args, **more):
        if str(store.path).endswith("warm-start-weighted") and store.manifest["best"]["leg"] == 2:
            raise Killed
        advance(engine, store, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(warm_start.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.sample(posterior, regression(), out=tmp_path / "cut", **options)
    again = lv.resume(tmp_path / "cut", posterior, regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))


@pytest.mark.parametrize(
    ("inputs", "steps", "rate"),
    [(3, 1000, 0.02), (3, 6000, 0.01), (3, 10**5, 0.005), (100, 1000, 0.01), (800, 10, 0.005)],
)
def test_with_a_limit_the_rate_is_higher_for_few_steps_of_narrow_networks(inputs, steps, rate) -> None:
    posterior = lv.Posterior(nn.Linear(inputs, 1), lv.likelihoods.Gaussian(0.3), num_data=100)
    assert warm_start._limited_rate(posterior, steps) == pytest.approx(rate)


@pytest.mark.parametrize("sampler", [None, lv.SGHMC])
def test_a_number_of_gradients_is_kept(sampler) -> None:
    """Those that the run counts itself, which are those that the model computed."""
    x, y = regression()
    computed = [0]

    class Counted(nn.Linear):
        def forward(self, inputs):
            computed[0] += len(inputs) * torch.is_grad_enabled()
            return super().forward(inputs)

    posterior = lv.Posterior(Counted(3, 1), lv.likelihoods.Gaussian(0.3), lv.priors.Gaussian(1.0), num_data=len(x))
    size, given = (None, 400_000) if sampler is None else (30, 150_000)
    run = lv.sample(posterior, (x, y), sampler, batch_size=size, budget=f"{given} gradients", **OPTIONS)
    spent = sum(run.manifest["autopilot"]["example_gradients"].values())
    assert 0.3 * given < spent < given
    assert abs(computed[0] / spent - 1) < (0.1 if sampler is None else 0.3)  # a search is guessed


@pytest.mark.parametrize("given", [380_000, 700_000])
def test_short_budgets_are_kept_with_full_batches(given) -> None:
    """A tenth is for what is measured once; of the rest a warm start that is long leaves enough."""
    torch.manual_seed(0)
    x = torch.randn(250, 3)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    posterior = lv.Posterior(model, lv.likelihoods.HeteroscedasticGaussian(), lv.priors.Gaussian(1.0), num_data=len(x))
    run = lv.sample(posterior, (x, x[:, :1]), budget=f"{given} gradients", progress=False)
    spent = run.manifest["autopilot"]["example_gradients"]
    assert 0.5 * given < sum(spent.values()) < 1.05 * given
    assert spent["warm start"] < 0.7 * given


def test_full_batches_that_exceed_the_gradients_become_small_ones() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 3)
    posterior = lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(0.3), num_data=len(x))
    run = lv.sample(posterior, (x, x[:, :1]), budget="2e5 gradients", **OPTIONS)
    assert run.manifest["autopilot"]["plan"]["sampler"] == "SGHMC"
    assert "full ones exceed the budget" in str(run.tuning)
    with pytest.raises(ValueError, match=r"too short.*gradients at least"):
        lv.sample(posterior, (x, x[:, :1]), lv.MCLMC, budget="2e5 gradients", **OPTIONS)


def test_full_batches_are_for_two_chains_of_500_steps_at_least() -> None:
    posterior = lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(0.3), num_data=1000)
    batches = as_batches((torch.zeros(1000, 3), torch.zeros(1000, 1)), 10, 0, torch.device("cpu"))

    def planned(gradients, chains=None):
        options = {"chains": chains, "seed": 0, "mode": "auto", "compile": None, "batch_size": None, "steps": None}
        plan = begin.make_plan(posterior, batches, None, {}, budget=f"{gradients} gradients", **options)
        plan = budget.within_limit(posterior, None, plan, chains_given=chains is not None, regime_given=False)
        return plan.full_batch, plan.chains

    assert [planned(gradients) for gradients in (600_000, 6_000_000, 12_000_000)] == [(False, 4), (False, 4), (True, 2)]
    assert planned(600_000, chains=1) == (True, 1)
