"""`fit`: known answers, the interface of an ensemble, and the durability of a run."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.optim.lr_scheduler import CosineAnnealingLR

import langevin as lv
from langevin.storage import manifest
from langevin.storage.directory import DirectoryStore
from tests.conjugate import conjugate
from tests.helpers import assert_same_samples, toy_data, toy_model, toy_posterior

adam = partial(torch.optim.Adam, lr=1e-2)
fit = partial(lv.fit, progress=False, optimizer=adam)
METHODS = {
    "meanfield": lv.MeanField(kl_warmup=7),
    "lowrank": lv.LowRank(rank=3),
    "swa": lv.SWA(cycle=4),
    "swag": lv.SWAG(cycle=4, rank=3, low=1e-3),
    "hwa": lv.HWA(cycle=4, rank=2, low=1e-3, family=lv.LowRank(rank=2)),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


@pytest.fixture(scope="module")
def problem():
    return conjugate()


def fit_conjugate(problem, method, steps=1500, **options):
    return fit(
        problem.posterior(),
        (problem.x, problem.y),
        method,
        optimizer=partial(torch.optim.Adam, lr=0.05),
        schedule=partial(CosineAnnealingLR, T_max=steps),
        steps=steps,
        batch_size=problem.num_data,
        **options,
    )


def test_mean_field_finds_the_inverse_of_the_precisions_diagonal(problem):
    q = fit_conjugate(problem, lv.MeanField(), steps=400).distribution
    best = 1 / problem.precision.diag()
    # the last iterate of a noisy optimization: a few per cent; that the optimum is there is proved by its gradient
    torch.testing.assert_close(q.variance["weight"].flatten(), best, rtol=0.1, atol=0)
    distance = problem.elbo(problem.mean, best.diag()) - problem.elbo(q.mean["weight"].flatten(), q.covariance())
    assert 0 <= distance < 0.02


def test_low_rank_of_full_rank_finds_the_posterior(problem):
    q = fit_conjugate(problem, lv.LowRank(rank=3, init_std=0.1), steps=800).distribution
    kl = problem.evidence() - problem.elbo(q.mean["weight"].flatten(), q.covariance())
    mean_field = problem.evidence() - problem.elbo(problem.mean, (1 / problem.precision.diag()).diag())
    assert 0 <= kl < 0.25 * mean_field  # the last iterate of a noisy optimization; the gradient proves the optimum


def test_the_elbo_is_right_and_below_the_evidence(problem):
    q = fit_conjugate(problem, lv.MeanField(), steps=300).distribution
    exact = problem.elbo(q.mean["weight"].flatten(), q.covariance())
    found = lv.approximations.elbo(q, problem.posterior(), (problem.x, problem.y), draws=250, batch_size=20)
    assert abs(found.mean - exact) < 4 * found.error
    assert found.error < 0.3
    assert exact < problem.evidence() - 0.2  # mean-field can't have the correlations
    assert found.mean + 4 * found.error < problem.evidence()


@every_method
def test_a_fit_is_an_ensemble(method, tmp_path):
    x, y = toy_data()
    posterior = toy_posterior()
    before = [p.clone() for p in posterior.parameters()]
    found = fit(posterior, (x, y), method, steps=40, out=tmp_path / "f", draws=6)
    assert all(torch.equal(a, b) and b.requires_grad for a, b in zip(before, posterior.parameters(), strict=True))
    assert len(found) == (1 if isinstance(method, lv.SWA) else 6)
    assert found[0].keys() == dict(posterior.model.named_parameters()).keys()
    assert len(list(found)) == len(found[:]) == len(found)
    prediction = found.predict(x, samples=True, batch_size=16)
    assert prediction.samples.shape == (len(found), 60, 3)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(60))
    assert found.predict(x, draws=9, samples=True).samples.shape[0] == 9
    assert found.trace("loss")[0][-1] > 0
    assert found.path == tmp_path / "f"
    assert found.manifest["method"]["name"] == type(method).__name__
    assert "title=" in lv.cite(found)
    assert lv.cite(found) == lv.cite(method) == lv.cite(type(method).__name__)
    assert isinstance(found, lv.Ensemble)
    again = lv.load(tmp_path / "f", toy_model())
    assert again.approximation == method
    assert torch.equal(again.predict(x).probs, found.predict(x).probs)


def test_fits_and_runs_are_compared_on_one_page():
    x, y = toy_data()
    sampled = lv.sample(toy_posterior(), (x, y), partial(lv.SGLD, lr=1e-2), steps=60, progress=False)
    fits = {name: fit(toy_posterior(), (x, y), method, steps=40) for name, method in METHODS.items()}
    laplace = lv.fit(toy_posterior(), (x, y), lv.Laplace(), progress=False)
    table = lv.compare({"SGLD": sampled, **fits, "Laplace": laplace}, (x, y), resamples=20)
    assert set(table.scores) == {"SGLD", *METHODS, "Laplace"}
    gradient = torch.autograd.grad(sum(p.sum() for p in fits["hwa"].log_probs(x.requires_grad_(), y)), x)[0]
    assert bool(gradient.any())


def test_draws_are_functions_of_seed_and_number():
    found = fit(toy_posterior(), toy_data(), lv.MeanField(), steps=10)
    assert torch.equal(found[3]["0.weight"], found.sample(5)["0.weight"][3])
    assert torch.equal(found.sample(2, seed=7)["2.bias"], found.sample(9, seed=7)["2.bias"][:2])
    assert not torch.equal(found.sample(2, seed=7)["2.bias"], found.sample(2, seed=8)["2.bias"])
    assert not torch.equal(found[0]["2.bias"], found[1]["2.bias"])


@every_method
def test_vmap_over_draws_gives_what_a_loop_gives(method):
    x, y = toy_data()
    found = fit(toy_posterior(), (x, y), method, steps=20, draws=5)
    model = toy_model()
    stacked = found.sample(5)
    together = vmap(lambda weights: functional_call(model, weights, (x,)))(stacked).softmax(-1)
    torch.testing.assert_close(found.predict(x, draws=5, samples=True).samples, together)


def stored(tmp_path, name, method, **options):
    return fit(toy_posterior(), toy_data(), method, steps=40, batch_size=16, seed=3, out=tmp_path / name, **options)


def same(a, b):
    assert_same_samples(a, b)
    assert all(torch.equal(v, b[1 % len(b)][name]) for name, v in a[1 % len(a)].items())


class Stop(Exception):
    pass


@every_method
def test_an_interrupted_fit_resumes_bit_for_bit(method, tmp_path):
    uninterrupted = stored(tmp_path, "whole", method)

    def stop(info):
        if info.step == 19:
            raise Stop

    with pytest.raises(Stop):
        stored(tmp_path, "torn", method, callbacks=[stop])
    same(uninterrupted, lv.resume(tmp_path / "torn", toy_posterior(), toy_data(), progress=False))


def test_ctrl_c_within_a_step_waits_for_its_end(tmp_path):
    class Signalled(torch.optim.Adam):
        def step(self, closure=None):
            if self.state and next(iter(self.state.values())).get("step") == 6:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(closure)

    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, "torn", lv.MeanField(), optimizer=partial(Signalled, lr=1e-2))
    assert DirectoryStore.open(tmp_path / "torn").checkpoint_steps() == {0: 7}
    with pytest.raises(lv.RunError, match="The optimizer of .* was not serializable; give it again: .*optimizer=…"):
        lv.resume(tmp_path / "torn", toy_posterior(), toy_data(), progress=False)
    resumed = lv.resume(tmp_path / "torn", toy_posterior(), toy_data(), optimizer=adam, progress=False)
    same(stored(tmp_path, "whole", lv.MeanField()), resumed)


def test_a_killed_fit_resumes_bit_for_bit(tmp_path):
    code = """if True:
        import os, sys
        import langevin as lv
        from tests.inference.test_fit import *
        def kill(info):
            if info.step == 30:
                os.kill(os.getpid(), signal.SIGKILL)
        torch.set_num_threads(1)
        from pathlib import Path
        stored(Path(sys.argv[1]), "torn", METHODS["hwa"], checkpoint_steps=7, callbacks=[kill])
    """
    path = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == -signal.SIGKILL
    resumed = lv.resume(tmp_path / "torn", toy_posterior(), toy_data(), progress=False)
    same(stored(tmp_path, "whole", METHODS["hwa"]), resumed)


def test_a_fit_can_be_extended(tmp_path):
    short = stored(tmp_path, "r", lv.SWAG(cycle=4, rank=3))
    longer = lv.resume(tmp_path / "r", toy_posterior(), toy_data(), steps=48, progress=False)
    assert (len(short.snapshots), len(longer.snapshots)) == (10, 12)
    stored(tmp_path, "q", lv.MeanField())
    with pytest.raises(ValueError, match="write steps=44"):
        lv.resume(tmp_path / "q", toy_posterior(), toy_data(), steps=42, progress=False)
    assert lv.resume(tmp_path / "q", toy_posterior(), toy_data(), steps=44, progress=False).snapshots.steps[-1] == 44
    with pytest.raises(lv.RunError, match="not the one of"):
        lv.resume(tmp_path / "q", toy_posterior(toy_model(classes=4)), toy_data(), progress=False)
    with pytest.raises(ValueError, match="has no tensor '2.weight' of shape"):
        lv.load(tmp_path / "q", toy_model(classes=4))


def test_init_is_a_trained_solution():
    start = lv.find_map(toy_posterior(), toy_data())
    options = {"steps": 1, "optimizer": partial(torch.optim.SGD, lr=1e-12)}
    first = fit(toy_posterior(), toy_data(), lv.MeanField(init_std=0.2), init=start, **options)
    torch.testing.assert_close(first.distribution.mean["0.weight"], start["0.weight"])
    torch.testing.assert_close(first.distribution.variance["0.bias"], torch.full((5,), 0.04))
    second = fit(toy_posterior(), toy_data(), lv.HWA(cycle=1), init=first, **{**options, "steps": 3})
    torch.testing.assert_close(second.distribution.mean["0.weight"], start["0.weight"])
    torch.testing.assert_close(second.distribution.variance["0.bias"], torch.full((5,), 0.04))  # σ̂ too
    point = fit(toy_posterior(), toy_data(), lv.SWA(cycle=1), init=first, **options)
    torch.testing.assert_close(point[0]["0.weight"], start["0.weight"])


def test_a_part_of_the_model():
    posterior = toy_posterior(sampled="2.*")
    found = fit(posterior, toy_data(), lv.MeanField(), steps=5)
    assert set(found[0]) == {"2.weight", "2.bias"}
    assert found.predict(toy_data()[0]).probs.shape == (60, 3)


def dropout_net():
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))


class RandomNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) + torch.randn(3)


@pytest.mark.parametrize("method", [lv.MeanField(), lv.SWA(cycle=2)], ids=["variational", "averaging"])
def test_a_model_whose_forward_is_random_is_refused(method):
    with pytest.warns(UserWarning, match="at random"):
        posterior = toy_posterior(dropout_net())
    with pytest.raises(ValueError, match="changes the model at random"):
        fit(posterior, toy_data(), method, steps=4)
    with pytest.raises(ValueError, match="output is random"):
        fit(toy_posterior(RandomNet()), toy_data(), method, steps=4)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (lv.MeanField, {}, "approximation must be an Approximation"),
        (lv.MeanField(), {"draws": 0}, "draws must be an integer, 1 or more"),
        (lv.MeanField(), {"steps": 0}, "steps must be an integer, 1 or more"),
        (lv.MeanField(), {"burn_in": 20}, "burn_in less than that"),
        (lv.MeanField(), {"optimizer": None}, "Give an optimizer and how many steps"),
        (lv.MeanField(), {"optimizer": torch.optim.Adam([torch.zeros(1)])}, "optimizer must be a function"),
        (lv.MeanField(), {"optimizer": torch.optim.LBFGS}, "LBFGS for lv.find_map"),
        (lv.MeanField(), {"optimizer": partial(lv.SGLD, lr=1e-2, num_data=60)}, "Samplers are for lv.sample"),
        (lv.LowRank(rank=0), {}, "rank from 1 to 43"),
        (lv.LowRank(rank=44), {}, "rank from 1 to 43"),
        (lv.SWA(cycle=21), {}, "the cycle is longer than the 20 steps"),
        (lv.HWA(cycle=15), {"burn_in": 10}, "the cycle is longer than the 10 steps"),
        (lv.HWA(cycle=20), {}, "the variance of .*snapshots.* 2 .*Use more steps, or a cycle shorter than"),
        (lv.SWAG(cycle=11), {}, "the variance of .*snapshots.* 2 .*Use more steps, or a cycle shorter than"),
        (lv.SWAG(cycle=4, rank=6), {}, "[Gg]ive a rank from 2 to 5"),
        (lv.SWAG(cycle=4, rank=1), {}, "[Gg]ive a rank from 2 to 5"),
        (lv.SWAG(cycle=4, rank=0), {}, "rank from 1 to 43"),
        (lv.HWA(cycle=4, low=0.5), {}, "low=0.5 must not exceed the optimizer.s lr=.*give a smaller low"),
        (lv.SWA(cycle=4, low=1e-3), {"schedule": lv.cyclical(4)}, "brings its own schedule"),
        (lv.MeanField(), {"init": {"0.weight": torch.zeros(2)}}, "init has no '0.weight'"),
    ],
)
def test_bad_input(method, options, message):
    with pytest.raises(ValueError, match=message):
        fit(toy_posterior(), toy_data(), method, **{"steps": 20, **options})


def test_an_unfinished_fit_is_made_of_its_snapshots(tmp_path):
    def stop_at(step):
        def stop(info):
            if info.step == step:
                raise Stop

        return stop

    for name, step in [("one", 5), ("two", 9)]:
        with pytest.raises(Stop):
            stored(tmp_path, name, lv.SWAG(cycle=4, rank=3), callbacks=[stop_at(step)])
    with pytest.raises(ValueError, match="the variance of .*snapshots.* 2 .*Use more steps, or a cycle shorter than"):
        lv.load(tmp_path / "one", toy_model())
    assert lv.load(tmp_path / "two", toy_model()).distribution.rank == 2
    with pytest.raises(Stop):
        stored(tmp_path, "none", lv.SWA(cycle=4), callbacks=[stop_at(2)])
    with pytest.raises(lv.RunError, match="has no snapshot yet; continue it with lv.resume"):
        lv.load(tmp_path / "none", toy_model())


def test_gradient_accumulation_makes_the_same_step():
    whole, pieces = (
        fit(toy_posterior(), toy_data(), lv.SWA(cycle=5), steps=10, grad_accumulation_steps=n) for n in (1, 3)
    )
    torch.testing.assert_close(whole[0], pieces[0], rtol=1e-4, atol=1e-5)
    low = fit(toy_posterior(), toy_data(), lv.MeanField(), steps=10, grad_accumulation_steps=2, autocast=torch.bfloat16)
    assert all(bool(t.isfinite().all()) for t in low[0].values())


def test_a_manifest_that_describes_no_approximation(tmp_path):
    stored(tmp_path, "f", lv.SWA(cycle=4))
    whole = manifest.read(tmp_path / "f")
    for wrong in ({"name": "VOGN", "options": {}}, {"name": "SWA", "options": {"speed": 1}}, {"name": "SWA"}, 3):
        (tmp_path / "f" / "manifest.json").write_bytes(manifest.text({**whole, "method": wrong}))
        with pytest.raises(lv.RunError, match="registered approximation; was the fit"):
            lv.load(tmp_path / "f", toy_model())


def test_what_a_fit_does_not_have():
    found = fit(toy_posterior(), toy_data(), lv.SWA(cycle=2), steps=4)
    with pytest.raises(ValueError, match="no entropy"):
        lv.approximations.elbo(found.distribution, toy_posterior(), toy_data())
    with pytest.raises(ValueError, match="must be an integer, 1 or more"):
        found.sample(0)
    with pytest.raises(ValueError, match="must be an integer, 1 or more"):
        found.predict(toy_data()[0], draws=0)
    with pytest.raises(IndexError, match="There are 1 samples; given index 1"):
        found[1]
    for name in ("chain", "temperature", "convergence"):
        assert not hasattr(found, name)


def test_options_of_runs_are_not_swallowed_by_a_fit(tmp_path):
    stored(tmp_path, "f", lv.SWA(cycle=4))
    for options in ({"sampler": partial(lv.SGLD, lr=1e-2)}, {"init": toy_model().state_dict()}, {"chains": 2}):
        with pytest.raises(ValueError, match="is a fit, not a run: it has an optimizer. Leave out sampler="):
            lv.resume(tmp_path / "f", toy_posterior(), toy_data(), steps=44, progress=False, **options)
    other = partial(torch.optim.SGD, lr=1e-2)
    with pytest.raises(lv.RunError, match=r"keeps its optimizer: .* Leave out optimizer=…"):
        lv.resume(tmp_path / "f", toy_posterior(), toy_data(), steps=44, optimizer=other, progress=False)
    laplace = lv.fit(toy_posterior(), toy_data(), lv.Laplace(), progress=False)
    with pytest.raises(lv.RunError, match="is complete: there is nothing to continue"):
        lv.resume(laplace, toy_posterior(), toy_data(), progress=False)
