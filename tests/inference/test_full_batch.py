"""Full batches, and samplers that take a closure, through `sample` and `resume`."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.core.full_batches import FullBatches, make_batches
from tests.helpers import assert_same_samples, samples_of, toy_data, toy_posterior

CPU = torch.device("cpu")


def draw(sampler, *, chains=2, mode="vectorised", steps=60, **options):
    options = {"burn_in": 30, "thin": 5, "progress": False, "probe": 0, **options}
    return lv.sample(
        toy_posterior(), toy_data(), sampler, chains=chains, mode=mode, steps=steps, init="model", **options
    )


class Killed(Exception):
    pass


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
@pytest.mark.parametrize("sampler", [lv.MCLMC, lv.HMC])
def test_a_resumed_run_is_that_without_a_stop(tmp_path, sampler, mode):
    """Stopped in adaptation (after step 17) and in sampling (after step 43)."""
    whole = draw(sampler, mode=mode)
    path = tmp_path / "run"

    def stop(info):
        if info.step in (17, 43):
            raise Killed

    with pytest.raises(Killed):
        draw(sampler, mode=mode, out=path, callbacks=[stop])
    with pytest.raises(Killed):
        lv.resume(path, toy_posterior(), toy_data(), progress=False, callbacks=[stop])
    assert_same_samples(lv.resume(path, toy_posterior(), toy_data(), progress=False), whole)


@pytest.mark.parametrize("sampler", [lv.MCLMC, lv.HMC])
def test_stacked_chains_agree_with_single_ones(sampler):
    """To rounding, which the dynamics amplify: over a few steps, in double precision."""
    x, y = toy_data(dtype=torch.float64)
    runs = []
    for mode in ("vectorised", "sequential"):
        posterior = toy_posterior()
        posterior.double()
        options = {"steps": 8, "burn_in": 4, "thin": 1, "chains": 3, "mode": mode, "progress": False}
        runs.append(samples_of(lv.sample(posterior, (x, y), sampler, **options)))
    for key, theta in runs[0].items():
        torch.testing.assert_close(theta, runs[1][key], rtol=1e-6, atol=1e-8)


def test_each_gradient_is_computed_once(monkeypatch):
    from langevin.inference.stacked_chains import StackedChains

    calls = []
    gradients = StackedChains._gradients
    monkeypatch.setattr(StackedChains, "_gradients", lambda self, x, y: (calls.append(1), gradients(self, x, y))[1])
    monkeypatch.setattr("langevin.inference.trial._FEW", 0)  # more steps, if they are short
    draw(lv.MCLMC, steps=40)
    trial = 7  # steps before the run
    stiffest = 2 * (15 + 5)  # of the power iterations in late burn-in and after it
    assert len(calls) == 2 * (40 + trial) + 2 * 2 + stiffest  # two a step, and the first one of each start twice


def test_the_probe_and_the_temperatures_work_with_full_batches():
    run = draw(lv.MCLMC, steps=500, burn_in=200, probe=0.2, chains=4, thin=10)
    assert abs(run.temperature().mean - 1) < 0.25
    assert abs(run.gradient_temperature().mean - 1) < 0.25
    assert run.manifest["settings"]["batch_size"] == "full"
    assert run.manifest["gradients_per_step"] == 2
    assert all(record.stats["rejected"] == 0 for record in run.samples.records)


def test_gradient_accumulation_does_not_change_the_chain():
    """At a given lr and L: adaptation begins with energy errors as small as rounding, and would amplify it."""
    options = {"lr": 0.02, "L": 1.0, "steps": 36}
    whole, parts = draw(lv.MCLMC, **options), draw(lv.MCLMC, **options, grad_accumulation_steps=4)
    for key, theta in samples_of(whole).items():
        torch.testing.assert_close(theta, samples_of(parts)[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_full_batches_are_those_of_batch_size_n_for_other_samplers(mode):
    full = draw(lv.SGLD, lr=1e-2, batch_size="full", mode=mode)
    same = draw(lv.SGLD, lr=1e-2, batch_size=60, mode=mode)
    for key, theta in samples_of(full).items():
        torch.testing.assert_close(theta, samples_of(same)[key], rtol=1e-4, atol=1e-4)
    assert full.manifest["settings"]["batch_size"] == "full"


def test_all_chains_share_the_data_and_nothing_is_copied():
    x, y = toy_data()
    batches = make_batches((x, y), "full", 0, CPU)
    assert isinstance(batches, FullBatches)
    for chain in (0, 1):
        got_x, got_y = batches.fetch(chain, 5)
        assert got_x.data_ptr() == x.data_ptr()
        assert got_y.data_ptr() == y.data_ptr()


def test_a_data_set_is_read_once():
    x, y = toy_data()

    class Counting(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            Counting.reads += 1
            return x[index], y[index]

    batches = make_batches(Counting(), "full", 0, CPU)
    reads = Counting.reads
    assert reads == 3 * len(x)  # two more to see that they do not change
    assert torch.equal(batches.fetch(0, 0)[0], x)
    assert torch.equal(batches.fetch(0, 1)[1], y)
    assert Counting.reads == reads


class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        x, y = toy_data()
        return x[index] + torch.randn(4), y[index]


def test_what_is_no_full_batch_is_refused():
    x, y = toy_data()
    posterior = toy_posterior()
    options = {"steps": 10, "progress": False}
    with pytest.raises(ValueError, match="data that can be indexed; given DataLoader"):
        lv.sample(posterior, DataLoader(TensorDataset(x, y), batch_size=60), lv.MCLMC, **options)
    with pytest.raises(ValueError, match='MCLMC needs all data in every step; given mini-batches. .*batch_size="full"'):
        lv.sample(posterior, (x, y), lv.MCLMC, batch_size=20, **options)
    with pytest.raises(ValueError, match="changes its examples at random"):
        lv.sample(posterior, Augmented(), lv.MCLMC, **options)
    with pytest.raises(ValueError, match="batch_size must be an integer or 'full'"):
        lv.sample(posterior, (x, y), lv.SGLD, lr=1e-2, batch_size="all", **options)
    with pytest.raises(ValueError, match="no mini-batch noise to reduce"):
        lv.sample(posterior, (x, y), lv.HMC, control_variate="map", **options)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    with pytest.raises(ValueError, match="dropout makes it random"):
        lv.sample(toy_posterior(model, allow=["dropout"]), (x, y), lv.MCLMC, **options)
    with pytest.raises(ValueError, match="adapts during burn-in"):
        lv.sample(posterior, (x, y), lv.MCLMC, burn_in=0, **options)


def test_batch_size_n_means_full_for_a_sampler_that_needs_it():
    assert draw(lv.MCLMC, batch_size=60).manifest["settings"]["batch_size"] == "full"


def test_settings_can_be_changed_while_it_runs():
    """As a callback does: V and L of the group."""

    def set_both(info):
        group = info.sampler.param_groups[0]
        group["V"], group["L"] = 1e-3, 2.5

    run = draw(lv.MCLMC, callbacks=[set_both])
    groups = run.store.checkpoints([0])[0].values["groups"]
    assert (groups[0]["V"], groups[0]["L"]) == (1e-3, 2.5)


@pytest.mark.slow
def test_the_closure_is_compiled_with_the_chains():
    compiled, plain = draw(lv.MCLMC, compile=True, steps=34), draw(lv.MCLMC, steps=34)
    assert compiled.manifest["settings"]["compile"]
    for key, theta in samples_of(compiled).items():
        torch.testing.assert_close(theta, samples_of(plain)[key], rtol=0.05, atol=0.05)
