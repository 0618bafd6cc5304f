"""The random stream: its integers, the layout, and that its normals are normal and independent."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from langevin.core import random
from langevin.kernels import philox

KEY = {"seed": 5, "chain": 2, "step": 7}
WHERE = {"seed": 0x0123456789ABCDEF, "chain": 7, "step": 2**32 + 3, "stream": 1}


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers of Random123 for philox4x32-10
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_integers_are_those_of_random123(counter, key, words):
    assert philox.philox(counter, key) == words
    assert _compiled_words(counter, key) == words


def _compiled_words(counter, key):
    from numba import njit, uint32

    from langevin.kernels import native_normals

    @njit
    def words(c0, c1, c2, c3, k0, k1):
        return native_normals.philox(uint32(c0), uint32(c1), uint32(c2), uint32(c3), uint32(k0), uint32(k1))

    return tuple(int(word) for word in words(*(np.uint32(n) for n in (*counter, *key))))


def test_the_layout_of_the_counter():
    block = (3 << 32) + 5
    words = philox.words(**WHERE, block=block)
    counter = (5, 3 | 1 << 8 | 1 << 16, 3, 7)
    assert words == philox.philox(counter, (0x89ABCDEF, 0x01234567))


def test_the_vectors_of_the_documentation():
    """docs/math.md has them for whoever writes this stream on another device."""
    assert [f"{w:08x}" for w in philox.words(**WHERE)] == VECTORS["words"]
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        for start, expected in VECTORS[dtype].items():
            drawn = random.normal(3, start=start, dtype=dtype, **WHERE)
            assert drawn.tolist() == pytest.approx(expected, rel=tolerance)


VECTORS = {
    "words": ["9d84bb0c", "ea6221b9", "23f18079", "f97423f9"],
    torch.float32: {
        0: [-0.8500466346740723, -0.10563908517360687, 0.8199031352996826],
        510: [1.2715405225753784, -0.21019254624843597, -0.4986884593963623],
        2046: [1.2456272840499878, -1.8090558052062988, 0.24430076777935028],
        2**34: [1.435681700706482, 0.7284442782402039, -2.050873041152954],
    },
    torch.float64: {
        0: [-0.4146363392435902, 0.3334857761209696, -0.539802691340756],
        510: [0.14967309691369654, -1.2899161636119294, -0.06719929315278124],
        2046: [-1.5705655997805055, -0.4107156893853383, 0.12125313725182757],
        2**34: [-1.329887969114639, 0.5212833547308866, -0.2164501914793468],
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0, 1, 511, 2047, 5000, 2**34 + 3, 2**39 + 11])
def test_compiled_code_and_torch_operations_agree(dtype, start):
    there = philox.normals(3000, **WHERE, start=start, dtype=dtype, device=torch.device("cpu"))
    here = random.normal(3000, **WHERE, start=start, dtype=dtype)
    rounding = torch.finfo(dtype).eps
    assert torch.allclose(here, there, rtol=8 * rounding, atol=8 * rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_several_chains_and_steps_that_are_tensors(dtype):
    where = {"seed": WHERE["seed"], "stream": 1, "start": 700, "dtype": dtype, "device": torch.device("cpu")}
    rows = philox.normals(1500, chain=torch.tensor([7, 2**31 + 5]), step=torch.tensor(2**32 + 3), **where)
    for row, chain in zip(rows, (7, 2**31 + 5), strict=True):
        assert torch.equal(row, philox.normals(1500, chain=chain, step=2**32 + 3, **where))


def test_long_ranges_are_drawn_in_parts(monkeypatch):
    where = {**WHERE, "start": 3, "dtype": torch.float32, "device": torch.device("cpu")}
    whole = philox.normals(1000, **where)
    monkeypatch.setattr(philox, "_AT_ONCE", 77)
    assert torch.equal(philox.normals(1000, **where), whole)


@settings(max_examples=60, deadline=None)
@given(num_data=st.integers(2, 400), share=st.floats(0, 1), seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**47))
def test_mini_batches_in_torch_operations_are_the_compiled_ones(num_data, share, seed, step):
    """The same integers, whatever share of the data is drawn: large ones repeat themselves most."""
    size = min(max(1, round(share * num_data)), num_data - 1)
    compiled = random.random_subset(num_data, size, seed=seed, chain=[0, 9], step=step)
    where = {"seed": seed, "stream": random.Stream.BATCH, "device": torch.device("cpu")}
    assert torch.equal(philox.subsets(num_data, size, chain=torch.tensor([0, 9]), step=step, **where), compiled)
    assert torch.equal(philox.subsets(num_data, size, chain=9, step=torch.tensor(step), **where), compiled[1])


@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 200_000), count=st.integers(1, 5000), dtype=st.sampled_from(["float32", "float64"]))
def test_any_range_of_normals_is_a_slice_of_the_stream(start, count, dtype):
    whole = random.normal(205_000, dtype=getattr(torch, dtype), **KEY)
    part = random.normal(count, start=start, dtype=getattr(torch, dtype), **KEY)
    assert torch.equal(part, whole[start : start + count])


CHANGES = [
    *({"seed": 5 + 2**bit} for bit in (0, 1, 31, 32, 63)),
    *({"chain": 2 + 2**bit} for bit in (0, 2, 30)),
    *({"step": 7 + 2**bit} for bit in (0, 31, 33, 47)),
    *({"start": 2**bit} for bit in (0, 1, 9, 10, 11, 12, 20, 34)),
    {"stream": 4},
]


@pytest.mark.parametrize("changed", CHANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbouring_integers_give_independent_normals(changed, dtype):
    n = 50_000
    a = random.normal(n, dtype=dtype, **KEY).double()
    b = random.normal(n, dtype=dtype, **{**KEY, **changed}).double()
    sizes = [(x.abs() - math.sqrt(2 / math.pi)) / math.sqrt(1 - 2 / math.pi) for x in (a, b)]
    for product in (a * b, (a**2 - 1) * (b**2 - 1) / 2, sizes[0] * sizes[1]):
        assert abs(float(product.mean())) < 4.5 / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_standard_normal(dtype):
    values = random.normal(1_000_000, dtype=dtype, **KEY).double().numpy()
    _check_moments(values)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    across = [float(random.normal(1, dtype=dtype, **{**KEY, "step": step})) for step in range(2000)]
    assert stats.kstest(across, "norm").pvalue > 1e-3


def _check_moments(values, places=4.5):
    for order in range(1, 9):
        expected = 0 if order % 2 else special.factorial2(order - 1)
        error = math.sqrt((special.factorial2(2 * order - 1) - expected**2) / len(values))
        assert abs((values**order).mean() - expected) < places * error, order


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hundred_million_numbers_are_standard_normal(dtype):
    """Moments to order 8, Kolmogorov–Smirnov, Anderson–Darling, tails, and correlations between positions and lanes."""
    distances, darling, beyond, n = [], [], 0, 10_000_000
    for part in range(10):
        values = random.normal(n, start=part * n, dtype=dtype, **KEY).double().numpy()
        _check_moments(values)
        for lag in (1, 2, 3, 511, 512, 513, 1024, 1536, 2048):
            assert abs((values[lag:] * values[:-lag]).mean()) < 5 / math.sqrt(n)
            assert abs(((values[lag:] ** 2 - 1) * (values[:-lag] ** 2 - 1)).mean()) < 5 * 2 / math.sqrt(n)
        beyond += int((np.abs(values) > 5).sum())
        values.sort()
        below = special.ndtr(values)
        ranks = np.arange(1, n + 1) / n
        distances.append(max((ranks - below).max(), (below - ranks + 1 / n).max()))
        weights = (2 * np.arange(1, n + 1) - 1) / n
        darling.append(-n - (weights * (special.log_ndtr(values) + special.log_ndtr(-values[::-1]))).sum())
    expected = 2 * special.ndtr(-5.0) * 10 * n
    assert abs(beyond - expected) < 4 * math.sqrt(expected)
    # p-values of ten independent parts, each test
    small = [stats.kstwobign.sf(d * math.sqrt(n)) for d in distances]
    assert stats.kstest(small, "uniform").pvalue > 1e-3
    assert min(small) > 1e-4
    assert max(darling) < 9.0  # exceeded with probability 5e-5 each
    assert abs(np.mean(darling) - 1) < 4 * 0.76 / math.sqrt(10)  # mean 1, variance 2(π² − 9)/3 = 0.58


def test_the_tails_reach_beyond_six():
    """The smallest uniform of a radius is 2⁻³²: |z| up to 6.66 in float32; in float64 2⁻⁵³, 8.57."""
    assert math.sqrt(-2 * math.log(0.5 * 2.0**-31)) == pytest.approx(6.66, abs=0.01)
    values = random.normal(20_000_000, **KEY)
    expected = 2 * special.ndtr(-4.5) * 20_000_000
    assert abs(int((values.abs() > 4.5).sum()) - expected) < 4 * math.sqrt(expected)


def test_numbers_do_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            drawn.append(random.normal(400_000, start=1000, **KEY))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


WRONG = {"seed": (-1, 2**64), "chain": (-1, 2**32), "step": (2**48,), "stream": (256,), "start": (-1, 2**50)}


@pytest.mark.parametrize("wrong", [{name: value} for name, values in WRONG.items() for value in values], ids=str)
def test_what_has_no_place_in_the_counter_is_refused(wrong):
    with pytest.raises(ValueError, match="2\\^"):
        random.normal(3, **{**KEY, **wrong})


def test_half_precision_is_refused():
    with pytest.raises(ValueError, match="float32 or float64"):
        random.normal(3, dtype=torch.float16, **KEY)


def test_empty_and_strided_outputs():
    assert random.normal(0, **KEY).shape == (0,)
    strided = torch.empty(20)[::2]
    random.normal(10, out=strided, **KEY)
    assert torch.allclose(strided, random.normal(10, **KEY), rtol=1e-6, atol=1e-6)
