"""Diagnostics of a run: temperatures, convergence, ArviZ, and excluded samples."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import langevin as lv
from tests.helpers import store_nan, toy_data, toy_model, toy_posterior

draw = partial(lv.sample, progress=False)


def gaussian(n=100):
    """A weight and a bias that are independent: U'' = n + 1 in both (inputs of mean 0 and variance 1, unit noise)."""
    x = torch.linspace(-1, 1, n)[:, None]
    x = x / x.square().mean().sqrt()
    posterior = lv.Posterior(nn.Linear(1, 1), lv.likelihoods.Gaussian(1.0), lv.priors.Gaussian(), num_data=n)
    return posterior, (x, 0.5 * x + 0.2)


@pytest.fixture(scope="module")
def run():
    return draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=400, burn_in=100, thin=5, chains=2)


def test_the_kinetic_temperature_of_a_gaussian():
    """E[u²] of the update on a quadratic, from its recursion; T up to O(lr²)."""
    posterior, data = gaussian()
    lr, momentum, n, temperature = 0.05, 0.8, 100, 2.0
    run = draw(
        posterior,
        data,
        partial(lv.SGHMC, lr=lr, momentum=momentum, temperature=temperature),
        batch_size=n,
        steps=1200,
        burn_in=100,
        thin=5,
        chains=8,
        mode="vectorised",
    )
    damping = -math.log(momentum)
    pull = (1 - momentum) / damping * lr * (n + 1)
    step = np.array([[momentum, -pull], [lr * momentum, 1 - lr * pull]])  # (u, θ) ↦ (u, θ)
    kick = np.array([1.0, lr]) * math.sqrt(temperature * (1 - momentum**2))
    covariance = np.eye(2)
    for _ in range(2000):
        covariance = step @ covariance @ step.T + np.outer(kick, kick)
    found = run.kinetic_temperature()
    assert abs(found.mean - covariance[0, 0]) < 4 * found.error < 0.3
    assert found.mean == pytest.approx(temperature, rel=0.1)
    assert run.target_temperature == 2.0
    assert not run.kinetic_is_by_construction


@pytest.mark.parametrize("chains", [1, 4])
def test_each_tensor_has_its_own_temperature(chains):
    """A sampler with the bias at T = 4 and the weight at T = 1 (both times 1/(1 − ελ/2)): the mean is 2.5."""

    def two_temperatures(params, **options):
        groups = [{"params": [params[0]], "temperature": 1.0}, {"params": [params[1]], "temperature": 4.0}]
        return lv.SGLD(groups, lr=0.2, **options)

    options = {"steps": 1900, "burn_in": 100, "thin": 5, "chains": chains}
    run = draw(*gaussian(), two_temperatures, batch_size=100, mode="vectorised" if chains > 1 else "auto", **options)
    factor = 1 / (1 - 0.2 * 1.01 / 2)
    found = run.temperatures()
    for name, expected in (("weight", 1.0 * factor), ("bias", 4.0 * factor)):
        assert abs(found[name].mean - expected) < 4 * found[name].error < expected
    both = [run.trace("temperature/weight"), run.trace("temperature/bias")]
    for c in run.chains:
        assert run.trace("temperature")[c] == pytest.approx(np.mean([trace[c] for trace in both], 0), rel=1e-6)
    assert math.isnan(run.target_temperature)  # a custom sampler


@pytest.mark.parametrize(("sampler", "speed"), [(lv.SGNHT, None), (lv.ATMC, "auto")])
def test_kinetic_and_thermostat_are_recorded_from_the_state_of_the_sampler(sampler, speed):
    seen = []

    def record(moment):
        state = [moment.sampler.state[p] for p in moment.sampler.param_groups[0]["params"]]
        group = moment.sampler.param_groups[0]
        u, xi = (torch.cat([s[name].flatten() for s in state]) for name in ("momentum", "thermostat"))
        s = 1.0 if speed is None else torch.sqrt(1 + (group["reference_lr"] * u / group["max_speed"]) ** 2)
        seen.append((float((u**2 / s).mean()), float(xi.mean())))

    options = {"steps": 12, "burn_in": 4, "thin": 2, "callbacks": [record]}
    run = draw(toy_posterior(), toy_data(), partial(sampler, lr=1e-2), **options)
    before = seen[3:11:2]  # read before every second step: after 4 steps, 6, …
    assert run.trace("kinetic")[0] == pytest.approx([kinetic for kinetic, _ in before], rel=1e-5)
    assert run.trace("thermostat")[0] == pytest.approx([xi for _, xi in before], rel=1e-4, abs=1e-9)
    assert run.kinetic_is_by_construction == (speed is None)
    assert {"loss", "lr", "temperature", "temperature/0.weight"} <= set(run.traces)


def test_a_statistic_that_was_not_recorded_is_refused(run):
    assert math.isnan(run.kinetic_temperature().mean)
    assert run.target_temperature == 1.0
    with pytest.raises(ValueError, match="'kinetic' was not recorded in this run; there are"):
        run.trace("kinetic")
    sgd = draw(toy_posterior(), toy_data(), partial(lv.SGD, lr=0.1), steps=4, burn_in=0, thin=1)
    assert math.isnan(sgd.target_temperature)


def test_a_resumed_run_records_the_same_statistics(tmp_path):
    def stop(moment):
        if moment.step == 17:
            raise InterruptedError

    options = {"sampler": partial(lv.SGHMC, lr=1e-3), "steps": 30, "burn_in": 10, "thin": 5}
    whole = draw(toy_posterior(), toy_data(), **options)
    with pytest.raises(InterruptedError):
        draw(toy_posterior(), toy_data(), out=tmp_path / "r", callbacks=[stop], **options)
    again = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), progress=False)
    assert whole.traces == again.traces
    for name in whole.traces:
        assert whole.trace(name) == again.trace(name)


def test_convergence_in_weight_space_and_in_function_space(run):
    weights = run.convergence(subset=10)
    assert len(weights.names) == 10
    assert (weights.chains, weights.draws) == (2, 60)
    assert np.isfinite(weights.rhat).all()
    x = toy_data()[0][:4]
    function = run.function_convergence(x)
    assert function.space == "function"
    assert len(function.names) == 12
    assert function.names[4] == "input 1, log-probability of class [1]"
    from langevin.diagnostics.convergence import arviz

    logs = np.stack([run.chain(c).predict(x, samples=True).samples.double().log().numpy()[:, 1, 1] for c in (0, 1)])
    assert function.rhat[4] == pytest.approx(float(arviz().rhat(logs)), rel=1e-6)
    tests = run.stationarity()
    assert [test.trace for test in tests] == ["loss", "temperature"]


def test_permuted_chains_disagree_about_weights_and_agree_about_predictions(run):
    """The hidden units of one chain permuted: the same functions."""
    from langevin.diagnostics.convergence import weight_convergence
    from langevin.ensembles.prediction import outputs_of

    permutation = torch.tensor([4, 2, 0, 1, 3])
    chain = list(run.chain(0))
    permuted = [
        {
            "0.weight": s["0.weight"][permutation],
            "0.bias": s["0.bias"][permutation],
            "2.weight": s["2.weight"][:, permutation],
            "2.bias": s["2.bias"],
        }
        for s in chain
    ]
    assert weight_convergence([chain, permuted], subset=20).worst_rhat > 1.3
    ensembles = [lv.Ensemble.from_weights(toy_model(), lv.likelihoods.Categorical(), c) for c in (chain, permuted)]
    outputs = [outputs_of(e.predict(toy_data()[0][:2], samples=True)) for e in ensembles]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_diagnostics_of_one_sample_are_unknown():
    run = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=10, burn_in=0, thin=10)
    found = run.convergence(subset=5)
    assert np.isnan(found.rhat).all()
    assert np.isnan(found.ess).all()
    assert "1 draws per chain" in found.unknown["ess"]
    assert np.isnan(run.function_convergence(toy_data()[0][:2]).rhat).all()
    assert math.isnan(run.temperature().error)
    assert str(run.temperature()).endswith("± unknown")
    assert all(test.stationary is None for test in run.stationarity())
    assert float(run.predict(toy_data()[0]).mutual_information.abs().max()) == 0.0
    assert run.to_arviz().posterior.sizes["draw"] == 1


def test_arviz_accepts_a_run(run):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from langevin.diagnostics.convergence import arviz

    az = arviz()
    data = run.to_arviz(x=toy_data()[0][:3])
    assert isinstance(data, az.InferenceData)
    assert dict(data.posterior["0.weight"].sizes) == {"chain": 2, "draw": 60, "0.weight_dim_0": 5, "0.weight_dim_1": 4}
    np.testing.assert_array_equal(data.posterior["2.bias"][1, 7], run.chain(1)[7]["2.bias"])
    np.testing.assert_allclose(data.sample_stats["loss"].values, list(run.trace("loss").values()))
    tensor = data.sample_stats["tensor_temperature"].sel(tensor="2.bias", chain=1)
    np.testing.assert_allclose(tensor.values, run.trace("temperature/2.bias")[1])
    probs = run.chain(1).predict(toy_data()[0][:3], samples=True).samples
    np.testing.assert_allclose(data.predictions["log_probs"].values[1], probs.double().log().numpy(), rtol=1e-5)
    summary = az.summary(data, var_names=["2.bias"])
    assert list(summary["r_hat"]) == pytest.approx(
        [round(v, 2) for v in run.convergence(names="2.bias").rhat], abs=0.011
    )
    for plot in (az.plot_trace, az.plot_rank, az.plot_autocorr, az.plot_ess, az.plot_posterior):
        plot(data, var_names=["2.bias"])
        pyplot.close("all")
    az.plot_trace(data.sample_stats, var_names=["temperature"])
    pyplot.close("all")
    few = run.to_arviz(subset=4, seed=2)
    assert few.posterior["weight"].shape == (2, 60, 4)
    assert list(few.posterior["place"].values) == run.convergence(subset=4, seed=2).names
    az.plot_forest(few)
    pyplot.close("all")


def test_draws_that_do_not_fit_in_memory_are_refused(run, monkeypatch):
    monkeypatch.setattr("langevin.diagnostics.inference_data._LARGEST", 1000)
    with pytest.raises(ValueError, match=r"run.to_arviz\(subset=1000\)"):
        run.to_arviz()


def test_a_stored_sample_with_nan_is_named_and_excluded(tmp_path, monkeypatch):
    options = {"steps": 100, "burn_in": 20, "thin": 10, "chains": 2}
    whole = draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), **options)
    expected = [sample for i, sample in enumerate(whole) if i != 2]
    losses = whole.trace("loss")
    store_nan(monkeypatch, number=2)
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), out=tmp_path / "r", mode="sequential", **options)

    run = lv.load(tmp_path / "r", toy_model())
    assert len(run) == 16
    with pytest.warns(UserWarning, match="chain 0 at step 50 has NaN or infinity in 2.bias; it is left out"):
        corrupted = run.check()
    ((path, why),) = corrupted.items()
    assert Path(path).parent.name == "chain-0000"
    assert "chain 0 at step 50 has NaN or infinity in 2.bias" in why
    assert len(run) == 15
    assert 50 not in run.chain(0).steps
    for c, remaining in ((0, [v for i, v in enumerate(losses[0]) if i != 2]), (1, losses[1])):
        assert run.trace("loss")[c] == pytest.approx(remaining, rel=1e-5)
    x = toy_data()[0]
    torch.testing.assert_close(
        run.predict(x).probs,
        lv.Ensemble.from_weights(toy_model(), lv.likelihoods.Categorical(), expected).predict(x).probs,
    )
    assert run.convergence(subset=5).draws == 7
    assert run.to_arviz().posterior.sizes["draw"] == 7
    assert np.isfinite(run.to_arviz().posterior["2.bias"].values).all()


def test_nan_is_found_without_a_check_and_never_returned(tmp_path, monkeypatch):
    store_nan(monkeypatch, number=0)
    draw(toy_posterior(), toy_data(), partial(lv.SGLD, lr=0.05), steps=60, burn_in=20, thin=10, out=tmp_path / "r")
    run = lv.load(tmp_path / "r", toy_model())
    with pytest.raises(ValueError, match="chain 0 at step 30 has NaN"):
        run[0]
    with pytest.warns(UserWarning, match="left out"):
        prediction = run.predict(toy_data()[0])
    assert bool(prediction.probs.isfinite().all())
    assert len(run) == 3
    assert run.corrupted
