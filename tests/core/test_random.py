import math

import numpy as np
import pytest
import torch
from scipy import stats

from langevin.core import random

KEY = {"seed": 5, "chain": 2, "step": 7}


def test_the_same_integers_give_the_same_numbers_after_other_draws():
    first = random.normal(100, **KEY)
    torch.manual_seed(3)
    torch.randn(10)
    random.random_subset(50, 10, **KEY)
    assert torch.equal(first, random.normal(100, **KEY))


def test_the_global_generator_is_not_changed():
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    random.normal(100, **KEY)
    random.random_subset(100, 10, **KEY)
    assert torch.equal(torch.randn(3), expected)


def test_subsets_are_without_replacement_and_uniform():
    counts = np.zeros(20)
    for step in range(4000):
        subset = random.random_subset(20, 5, seed=1, chain=0, step=step)
        assert len(set(subset.tolist())) == 5
        counts[subset.numpy()] += 1
    # every index is in a subset with probability 1/4; the counts sum to 20,000
    assert stats.chisquare(counts).pvalue > 1e-3
    assert random.random_subset(20, 20, seed=1, chain=0, step=0).tolist() == list(range(20))


def test_threads_do_not_share_state():
    from concurrent.futures import ThreadPoolExecutor

    def draw(step):
        return random.normal(5000, seed=1, chain=0, step=step)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, range(50)))
    assert all(torch.equal(value, draw(step)) for step, value in enumerate(together))


def test_subsets_of_all_chains_in_one_call_are_those_of_each():
    chains = [0, 3, 4, 2**32 - 1]
    together = random.random_subset(1000, 64, seed=3, chain=chains, step=9)
    for chain, row in zip(chains, together, strict=True):
        assert torch.equal(row, random.random_subset(1000, 64, seed=3, chain=chain, step=9))


def test_pairs_are_uniform_too():
    """Floyd's algorithm makes every subset equally likely: here each of the 15 pairs of six."""
    counts = np.zeros((6, 6))
    rows = random.random_subset(6, 2, seed=2, chain=range(30_000), step=1).sort(dim=1).values.numpy()
    np.add.at(counts, (rows[:, 0], rows[:, 1]), 1)
    assert stats.chisquare(counts[np.triu_indices(6, 1)]).pvalue > 1e-3
    assert counts.sum() == 30_000


def test_a_subset_of_a_large_data_set():
    rows = random.random_subset(2**33, 500, seed=2, chain=0, step=1)
    assert len(rows.unique()) == 500
    assert int(rows.min()) >= 0
    assert int(rows.max()) < 2**33
    assert stats.kstest((rows / 2**33).numpy(), "uniform").pvalue > 1e-3


def test_seeding_restores_the_generator_and_does_not_touch_devices(monkeypatch):
    torch.manual_seed(4)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a device that is not in use"))
    before = torch.get_rng_state()
    with random.forked_generators(7):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    states = random.generator_states()
    random.seed_generators(7)
    assert torch.equal(torch.rand(3), first)
    random.restore_generators(states)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_source_draws_the_same_numbers_for_the_same_shape_in_single_precision_at_least():
    source = random.Source(1, 2, 3, random.Stream.LABELS)
    like = torch.empty(50, 3, dtype=torch.bfloat16)
    assert source.normal(like).dtype == torch.float32
    assert torch.equal(source.normal(like), source.normal(torch.empty(50, 3)))
    uniform = source.uniform(torch.empty(20_000))
    assert float((uniform.mean() - 0.5).abs()) < 4 / math.sqrt(12 * 20_000)
    assert float((uniform.square().mean() - 1 / 3).abs()) < 4 * math.sqrt(4 / 45 / 20_000)
