"""SGHMC with mini-batches by autopilot: metric, rate and momentum by the noise of gradients."""

import math

import pytest
import torch

import langevin as lv
from langevin.core.batches import as_batches
from langevin.inference.autopilot import autopilot, budget, burn_in, rates, warm_start
from langevin.inference.autopilot.begin import most_full_batches
from langevin.inference.autopilot.evaluate import Evaluation
from langevin.inference.autopilot.mini_batches import Noise, Tuned, measure_noise, tune
from langevin.storage.base import Checkpoint
from langevin.storage.directory import DirectoryStore
from tests.inference.autopilot.test_autopilot import Killed, draws, exact, linear_posterior, regression

CPU = torch.device("cpu")


def noise(mean=20.0, worst=30.0, stiffest=5000.0, curvature=300.0) -> Noise:
    return Noise(mean, {"weight": mean, "bias": worst}, stiffest, curvature, 0)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.1, 0.03])
@pytest.mark.parametrize("found", [noise(), noise(worst=200.0), noise(mean=1e-9, worst=1e-9, stiffest=1e-9)])
def test_no_tensor_is_hotter_than_the_tolerance(temperature, found) -> None:
    """Whatever the budget; and friction by the rule D ≥ ℓ²n/(2·tol·T), of which tanh(D/2) is the exact form."""
    for steps in (100, 10_000, 10**8):
        tuned = tune(found, temperature, steps)
        assert tuned.mean <= tuned.hottest < 1.1
        assert 0.36 < tuned.momentum < 0.901
        assert tuned.lr**2 * found.curvature / 4 < 0.02501
        assert -math.log(tuned.momentum) > 0.99 * tuned.lr**2 * found.mean / (2 * 0.1 * temperature)


def test_a_long_run_keeps_the_stiffest_direction_too() -> None:
    short, long = (tune(noise(), 1.0, steps) for steps in (1000, 10**7))
    assert short.stiffest > 5
    assert long.stiffest < 1.2
    assert long.lr < short.lr


def test_a_given_momentum_is_kept() -> None:
    assert tune(noise(), 0.1, 1000, momentum=0.8).momentum == 0.8


def test_the_noise_of_a_linear_model_is_its_own() -> None:
    """N²Var(g) of linear regression, per weight and along the stiffest direction, whose curvature is known."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 4.0], dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    likelihood = lv.likelihoods.Gaussian(0.5).double()
    posterior = lv.Posterior(model, likelihood, lv.priors.Gaussian(1.0), num_data=2000)
    weights = {"weight": torch.ones(1, 2, dtype=torch.float64)}
    metric = [torch.tensor([[0.5, 0.25]], dtype=torch.float64)]
    found = measure_noise(posterior, as_batches((x, y), 20, 0, CPU), weights, metric, seed=3)
    each = (x * (x.sum(1, keepdim=True) - y) / 0.25 * metric[0]).var(0)
    expected = 2000**2 / 20 * (1 - 20 / 2000) * each
    assert found.mean == pytest.approx(float(expected.mean()), rel=0.6)  # twelve pairs: 2/√12
    assert found.curvature == pytest.approx(2000 / 0.25, rel=0.3)  # A λ of the second weight, by 256 examples
    assert found.stiffest == pytest.approx(float(expected[1]), rel=1.0)


def test_full_batches_that_a_multiple_does_not_pay_for_are_small() -> None:
    assert most_full_batches(1437, 1.0) < 400 < most_full_batches(1437, 20.0)


def quick(monkeypatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 300)
    monkeypatch.setattr(warm_start, "EPOCHS", 1)


OPTIONS = {"batch_size": 40, "chains": 2, "progress": False, "mode": "sequential", "compile": False}


def test_the_posterior_of_a_linear_model(monkeypatch) -> None:
    quick(monkeypatch)
    run = lv.sample(linear_posterior(), regression(), budget="6000 steps", seed=1, **OPTIONS)
    mean, covariance = exact(*regression())
    spread = covariance.diagonal().sqrt()
    assert ((draws(run).mean(0) - mean).abs() < 0.5 * spread).all()
    assert ((draws(run).std(0) / spread - 1).abs() < 0.35).all()
    assert "metric: by the Fisher information" in str(run.tuning)
    assert "after burn-in (expected temperature" in str(run.tuning)


def test_all_gradients_are_counted_and_within_the_multiple(monkeypatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 2000)
    run = lv.sample(linear_posterior(), regression(), temperature="auto", budget="2x", **OPTIONS)
    spent = run.manifest["autopilot"]["example_gradients"]
    assert set(spent) == {"warm start", "metric and rate", "temperature", "burn-in", "sampling"}
    assert sum(spent.values()) <= 3 * spent["warm start"]


@pytest.mark.parametrize(("temperature", "given"), [(1.0, 24_000), (1.0, 60_000), ("auto", 60_000), ("auto", 90_000)])
def test_a_number_of_gradients_is_kept(temperature, given) -> None:
    """Metric, noise and the thermometer's readings included, which are a large part of few."""
    x, y = regression()
    options = {"batch_size": 8, "chains": 2, "progress": False, "mode": "sequential", "compile": False}
    run = lv.sample(linear_posterior(), (x, y), temperature=temperature, budget=f"{given} gradients", **options)
    spent = run.manifest["autopilot"]["example_gradients"]
    assert 0.85 * given < sum(spent.values()) <= given


def test_too_few_gradients_for_all_temperatures_are_refused() -> None:
    options = {"batch_size": 8, "chains": 2, "progress": False}
    with pytest.raises(ValueError, match="too short for this model"):
        lv.sample(linear_posterior(), regression(), temperature="auto", budget="20000 gradients", **options)
    lv.sample(linear_posterior(), regression(), budget="20000 gradients", **options)


def test_a_rate_is_not_raised_much_after_burn_in(monkeypatch) -> None:
    """Where classes are separated gradients have no noise, and curvatures are those of the prior."""
    quick(monkeypatch)
    found = iter([Tuned(0.02, 0.9, noise(), 1.0), Tuned(0.3, 0.5, noise(), 1.0)])
    monkeypatch.setattr(rates, "tune", lambda *args, **options: next(found))
    run = lv.sample(linear_posterior(), regression(), budget="600 steps", **OPTIONS)
    assert run.manifest["autopilot"]["rates_after"][""]["lr"] == pytest.approx(0.03)
    assert run.manifest["sampler"]["options"]["lr"] == pytest.approx(0.03)
    assert "found 0.3: not raised more" in str(run.tuning)
    assert str(Tuned(0.03, 0.5, noise(), 1.0)) in str(run.tuning)  # the temperatures to be expected at the lower rate


def test_a_lower_rate_is_expected_to_be_cooler() -> None:
    """By T̂ = (T + ℓ²/4 coth(D/2) n)/(1 − ℓ²λ/4)."""
    tuned = Tuned(0.1, 0.8, noise(), 0.5)
    assert tuned.stiffest == pytest.approx((1 + 0.1**2 / 4 / math.tanh(-math.log(0.8) / 2) * 5000 / 0.5) / (1 - 0.75))
    lower = tuned.at_most(0.05)
    assert (lower.lr, lower.momentum, lower.hottest_tensor) == (0.05, 0.8, "bias")
    assert lower.stiffest < tuned.stiffest
    assert 1 < lower.mean < lower.hottest < tuned.hottest
    assert tuned.at_most(0.2) == tuned


def test_a_sampler_without_a_test_settles_longer() -> None:
    """With 100 steps the demo's stiff directions were 40 % too hot; a budget of few steps can't have more."""
    assert [burn_in.fewest_settling("MCLMC", total) for total in (250, 1500, 10_000)] == [100, 150, 250]
    assert burn_in.fewest_settling("MAMS", 10_000) == burn_in.fewest_settling("SGHMC", 10_000) == 100


def test_a_sampler_without_a_test_settles_longer_in_a_run(tmp_path, monkeypatch) -> None:
    quick(monkeypatch)
    options = {"chains": 2, "progress": False, "mode": "sequential", "budget": "2000 steps", "out": tmp_path / "run"}
    lv.sample(linear_posterior(), regression(), lv.MCLMC, **options)
    checkpoint = DirectoryStore.open(tmp_path / "run" / "stages" / "settling").checkpoints([0])[0]
    assert checkpoint.step >= 200


@pytest.mark.parametrize(("factor", "weight"), [(1.0, 1.0), (30.0, 1.0), (1.5, 0.01)])
def test_a_chain_far_above_its_start_has_diverged(factor, weight) -> None:
    """Its weights are finite, and so is its loss: it is thirty times as far out as the optimum.

    Where the likelihood counts for little, a chain goes further away."""
    x, y = regression()
    posterior = linear_posterior()
    posterior.weight = weight
    mean, _ = exact(x, y)
    start = {"weight": mean[None, :3].float(), "bias": mean[3:].float()}
    tensors = {f"weights/{name}": factor * w for name, w in start.items()}
    burnt = burn_in.BurnIn({0: Checkpoint(0, tensors, {})}, 100, True, "", "sequential", False, 100)
    check = (posterior, Evaluation(posterior, (x, y)), [start], burnt, 1.0)
    if factor < 30:
        burn_in.refuse_diverged(*check)
    else:
        with pytest.raises(lv.DivergenceError, match="far above the .* of its start"):
            burn_in.refuse_diverged(*check)


@pytest.mark.parametrize("call", [1, 2])
def test_a_chain_that_has_diverged_starts_again_at_a_quarter_of_the_rate(tmp_path, monkeypatch, call) -> None:
    """In burn-in, or at the rate after it; and a run that is killed then repeats that."""
    quick(monkeypatch)
    options = {"budget": "800 steps", **OPTIONS}
    real, calls = autopilot.refuse_diverged, [0]

    def refuses(*args) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise lv.DivergenceError("Chain 0: the loss is 12.3, far above its start. Sample again.")
        real(*args)

    never = lv.sample(linear_posterior(), regression(), **options).manifest["autopilot"]["example_gradients"]
    monkeypatch.setattr(autopilot, "refuse_diverged", refuses)
    whole = lv.sample(linear_posterior(), regression(), out=tmp_path / "whole", **options)
    about = whole.manifest["autopilot"]
    assert about["rates"][""]["lowered"] == 1
    assert about["rates_after"][""]["lr"] <= about["rates"][""]["lr"]
    assert "a quarter of the one before (Chain 0: the loss is 12.3, far above its start)" in str(whole.tuning)
    assert about["example_gradients"]["diverged"] > 0
    measured_again = about["example_gradients"]["metric and rate"] - never["metric and rate"]
    assert measured_again > 0 if call == 2 else measured_again == 0  # it was not yet measured after burn-in
    advance = autopilot.stages.advance

    def dies(engine, store, *args, **more):
        advance(engine, store, *args, **more)
        if str(store.path).endswith("settling-lower-1"):
            raise Killed

    calls[0] = 0
    with monkeypatch.context() as patched:
        patched.setattr(autopilot.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.sample(linear_posterior(), regression(), out=tmp_path / "cut", **options)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert again.manifest["autopilot"]["example_gradients"] == about["example_gradients"]


def test_what_diverged_is_within_the_budget(monkeypatch) -> None:
    calls = [0]

    def refuses(*args) -> None:
        calls[0] += 1
        if calls[0] < 3:
            raise lv.DivergenceError("Chain 0: far above its start.")

    monkeypatch.setattr(autopilot, "refuse_diverged", refuses)
    monkeypatch.setattr(budget, "_WARM_SHARE", 0.2)
    monkeypatch.setattr(budget, "_LARGER_SHARE", 0.2)
    options = {"batch_size": 8, "chains": 2, "progress": False, "mode": "sequential", "compile": False}
    run = lv.sample(linear_posterior(), regression(), budget="90000 gradients", **options)
    assert run.manifest["autopilot"]["rates"][""]["lowered"] == 2
    assert sum(run.manifest["autopilot"]["example_gradients"].values()) <= 90_000


@pytest.mark.parametrize("stage", ["burn-in-0.3", "settling-0.3", "trial-0.1", "cut"])
def test_it_goes_on_from_every_stage_bit_for_bit(tmp_path, monkeypatch, stage) -> None:
    quick(monkeypatch)

    def sample(out) -> lv.Run:
        return lv.sample(linear_posterior(), regression(), temperature="auto", budget="1600 steps", out=out, **OPTIONS)

    whole = sample(tmp_path / "whole")
    real = autopilot.stages.advance

    def dies(engine, store, until, **options):
        real(engine, store, until, **options)
        if str(store.path).endswith(stage):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(autopilot.stages, "advance", dies)
        with pytest.raises(Killed):
            sample(tmp_path / "cut")
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert [d.decided for d in again.tuning] == [d.decided for d in whole.tuning]
    spent = [run.manifest["autopilot"]["example_gradients"] for run in (again, whole)]
    assert spent[0] == spent[1]


def test_a_resumed_run_is_judged_on_the_same_inputs(tmp_path, monkeypatch) -> None:
    """Whatever the size of batches, which the autopilot has chosen."""
    quick(monkeypatch)
    options = {"chains": 2, "progress": False, "budget": "60000 gradients"}
    whole = lv.sample(linear_posterior(), regression(), out=tmp_path / "whole", **options)
    assert not whole.manifest["autopilot"]["plan"]["full_batch"]
    advance = warm_start.stages.advance

    def dies(*args, **more):
        advance(*args, **more)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(warm_start.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.sample(linear_posterior(), regression(), out=tmp_path / "cut", **options)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert str(again.verdict()) == str(whole.verdict())


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_a_sampled_noise_is_sampled_in_the_metric_and_the_run_resumes(tmp_path, monkeypatch, mode) -> None:
    """By itself it has a rate of its own, in a parameter group that a run with a metric does not have."""
    quick(monkeypatch)
    x, y = regression()
    likelihood = lv.likelihoods.Gaussian(0.5, sampled=True)
    posterior = lv.Posterior(torch.nn.Linear(3, 1), likelihood, lv.priors.Gaussian(1.0), num_data=len(x))
    options = {"batch_size": 30, "budget": "3000 steps", "chains": 2, "mode": mode, "progress": False}
    whole = lv.sample(posterior, (x, y), out=tmp_path / "whole", **options)
    noise = whole.predict(x).aleatoric.mean().sqrt()
    coefficients = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), y).solution
    residuals = y - torch.cat([x, torch.ones(len(x), 1)], 1) @ coefficients
    assert float(noise) == pytest.approx(float(residuals.std()), rel=0.15)  # its posterior's width: 1/√(2·120) = 0.065
    advance = autopilot.stages.advance

    def dies(engine, store, *args, **more):
        advance(engine, store, *args, **more)
        if store.path == tmp_path / "cut":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(autopilot.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.sample(posterior, (x, y), out=tmp_path / "cut", **options)
    again = lv.resume(tmp_path / "cut", posterior, (x, y), progress=False)
    assert torch.equal(draws(again), draws(whole))
