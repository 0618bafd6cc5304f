"""The errata of docs/errata.md that no test of the library shows: the printed formulas, beside the corrected ones."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.linalg import solve_discrete_lyapunov

import langevin as lv
from tests.preconditioners.common import matrix

# ---- Smith et al. 2018


def test_without_the_minus_the_natural_gradient_ascends():
    """Equations 1, 27 and 28: Δω = +ε G⁻¹ (1/N) dC/dω, here with C = Nω²/2."""
    printed = corrected = 1.0
    for _ in range(50):
        printed, corrected = printed + 0.1 * printed, corrected - 0.1 * corrected
    assert corrected < 0.01 < 100 < printed


def test_the_printed_logistic_function_prefers_the_opposite_weights():
    """Section 6.1 prints P(y|x, ω) = 1/(1 + exp(y ω·x))."""
    generator = np.random.default_rng(0)
    x, weights = generator.normal(size=(200, 3)), np.array([1.0, -2.0, 0.5])
    y = np.where(generator.random(200) < 1 / (1 + np.exp(-x @ weights)), 1, -1)

    def log_likelihood(sign, w):
        return -np.log1p(np.exp(sign * y * (x @ w))).sum()

    assert log_likelihood(+1, weights) < log_likelihood(+1, -weights)
    assert log_likelihood(-1, weights) > log_likelihood(-1, -weights)


def test_the_batch_size_of_figure_5_is_larger_than_the_data():
    """N = 1,024; T(B) = ε/2 (N/B − 1)."""
    num_data, lr = 1024, 0.1
    assert 2 * num_data / lr > num_data
    assert lv.samplers.temperature_of(lr, num_data, round(lr * num_data / 2)) == pytest.approx(1.0, rel=0.06)


# ---- Palacci & Hess 2018


@pytest.mark.parametrize(("precondition", "is_the_posterior"), [("both", True), ("noise", False)])
def test_preconditioning_only_the_noise_samples_another_distribution(precondition, is_the_posterior):
    """θ ← (1 − εAK)θ + √(2ε/N) R η has the covariance of Lyapunov's equation; that of the posterior is K⁻¹/N."""
    lr, num_data = 1e-5, 7
    curvature = torch.logspace(-1, 1, 4, dtype=torch.float64)
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    sampler = lv.pSGLD([p], lr, num_data=num_data, precondition=precondition, warmup=0)
    p.grad = curvature.clone()  # of Σ kθ²/2, the energy over N, at θ = 1
    sampler.step()
    sampler.freeze()
    drift, root = (matrix(sampler, what).numpy() for what in ("drift", "noise"))
    step = np.eye(4) - lr * drift @ np.diag(curvature.numpy())
    variance = solve_discrete_lyapunov(step, 2 * lr / num_data * root @ root.T).diagonal()
    ratio = variance * curvature.numpy() * num_data
    assert np.allclose(ratio, 1, rtol=1e-3) is is_the_posterior
    assert is_the_posterior or ratio.max() > 50 * ratio.min()  # as A does: by the factor of the curvatures


# ---- Heek & Kalchbrenner 2019


def algorithm_1(slip="", noise_level=0.75, rate=1.0, steps=2000, count=2000, mass=2.0, damping=0.5, h=0.1):
    """E[θ²] under Algorithm 1 for U = θ²/2, with gradient noise that ξ is to balance; `slip` is a line as printed."""
    generator = np.random.default_rng(0)
    theta, p, xi, total = (np.zeros(count) for _ in range(4))
    for t in range(steps):
        gradient = theta + math.sqrt(2 * mass * noise_level / h) * generator.normal(size=count)
        alpha = np.maximum(damping - xi, 0)
        beta = alpha + xi
        noise = np.sqrt(np.expm1(2 * beta * h) / beta) * generator.normal(size=count)
        noise *= alpha if slip == "alpha" else np.sqrt(alpha * mass)
        kicked = p - np.expm1(beta * h) / beta * gradient + noise
        p = np.exp((1 if slip == "prefactor" else -1) * beta * h) * kicked
        theta = h * p / mass + (0 if slip == "theta" else theta)
        pressure = p / mass if slip == "momentum" else p**2 / mass
        xi = h * rate * (pressure - 1) + (0 if slip == "xi" else xi)
        if t >= steps // 2:
            total += theta**2
        if not np.isfinite(theta).all():
            return math.inf
    return float(total.mean()) / (steps - steps // 2)


def test_algorithm_1_corrected_samples_its_target():
    assert algorithm_1() == pytest.approx(1.0, abs=0.05)
    assert algorithm_1(noise_level=0, rate=0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("slip", ["prefactor", "theta", "xi", "momentum"])
def test_algorithm_1_with_any_line_as_printed_does_not(slip):
    assert not 0.8 < algorithm_1(slip) < 1.25


def test_alpha_outside_the_root_is_another_temperature():
    """With ξ held at 0: D/m of T. A thermostat that adapts balances it, as it does any noise."""
    assert algorithm_1("alpha", noise_level=0, rate=0) == pytest.approx(0.5 / 2, abs=0.02)


def test_the_printed_cosine_has_no_cycle():
    """The step size h₀/2 (1 + cos(π mod(t, n))): 1 and 0 in turns, whatever n is."""
    steps, cycle = np.arange(40), 20
    printed = 0.5 * (1 + np.cos(np.pi * (steps % cycle)))
    corrected = 0.5 * (1 + np.cos(np.pi * (steps % cycle) / cycle))
    assert np.allclose(printed[::2], 1)
    assert np.allclose(printed[1::2], 0)
    assert (np.diff(corrected[:cycle]) < 0).all()
    assert corrected[cycle] == 1


def test_friction_is_at_least_the_damping():
    """Section 2.4 prints β < D for ξ > D."""
    damping, xi = 0.5, np.linspace(-1, 2, 50)
    beta = np.maximum(damping - xi, 0) + xi
    np.testing.assert_allclose(beta, np.maximum(damping, xi))


def mean_speed(mass, limit):
    """E|∇K(p)| of the relativistic kinetic energy K = mc²(√(p²/m²c² + 1) − 1)."""

    def density(p):
        return math.exp(-mass * limit**2 * (math.sqrt((p / (mass * limit)) ** 2 + 1) - 1))

    scale = 20 * max(math.sqrt(mass), 1 / limit)
    total = quad(density, 0, scale, limit=200)[0]
    return (
        quad(lambda p: density(p) * p / mass / math.sqrt((p / (mass * limit)) ** 2 + 1), 0, scale, limit=200)[0] / total
    )


def test_the_mean_speed_needs_c_above_one_over_root_m():
    """Section 2.5 prints c ≫ m; for a Gaussian momentum E|p|/m = √(2/(πm))."""

    def compared(mass, limit):
        return mean_speed(mass, limit) / math.sqrt(2 / (math.pi * mass))

    assert compared(mass=0.01, limit=1.0) < 0.2  # c = 100 m, and a tenth of 1/√m
    assert compared(mass=100.0, limit=10.0) == pytest.approx(1.0, abs=0.01)  # c = m/10, and 100/√m


# ---- the HWA paper 2020


def test_the_printed_variance_is_the_variance_of_nothing():
    """Equation 4: negative where the mean is large against the spread, and not even at zero mean the variance."""
    generator = np.random.default_rng(0)

    def printed(snapshots):
        mean = sigma = 0.0
        for n, mu in enumerate(snapshots):
            mean = (n * mean + mu) / (n + 1)
            sigma = (n * sigma + mu**2) / (n + 1) - mean**2
        return sigma

    noise = generator.normal(size=50)
    assert printed(1 + 0.1 * noise) < -10
    assert abs(printed(noise) / noise.var() - 1) > 0.2
