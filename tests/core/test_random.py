import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langevin.core import random

KEY = {"seed": 5, "chain": 2, "step": 7}


@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 3 * random.BLOCK), count=st.integers(1, 500), dtype=st.sampled_from(["float32", "float64"]))
def test_any_range_of_normals_is_a_slice_of_the_stream(start, count, dtype):
    whole = random.normal(3 * random.BLOCK + 500, dtype=getattr(torch, dtype), **KEY)
    part = random.normal(count, start=start, dtype=getattr(torch, dtype), **KEY)
    assert torch.equal(part, whole[start : start + count])


def test_the_same_integers_give_the_same_numbers_after_other_draws():
    first = random.normal(100, **KEY)
    torch.manual_seed(3)
    torch.randn(10)
    random.random_subset(50, 10, **KEY)
    assert torch.equal(first, random.normal(100, **KEY))


@pytest.mark.parametrize("changed", [{"seed": 6}, {"chain": 3}, {"step": 8}, {"start": random.BLOCK}, {"stream": 4}])
def test_different_integers_give_independent_normals(changed):
    a = random.normal(20_000, **KEY).double()
    b = random.normal(20_000, **{**KEY, **changed}).double()
    correlation = float((a * b).mean())
    assert abs(correlation) < 4 / math.sqrt(20_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_standard_normal(dtype):
    values = random.normal(200_000, dtype=dtype, **KEY).double().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-3
    across_steps = [float(random.normal(1, **{**KEY, "step": step})) for step in range(2000)]
    assert stats.kstest(across_steps, "norm").pvalue > 1e-3


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


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 3000), count=st.integers(1, 700), dtype=st.sampled_from(["float32", "float64"]))
def test_any_range_of_signs_is_a_slice_of_the_stream(start, count, dtype):
    whole = random.rademacher(4000, dtype=getattr(torch, dtype), **KEY)
    part = random.rademacher(count, start=start, dtype=getattr(torch, dtype), **KEY)
    assert torch.equal(part, whole[start : start + count])
    out = torch.empty(count, dtype=getattr(torch, dtype))
    assert random.rademacher(count, start=start, out=out, **KEY) is out
    assert torch.equal(part, out)


def test_signs_are_fair_and_independent():
    n = 200_000
    signs = random.rademacher(n, dtype=torch.float64, **KEY)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    limit = 4 / math.sqrt(n)
    assert abs(signs.mean()) < limit
    for lag in (1, 7, 8, 63, 64, 256):
        assert abs((signs[lag:] * signs[:-lag]).mean()) < limit
    by_place = signs[: n // 64 * 64].view(-1, 64).mean(0)  # each bit of a word
    assert (by_place.abs() < 5 / math.sqrt(n // 64)).all()


@pytest.mark.parametrize("changed", [{"seed": 6}, {"chain": 3}, {"step": 8}, {"start": 64}, {"stream": 4}])
def test_different_integers_give_independent_signs(changed):
    a = random.rademacher(20_000, **KEY).double()
    b = random.rademacher(20_000, **{**KEY, **changed}).double()
    assert abs(float((a * b).mean())) < 4 / math.sqrt(20_000)


def test_numbers_do_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            drawn.append(random.normal(5 * random.BLOCK // 2, start=1000, **KEY))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
