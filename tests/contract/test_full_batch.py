"""The contract of samplers that need several gradients of all data in a step: their law, and their mechanics."""

import copy
import math
import pickle
from itertools import pairwise

import pytest
import torch

import langevin as lv
from langevin.samplers import SAMPLERS
from tests.contract.targets import FULL_BATCH, NUM_DATA, SIGMAS, Moments

ADJUSTED = [name for name in FULL_BATCH if SAMPLERS[name].order is None]


def gaussian(precision):
    """loss and gradient of exp(−½ θᵀΛθ), Λ diagonal."""
    return lambda theta: ((theta.square() * precision).sum(1) / 2, theta * precision)


def well(theta):
    """exp(−N(θ²/2 + 25θ⁴/2)) in every coordinate."""
    return (theta.square() / 2 + 12.5 * theta**4).sum(1), theta + 50 * theta**3


def flat(theta):
    return theta.sum(1) * 0, theta * 0


class Problem:
    """Stacked chains on a loss that is a function of (chains, d), in one parameter."""

    def __init__(self, name, energy, start, *, num_data=1, **options):
        self.energy = energy
        self.p = torch.nn.Parameter(start.clone())
        options = {"seed": 1, "chain": list(range(len(start))), **options}
        self.sampler = SAMPLERS[name]([self.p], num_data=num_data, **options)

    def closure(self):
        loss, self.p.grad = self.energy(self.p.detach())
        return loss

    def take(self, steps):
        for _ in range(steps):
            self.sampler.step(self.closure)
        return self.p.detach().clone()

    def average(self, steps, function):
        total = 0
        for _ in range(steps):
            self.sampler.step(self.closure)
            total = total + function(self.p.detach()) / steps
        return total


def normal(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# the law


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.25, marks=pytest.mark.slow)])
def test_mclmc_on_a_gaussian_of_condition_10000(temperature):
    """Adapted by itself to V = 5·10⁻⁴: mean temperature 0.99, and 0.93 in the stiffest tenth of the directions."""
    d, chains = 50, 24
    precision = torch.logspace(0, 4, d, dtype=torch.float64)
    start = normal(chains, d) * (temperature / precision).sqrt()
    problem = Problem("mclmc", gaussian(precision), start, temperature=temperature, adapt_steps=700)
    problem.take(700)
    problem.sampler.freeze()
    problem.take(100)
    ratio = problem.average(1000, lambda theta: theta.square() * precision / temperature)
    mean, error = Moments.estimate(ratio.mean(1))
    assert error < 0.02
    assert abs(mean - 0.99) < SIGMAS * error + 0.015
    stiff, error = Moments.estimate(ratio[:, -d // 10 :].mean(1))
    assert error < 0.02
    assert abs(stiff - 0.93) < SIGMAS * error + 0.02
    spread = math.sqrt(float((temperature / precision).sum()))  # in 300 steps the softest directions do not show theirs
    assert 0.6 * spread < float(problem.sampler.by_chain("L").mean()) < 1.1 * spread
    assert float(problem.sampler.by_chain("rejected").sum()) == 0


def test_a_single_stiff_direction_does_not_become_unstable():
    """ΔE of 200 directions hardly shows the stiff one: by V alone lr is 60 % of its limit, where it has to be half."""
    d, chains = 200, 48
    precision = torch.ones(d, dtype=torch.float64)
    precision[7] = 1e4
    problem = Problem("mclmc", gaussian(precision), normal(chains, d) / precision.sqrt(), adapt_steps=500)
    problem.take(500)
    problem.sampler.freeze()
    limit = problem.sampler.stability_limit(1e4)
    assert float(problem.sampler.by_chain("lr").mean()) > 0.55 * limit
    problem.take(100)
    assert float(problem.sampler.by_chain("lr").max()) < 0.51 * limit
    ratio = problem.average(1500, lambda theta: theta.square() * precision)
    stiff, error = Moments.estimate(ratio[:, 7])
    assert error < 0.06
    assert abs(stiff - 1) < SIGMAS * error + 0.02
    mean, error = Moments.estimate(ratio.mean(1))
    assert abs(mean - 1) < SIGMAS * error + 0.01


def test_a_rate_that_is_given_is_kept():
    problem = Problem("mclmc", gaussian(torch.ones(4, dtype=torch.float64)), normal(2, 4), lr=2.5)
    problem.take(3)
    problem.sampler.freeze()
    problem.take(3)
    assert problem.sampler.param_groups[0]["lr"] == 2.5


@pytest.mark.parametrize("fraction", [0.5, 0.95])
@pytest.mark.parametrize("name", ADJUSTED)
def test_with_a_metropolis_test_the_law_is_exact_at_every_step_size(name, fraction):
    """Without the turn of u after a rejection, or without ΔK in its probability, that of MAMS would be wrong."""
    precision = torch.tensor([1.0, 3.0, 10.0, 10.0], dtype=torch.float64)
    start = normal(512, 4) / precision.sqrt() / 2
    limit = Problem(name, flat, start).sampler.stability_limit(10.0)
    options = {"hmc": {"leapfrog_steps": 3}, "mams": {"L": 2.0}}[name]
    problem = Problem(name, gaussian(precision), start, lr=fraction * limit, **options)
    problem.take(50)
    acceptance = []
    ratio = problem.average(
        100 if name == "hmc" else 400,
        lambda theta: (acceptance.append(problem.sampler.by_chain("acceptance").mean()), theta.square() * precision)[1],
    )
    if fraction > 0.9:
        assert sum(acceptance) / len(acceptance) < 0.8, "the step is too small to show an error"
    mean, error = Moments.estimate(ratio)
    assert (error < 0.03).all()
    assert ((mean - 1).abs() < SIGMAS * error).all()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("name", FULL_BATCH)
def test_an_anharmonic_well(name, temperature):
    grid = torch.linspace(-2, 2, 20_001, dtype=torch.float64)
    density = torch.exp(-NUM_DATA / temperature * (grid.square() / 2 + 12.5 * grid**4))
    exact = torch.stack([(grid**power * density).sum() / density.sum() for power in (2, 4)])
    start = 0.1 * normal(128, 12)
    fraction = 0.2
    limit = Problem(name, flat, start, num_data=NUM_DATA, temperature=temperature).sampler.stability_limit(3.0)
    options = {"leapfrog_steps": 6} if name == "hmc" else {"L": 0.5}
    problem = Problem(name, well, start, num_data=NUM_DATA, temperature=temperature, lr=fraction * limit, **options)
    problem.take(100)
    moments = problem.average(
        100 if name == "hmc" else 300, lambda theta: torch.stack([theta.square().mean(1), (theta**4).mean(1)], 1)
    )
    mean, error = Moments.estimate(moments)
    assert (error / exact < 0.02).all(), "too few steps: the error is too large"
    bias = 0 if SAMPLERS[name].order is None else 1.5 * fraction**2
    assert ((mean - exact).abs() < SIGMAS * error + bias * exact).all(), (mean / exact, error / exact)


def test_where_an_unadjusted_chain_heats_up_an_adjusted_one_is_turned_back():
    """x | v ~ N(0, e^v), v ~ N(0, 1): where v is small the rate is unstable, and pushes the unadjusted chain away."""

    def funnel(theta):
        v, x = theta[:, :1], theta[:, 1:]
        squares = x.square().sum(1, keepdim=True) * torch.exp(-v)
        loss = v.square() / 2 + squares / 2 + x.shape[1] * v / 2
        return loss[:, 0], torch.cat([v - squares / 2 + x.shape[1] / 2, x * torch.exp(-v)], 1)

    start = normal(256, 6)
    start[:, 1:] *= torch.exp(start[:, :1] / 2)
    means = {}
    for name in ("mclmc", "mams"):
        problem = Problem(name, funnel, start, lr=0.9, L=6.0)
        means[name] = Moments.estimate(problem.average(1500, lambda theta: theta[:, 0]))
    mean, error = means["mams"]
    assert error < 0.05
    assert abs(mean) < SIGMAS * error
    mean, error = means["mclmc"]
    assert abs(mean) > 2 * SIGMAS * error, "the rate is too small to show the difference"


@pytest.mark.parametrize("target", [0.9, 0.98])
def test_mams_adapts_to_the_acceptance_rate_that_it_is_given(target):
    precision = torch.logspace(0, 4, 50, dtype=torch.float64)
    start = normal(24, 50) / precision.sqrt()
    problem = Problem("mams", gaussian(precision), start, adapt_steps=1000, target_accept=target)
    problem.take(1000)
    problem.sampler.freeze()
    rates = problem.average(200, lambda theta: problem.sampler.by_chain("acceptance").clone())
    mean, error = Moments.estimate(rates)
    assert error < 0.15 * (1 - target)
    assert abs(mean - target) < SIGMAS * error + 0.2 * (1 - target)
    lr = problem.sampler.by_chain("lr").clone()
    ratio = problem.average(1500, lambda theta: theta.square() * precision)
    for part in (slice(None), slice(-5, None)):  # exact in the stiffest directions too
        mean, error = Moments.estimate(ratio[:, part].mean(1))
        assert error < 0.03
        assert abs(mean - 1) < SIGMAS * error
    assert torch.equal(lr, problem.sampler.by_chain("lr"))


def test_mams_takes_no_test_while_it_explores():
    problem = Problem("mams", well, 0.1 * normal(16, 6), num_data=NUM_DATA, adapt_steps=100)
    problem.take(70)
    assert problem.sampler.param_groups[0]["tested"] == 0
    assert "acceptance" not in problem.sampler.state[problem.p]
    problem.take(30)
    assert problem.sampler.param_groups[0]["tested"] == 30


def test_hmc_adapts_to_the_acceptance_rate_that_it_is_given():
    precision = torch.logspace(0, 2, 20, dtype=torch.float64)
    problem = Problem("hmc", gaussian(precision), normal(16, 20) / precision.sqrt(), leapfrog_steps=5)
    problem.take(1000)  # 0.83; after 300 it is 0.86, hardly within the 0.05
    problem.sampler.freeze()
    rates = problem.average(200, lambda theta: problem.sampler.by_chain("acceptance").clone())
    mean, error = Moments.estimate(rates)
    assert error < 0.02
    assert abs(mean - 0.8) < SIGMAS * error + 0.05
    lr = problem.sampler.by_chain("lr").clone()
    problem.take(3)
    assert torch.equal(lr, problem.sampler.by_chain("lr"))


def test_the_energy_error_of_mclmc_is_of_third_order():
    """ΔE of one step from the same start: with a wrong ΔK, or force, it would be of first order."""
    errors = []
    for lr in (0.01, 0.005, 0.0025):
        problem = Problem("mclmc", well, 0.1 + 0.1 * normal(64, 6), num_data=NUM_DATA, lr=lr, L=10.0)
        problem.take(1)
        errors.append(float(problem.sampler.by_chain("energy_error").abs().median()))
    for large, small in pairwise(errors):
        assert 2.7 < math.log2(large / small) < 3.3


def test_the_momentum_forgets_its_direction_over_the_distance_L():
    """Without a force, E[u·u₀] = e^{−distance/L}: a refresh with √2 times the noise would have half of L."""
    d, chains, lr, steps = 400, 64, 0.05, 10
    problem = Problem("mclmc", flat, normal(chains, d), lr=lr, L=15.0)
    problem.take(1)
    first = problem.sampler.by_weight("momentum", None).clone()
    problem.take(steps)
    products = (problem.sampler.by_weight("momentum", None) * first).sum(1)
    mean, error = Moments.estimate(products)
    assert error < 0.01
    assert abs(mean - math.exp(-steps * lr * math.sqrt(d) / 15.0)) < SIGMAS * error


def test_a_metric_is_a_change_of_scale():
    """MCLMC with the right scales on a Gaussian is MCLMC on the isotropic one."""
    precision = torch.logspace(0, 4, 10, dtype=torch.float64)
    start = normal(4, 10)
    white = Problem("mclmc", gaussian(torch.ones(10).double()), start, lr=0.2, L=3.0)
    scale = precision.rsqrt()
    scaled = Problem("mclmc", gaussian(precision), start * scale, lr=0.2, L=3.0, metric=[scale])
    torch.testing.assert_close(white.take(20) * scale, scaled.take(20), rtol=1e-6, atol=1e-9)


# mechanics

OPTIONS = {"mclmc": {"adapt_steps": 20}, "mams": {"adapt_steps": 20}, "hmc": {"leapfrog_steps": 3}}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", FULL_BATCH)
def test_a_copy_continues_like_the_original(name, copied, frozen):
    problem = Problem(name, well, 0.1 * normal(3, 4).float(), num_data=NUM_DATA, **OPTIONS[name])
    problem.take(12)
    if frozen:
        problem.sampler.freeze()
    if copied == "state_dict":
        other = Problem(name, well, problem.p.detach(), num_data=NUM_DATA, seed=99, **OPTIONS[name])
        other.sampler.load_state_dict(copy.deepcopy(problem.sampler.state_dict()))
    else:
        duplicate = copy.deepcopy if copied == "deepcopy" else lambda each: pickle.loads(pickle.dumps(each))
        p, sampler = duplicate((problem.p, problem.sampler))
        other = copy.copy(problem)
        other.p, other.sampler = p, sampler
    assert torch.equal(problem.take(8), other.take(8))


@pytest.mark.parametrize("name", FULL_BATCH)
def test_chain_of_a_stack_is_the_chain_alone(name):
    start = 0.1 * normal(2, 4)
    stacked = Problem(name, well, start, num_data=NUM_DATA, chain=[0, 3], **OPTIONS[name])
    for index, chain in enumerate((0, 3)):
        alone = Problem(name, well, start[index][None], num_data=NUM_DATA, chain=[chain], **OPTIONS[name])
        apart = copy.deepcopy(stacked)
        apart.closure = Problem.closure.__get__(apart)
        torch.testing.assert_close(alone.take(15)[0], apart.take(15)[index], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            alone.sampler.by_chain("lr")[0], apart.sampler.by_chain("lr")[index], rtol=1e-8, atol=0
        )


@pytest.mark.parametrize("name", FULL_BATCH)
def test_the_noise_depends_on_seed_chain_and_temperature(name):
    ends = {}
    for key, options in {"a": {}, "seed": {"seed": 2}, "chain": {"chain": [7]}, "hot": {"temperature": 4.0}}.items():
        options = {"chain": [0], **OPTIONS[name], **options}
        ends[key] = Problem(name, well, 0.1 * normal(1, 4), num_data=NUM_DATA, **options).take(5)
    assert not any(torch.equal(ends["a"], ends[key]) for key in ("seed", "chain", "hot"))


@pytest.mark.parametrize("name", FULL_BATCH)
def test_several_parameters_of_one_chain_equal_one_row(name):
    """The shapes of the parameters have no effect."""
    start = 0.1 * normal(1, 9)
    row = Problem(name, well, start, num_data=NUM_DATA, lr=0.02, chain=[5])
    params = [torch.nn.Parameter(t.clone()) for t in (start[0, :6].view(2, 3), start[0, 6], start[0, 7:])]
    sampler = SAMPLERS[name](params, num_data=NUM_DATA, lr=0.02, seed=1, chain=5)

    def closure():
        sampler.zero_grad()
        loss = sum((p.square() / 2 + 12.5 * p**4).sum() for p in params)
        loss.backward()
        return loss

    for _ in range(5):
        loss = sampler.step(closure)
    together = torch.cat([p.detach().flatten() for p in params])
    torch.testing.assert_close(together, row.take(5)[0], rtol=1e-9, atol=1e-12)
    assert isinstance(loss, float)
    gradients = torch.cat([p.grad.flatten() for p in params])
    assert loss == pytest.approx(closure().item())  # at the new weights, with their gradient
    torch.testing.assert_close(gradients, torch.cat([p.grad.flatten() for p in params]))


@pytest.mark.parametrize("name", FULL_BATCH)
def test_a_gradient_is_not_computed_twice_unless_the_weights_were_changed(name):
    problem = Problem(name, well, 0.1 * normal(2, 4), num_data=NUM_DATA, lr=0.01, **OPTIONS[name])
    calls = []
    closure = problem.closure
    problem.closure = lambda: (calls.append(1), closure())[1]
    problem.take(1)
    before = len(calls)
    problem.take(10)
    extra = (len(calls) - before) - 10 * problem.sampler.gradients_per_step
    assert abs(extra) <= (8 if name == "hmc" else 0)  # lengths of trajectories vary
    with torch.no_grad():
        problem.p.mul_(0.5)
    other = Problem(name, well, problem.p.detach(), num_data=NUM_DATA, **OPTIONS[name])
    other.sampler.load_state_dict(copy.deepcopy(problem.sampler.state_dict()))
    assert torch.equal(problem.take(3), other.take(3))


@pytest.mark.parametrize("name", FULL_BATCH)
def test_a_step_that_is_not_finite_is_taken_back_and_counted(name):
    """The energy is infinite beyond a wall; the chain stays inside, and goes on."""

    def walled(theta):
        loss, gradient = well(theta)
        return torch.where(theta.abs().amax(1) > 0.3, math.nan, loss), gradient

    options = {} if name == "hmc" else {"L": 10.0}
    problem = Problem(name, walled, 0.1 * normal(16, 4).clamp(-2, 2), lr=0.1, **options)
    visited = []
    problem.average(60, lambda theta: (visited.append(theta.clone()), theta)[1])
    assert max(float(t.abs().max()) for t in visited) <= 0.3
    assert (problem.sampler.by_chain("rejected") > 0).any()
    assert not torch.equal(visited[-1], visited[-20])
    assert float(problem.sampler.lengths(problem.sampler.param_groups[0]).max()) == pytest.approx(0.1)
    problem.sampler.freeze()
    assert not problem.sampler.by_chain("rejected").any()


@pytest.mark.parametrize("name", FULL_BATCH)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "needs temperature > 0"),
        ({"metric": [torch.zeros(2)]}, "metric needs one tensor of positive numbers per parameter"),
        ({"params": [torch.nn.Parameter(torch.zeros(1))]}, "needs at least 2 weights"),
        ({"params": [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(2)]}, "one parameter group"),
    ],
)
def test_what_it_can_not_do_is_refused(name, options, message):
    options = {"params": [torch.nn.Parameter(torch.zeros(2))], "num_data": 1, **options}
    with pytest.raises(ValueError, match=message):
        SAMPLERS[name](options.pop("params"), **options)


@pytest.mark.parametrize("name", FULL_BATCH)
def test_a_step_without_a_closure_says_what_to_write(name):
    sampler = SAMPLERS[name]([torch.nn.Parameter(torch.zeros(2))], num_data=1)
    with pytest.raises(ValueError, match=r"sampler.step\(closure\)"):
        sampler.step()
    with pytest.raises(ValueError, match="one number for each of the 1 chains"):
        sampler.step(lambda: torch.zeros(2))


def test_the_compiled_moves_are_those_in_torch_operations():
    from langevin.kernels import updates

    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        ends = []
        for compiled in (True, False):
            with updates.switched(compiled):
                options = {"metric": [torch.linspace(0.5, 2, 7)], "lr": 0.02, "adapt": True}
                problem = Problem("mclmc", well, 0.1 * normal(3, 7).to(dtype), num_data=NUM_DATA, **options)
                ends.append((problem.take(6), problem.sampler.by_chain("energy_error").clone()))
        for a, b in zip(*ends, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance * 100, atol=tolerance)


def test_V_falls_during_burn_in_and_can_be_set():
    from langevin.samplers.mclmc import _annealed

    sampler = lv.MCLMC([torch.nn.Parameter(torch.zeros(2))], num_data=1)
    group = sampler.param_groups[0]
    assert _annealed(group) == 5e-4
    sampler.plan(1000)
    seen = []
    for group["step"] in (0, 700, 825, 950, 1000):
        seen.append(_annealed(group))
    assert seen == pytest.approx([0.1, 0.1, math.sqrt(0.1 * 5e-4), 5e-4, 5e-4])
    group["adapt_steps"], group["V"] = None, 1e-4
    assert _annealed(group) == 1e-4


def test_chains_turn_later_in_burn_in_than_after_it():
    """Five times later: by the cosine of the angle between u before and after a step without force."""
    d = 400
    problem = Problem("mclmc", flat, normal(64, d), lr=0.05)

    def angle():
        before = problem.sampler.by_weight("momentum", lambda: normal(64, d)).clone()
        problem.take(1)
        return -float((before * problem.sampler.by_weight("momentum", lambda: before)).sum(1).log().mean())

    problem.take(1)
    in_burn_in = angle()
    problem.sampler.freeze()
    assert abs(5 * in_burn_in / angle() - 1) < 0.1
