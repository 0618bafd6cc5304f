"""SGNHT and ATMC: the update equations, the temperature under gradient noise, the order, limits, bad input."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

import langevin as lv
from langevin.core import random
from langevin.samplers.thermostat import Step, fused, ornstein_uhlenbeck

torch.set_num_threads(1)
N = 1000
D = -math.log(0.9)


def weights(count=1, dtype=torch.float64, value=0.0):
    return torch.nn.Parameter(torch.full((count,), value, dtype=dtype))


def run(sampler, theta, curvature, steps, *, burn_in=0, gradient_noise=0.0, observe=lambda: None):
    """Steps on U = curvature·θ²/2 with artificial noise of variance `gradient_noise` on g; E[θ²]·curvature → T."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    for t in range(burn_in + steps):
        theta.grad = curvature / N * theta.detach()
        if gradient_noise:
            xi = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
            theta.grad += math.sqrt(gradient_noise) * xi
        sampler.step()
        if t >= burn_in:
            total += theta.detach().square().mean()
            observe()
    return float(total) / steps * curvature


# ---- the update


@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("thermostat", [-0.05, 0.03, 0.7])
@pytest.mark.parametrize("h0", [1e-3, 0.1])
@pytest.mark.parametrize("integrator", ["fused", "symmetric", "symmetric Gaussian"])
def test_the_update_agrees_with_the_equations_in_physical_units(sampler_class, thermostat, h0, integrator):
    """The paper's (corrected) equations with mass m, time step h₀ and maximum speed c."""
    lr, c_step, kappa, temperature = 3e-4, 1e-3, 2e-4, 1.3
    theta = weights(1, value=0.4)
    sampler = sampler_class(
        [theta],
        lr,
        num_data=N,
        max_speed=None if "Gaussian" in integrator else c_step,
        thermostat_rate=kappa,
        integrator=integrator.split()[0],
        temperature=temperature,
        seed=5,
    )
    state = sampler.state[theta]
    state["momentum"], state["thermostat"] = torch.full_like(theta, 0.8), torch.full_like(theta, thermostat)
    theta.grad = torch.full_like(theta, 0.02)
    eta = float(random.normal(1, seed=5, chain=0, step=0, dtype=torch.float64))
    sampler.step()

    m, c = (h0 / lr) ** 2, math.inf if "Gaussian" in integrator else c_step / h0
    friction, xi, p, force = D / h0, thermostat / h0, 0.8 * math.sqrt(m), 0.02 * N
    alpha = friction if sampler_class is lv.SGNHT else max(friction - xi, 0)
    beta = alpha + xi

    def slowed(p, time):
        """u̇ = −βu/s by ten thousand Euler steps in log u, extrapolated."""
        ends = []
        for n in (5_000, 10_000):
            q = p
            for _ in range(n):
                q *= math.exp(-beta * time / n / math.sqrt(1 + (q / (m * c)) ** 2))
            ends.append(q)
        return 2 * ends[1] - ends[0]

    tolerance = 1e-11
    if integrator == "fused":
        b = beta / math.sqrt(1 + (p / (m * c)) ** 2)
        p = math.exp(-b * h0) * p - (1 - math.exp(-b * h0)) / b * force
        p += math.sqrt(alpha * m * temperature * (1 - math.exp(-2 * b * h0)) / b) * eta
    elif integrator == "symmetric":
        p = slowed(p - h0 / 2 * force, h0 / 2) + math.sqrt(2 * alpha * m * temperature * h0) * eta
        p = slowed(p, h0 / 2) - h0 / 2 * force
        tolerance = 1e-2 * (beta * h0) ** 2  # half steps of friction are of second order
    else:
        p = math.exp(-beta * h0) * (p - h0 / 2 * force) - h0 / 2 * force
        p += math.sqrt(alpha * m * temperature * (1 - math.exp(-2 * beta * h0)) / beta) * eta
    s = math.sqrt(1 + (p / (m * c)) ** 2)
    v = p / (m * s)
    xi += h0 * kappa / h0**2 * (m * v**2 - temperature / s**3)
    torch.testing.assert_close(theta.item(), 0.4 + h0 * v, rtol=tolerance, atol=0)
    torch.testing.assert_close(state["momentum"].item(), p / math.sqrt(m), rtol=tolerance, atol=0)
    torch.testing.assert_close(state["thermostat"].item(), xi * h0, rtol=max(tolerance, 1e-9), atol=1e-13)


@pytest.mark.parametrize("integrator", ["fused", "symmetric"])
def test_sgnht_with_a_constant_thermostat_is_sghmc(integrator):
    a, b = weights(50), weights(50)
    still = lv.SGNHT([a], 0.1, num_data=N, thermostat_rate=1e-300, integrator=integrator, seed=3)
    plain = lv.SGHMC([b], 0.1, num_data=N, integrator=integrator, seed=3)
    for theta, sampler in ((a, still), (b, plain)):
        run(sampler, theta, 1.0, 100)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# ---- temperature under gradient noise


@pytest.mark.parametrize("ratio", [0.5, 8.0], ids=["B<D", "B>>D"])
@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("integrator", ["fused", "symmetric"])
def test_thermostats_hold_the_temperature_under_gradient_noise(sampler_class, integrator, ratio):
    lr, curvature, temperature, momentum, count, steps = 0.1, 0.5, 0.8, 0.97, 2000, 1500
    damping = -math.log(momentum)
    variance = 2 * ratio * damping * temperature / (lr * N) ** 2  # B/(2T) = ratio·D
    theta = weights(count)
    sampler = sampler_class(
        [theta],
        lr,
        num_data=N,
        momentum=momentum,
        max_speed=None,
        thermostat_rate=1e-3,
        integrator=integrator,
        temperature=temperature,
        seed=2,
    )
    xi = []
    measured = run(
        sampler,
        theta,
        curvature,
        steps,
        burn_in=1500,
        gradient_noise=variance,
        observe=lambda: xi.append(float(sampler.state[theta]["thermostat"].mean())),
    )
    # standard error of E[θ²]: about 0.6 %; bias of order h²: 1 % where B >> D. Without a thermostat: 50 % too hot
    assert measured == pytest.approx(temperature, rel=0.03)
    assert sum(xi) / steps == pytest.approx(ratio * damping, rel=0.08)


@pytest.mark.parametrize("sampler_class", [lv.SGLD, lv.SGHMC])
def test_without_a_thermostat_gradient_noise_raises_the_temperature_as_predicted(sampler_class):
    curvature, temperature, count, steps = 0.5, 1.0, 2000, 1500
    lr = 50.0 if sampler_class is lv.SGLD else 0.1
    theta = weights(count)
    sampler = sampler_class([theta], lr, num_data=N, seed=2)
    variance = 1.5 / sampler.gradient_noise_temperature(1.0)
    measured = run(sampler, theta, curvature, steps, burn_in=500, gradient_noise=variance)
    discretization = 1 / (1 - lr * curvature / N / 2) if sampler_class is lv.SGLD else 1.0
    assert measured == pytest.approx((temperature + 1.5) * discretization, rel=0.03)


def test_atmc_holds_the_temperature_with_relativistic_kinetic_energy():
    theta = weights(2000)
    sampler = lv.ATMC([theta], 0.1, num_data=N, temperature=0.3, thermostat_rate=1e-3, seed=4)
    variance = 2 * 0.5 * D * 0.3 / (0.1 * N) ** 2
    assert run(sampler, theta, 0.5, 1500, burn_in=1500, gradient_noise=variance) == pytest.approx(0.3, rel=0.03)


# ---- order in h


def stationary_variance(sampler, theta, curvature):
    """Exact Var θ of a linear sampler: its matrix and noise from three steps, then the Lyapunov equation."""

    def one_step(position, momentum):
        fresh = copy.deepcopy(sampler)
        p = fresh.param_groups[0]["params"][0]
        with torch.no_grad():
            p.fill_(position)
        fresh.state[p]["momentum"] = torch.full_like(p, momentum)
        p.grad = curvature / N * p.detach()
        fresh.step()
        return torch.stack([p.detach()[0], fresh.state[p]["momentum"][0]])

    at_rest = one_step(0.0, 0.0)
    matrix = torch.stack([one_step(1.0, 0.0) - at_rest, one_step(0.0, 1.0) - at_rest], dim=1)
    eta = random.normal(1, seed=sampler.param_groups[0]["seed"], chain=0, step=0, dtype=torch.float64)
    amplitude = at_rest / eta
    lyapunov = torch.eye(4, dtype=torch.float64) - torch.kron(matrix, matrix)
    return float(torch.linalg.solve(lyapunov, torch.outer(amplitude, amplitude).flatten())[0])


@pytest.mark.parametrize("momentum", [0.9, 0.25])
@pytest.mark.parametrize("integrator", ["symmetric", "fused"])
def test_sghmc_has_its_closed_form_variance_and_order_2(integrator, momentum):
    lr, curvature, temperature, damping = 0.1, 8.0, 0.7, -math.log(momentum)
    theta = weights(1)
    sampler = lv.SGHMC(
        [theta], lr, num_data=N, momentum=momentum, integrator=integrator, temperature=temperature, seed=1
    )
    biases = []
    for h in (0.25, 0.5, 1.0):
        sampler.param_groups[0]["lr"] = h * lr
        e, k = math.exp(-damping * h), lr**2 * curvature
        c, x = (1 - e) / damping, damping * h / 2
        expected = {
            "symmetric": 1 / (1 - k * h**2 / 4),
            "fused": x / math.tanh(x) / (1 - c * k * h / (2 * (1 + e))),
        }[integrator]
        ratio = stationary_variance(sampler, theta, curvature) * curvature / temperature
        assert ratio == pytest.approx(expected, rel=1e-11)
        biases.append(ratio - 1)
    slope = math.log(biases[2] / biases[0]) / math.log(4)
    assert slope == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize(("momentum", "too_hot"), [(0.9, 0.1), (0.5, 4.0), (0.25, 15.5), (0.1, 40.7)])
def test_the_temperature_of_sghmc_at_vanishing_lr_in_per_cent(momentum, too_hot):
    """The momentum decays within a step or two, whatever the learning rate: only `symmetric` has no bias from that."""
    off = {}
    for integrator in ("fused", "symmetric"):
        theta = weights(1)
        sampler = lv.SGHMC([theta], 1e-4, num_data=N, momentum=momentum, integrator=integrator, seed=1)
        off[integrator] = 100 * (stationary_variance(sampler, theta, 1.0) - 1)
    assert off["fused"] == pytest.approx(too_hot, abs=0.05)
    assert abs(off["symmetric"]) < 1e-4


@pytest.mark.parametrize(
    ("xi", "too_hot", "max_speed", "symmetric_xi"),
    [(0.9, 7, None, 1.05), (0.9, 7, "auto", 1.0), (1.6, 20, None, 4.0), (1.6, 20, "auto", 2.7)],
)
def test_the_temperature_of_atmc_under_strong_gradient_noise_in_per_cent(xi, too_hot, max_speed, symmetric_xi):
    """Where mini-batch noise exceeds D, β = ξ; `fused` is off by (ξ/2)coth(ξ/2), `symmetric` within 1 %."""
    lr, curvature, count = 0.1, 3.0, 10_000
    noise = xi**2 / math.tanh(xi / 2)  # ℓ²N²Var(g) of which `fused` has the friction ξ
    off = {}
    for integrator, start in {"fused": xi, "symmetric": symmetric_xi}.items():  # the friction in the long run
        theta = weights(count)
        with torch.no_grad():
            theta.normal_(0, curvature**-0.5, generator=torch.Generator().manual_seed(0))
        sampler = lv.ATMC(
            [theta], lr, num_data=N, max_speed=max_speed, thermostat_rate=1e-2, integrator=integrator, seed=2
        )
        sampler.state[theta]["thermostat"] = torch.full_like(theta, start)
        variance = run(sampler, theta, curvature, 800, burn_in=200, gradient_noise=noise / (lr * N) ** 2)
        off[integrator] = 100 * (variance - 1)
    assert off["fused"] == pytest.approx(too_hot, abs=2)  # standard error 0.5
    assert abs(off["symmetric"]) < 1


@pytest.mark.parametrize("h", [0.5, 1.0])
@pytest.mark.parametrize("integrator", ["symmetric", "fused"])
def test_the_gradient_noise_temperature_of_sghmc_is_exact(integrator, h):
    """Mini-batch noise of variance v adds (c ℓ N)² v to the variance of u in a step, and so to the injected one."""
    lr, v, momentum = 1e-4, 4e-1, 0.5
    theta = weights(1)
    sampler = lv.SGHMC([theta], lr, num_data=N, momentum=momentum, integrator=integrator, temperature=1e-12, seed=1)
    sampler.param_groups[0]["lr"] = h * lr
    matrix_variance = stationary_variance(sampler, theta, 1.0) / 1e-12  # of a unit of T(1 − e²)
    e = momentum**h
    c = h * (1 + e) / 2 if integrator == "symmetric" else (1 - e) / -math.log(momentum)
    added = (c * lr * N) ** 2 * v / (1 - e**2) * matrix_variance
    assert sampler.gradient_noise_temperature(v) == pytest.approx(added, rel=1e-5)

    warm = lv.SGHMC([theta], lr, num_data=N, momentum=momentum, integrator=integrator, gradient_variance=v, seed=1)
    warm.param_groups[0]["lr"] = h * lr
    assert warm.gradient_noise_temperature(v) == 0
    injected = stationary_variance(warm, theta, 1.0)
    assert injected + added == pytest.approx(matrix_variance, rel=1e-6)


@pytest.mark.parametrize("name", ["SGHMC", "SGNHT", "ATMC"])
@pytest.mark.parametrize("integrator", ["symmetric", "fused"])
def test_the_stability_limit_is_where_a_quadratic_diverges(name, integrator):
    """At T = 0, so that thermostats only add friction: beyond the limit the amplitude grows from the first steps."""
    curvature, largest = 3.0, {}
    options = {"num_data": N, "momentum": 0.5, "integrator": integrator, "temperature": 0.0}
    if name != "SGHMC":
        options.update(max_speed=None, thermostat_rate=1e-300)
    for factor in (0.98, 1.02):
        theta = weights(1, value=1.0)
        limit = getattr(lv, name)([theta], 1e-3, **options).stability_limit(curvature / N)
        run(getattr(lv, name)([theta], factor * limit, **options), theta, curvature, 400)
        largest[factor] = float(theta.detach().abs())
    assert largest[0.98] < 1e-3
    assert largest[1.02] > 10


def relativistic_bias(integrator, momentum, max_speed, h):
    """Relative errors of E[θ²] and of equipartition, E[u²/s] = T, each to about 0.2 %; constant thermostat."""
    lr, curvature, count = 0.1, 5.0, 30_000
    theta = weights(count)
    with torch.no_grad():
        theta.normal_(0, curvature**-0.5, generator=torch.Generator().manual_seed(0))
    sampler = lv.SGNHT(
        [theta],
        lr,
        num_data=N,
        momentum=momentum,
        max_speed=max_speed,
        thermostat_rate=1e-300,
        integrator=integrator,
        seed=1,
    )
    sampler.param_groups[0]["lr"] = h * lr
    kinetic = []

    def observe():
        u = sampler.state[theta]["momentum"]
        kinetic.append(float((u * u / torch.sqrt(1 + (lr * u / max_speed) ** 2)).mean()))

    variance = run(sampler, theta, curvature, int(120 / h), burn_in=int(40 / h), observe=observe)
    return variance - 1, sum(kinetic) / len(kinetic) - 1


def test_relativistic_fused_is_of_first_order():
    (_, coarse), (_, fine) = (relativistic_bias("fused", 0.5, 0.13, h) for h in (0.5, 0.25))
    assert coarse == pytest.approx(-0.064, abs=0.008)
    assert math.log2(coarse / fine) == pytest.approx(1, abs=0.2)


def test_relativistic_symmetric_is_of_second_order():
    coarse, fine = (relativistic_bias("symmetric", 0.3, 0.2, h) for h in (1.0, 0.5))
    for large, small in zip(coarse, fine, strict=True):
        assert math.log2(large / small) == pytest.approx(2, abs=0.4)


# ---- limits


@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("integrator", ["fused", "symmetric"])
@pytest.mark.parametrize("h", [1.0, 0.3])
def test_no_weight_exceeds_max_speed(sampler_class, integrator, h):
    theta = weights(1000, torch.float32)
    sampler = sampler_class([theta], 0.1, num_data=N, max_speed=0.11, integrator=integrator, seed=0)
    sampler.param_groups[0]["lr"] = 0.1 * h
    generator = torch.Generator().manual_seed(0)
    fastest = 0.0
    for _ in range(50):
        theta.grad = torch.randn(1000, generator=generator) * torch.logspace(-6, 6, 1000)
        with torch.no_grad():
            theta.zero_()  # so that the move is the value, without rounding
        sampler.step()
        fastest = max(fastest, float(theta.detach().abs().max()))
    assert 0.1 * h < fastest <= 0.11 * h * (1 + 1e-6)


def test_the_fused_update_is_finite_for_zero_and_extreme_friction():
    x = torch.tensor([0.0, 1e-45, -1e-30, 1e-8, -1e-8, 1e-3, 20.0, 1e4, 1e30])
    expected = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1 - 5e-4, 0.05, 1e-4, 1e-30])
    u = torch.zeros_like(x)  # so that what the step adds is (1 − e^{−x})/x
    fused(u, Step(1.0, torch.ones_like(x), -1.0, torch.zeros_like(x), x, 0.0, None, None))
    torch.testing.assert_close(u, expected, rtol=1e-6, atol=0)


def test_the_ornstein_uhlenbeck_step_is_exact_for_zero_and_extreme_friction():
    x = torch.tensor([0.0, 1e-45, -1e-30, 1e-8, -1e-8, 1e-3, 20.0, 1e4, 1e30])
    expected = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, 2 * (1 - 1e-3), 0.05, 1e-4, 1e-30])  # (1 − e^{−2x})/x
    u = torch.zeros_like(x)
    ornstein_uhlenbeck(u, Step(1.0, u, 1.0, torch.ones_like(x), x, 1.0, torch.ones_like(x), None))
    torch.testing.assert_close(u.square(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("integrator", ["fused", "symmetric"])
def test_float32_agrees_with_float64_for_all_values_of_the_thermostat(sampler_class, integrator):
    """From b = −40 (negative friction, which ATMC excludes) over b = 0 to b = 10⁶."""
    xi = torch.tensor([-40.0, -1.0, -D, -D + 1e-9, -1e-3, 0.0, D, 1.0, 1e3, 1e6], dtype=torch.float64)
    moves = []
    for dtype in (torch.float32, torch.float64):
        theta = weights(len(xi), dtype)
        sampler = sampler_class([theta], 0.1, num_data=N, max_speed=None, integrator=integrator, seed=0)
        sampler.state[theta].update(momentum=torch.full_like(theta, 0.5), thermostat=xi.to(dtype))
        eta = random.normal(len(xi), seed=0, chain=0, step=0).to(dtype)
        with torch.no_grad():
            sampler.update(sampler.param_groups[0], [theta], [torch.full_like(theta, 1e-3)], lambda eta=eta: [eta])
        moves.append(theta.detach().double())
    assert bool(moves[0].isfinite().all())
    torch.testing.assert_close(moves[0], moves[1], rtol=2e-5, atol=1e-7)


def test_a_schedule_changes_only_h():
    theta = weights(10)
    sampler = lv.ATMC([theta], 0.1, num_data=N, seed=0)
    schedule = lv.cyclical(10)(sampler)
    for _ in range(8):
        theta.grad = theta.detach() / N
        sampler.step()
        schedule.step()
    group = sampler.param_groups[0]
    assert group["reference_lr"] == 0.1
    assert group["lr"] < 0.02
    assert group["max_speed"] == pytest.approx(1 / 3)
    assert group["thermostat_rate"] == pytest.approx((D / 10) ** 2)
    before = theta.detach().clone()
    momentum = sampler.state[theta]["momentum"].clone()
    group["lr"] = 1e-12
    sampler.step()
    torch.testing.assert_close(theta.detach(), before, rtol=0, atol=1e-10)
    torch.testing.assert_close(sampler.state[theta]["momentum"], momentum, rtol=0, atol=1e-4)


@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
@pytest.mark.parametrize("integrator", ["fused", "symmetric"])
def test_copies_continue_bit_for_bit(sampler_class, integrator):
    theta = weights(30, torch.float32)
    sampler = sampler_class([theta], 0.1, num_data=N, integrator=integrator, seed=7)
    run(sampler, theta, 1.0, 20)
    twin = copy.deepcopy(sampler)
    pickled = pickle.loads(pickle.dumps(sampler))
    other = torch.nn.Parameter(theta.detach().clone())
    loaded = sampler_class([other], 0.1, num_data=N, integrator="fused", seed=0)
    loaded.load_state_dict(copy.deepcopy(sampler.state_dict()))
    run(sampler, theta, 1.0, 20)
    for copied in (twin, pickled, loaded):
        p = copied.param_groups[0]["params"][0]
        run(copied, p, 1.0, 20)
        assert torch.equal(p, theta)


# ---- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_speed": 0.1}, "max_speed=0.333"),
        ({"max_speed": math.nan}, "max_speed"),
        ({"momentum": 1.0}, "momentum=0.9"),
        ({"momentum": 0.0}, "momentum=0.9"),
        ({"thermostat_rate": 0.0}, "thermostat_rate"),
        ({"integrator": "leapfrog"}, "'symmetric', 'fused'"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
def test_bad_settings_are_refused_with_the_corrected_call(sampler_class, settings, message):
    with pytest.raises(ValueError, match=message):
        sampler_class([weights()], 0.1, num_data=N, **settings)


def test_the_group_that_diverges_first_is_named():
    tame, wild = weights(3), weights(3, value=1.0)
    sampler = lv.SGNHT([{"params": [tame]}, {"params": [wild], "lr": 0.5}], 0.1, num_data=N, seed=0)

    def diverge():
        for _ in range(2000):
            tame.grad = tame.detach() / N
            wild.grad = wild.detach() ** 3
            sampler.step()

    with pytest.raises(FloatingPointError, match="parameter 0 of group 1"):
        diverge()
    assert bool(tame.isfinite().all())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sampler_class", [lv.SGNHT, lv.ATMC])
def test_float32_keeps_the_temperature_for_a_million_steps(sampler_class):
    theta = weights(64, torch.float32)
    sampler = sampler_class([theta], 0.03, num_data=N, seed=1)
    measured = run(sampler, theta, 20.0, 1_000_000, burn_in=20_000)
    assert measured == pytest.approx(1.0, rel=0.015)
    assert float(sampler.state[theta]["thermostat"].abs().max()) < D
