"""The library on another device than the CPU; run by `test_simulated.py` in a process of its own, on the simulated one.

`make test-gpu` runs it on CUDA (LANGEVIN_TEST_DEVICE=cuda).
"""

import copy
import os
import pickle
import warnings
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.approximations import APPROXIMATIONS
from langevin.core import devices, random
from langevin.errors import ConvergenceWarning, DivergenceError
from langevin.evaluation import FGSM, PGD
from langevin.inference import chains as chains_module
from langevin.inference.device_check import examine_device
from langevin.inference.doctor import examine
from langevin.integrations import accelerate
from langevin.samplers import SAMPLERS
from tests.contract.targets import make
from tests.contract.test_mechanics import ELEMENTWISE
from tests.gpu import simulated
from tests.helpers import samples_of, toy_data, toy_model, toy_posterior

DEVICE = os.environ.get("LANGEVIN_TEST_DEVICE", simulated.NAME)
SIMULATED = DEVICE == simulated.NAME
if SIMULATED:
    simulated.install()
    from tests.gpu.simulated import synchronisations
else:
    from tests.gpu.cuda import synchronisations

X, Y = toy_data()
WHOLE_LAYERS = {"ksgld", "bnpsgld", "nld", "sngd"}  # their chains are not stacked
OPTIONS = {"lr": 1e-3, "steps": 12, "burn_in": 4, "thin": 4, "batch_size": 10, "progress": False, "seed": 3}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def posterior(device=DEVICE, **options):
    return toy_posterior(toy_model().to(device), **options)


def assert_close(run, other, tolerance=2e-4):
    """The same samples to the rounding of some steps in float32."""
    first, second = samples_of(run), samples_of(other)
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], rtol=tolerance, atol=tolerance)


def few(names, quick):
    """Parameters of a test, all but the quick ones marked as slow: each operation of the simulated device is Python."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


# the device itself


@pytest.mark.skipif(not SIMULATED, reason="of the simulated device")
def test_the_simulated_device_is_strict_and_counts():
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(simulated.DeviceMismatch):
        x + torch.ones(3)
    with pytest.raises(NotImplementedError, match="getNewGenerator"):
        torch.Generator(DEVICE)
    assert (x + torch.tensor(1.0)).device.type == DEVICE  # numbers may be on the CPU, as on a GPU
    for reads in (lambda: x.sum().item(), lambda: x.tolist(), lambda: bool(x.any()), lambda: x.cpu()):
        with synchronisations() as seen:
            reads()
        assert seen.total == 1
    with synchronisations() as seen:
        x.add_(1).mul_(2.0).sum()
        torch.ones(3).to(DEVICE, non_blocking=True)
    assert seen.total == 0
    with synchronisations() as seen:
        torch.ones(3).to(DEVICE)
    assert seen.total == 1


# the stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_that_of_the_cpu(dtype):
    where = {"seed": 2**63 + 5, "step": 2**33, "stream": 3}
    here = torch.stack([random.normal(3000, chain=c, start=700, dtype=dtype, **where) for c in (0, 9)])
    out = torch.empty(2, 3000, dtype=dtype, device=DEVICE)
    with synchronisations() as seen:
        random.numbers_on((0, 9), out.device)  # copied once
        before = seen.total
        random.normal_rows(out, chains=[0, 9], start=700, **where)
    assert before <= seen.total <= 1
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.cpu(), here, rtol=rounding, atol=rounding)


def test_mini_batches_and_tests_are_those_of_the_cpu():
    for size, num_data in ((10, 60), (59, 60), (60, 60), (1, 2)):
        where = {"seed": 1, "chain": [0, 7], "step": 5}
        there = random.random_subset(num_data, size, **where, device=DEVICE)
        assert torch.equal(there.cpu(), random.random_subset(num_data, size, **where))
    where = {"seed": 1, "step": 5, "stream": random.Stream.ACCEPT}
    there = random.uniforms([0, 7], **where, device=torch.device(DEVICE))
    assert torch.equal(there.cpu(), random.uniforms([0, 7], **where, device=torch.device("cpu")))


# the contract of samplers


def parameters(device, lead=()):
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), ())]
    return [nn.Parameter(p.expand((*lead, *p.shape)).clone().to(device)) for p in drawn]


def take(sampler, params, steps):
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() - 1
        sampler.step()
    return [p.detach().cpu() for p in params]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_sampler_moves_as_on_the_cpu_alone_and_stacked(name):
    ends = []
    for device in ("cpu", DEVICE):
        single, stack = parameters(device), parameters(device, (2,))
        ends.append(
            take(make(SAMPLERS[name], single, lr=0.01, chain=3), single, 3)
            + take(make(SAMPLERS[name], stack, lr=0.01, chain=[0, 3]), stack, 3)
        )
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "pickle", "to the CPU"])
@pytest.mark.parametrize("name", ["sghmc", "psgld"])
def test_a_copy_continues_like_the_original(name, copied):
    params = parameters(DEVICE)
    sampler = make(SAMPLERS[name], params, lr=0.01)
    take(sampler, params, 2)
    if copied in ("state_dict", "to the CPU"):
        device = DEVICE if copied == "state_dict" else "cpu"
        others = [nn.Parameter(p.detach().to(device, copy=True)) for p in params]
        other = make(SAMPLERS[name], others, lr=0.5, seed=99)
        other.load_state_dict(copy.deepcopy(sampler.state_dict()))
    elif copied == "deepcopy":
        others, other = copy.deepcopy((params, sampler))
    else:
        others, other = pickle.loads(pickle.dumps((params, sampler)))
    for a, b in zip(take(sampler, params, 2), take(other, others, 2), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# sampling


@pytest.mark.parametrize("name", few(SAMPLERS, ["sghmc", "ksgld"]))
def test_every_sampler_samples_as_on_the_cpu(name):
    full = SAMPLERS[name].full_batch
    options = {**OPTIONS, "steps": 6, "burn_in": 2, "thin": 2, "probe": 0, "batch_size": "full" if full else 10}
    for more in [{}] if name in WHOLE_LAYERS else [{}, {"chains": 2, "mode": "vectorised"}]:
        runs = [lv.sample(posterior(device), (X, Y), SAMPLERS[name], **options, **more) for device in ("cpu", DEVICE)]
        assert_close(*runs, 2e-3 if name in ("nld", "sngd", "mclmc") else 2e-4)


@pytest.mark.slow
def test_stacked_chains_and_readings_are_those_of_the_cpu():
    options = {**OPTIONS, "steps": 40, "burn_in": 16, "thin": 12, "chains": 2, "mode": "vectorised"}
    here, there = (lv.sample(posterior(device), (X, Y), lv.SGHMC, **options) for device in ("cpu", DEVICE))
    assert_close(here, there)
    for name in here.traces:
        for chain, values in here.trace(name).items():
            assert there.trace(name)[chain] == pytest.approx(values, rel=1e-2, abs=1e-2), name


WAYS = ["data set", "loader", "too large", "accumulated", "control variate", "prior scales"]


@pytest.mark.parametrize("kind", few(WAYS, []))
def test_ways_to_sample(kind, monkeypatch):
    data, options, prior = (X, Y), dict(OPTIONS), None
    if kind == "data set":
        data = list(zip(X, Y, strict=True))
    elif kind == "loader":
        data, options["batch_size"] = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True), None
    elif kind == "too large":
        monkeypatch.setattr(devices, "_SHARE", 0.0)
        options |= {"chains": 2, "mode": "vectorised"}
    elif kind == "accumulated":
        options["grad_accumulation_steps"] = 3
    elif kind == "control variate":
        options["control_variate"] = {name: p.detach() for name, p in posterior().trainable_parameters().items()}
    else:
        prior = {"*": lv.priors.SampledGaussian(3.0, 2.0)}
        options |= {"chains": 2, "mode": "vectorised"}
    runs = []
    for device in ("cpu", DEVICE):
        model = toy_model().to(device)
        p = lv.Posterior(model, lv.likelihoods.Categorical(), prior or lv.priors.Gaussian(1.0), num_data=60)
        runs.append(lv.sample(p, data, lv.SGLD, **options))
    assert_close(*runs)


@pytest.mark.parametrize("name", few(SAMPLERS, ["sgnht", "mclmc"]))
def test_resume_from_the_cpu_to_the_device_and_back(name, tmp_path):
    """Chains are stacked where they can be, and the scale of the likelihood is a parameter without axes."""
    kind, y = SAMPLERS[name], X[:, :1]
    options = {**OPTIONS, "steps": 8, "thin": 2, "chains": 2, "batch_size": "full" if kind.full_batch else 10}

    def on(device):
        torch.manual_seed(0)
        likelihood = lv.likelihoods.Gaussian(0.5, sampled=name not in WHOLE_LAYERS)
        return lv.Posterior(nn.Linear(4, 1), likelihood, num_data=60).to(device)

    for mode in ["sequential"] if name in WHOLE_LAYERS else ["vectorised", "sequential"]:
        whole = lv.sample(on("cpu"), (X, y), kind, **{**options, "steps": 16, "mode": mode})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the environment has changed
            lv.sample(on("cpu"), (X, y), kind, **options, mode=mode, out=tmp_path / mode)
            lv.resume(tmp_path / mode, on(DEVICE), (X, y), steps=12, progress=False)
            back = lv.resume(tmp_path / mode, on("cpu"), (X, y), steps=16, progress=False)
        assert_close(back, whole, 2e-3 if name in ("nld", "sngd") else 2e-4)


def test_a_run_of_the_cpu_predicts_on_the_device(tmp_path):
    lv.sample(posterior("cpu"), (X, Y), lv.SGLD, **OPTIONS, out=tmp_path / "r")
    loaded = lv.load(tmp_path / "r", toy_model().to(DEVICE))
    assert loaded.predict(X).probs.device.type == DEVICE


@pytest.mark.skipif(not SIMULATED, reason="the simulated device's generator is a number")
def test_the_generators_of_the_user_are_left_alone():
    module = torch.get_device_module(DEVICE)
    p = posterior()
    torch.manual_seed(5)
    before = module.get_rng_state()
    lv.sample(p, (X, Y), lv.KSGLD, **OPTIONS)
    lv.sample(p, list(zip(X, Y, strict=True)), lv.SGLD, **OPTIONS)  # seeds for random transforms
    assert torch.equal(module.get_rng_state(), before)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_noticed_with_its_example():
    x = X.clone()
    x[17, 2] = torch.nan
    options = {**OPTIONS, "steps": 200, "thin": 90, "batch_size": 2}
    assert 17 not in random.random_subset(60, 2, seed=3, chain=0, step=0)
    with pytest.raises(DivergenceError, match="example 17 of the data set"):
        lv.sample(posterior(), (x, Y), lv.SGLD, **options)


# host synchronisations


def synchronisations_in_a_hundred_steps(monkeypatch, kind, options, data=(X, Y)):
    """Of the loop, from step 5 to step 105."""
    seen, advance = {}, chains_module.Chains.advance
    counting = synchronisations()
    counter = counting.__enter__()

    def counted(self):
        advance(self)
        seen[self.step] = counter.so_far()

    monkeypatch.setattr(chains_module.Chains, "advance", counted)
    full = kind.full_batch or kind is lv.SGD
    given = {"probe": 0, "progress": False, "checkpoint_seconds": 10_000.0, "seed": 0, "steps": 106, "thin": 102}
    given |= {"burn_in": 4, "lr": 1e-3, "batch_size": "full" if full else 10, **options}
    lv.sample(posterior(), data, kind, **given)
    return seen[105] - seen[5]


@pytest.mark.parametrize("name", few([name for name in SAMPLERS if name not in ("nld", "sngd")], ["sgd"]))
def test_a_hundred_steps_make_the_host_wait_once(name, monkeypatch):
    """Once frozen; the Fisher (NLD, SNGD) is factorised in every step, and whether it can be is asked each time."""
    options = {"chains": 2, "mode": "vectorised"} if name == "sgld" else {}
    seen = synchronisations_in_a_hundred_steps(monkeypatch, SAMPLERS[name], options)
    assert sum(seen.values()) <= 1, seen


@pytest.mark.parametrize("kind", few(["data set", "loader", "too large", "autocast", "adapting"], ["too large"]))
def test_no_way_to_sample_makes_the_host_wait_more_often(kind, monkeypatch):
    """Batches from the host are copied without waiting."""
    data, method, options = (X, Y), lv.SGLD, {}
    if kind == "data set":
        data = list(zip(X, Y, strict=True))
    elif kind == "loader":
        data, options = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True), {"batch_size": None}
    elif kind == "too large":
        monkeypatch.setattr(devices, "_SHARE", 0.0)
    elif kind == "autocast":
        options = {"autocast": torch.bfloat16}
    else:
        method, options = lv.MCLMC, {"burn_in": 105, "steps": 107, "thin": 1, "chains": 2, "mode": "vectorised"}
    seen = synchronisations_in_a_hundred_steps(monkeypatch, method, options, data)
    assert sum(seen.values()) <= 1, seen


def test_a_recorded_loop_makes_the_host_wait_for_what_it_records():
    accelerator = Accelerator(cpu=True)
    p, x, y = posterior(), X.to(DEVICE), Y.to(DEVICE)
    sampler = lv.SGLD(p.parameters(), lr=1e-3, num_data=60)
    sampling = accelerate.Sampling(accelerator, p, sampler, burn_in=1, thin=10)

    def steps(count):
        for _ in range(count):
            sampler.zero_grad()
            loss = p.loss(x, y)
            loss.backward()
            sampler.step()
            sampling.record(loss)

    steps(2)
    with synchronisations() as seen:
        steps(8)
    assert seen.total == 0, seen.lines
    steps(1)
    assert sampling.run().predict(X).probs.device.type == DEVICE


def test_steps_of_a_loop_of_ones_own_do_not_make_the_host_wait():
    params = parameters(DEVICE)
    sampler = lv.SGHMC(params, lr=0.01, num_data=10)
    take(sampler, params, 1)
    for p in params:
        p.grad = torch.ones_like(p)
    with synchronisations() as seen:
        for _ in range(20):
            sampler.step()
    assert seen.total == 0, seen.lines


# after sampling


@pytest.fixture(scope="module")
def run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lv.sample(posterior(), (X, Y), lv.SGHMC, **{**OPTIONS, "chains": 2, "mode": "vectorised"})


def test_predict(run):
    for x in (X, X.to(DEVICE)):
        prediction = run.predict(x)
        assert prediction.probs.device.type == DEVICE
        assert prediction.log_prob(Y).shape == (60,)
        assert prediction.sample(2).shape == (2, 60)


@pytest.mark.slow
def test_evaluate_attack_and_save(run, tmp_path):
    for x, y in ((X, Y), (X.to(DEVICE), Y.to(DEVICE))):
        report = lv.evaluate(run, (x, y), ood={"far": 5 * x}, attack=FGSM(0.1), attack_examples=20)
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    attacked = PGD(0.1, steps=2).perturb(run, X.to(DEVICE), Y.to(DEVICE))
    expected = PGD(0.1, steps=2).perturb(run, X, Y)
    torch.testing.assert_close(attacked.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
    run.save(tmp_path / "run")
    assert lv.load(tmp_path / "run", toy_model()).predict(X).probs.device.type == "cpu"


@pytest.mark.parametrize(
    "name", few(["gaussian", "heteroscedastic", "heteroscedastic student-t", "student-t", "poisson"], [])
)
def test_values(name):
    likelihood, outputs, y = {
        "gaussian": (lv.likelihoods.Gaussian(std=0.5, sampled=True), 1, X[:, :1]),
        "heteroscedastic": (lv.likelihoods.HeteroscedasticGaussian(), 2, X[:, :1]),
        "heteroscedastic student-t": (lv.likelihoods.HeteroscedasticStudentT(), 2, X[:, :1]),
        "student-t": (lv.likelihoods.StudentT(1.0), 1, X[:, :1]),
        "poisson": (lv.likelihoods.Poisson(), 1, X[:, :1].abs().round()),
    }[name]
    p = lv.Posterior(nn.Linear(4, outputs), likelihood, num_data=60).to(DEVICE)
    run = lv.sample(p, (X, y), lv.SGLD, **OPTIONS)
    prediction = run.predict(X.to(DEVICE))
    assert prediction.mean.device.type == DEVICE
    assert prediction.log_prob(y).shape == (60,)
    assert prediction.quantile(0.5).shape == (60, 1)
    assert prediction.sample(2).shape == (2, 60, 1)
    assert str(lv.evaluate(run, (X.to(DEVICE), y.to(DEVICE))))


@pytest.mark.slow
def test_a_last_layer_on_features_of_the_device():
    last = lv.last_layer(toy_model().to(DEVICE))
    data = last.features((X.to(DEVICE), Y))
    p = lv.Posterior(last.head, lv.likelihoods.Categorical(), num_data=60)
    run = lv.sample(p, data, lv.MCLMC, **{**OPTIONS, "batch_size": "full"})
    assert last.predict(run, X).probs.device.type == DEVICE
    assert last.whole(run).predict(X).probs.device.type == DEVICE


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lv.SGHMC, lv.KSGLD])
def test_tokens(kind):
    words = (X * 3).long().remainder(7)
    runs = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 5).requires_grad_(False), nn.Linear(5, 7)).to(device)
        p = lv.Posterior(model, lv.likelihoods.Tokens(), num_data=60)
        runs.append(lv.sample(p, (words, words), kind, **OPTIONS))
    assert_close(*runs)


@pytest.mark.parametrize("name", few(APPROXIMATIONS, ["swa"]))
def test_fits(name):
    cycles = {"swa": {"cycle": 4}, "swag": {"cycle": 4, "rank": 2}, "hwa": {"cycle": 4}}
    options = {**cycles, "deepensemble": {"members": 2}}
    method = APPROXIMATIONS[name](**options.get(name, {}))
    given = {"optimizer": partial(torch.optim.Adam, lr=1e-3), "steps": 12}
    given = {} if name in ("laplace", "deepensemble") else given
    fit = lv.fit(posterior(), (X, Y), method, batch_size=10, progress=False, **given)
    assert fit.predict(X).probs.device.type == DEVICE


@pytest.mark.slow
def test_doctor_and_tuning():
    findings = examine(posterior(), (X, Y), sampler=partial(lv.SGLD, lr=1e-3), batch_size=10, search=False)
    assert not [finding for finding in findings if finding.level == "error"]
    point = lv.find_map(posterior(), (X, Y), progress=False)
    assert all(bool(t.isfinite().all()) for t in point.values())


@pytest.mark.slow
def test_the_check_of_a_device():
    assert {finding.level for finding in examine_device(DEVICE, weights=20_000)} == {"ok"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [lv.SGLD, lv.SGHMC])
def test_find_lr(kind):
    assert lv.find_lr(posterior(), (X, Y), kind, batch_size=10, progress=False).lr > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_autopilot():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = lv.Posterior(nn.Linear(4, 3).to(DEVICE), lv.likelihoods.Categorical(), num_data=30)
        run = lv.sample(p, (X[:30], Y[:30]), chains=2, steps=60, budget="60 s", progress=False)
    assert run.predict(X).probs.device.type == DEVICE


# half precision


def test_autocast():
    kinds = []

    class Watching(nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            kinds.append(output.dtype)
            return output

    torch.manual_seed(2)
    model = nn.Sequential(Watching(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(DEVICE)
    run = lv.sample(toy_posterior(model), (X, Y), lv.SGLD, autocast=torch.bfloat16, **OPTIONS)
    assert torch.bfloat16 in kinds
    assert all(t.dtype == torch.float32 for t in run[-1].values())
