import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from langevin.core.statistics import batch_means_ess, effective_sample_size, mess_diagonal, mess_full
from langevin.diagnostics import convergence as module
from langevin.diagnostics.convergence import Chosen, convergence, weight_convergence
from langevin.diagnostics.rank_statistics import rank_statistics
from tests.diagnostics.chains import autoregressive


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
def test_batch_means_ess_of_an_autoregressive_chain(rho):
    """n(1 − ρ)/(1 + ρ); above n if the autocorrelation is negative, which `effective_sample_size` ignores."""
    n = 40_000
    draws = autoregressive(rho, n=n, columns=20)
    ess = batch_means_ess(draws) / n
    exact = (1 - rho) / (1 + rho)
    error = float(ess.std() / math.sqrt(20))
    # batches of b draws underestimate the variance of a mean by a share 2ρ/((1 − ρ²)b), and 1/variance is biased by 2/a
    bias = exact * (abs(2 * rho / (1 - rho**2)) / 200 + 2 / 200)
    assert abs(float(ess.mean()) - exact) < 4 * error + bias
    if rho < 0:
        assert float(effective_sample_size(draws).mean()) < 1.01 * n < 0.5 * n * exact


def test_full_mess_of_independent_and_of_mixed_chains():
    """Mixing the columns of an AR(1) chain by any matrix does not change the full mESS, n(1 − ρ)/(1 + ρ)."""
    n, rho = 40_000, 0.5
    draws = autoregressive(rho, n=n, columns=3)
    mix = torch.tensor([[1.0, 0.0, 0.0], [5.0, 1.0, 0.0], [1.0, -2.0, 0.1]], dtype=torch.float64)
    full = mess_full(draws)
    assert full == pytest.approx(n * (1 - rho) / (1 + rho), rel=4 / math.sqrt(200 * 3))
    assert mess_full(draws @ mix) == pytest.approx(full, rel=1e-8)
    assert mess_full(draws.reshape(4, n // 4, 3)) == pytest.approx(full, rel=4 / math.sqrt(200 * 3))  # four chains
    one = autoregressive(rho, n=n, columns=1)
    assert mess_full(one) == pytest.approx(float(batch_means_ess(one)), rel=1e-8)


def test_full_mess_detects_a_slow_direction_that_the_diagonal_misses():
    """Two columns are sums and differences of a slow and a fast chain."""
    slow, fast = autoregressive(0.95, n=40_000, columns=1), 10 * autoregressive(0.0, n=40_000, columns=1, seed=4)
    draws = torch.cat([fast + slow, fast - slow], 1)
    exact = 40_000 * math.sqrt(0.05 / 1.95)  # the geometric mean over the two directions
    assert mess_full(draws) == pytest.approx(exact, rel=0.2)
    assert mess_diagonal(draws) > 2 * exact


def test_too_few_batches_for_the_full_mess_are_unknown():
    assert math.isnan(mess_full(torch.randn(100, 3)))  # ten batches, nine degrees of freedom
    assert not math.isnan(mess_full(torch.randn(2, 100, 3)[..., :2]))
    with pytest.raises(ValueError, match="at least 4 draws"):
        mess_full(torch.randn(3, 2))
    assert float(batch_means_ess(torch.ones(50))) == 0.0


@pytest.mark.parametrize("n", [4, 5, 6, 7, 41, 101])
@pytest.mark.parametrize("chains", [1, 3])
def test_rank_statistics_are_those_of_arviz(chains, n):
    az, random = module.arviz(), np.random.default_rng(n)
    kinds = {
        "independent": random.normal(size=(chains, n)),
        "slow": random.normal(size=(chains, n)).cumsum(1),
        "alternating": np.where(np.arange(n) % 2, 1.0, -1.0) + 0.1 * random.normal(size=(chains, n)),
        "ties": random.integers(0, 3, size=(chains, n)).astype(float),
        "two values": np.tile(np.arange(n) % 2.0, (chains, 1)),
        "apart": random.normal(size=(chains, n)) + 9 * np.arange(chains)[:, None],
    }
    bulk, tail, rhat = rank_statistics(np.stack(list(kinds.values()), axis=2))
    with np.errstate(all="ignore"):
        for index, (kind, draws) in enumerate(kinds.items()):
            assert bulk[index] == pytest.approx(float(az.ess(draws, method="bulk")), rel=1e-9), kind
            assert tail[index] == pytest.approx(float(az.ess(draws, method="tail")), rel=1e-9), kind
            if chains > 1:
                assert rhat[index] == pytest.approx(float(az.rhat(draws)), rel=1e-9), kind
            else:
                assert math.isnan(rhat[index])


def test_rank_statistics_of_values_that_are_not_finite_are_unknown():
    draws = np.random.default_rng(0).normal(size=(2, 20, 2))
    draws[0, 3, 1] = np.inf
    for found in rank_statistics(draws):
        assert np.isfinite(found[0])
        assert np.isnan(found[1])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(4, 40))
def test_rhat_and_ess_are_those_of_arviz(seed, chains, n):
    az = module.arviz()
    draws = np.random.default_rng(seed).normal(size=(chains, n, 2)).cumsum(1)
    found = convergence(draws)
    for j in range(2):
        assert found.rhat[j] == pytest.approx(float(az.rhat(draws[..., j])), nan_ok=True)
        assert found.ess_bulk[j] == pytest.approx(float(az.ess(draws[..., j], method="bulk")), nan_ok=True)
        assert found.ess_tail[j] == pytest.approx(float(az.ess(draws[..., j], method="tail")), nan_ok=True)


def test_chains_that_disagree_are_detected():
    draws = np.random.default_rng(0).normal(size=(4, 200, 3))
    draws[0, :, 1] += 5
    found = convergence(draws, names=["a", "b", "c"])
    assert found.worst_rhat == found.rhat[1] > 1.3
    assert found.share_above(1.1) == pytest.approx(1 / 3)
    assert found.ess_bulk[1] < 20 < 500 < found.ess_bulk[0]
    assert found.mess == pytest.approx(float(np.prod(found.ess) ** (1 / 3)))
    assert found.unknown == {}


def test_one_chain_or_few_draws_are_unknown():
    draws = np.random.default_rng(0).normal(size=(1, 100, 2))
    one = convergence(draws)
    assert np.isnan(one.rhat).all()
    assert math.isnan(one.worst_rhat)
    assert math.isnan(one.share_above())
    assert "at least two chains" in one.unknown["rhat"]
    assert (one.ess > 30).all()
    few = convergence(draws[:, :3])
    for name in ("ess", "ess_batch", "ess_bulk", "ess_tail", "rhat"):
        assert np.isnan(getattr(few, name)).all()
        assert "3 draws" in few.unknown[name]
    assert math.isnan(few.mess)
    assert math.isnan(few.mess_full)


def test_a_constant_quantity_has_no_rhat():
    draws = np.random.default_rng(0).normal(size=(2, 50, 2))
    draws[..., 1] = 7.0
    found = convergence(draws)
    assert np.isfinite(found.rhat[0])
    assert np.isnan(found.rhat[1])
    assert "1 of 2 quantities are constant" in found.unknown["rhat"]
    assert found.ess[1] == found.ess_bulk[1] == 0.0


def test_rhat_of_stuck_chains():
    """R̂ is finite if one of two chains is stuck, infinite if both are stuck at different values."""
    draws = np.random.default_rng(0).normal(size=(2, 50, 2))
    draws[1, :, 0] = 3.0
    draws[0, :, 1], draws[1, :, 1] = 1.0, 2.0
    found = convergence(draws)
    assert 1.2 < found.rhat[0] < math.inf
    assert found.rhat[1] == math.inf == found.worst_rhat
    assert found.share_above(1.01) == 1.0


def sample_chains(chains=2, n=30):
    generator = torch.Generator().manual_seed(0)
    return [
        [
            {"a.weight": torch.randn(2, 3, generator=generator), "b": torch.randn((), generator=generator)}
            for _ in range(n)
        ]
        for _ in range(chains)
    ]


def test_weights_are_streamed_in_blocks(monkeypatch):
    chains = sample_chains()
    whole = weight_convergence(chains, subset=None)
    assert whole.names == [f"a.weight[{i}, {j}]" for i in range(2) for j in range(3)] + ["b"]
    draws = np.stack([[np.append(s["a.weight"].numpy().ravel(), s["b"]) for s in chain] for chain in chains])
    np.testing.assert_allclose(whole.rhat, convergence(draws).rhat, rtol=1e-6)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8 * 60 * 3)  # three weights at a time
    blocks = weight_convergence(chains, subset=None)
    assert blocks.names == whole.names
    for name in ("ess", "ess_batch", "ess_bulk", "ess_tail", "rhat"):
        np.testing.assert_allclose(getattr(blocks, name), getattr(whole, name), rtol=1e-9)
    assert math.isnan(blocks.mess_full)


def test_a_subset_is_determined_by_its_seed():
    chains = sample_chains()
    few = weight_convergence(chains, subset=3, seed=1)
    assert few.names == weight_convergence(chains, subset=3, seed=1).names
    assert len(few.names) == 3
    assert any(few.names != weight_convergence(chains, subset=3, seed=s).names for s in range(2, 6))
    assert weight_convergence(chains, names="b").names == ["b"]
    assert weight_convergence(chains, names=["*.weight"], subset=2).names[0].startswith("a.weight[")
    sample = chains[0][0]
    chosen = Chosen.of(sample, None, 4, 0)
    for label, value in zip(chosen.labels(), chosen.read(sample).tolist(), strict=True):
        assert value == pytest.approx(float(eval(label, {}, {"a": _Named(sample), "b": sample["b"]})))
    with pytest.raises(ValueError, match=r"names='c' matches none of \['a.weight', 'b'\]"):
        weight_convergence(chains, names="c")
    with pytest.raises(ValueError, match="subset=0"):
        weight_convergence(chains, subset=0)


def test_chains_of_different_length_are_cut_to_the_last_draws_of_the_shortest():
    chains = sample_chains()
    chains[1] = chains[1][:20]
    found = weight_convergence(chains, names="b")
    draws = np.stack([[float(s["b"]) for s in chain[-20:]] for chain in chains])[..., None]
    assert found.draws == 20
    np.testing.assert_allclose(found.rhat, convergence(draws).rhat, rtol=1e-6)


class _Named:
    def __init__(self, sample):
        self.weight = sample["a.weight"]
