"""SGD, FSGD and SGHMC beyond the contract tests; and that no two weights share noise."""

import itertools
import math

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.kernels import updates
from langevin.samplers import SAMPLERS
from tests.contract.targets import NUM_DATA, SIGMAS, Moments, limit, make
from tests.contract.test_mechanics import ELEMENTWISE, equal, parameters, take


@pytest.mark.parametrize("by_tensor", [False, True])
def test_sghmc_subtracts_the_gradient_variance_from_the_injected_noise(by_tensor):
    lr = 0.2 * limit(SAMPLERS["sghmc"], 1.0)
    v = 0.5 * (1 - 0.9**2) / (0.95 * lr * NUM_DATA) ** 2  # half of the noise comes from the gradient
    p = nn.Parameter(torch.zeros(1024, 2, dtype=torch.float64))
    sampler = lv.SGHMC([p], lr=lr, num_data=NUM_DATA, gradient_variance=[torch.full_like(p, v)] if by_tensor else v)
    generator, second = torch.Generator().manual_seed(1), torch.zeros_like(p)
    for step in range(1500):
        p.grad = p.detach() + math.sqrt(v) * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        sampler.step()
        if step >= 500:
            second += p.detach().square() / 1000
    temperature, error = Moments.estimate(second.mean(1) * NUM_DATA)
    assert error < 0.02
    assert abs(temperature - 1) < SIGMAS * error + 1.5 * 0.2**2
    if not by_tensor:
        assert sampler.gradient_noise_temperature(v) == 0


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("compiled", [True, False])
def test_sghmc_has_the_same_target_in_a_metric(compiled, temperature):
    """Variances T/(Nλ) of scales up to ten times apart; noise off by √2 in either would be off by 2."""
    curvatures, fraction = torch.tensor([1.0, 100.0, 25.0], dtype=torch.float64), 0.2
    p = nn.Parameter(torch.zeros(2048, 3, dtype=torch.float64))
    metric = torch.tensor([0.8, 0.1, 0.3], dtype=torch.float64).expand_as(p)  # in it, curvatures from 0.64 to 2.25
    lr = fraction * limit(SAMPLERS["sghmc"], 2.25)
    with updates.switched(compiled):
        sampler = lv.SGHMC([p], lr=lr, num_data=NUM_DATA, metric=[metric], temperature=temperature, seed=1)
        second = torch.zeros_like(p)
        for step in range(1500):
            p.grad = p.detach() * curvatures
            sampler.step()
            if step >= 500:
                second += p.detach().square() / 1000
    ratio, error = Moments.estimate(second * curvatures * NUM_DATA / temperature)
    assert (error < 0.02).all()
    assert ((ratio - 1).abs() < SIGMAS * error + 1.5 * fraction**2).all()
    kinetic = float(next(iter(sampler.observables()["kinetic"])).mean())
    assert kinetic == pytest.approx(temperature, rel=0.1)
    assert "metric" in next(iter(sampler.state_dict()["state"].values()))


def test_sghmc_takes_the_gradient_variance_off_in_the_metric():
    lr, scale = 0.2 * limit(SAMPLERS["sghmc"], 1.0), 0.5
    v = 0.5 * (1 - 0.9**2) / (0.95 * lr * NUM_DATA * scale) ** 2  # half of the noise comes from the gradient
    p = nn.Parameter(torch.zeros(1024, 2, dtype=torch.float64))
    metric = [torch.full_like(p, scale)]
    sampler = lv.SGHMC([p], lr=lr, num_data=NUM_DATA, gradient_variance=v, metric=metric)
    generator, second = torch.Generator().manual_seed(1), torch.zeros_like(p)
    for step in range(1500):
        p.grad = p.detach() / scale**2 + math.sqrt(v) * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        sampler.step()
        if step >= 500:
            second += p.detach().square() / 1000
    temperature, error = Moments.estimate(second.mean(1) * NUM_DATA / scale**2)
    assert abs(temperature - 1) < SIGMAS * error + 1.5 * 0.2**2


def test_a_metric_of_other_shapes_is_refused():
    p = nn.Parameter(torch.zeros(3))
    for metric in ([torch.ones(2)], [torch.zeros(3)], []):
        with pytest.raises(ValueError, match="metric needs one tensor of positive numbers per parameter"):
            lv.SGHMC([p], lr=1e-2, num_data=10, metric=metric)


@pytest.mark.parametrize("dtypes", [["float32"] * 4, ["float32", "float64", "float32", "float64"]])
@pytest.mark.parametrize("bounds", [[4], [2, 4], [1, 4]])
@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if SAMPLERS[n].target != "none"])
def test_every_weight_has_independent_noise(name, bounds, dtypes):
    params = [nn.Parameter(torch.zeros(5, dtype=getattr(torch, d))) for d in dtypes]
    groups = [{"params": params[a:b]} for a, b in itertools.pairwise([0, *bounds])]
    sampler = make(SAMPLERS[name], groups, lr=0.01)
    for p in params:
        p.grad = torch.zeros_like(p)
    sampler.step()
    moves = torch.cat([p.detach().double() for p in params])
    assert len(moves.unique()) == 20
    correlated = (moves[:, None] - moves[None, :]).abs() < 1e-6 * moves.abs().max()
    assert int(correlated.sum()) == 20


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_parameter_groups_do_not_change_the_update(name):
    together, apart = parameters(), parameters()
    one = make(SAMPLERS[name], together, lr=0.01)
    grouped = make(SAMPLERS[name], [{"params": apart[:1]}, {"params": apart[1:]}], lr=0.01)
    assert equal(take(one, together, 3), take(grouped, apart, 3))


@pytest.mark.parametrize("name", ["SGD", "FSGD"])
def test_the_gradient_noise_temperature_of_constant_rate_sgd(name):
    options = {"momentum": 0.8} if name == "SGD" else {}
    p = nn.Parameter(torch.zeros(2048, dtype=torch.float64))
    sampler = getattr(lv, name)([p], lr=0.01, num_data=NUM_DATA, **options)
    generator, second = torch.Generator().manual_seed(1), 0.0
    for step in range(3000):
        p.grad = p.detach() + torch.randn(p.shape, generator=generator, dtype=p.dtype)
        sampler.step()
        if step >= 1000:
            second += float(p.detach().square().mean()) / 2000
    assert second * NUM_DATA == pytest.approx(sampler.gradient_noise_temperature(1.0), rel=0.03)


def test_momentum_raises_the_stability_limit_of_sgd():
    for factor, bounded in ((0.95, True), (1.05, False)):
        p = nn.Parameter(torch.ones(1, dtype=torch.float64))
        limit_ = lv.SGD([p], lr=1e-3, num_data=1, momentum=0.8).stability_limit(3.0)
        sampler = lv.SGD([p], lr=factor * limit_, num_data=1, momentum=0.8)
        for _ in range(500):
            p.grad = 3.0 * p.detach()
            sampler.step()
        assert (abs(float(p.detach())) < 10) == bounded
