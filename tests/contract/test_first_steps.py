"""No adaptive sampler loses a trained start: its loss stays within the range that it has in the long run."""

import copy
import functools

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.samplers import SAMPLERS

BATCH = 10  # fewer examples than a layer has inputs, so no batch has full rank
RATES = {"psgld": 1e-2, "ksgld": 0.02, "bnpsgld": 0.2, "nld": 0.003, "sngd": 0.005}
OPTIONS = {"nld": {"target": "as-printed", "batch_size": 64}, "sngd": {"batch_size": 64}}  # 9 · 64 > 460 weights


def adaptive() -> list[str]:
    probe = [nn.Parameter(torch.zeros(2))]
    kinds = {name: kind for name, kind in SAMPLERS.items() if not kind.full_batch}
    return [name for name, kind in kinds.items() if kind(probe, lr=1e-3, num_data=10).adapts]


@functools.cache
def trained(hidden):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data[:600] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[:600])
    torch.manual_seed(0)
    posterior = lv.Posterior(
        nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
        lv.likelihoods.Categorical(),
        num_data=len(x),
    )
    best = lv.find_map(posterior, (x, y), method="sgd", lr=0.2, steps=1000, batch_size=50, progress=False)
    posterior.model.load_state_dict({name.removeprefix("model."): w for name, w in best.items()})
    return posterior, x, y


def losses(name, start=None, **options):
    """−log p of all training data after every step, infinite where it diverges."""
    full = name in OPTIONS  # the full Fisher: a small network, and fewer steps
    posterior, x, y = copy.deepcopy(start or trained(6 if full else 50))
    settings = {**OPTIONS.get(name, {}), **options}
    sampler = SAMPLERS[name](posterior.parameters(), lr=RATES.get(name, 0.01), num_data=len(x), seed=1, **settings)
    sampler.bind(posterior, (x, y))
    generator = torch.Generator().manual_seed(2)
    values = []
    for _ in range(220 if full else 500):
        with torch.no_grad():
            values.append(-posterior.likelihood.log_prob(posterior.model(x), y).mean())
        batch = torch.randint(len(x), (BATCH,), generator=generator)
        sampler.zero_grad()
        posterior.loss(x[batch], y[batch]).backward()
        try:
            sampler.step()
        except FloatingPointError:
            values.append(torch.tensor(torch.inf))
            break
    return torch.stack(values).nan_to_num(torch.inf)


@pytest.mark.parametrize("name", adaptive())
def test_the_loss_stays_within_its_stationary_range(name):
    values = losses(name)
    early, late = values[:150], values[150:]
    assert late.max() < 3 * values[0], "this learning rate has no stationary range near the start"
    assert early.max() < 1.25 * late.max()  # late is a short record: its maximum is not the last word


@pytest.mark.parametrize("name", ["psgld", "ksgld"])
def test_without_a_warm_up_the_start_is_lost(name):
    """Which is what the warm-up is for."""
    values = losses(name, warmup=0)
    assert values.max() > 3 * values[0]


def test_ksgld_with_more_outputs_than_examples_in_a_batch():
    """40 outputs, ten examples: the first factors have rank 10."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 20, generator=generator)
    y = x @ torch.randn(20, 40, generator=generator) / 4 + 0.3 * torch.randn(500, 40, generator=generator)
    posterior = lv.Posterior(nn.Linear(20, 40), lv.likelihoods.Gaussian(0.3), num_data=len(x))
    best = lv.find_map(posterior, (x, y))
    posterior.model.load_state_dict({name.removeprefix("model."): w for name, w in best.items()})
    values = losses("ksgld", start=(posterior, x, y))
    assert values[:150].max() < 1.01 * values[150:].max()


def test_an_early_freeze_is_announced():
    p = nn.Parameter(torch.zeros(3))
    sampler = lv.pSGLD([p], 1e-2, num_data=10)
    p.grad = torch.ones(3)
    sampler.step()
    with pytest.warns(UserWarning, match="frozen after 1 steps, before the warm-up"):
        sampler.freeze()
