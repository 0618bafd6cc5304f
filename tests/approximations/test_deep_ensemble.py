"""Deep ensembles: optima of their own, equal weights, stored and resumed like any fit."""

import pytest
import torch

import langevin as lv
from langevin.inference.autopilot import warm_start


@pytest.fixture(scope="module", autouse=True)
def short_training():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warm_start, "STEPS", 200)
        patched.setattr(warm_start, "EPOCHS", 1)
        patched.setattr("langevin.inference.trial.seconds_per_step", lambda chains: 1.0)  # always vectorised
        yield


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator)
    y = (x[:, :1] * x[:, 1:]).sign() + 0.1 * torch.randn(80, 1, generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return lv.Posterior(model, lv.likelihoods.Gaussian(0.3), lv.priors.Gaussian(1.0), num_data=80), (x, y)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return lv.fit(*problem(), lv.DeepEnsemble(3), out=tmp_path_factory.mktemp("fit") / "ensemble", progress=False)


def test_members_are_optima_of_their_own(fitted):
    posterior, (x, y) = problem()
    outputs = posterior.model(x).detach()
    start = float(((outputs - y) / 0.3).square().mean() / 2)
    assert len(fitted) == len(fitted.snapshots) == 3
    first = [weights["0.weight"] for weights in fitted]
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first[0], posterior.model[0].weight)
    for weights in fitted:
        outputs = torch.func.functional_call(posterior.model, dict(weights), (x,))
        assert float(((outputs - y) / 0.3).square().mean() / 2) < 0.8 * start


def test_a_prediction_is_the_mean_over_members(fitted):
    posterior, (x, _) = problem()
    outputs = torch.stack([torch.func.functional_call(posterior.model, dict(w), (x,)) for w in fitted])
    prediction = fitted.predict(x)
    assert torch.allclose(prediction.mean, outputs.mean(0), atol=1e-5)
    assert torch.allclose(prediction.epistemic, outputs.var(0, correction=0), atol=1e-5)
    assert torch.allclose(fitted.predict(x, draws=6).mean, prediction.mean, atol=1e-5)
    rows = torch.stack([torch.cat([t.flatten() for t in w.values()]) for w in fitted])
    assert torch.allclose(fitted.distribution.covariance(), torch.cov(rows.T, correction=0), atol=1e-5)


def test_it_is_stored(fitted):
    loaded = lv.load(fitted.path, problem()[0].model)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(fitted, loaded, strict=True) for name in a)
    with pytest.raises(lv.RunError, match="is complete"):
        lv.resume(fitted.path, *problem())
    assert "lakshminarayanan2017simple" in lv.cite(fitted)


def test_an_interrupted_fit_is_resumed(fitted, tmp_path):
    class Killed(Exception):
        pass

    advance, calls = warm_start.stages.advance, []

    def dies(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise Killed
        return advance(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warm_start.stages, "advance", dies)
        with pytest.raises(Killed):
            lv.fit(*problem(), lv.DeepEnsemble(3), out=tmp_path / "fit", progress=False)
    resumed = lv.resume(tmp_path / "fit", *problem(), progress=False)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(fitted, resumed, strict=True) for name in a)


@pytest.mark.parametrize("options", [{"steps": 10}, {"optimizer": torch.optim.Adam}, {"init": {}}])
def test_what_it_does_not_take_is_refused(options):
    with pytest.raises(ValueError, match=rf"leave out {next(iter(options))}="):
        lv.fit(*problem(), lv.DeepEnsemble(2), **options)


@pytest.mark.parametrize("members", [0, True, 2.5])
def test_it_has_at_least_one_member(members):
    with pytest.raises(ValueError, match="members"):
        lv.DeepEnsemble(members)
