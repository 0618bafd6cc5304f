"""The contract of every registered sampler as a torch optimizer, with or without a target."""

import copy
import inspect
import math
import pickle
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

import langevin as lv
from langevin.samplers import SAMPLERS, Sampler
from tests.contract.targets import limit, make

ALL = list(SAMPLERS)
ELEMENTWISE = [name for name in ALL if SAMPLERS[name].stackable and not SAMPLERS[name].full_batch]


def quadratic(parameters):
    """Set the gradients to those of ½Σ(θ − 1)²."""
    for p in parameters:
        p.grad = p.detach() - 1


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in ((4, 3), (5,), ())]


def take(sampler, params, steps):
    for _ in range(steps):
        quadratic(params)
        sampler.step()
    return [p.detach().clone() for p in params]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_copy_continues_like_the_original(name, copied):
    params = parameters()
    sampler = make(SAMPLERS[name], params, lr=0.01)
    take(sampler, params, 5)
    if copied == "state_dict":
        others = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = make(SAMPLERS[name], others, lr=0.5, seed=99)  # to be overwritten
        other.load_state_dict(copy.deepcopy(sampler.state_dict()))
    elif copied == "deepcopy":
        others, other = copy.deepcopy((params, sampler))
    else:
        others, other = pickle.loads(pickle.dumps((params, sampler)))
    assert equal(take(sampler, params, 5), take(other, others, 5))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_float64_agrees_with_float32_without_noise(name):
    ends = []
    for dtype in (torch.float32, torch.float64):
        params = parameters(torch.float64)
        params = [torch.nn.Parameter(p.detach().to(dtype)) for p in params]
        sampler = make(SAMPLERS[name], params, lr=0.01, temperature=0.0)
        ends.append([p.double() for p in take(sampler, params, 20)])
        assert all(p.dtype == dtype for p in params)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_parameter_without_gradient_is_not_updated_and_does_not_affect_the_others(name):
    with_all, without = parameters(), parameters()
    full = make(SAMPLERS[name], with_all, lr=0.01)
    partly = make(SAMPLERS[name], without, lr=0.01)
    before = without[1].detach().clone()
    for _ in range(3):
        quadratic(with_all)
        full.step()
        quadratic(without)
        without[1].grad = None
        partly.step()
    assert torch.equal(without[1], before)
    assert torch.equal(without[0], with_all[0])
    assert torch.equal(without[2], with_all[2])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_parameter_groups_have_separate_settings(name):
    together, apart = parameters(), parameters()
    one = make(SAMPLERS[name], together, lr=0.01)
    grouped = make(SAMPLERS[name], [{"params": apart[:1]}, {"params": apart[1:], "lr": 0.02}], lr=0.01)
    take(one, together, 3)
    take(grouped, apart, 3)
    assert torch.equal(together[0], apart[0])  # groups alone do not change the update, nor the noise
    assert not torch.equal(together[1], apart[1])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_stacked_chains_equal_single_chains(name):
    """Chain c of a stack has the noise, and so the trajectory, of chain c alone."""
    singles = []
    for chain in (0, 3):
        params = parameters()
        singles.append(take(make(SAMPLERS[name], params, lr=0.01, chain=chain), params, 4))
    stack = [torch.nn.Parameter(torch.stack([p.detach(), p.detach()])) for p in parameters()]
    stacked = take(make(SAMPLERS[name], stack, lr=0.01, chain=[0, 3]), stack, 4)
    for index in (0, 1):
        assert equal([p[index] for p in stacked], singles[index])


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if SAMPLERS[n].target != "none"])
def test_the_noise_depends_on_seed_chain_and_temperature(name):
    ends = {}
    for key, options in {"a": {}, "seed": {"seed": 2}, "chain": {"chain": 1}, "hot": {"temperature": 4.0}}.items():
        params = parameters()
        ends[key] = take(make(SAMPLERS[name], params, lr=0.01, **options), params, 3)
    assert not any(equal(ends["a"], ends[key]) for key in ("seed", "chain", "hot"))


@pytest.mark.parametrize(
    "name", [n for n in ELEMENTWISE if SAMPLERS[n].optimizer_at_zero is not Sampler.optimizer_at_zero]
)
def test_at_zero_temperature_it_equals_its_torch_optimizer(name):
    sampler_class = SAMPLERS[name]
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    options = {"warmup": 0} if "warmup" in inspect.signature(sampler_class).parameters else {}
    sampler = make(sampler_class, ours, lr=0.02, temperature=0.0, **options)
    optimizer = sampler_class.optimizer_at_zero(theirs, sampler.param_groups[0])
    for _ in range(50):
        quadratic(ours)
        sampler.step()
        quadratic(theirs)
        optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    assert not torch.equal(ours[0], parameters(torch.float64)[0])


def test_sgld_without_noise_is_sgd_bit_for_bit():
    ours, theirs = parameters(), parameters()
    sampler = lv.SGLD(ours, lr=0.037, num_data=10, temperature=0.0)
    optimizer = torch.optim.SGD(theirs, lr=0.037)
    for _ in range(100):
        quadratic(ours)
        sampler.step()
        quadratic(theirs)
        optimizer.step()
    assert equal(ours, theirs)


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if SAMPLERS[n].target == "posterior"])
def test_duplicated_data_at_half_weight_give_the_same_trajectory(name):
    """Full batch; the lr scales as the method's stability limit does (twice for SGLD)."""
    sampler_class = SAMPLERS[name]
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(30, 4, generator=generator).double(), torch.randint(3, (30,), generator=generator)
    paths = []
    for copies in (1, 2):
        torch.manual_seed(7)
        model = torch.nn.Linear(4, 3).double()
        n = 30 * copies
        posterior = lv.Posterior(
            model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=n, weight=1 / copies
        )
        lr = 0.05 * limit(sampler_class, 1.0 / copies, num_data=n)
        scaled = {"eps": 1e-5 / copies} if name == "psgld" else {}  # eps is on the scale of the gradients
        sampler = sampler_class(posterior.parameters(), lr=lr, num_data=n, seed=3, **scaled)
        xs, ys = x.repeat(copies, 1), y.repeat(copies)
        for _ in range(50):
            sampler.zero_grad()
            posterior.loss(xs, ys).backward()
            sampler.step()
        paths.append(torch.cat([p.detach().flatten() for p in posterior.parameters()]))
        if name == "sgld":
            assert lr == pytest.approx(0.1 * copies)
    torch.testing.assert_close(paths[0], paths[1], atol=1e-10, rtol=1e-10)


SCHEDULERS = {
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda t: 0.9**t),
    "MultiplicativeLR": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda t: 0.9),
    "StepLR": partial(lr_scheduler.StepLR, step_size=2),
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[1, 3]),
    "ConstantLR": partial(lr_scheduler.ConstantLR, total_iters=2),
    "LinearLR": partial(lr_scheduler.LinearLR, total_iters=4),
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "PolynomialLR": partial(lr_scheduler.PolynomialLR, total_iters=4),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=4),
    "CosineAnnealingWarmRestarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.001, max_lr=0.01, step_size_up=2, cycle_momentum=False),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.01, total_steps=10, cycle_momentum=False),
    "ReduceLROnPlateau": partial(lr_scheduler.ReduceLROnPlateau, patience=0),
    "SequentialLR": lambda s: lr_scheduler.SequentialLR(
        s, [lr_scheduler.ConstantLR(s, total_iters=2), lr_scheduler.ExponentialLR(s, gamma=0.5)], milestones=[2]
    ),
    "ChainedScheduler": lambda s: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(s, total_iters=2), lr_scheduler.ExponentialLR(s, gamma=0.5)]
    ),
    "langevin.cyclical": lv.cyclical(4),
}


def test_all_schedulers_of_torch_are_tested():
    theirs = {
        name
        for name, kind in inspect.getmembers(lr_scheduler, inspect.isclass)
        if issubclass(kind, lr_scheduler.LRScheduler) and kind.__module__ == lr_scheduler.__name__
    }
    assert theirs - {"LRScheduler", "_LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_schedulers_change_the_learning_rate(name, scheduler):
    params = parameters()
    sampler = make(SAMPLERS[name], params, lr=0.01)
    schedule = SCHEDULERS[scheduler](sampler)
    rates = []
    for _ in range(6):
        rates.append(sampler.param_groups[0]["lr"])
        take(sampler, params, 1)
        schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    assert len(set(rates)) > 1
    assert all(bool(p.isfinite().all()) for p in params)


def test_a_step_uses_the_current_learning_rate():
    (p,) = params = [torch.nn.Parameter(torch.zeros(()))]
    sampler = lv.SGLD(params, lr=1.0, num_data=1, temperature=0.0)
    schedule = lr_scheduler.ExponentialLR(sampler, gamma=0.5)
    moves = []
    for _ in range(3):
        before = float(p.detach())
        p.grad = torch.ones(())
        sampler.step()
        schedule.step()
        moves.append(before - float(p.detach()))
    assert moves == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"num_data": 0}, "num_data is the number of training examples"),
        ({"num_data": 10.5}, "num_data is the number of training examples"),
        ({"seed": -1}, "seed must be an integer"),
        ({"chain": [0, 1, 2]}, "leading axis of length 3"),
    ],
)
def test_bad_input_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        SAMPLERS[name]([torch.nn.Parameter(torch.zeros(2, 2))], **{"lr": 0.1, "num_data": 10, "seed": 0, **options})


@pytest.mark.parametrize("name", ALL)
def test_num_data_has_no_default(name):
    with pytest.raises(TypeError, match="num_data"):
        SAMPLERS[name]([torch.nn.Parameter(torch.zeros(2))], lr=0.1)


@pytest.mark.parametrize("name", [n for n in ALL if SAMPLERS[n].target != "none"])
@pytest.mark.parametrize("temperature", [-1.0, math.inf, math.nan])
def test_bad_temperatures_are_refused(name, temperature):
    with pytest.raises(ValueError, match="temperature must be 0 or more"):
        SAMPLERS[name]([torch.nn.Parameter(torch.zeros(2))], lr=0.1, num_data=1, temperature=temperature)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_is_refused(name, dtype):
    with pytest.raises(ValueError, match="rounding swallows the noise"):
        SAMPLERS[name]([torch.nn.Parameter(torch.zeros(2, dtype=dtype))], lr=0.1, num_data=1)


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    sampler = lv.SGLD(embedding.parameters(), lr=0.1, num_data=1)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        sampler.step()


def test_the_closure_is_called_with_gradients_enabled():
    p = torch.nn.Parameter(torch.ones(3))
    sampler = lv.SGLD([p], lr=0.1, num_data=1, temperature=0.0)

    def closure():
        sampler.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return float(loss.detach())

    assert sampler.step(closure) == 3.0
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.8))


def test_divergence_is_detected_within_ten_steps():
    p = torch.nn.Parameter(torch.ones(3))
    sampler = lv.SGLD([p], lr=0.1, num_data=1)
    for grad in (0.0, math.inf, *[0.0] * 8):
        p.grad = torch.full((3,), grad)
        sampler.step()
    with pytest.raises(FloatingPointError, match="SGLD diverged before step 11: parameter 0 of group 0"):
        sampler.step()
