"""`lv.sample(posterior, data)`: what it finds, what it says, and that it goes on from wherever it was stopped."""

import math
import warnings

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.inference.autopilot import autopilot, budget, warm_start
from langevin.inference.autopilot.plan import full_batch_sampler
from langevin.storage.status import describe

N = 120


def regression() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3 * torch.randn(N, 1, generator=generator)


def linear_posterior() -> lv.Posterior:
    torch.manual_seed(1)
    return lv.Posterior(nn.Linear(3, 1), lv.likelihoods.Gaussian(0.3), lv.priors.Gaussian(1.0), num_data=N)


def exact(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.cat([x, torch.ones(N, 1)], 1).double()
    precision = features.T @ features / 0.09 + torch.eye(4).double()
    covariance = torch.linalg.inv(precision)
    return covariance @ features.T @ y[:, 0].double() / 0.09, covariance


def draws(run: lv.Run) -> torch.Tensor:
    return torch.stack([torch.cat([w["weight"].flatten(), w["bias"]]) for w in run]).double()


@pytest.fixture(scope="module", autouse=True)
def short_warm_start():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warm_start, "STEPS", 300)
        patched.setattr(warm_start, "EPOCHS", 1)
        patched.setattr(budget, "RATE_STEPS", 200)
        yield


@pytest.fixture(scope="module")
def run(short_warm_start) -> lv.Run:
    return lv.sample(linear_posterior(), regression(), budget="20x", mode="vectorised", compile=False, progress=False)


def test_the_posterior_of_a_linear_model_is_exact(run) -> None:
    mean, covariance = exact(*regression())
    found = draws(run)
    std = covariance.diagonal().sqrt()
    # 400 effective samples at least: a standard error of a twentieth of a standard deviation
    assert ((found.mean(0) - mean).abs() < 4 * std / math.sqrt(400)).all()
    assert torch.allclose(found.var(0), std**2, rtol=4 * math.sqrt(2 / 400) + 0.05)  # 5 % for the bias of lr


def test_it_says_what_it_decided(run) -> None:
    stages = [decision.stage for decision in run.tuning]
    assert stages[0] == "plan"
    assert "warm start" in stages
    assert "burn-in" in stages
    assert stages[-1] == "sampling"
    assert "enough" in run.tuning[-1].decided
    assert "full batches" in str(run.tuning)
    assert len(run.warm_start) == len(run.chains) == 10


def test_runs_with_given_settings_tuned_nothing() -> None:
    x, y = regression()
    by_hand = lv.sample(linear_posterior(), (x, y), lv.SGLD, lr=1e-3, steps=20, progress=False)
    assert len(by_hand.tuning) == 0
    assert "all settings were given" in str(by_hand.tuning)
    with pytest.raises(lv.RunError, match="no warm start"):
        by_hand.warm_start  # noqa: B018


QUICK = {"chains": 2, "budget": "12x", "mode": "vectorised", "compile": False, "progress": False}


def small(out, **options) -> lv.Run:
    return lv.sample(linear_posterior(), regression(), out=out, **QUICK, **options)


class Killed(Exception):
    pass


def test_sampled_prior_scales_are_refused_with_temperatures_below_1() -> None:
    model = nn.Linear(3, 1)
    posterior = lv.Posterior(model, lv.likelihoods.Gaussian(0.3), lv.priors.adaptive(model), num_data=N)
    with pytest.raises(ValueError, match=r"prior scales shrink.*temperature=1"):
        lv.sample(posterior, regression(), temperature="auto", **QUICK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, short_warm_start) -> lv.Run:
    return small(tmp_path_factory.mktemp("autopilot") / "whole")


@pytest.mark.parametrize("stage", ["warm-start", "warm-start-slower", "burn-in", "settling", "sampling"])
def test_it_goes_on_from_every_stage_bit_for_bit(tmp_path, monkeypatch, stage, whole) -> None:
    engine_run = autopilot.stages.advance
    seen = []

    def dies(engine, store, until, **options):
        if str(store.path).endswith(stage) or (stage == "sampling" and store.path == tmp_path / "cut"):
            seen.append(until)
            if len(seen) == 2:
                raise Killed
        engine_run(engine, store, until, **options)
        if stage in ("burn-in", "settling") and seen:  # which may have one leg only
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(autopilot.stages, "advance", dies)
        with pytest.raises(Killed):
            small(tmp_path / "cut")
    assert describe(tmp_path / "cut")[2][-1].startswith("autopilot, ")
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert [d.decided for d in again.tuning] == [d.decided for d in whole.tuning]


@pytest.mark.parametrize("stage", ["burn-in", "settling", "sampling"])
def test_with_a_metropolis_test_it_goes_on_bit_for_bit(tmp_path, monkeypatch, stage) -> None:
    whole = small(tmp_path / "whole", sampler=lv.MAMS)
    advance = autopilot.stages.advance

    def dies(engine, store, until, **options):
        advance(engine, store, until, **options)
        if str(store.path).endswith(stage) or (stage == "sampling" and store.path == tmp_path / "cut"):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(autopilot.stages, "advance", dies)
        with pytest.raises(Killed):
            small(tmp_path / "cut", sampler=lv.MAMS)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))
    assert 0.9 < float(torch.tensor([*again.trace("acceptance").values()]).mean()) < 1


def test_the_sampler_is_by_the_curvature_of_the_likelihood() -> None:
    likelihoods = lv.likelihoods
    chosen = {
        "MCLMC": [likelihoods.Categorical(), likelihoods.Bernoulli(), likelihoods.Gaussian(0.3)],
        "MAMS": [
            likelihoods.Gaussian(0.3, sampled=True),
            likelihoods.HeteroscedasticGaussian(),
            likelihoods.HeteroscedasticStudentT(),
            likelihoods.Poisson(),
        ],
    }
    for name, each in chosen.items():
        for likelihood in each:
            posterior = lv.Posterior(nn.Linear(3, 2), likelihood, num_data=N)
            assert full_batch_sampler(posterior) == name, likelihood


def test_a_given_start_is_where_a_resumed_run_starts_too(tmp_path, monkeypatch) -> None:
    """init is not given again to lv.resume, so it has to be kept."""
    weights = {"weight": torch.full((1, 3), 0.25), "bias": torch.zeros(1)}
    whole = small(tmp_path / "whole", init=weights)
    assert "chains start as init says" in str(whole.tuning)
    with monkeypatch.context() as patched:
        patched.setattr(autopilot, "run_burn_in", lambda *args, **options: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            small(tmp_path / "cut", init=weights)
    again = lv.resume(tmp_path / "cut", linear_posterior(), regression(), progress=False)
    assert torch.equal(draws(again), draws(whole))


def test_what_a_finished_run_can_not_be_extended_by_is_refused(tmp_path) -> None:
    run = small(tmp_path / "run", temperature="auto")
    with pytest.raises(lv.RunError, match="kept out"):
        lv.resume(run, linear_posterior(), regression(), steps=10_000, progress=False)
    with pytest.raises(lv.RunError, match="chains=3"):
        lv.resume(run, linear_posterior(), regression(), chains=3, progress=False)


def test_the_same_call_continues_with_resume_auto(whole) -> None:
    assert torch.equal(draws(whole), draws(small(whole.path, resume="auto")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 5}, "its seed is 0, given 5"),
        ({"temperature": 0.5}, "its temperature is 1.0, given 0.5"),
        ({"budget": "700 steps"}, "its budget is"),
        ({"chains": 3}, "its chains is 2, given 3"),
        ({"sampler": lv.HMC}, "its sampler is MCLMC, given HMC"),
        ({"batch_size": 30}, "its batch_size is None, given 30"),
    ],
)
def test_another_call_does_not_get_this_run(whole, options, message) -> None:
    options = QUICK | {"resume": "auto"} | options
    with pytest.raises(lv.RunError, match=f"contains another run: {message}.*out='.*-2'"):
        lv.sample(linear_posterior(), regression(), out=whole.path, **options)


def test_the_virial_trace_about_the_first_weights_is_no_drift(run) -> None:
    """It rises from 0 while these are forgotten; in a third of good runs that was called a drift."""
    assert "temperature" in run.traces
    assert [test.trace for test in run.stationarity()] == ["loss"]


def test_temperatures_by_chain_are_for_runs_by_hand() -> None:
    with pytest.raises(ValueError, match=r"the autopilot takes one temperature.*temperature=\[1, 0.3\]"):
        lv.sample(linear_posterior(), regression(), temperature=[1.0, 0.3], **QUICK)
    with pytest.raises(ValueError, match="'Auto': give a number, such as 1, or \"auto\""):
        lv.sample(linear_posterior(), regression(), temperature="Auto", **QUICK)


def test_a_sampler_without_rate_gets_one() -> None:
    run = lv.sample(linear_posterior(), regression(), lv.SGHMC, batch_size=60, **QUICK)
    assert any(decision.decided.startswith("lr = ") for decision in run.tuning)
    assert run.manifest["sampler"]["options"]["lr"] > 0
    mean, covariance = exact(*regression())
    assert ((draws(run).mean(0) - mean).abs() < 1.5 * covariance.diagonal().sqrt()).all()


def test_the_report_shows_what_was_decided(run) -> None:
    from langevin.report.tuning import tuning_pictures

    report = lv.evaluate(run, regression())
    (table,) = [table for table in report.tables if table.title == "Autopilot"]
    assert [row[2] for row in table.rows] == [decision.decided for decision in run.tuning]
    assert not tuning_pictures(run.manifest)
    rungs = [{"temperature": t, "loss": 0.5 - t / 10, "behind": 0.0, "error": 0.01} for t in (1.0, 0.3)]
    (picture,) = tuning_pictures({"autopilot": {"by_temperature": rungs, "temperature": 1.0}})
    assert "T = 0.3: 0.4700" in picture.alt
    assert "Chosen: 1" in picture.alt


def test_a_temperature_is_chosen_on_data_held_out() -> None:
    with pytest.warns(UserWarning, match="chooses by 18 held-out examples, which decide little"):
        run = lv.sample(linear_posterior(), regression(), temperature="auto", **QUICK)
    assert run.target_temperature in (1.0, 0.3, 0.1, 0.03)
    (decision,) = (decision for decision in run.tuning if decision.stage == "temperature")
    assert "T = " in decision.decided
    assert "18 held-out examples" in decision.why
    assert "they stay out, and the samples are those of the other 102" in decision.why
    virial = run.temperature()  # about the other chains, with N of the examples that were not held out: 15 % fewer
    assert abs(virial.mean - run.target_temperature) < max(3 * virial.error, 0.07 * run.target_temperature)


def test_pretrained_weights_are_where_it_starts() -> None:
    posterior = linear_posterior()
    mean, _ = exact(*regression())
    with torch.no_grad():
        posterior.model.weight.copy_(mean[:3][None])
        posterior.model.bias.copy_(mean[3:])
    run = lv.sample(posterior, regression(), **QUICK)
    assert "from the given weights" in str(run.tuning)


def test_a_loader_gets_mini_batches() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*regression()), batch_size=40, shuffle=True)
    run = lv.sample(linear_posterior(), loader, **QUICK | {"mode": "auto", "chains": 1, "budget": "2x"})
    assert run.manifest["sampler"]["name"] == "SGHMC"
    assert "can't be indexed" in str(run.tuning)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"burn_in": 10}, "burn_in belongs to a run whose sampler, lr and steps are given"),
        ({"schedule": lv.cyclical(10)}, "schedule belongs to"),
        ({"sampler": lambda params: None}, "Without lr the autopilot adapts a sampler of the library"),
        ({"budget": "soon"}, "write a time"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        lv.sample(linear_posterior(), regression(), progress=False, **options)


def test_inputs_that_are_not_standardized_are_remarked_on() -> None:
    x, y = regression()
    posterior = linear_posterior()
    with pytest.warns(UserWarning, match="not standardized"):
        lv.sample(posterior, (100 * x + 500, y), chains=1, budget="1x", progress=False)


def test_a_budget_that_is_too_short_is_said() -> None:
    with pytest.warns(UserWarning, match="The budget allows"):
        lv.sample(linear_posterior(), regression(), chains=1, budget="0.001x", progress=False)


def test_nothing_is_warned_of_otherwise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lv.sample(linear_posterior(), regression(), **QUICK)
