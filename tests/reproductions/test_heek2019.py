"""Heek & Kalchbrenner (2019): the paper's own configuration runs; claims are judged as they say."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.samplers.thermostat import Step, fused
from reproductions.harness import Rows
from reproductions.heek2019 import batchnorm, runs, speed, table, thermostats
from reproductions.heek2019.claims import better, keeps_from_overfitting, needs_fewer_samples
from reproductions.heek2019.networks import make_posterior
from reproductions.heek2019.runs import Settings, by_samples, cells, compare, measure


def two_steps(settings, **changes):
    """The paper's network for two steps at batch 2 on noise."""
    return replace(
        settings,
        data="noise",
        num_data=8,
        test_size=8,
        probe=8,
        batch_size=2,
        cycle_epochs=0.5,
        sgd_epochs=0.5,
        cycles=1,
        burn_in_cycles=0,
        looks=1,
        **changes,
    )


PAPER_SCALE = [
    (table.CIFAR10, "ATMC", {}),
    (batchnorm.EXPERIMENT, "SGD + BatchNorm", {}),
    *(
        pytest.param(experiment, method, changes, marks=pytest.mark.slow)
        for experiment, methods, changes in (
            (table.CIFAR10, ("SGD", "SGNHT", "ATMC, constant rate", "SGD, longer"), {}),
            (batchnorm.EXPERIMENT, ("ATMC + dropout", "ATMC + BatchNorm"), {}),
            (table.IMAGENET, table.ARMS, {"image_size": 64}),
        )
        for method in methods
    ),
]


@pytest.mark.filterwarnings("ignore:augmented images")
@pytest.mark.parametrize(("experiment", "method", "changes"), PAPER_SCALE)
def test_the_papers_configuration_runs(experiment, method, changes, tmp_path):
    settings = two_steps(experiment.settings["paper"], **changes)
    row = measure(settings, tmp_path / "run", method=method, seed=0)
    assert row["diverged"] is None
    assert row["epochs"] == [0.5]
    assert math.isfinite(row["single"]["nll"])
    assert math.isfinite(row["train"]["nll"])
    assert ("predictive" in row) is ("SGD" not in method)


def test_the_papers_time_per_epoch_is_measured(tmp_path):
    network = two_steps(speed.EXPERIMENT.settings["paper"].network, image_size=32, width=8)
    row = speed.measure(speed.Settings(network, steps=1, rounds=1), tmp_path, seed=0)
    assert all(row[method] > 0 for method in speed.ARMS)


def test_the_papers_numbers():
    settings = table.CIFAR10.settings["paper"]
    assert settings.cycle == pytest.approx(50 * 50_000 / 128, abs=5)
    assert settings.cycles * settings.cycle_epochs == 1000
    assert settings.burn_in_cycles * settings.cycle_epochs == 150
    imagenet = table.IMAGENET.settings["paper"]
    assert imagenet.cycles * imagenet.cycle_epochs == 1000
    assert imagenet.burn_in_cycles * imagenet.cycle_epochs == 150
    h0 = {"cifar": 0.001, "imagenet": 0.0005}
    assert settings.thermostat_rate == pytest.approx(h0["cifar"] ** 2)
    assert imagenet.thermostat_rate == pytest.approx(h0["imagenet"] ** 2)


def test_networks_and_priors():
    settings = replace(table.QUICK, data="noise", dropout=0.4)
    plain = make_posterior(settings, "ATMC", seed=0)
    assert not plain.incompatible_layers()
    dropped = make_posterior(settings, "ATMC + dropout", seed=0)
    assert {layer.kind for layer in dropped.incompatible_layers()} == {"dropout"}
    assert [m.p for m in dropped.model.modules() if isinstance(m, nn.Dropout)] == [0.4] * 3
    assert sum(p.numel() for p in dropped.parameters()) == sum(p.numel() for p in plain.parameters())
    normed = make_posterior(settings, "SGD + BatchNorm", seed=0)
    assert {layer.kind for layer in normed.incompatible_layers()} == {"batchnorm"}
    assert isinstance(normed.prior.for_parameter("stem.norm.weight"), lv.priors.Flat)
    decay = normed.prior.for_parameter("stem.conv.weight")
    assert isinstance(decay, lv.priors.Gaussian)
    # weight decay λ on the mean loss, ½λ‖θ‖², is the prior's θ²/(2 std² N)
    assert 1 / (decay.std**2 * settings.num_data) == pytest.approx(settings.weight_decay)
    bound = math.sqrt(6 / ((3 + settings.width) * 9))
    weights = normed.model.stem.conv.weight
    assert 0.8 * bound < weights.abs().max() <= bound


def test_samples_are_the_ends_of_cycles_after_burn_in(tmp_path):
    settings = replace(table.QUICK, cycles=4, burn_in_cycles=1.5)
    row = measure(settings, tmp_path / "run", method="ATMC", seed=0)
    assert len(row["curve"]) == 8
    assert len(row["by_samples"]) == 3  # of cycles 2, 3 and 4
    assert len(row["by_all_looks"]) == 5  # looks 4 to 8
    assert row["by_samples"][0] == row["curve"][-1] == pytest.approx(row["single"]["nll"], abs=1e-4)
    assert row["by_samples"][-1] == pytest.approx(row["predictive"]["nll"], abs=1e-4)
    constant = measure(settings, tmp_path / "constant", method="ATMC, constant rate", seed=0)
    assert constant["curve"] != row["curve"]


def test_an_interrupted_cell_resumes(tmp_path):
    from reproductions.heek2019.runs import run_method

    longer = replace(table.QUICK, cycles=2)
    whole = run_method(longer, tmp_path / "whole", "ATMC", 0)
    run_method(replace(longer, cycles=1), tmp_path / "cut", "ATMC", 0)
    resumed = run_method(longer, tmp_path / "cut", "ATMC", 0)
    assert all(torch.equal(whole[-1][name], resumed[-1][name]) for name in whole[-1])


def test_a_diverged_cell_says_where_and_not_in_which_directory(tmp_path):
    row = measure(replace(table.QUICK, sgd_lr=1e12), tmp_path / "run", method="SGD", seed=0)
    assert row["diverged"].startswith("Chain 0: ")
    assert "with lr=1e+12" in row["diverged"]
    assert str(tmp_path) not in row["diverged"]
    assert row["diverged"].endswith(".")


def test_predictions_that_are_not_finite_count_as_divergence(tmp_path, monkeypatch):
    looks = torch.full((4, 100, 10), math.nan), torch.zeros(100, dtype=torch.long)
    monkeypatch.setattr(runs, "predictions", lambda *args: looks)
    row = measure(table.QUICK, tmp_path / "run", method="SGD", seed=0)
    assert row == {"data": "digits", "diverged": "its predictions are not finite."}


def test_ensembles_grow_from_the_last_sample():
    samples = torch.tensor([[[0.2, 0.8]], [[0.5, 0.5]], [[1.0, 0.0]]])
    expected = [0.0, -math.log(0.75), -math.log(1.7 / 3)]
    assert by_samples(samples, torch.tensor([0])) == pytest.approx(expected, abs=1e-4)


def row(method, seed=0, **kinds):
    """A row whose scores have replicates of standard deviation 0.01."""
    made = {"method": method, "seed": seed, "data": "cifar10", "diverged": None}
    noise = torch.randn(100, generator=torch.Generator().manual_seed(sum(map(ord, method)))) * 0.01
    for kind, value in kinds.items():
        scores = {"accuracy": 1 - value, "nll": value}
        made[kind] = scores | {"replicates": {name: (v + noise).tolist() for name, v in scores.items()}}
    return made


@pytest.mark.parametrize(("ours", "theirs", "answer"), [(0.3, 0.4, True), (0.4, 0.3, False), (0.3, 0.301, None)])
def test_better_means_by_two_standard_errors(ours, theirs, answer):
    rows = Rows([row("A", single=ours), row("B", single=theirs)])
    for score in ("nll", "accuracy"):
        assert better((score, ("A", "single"), ("B", "single")))(rows).reproduced is answer
    both = better(*((score, ("A", "single"), ("B", "single")) for score in ("nll", "accuracy")))
    assert both(rows).reproduced is answer


def test_several_seeds_are_compared_seed_by_seed():
    rows = Rows([row(m, seed, single=v + 0.1 * seed) for m, v in (("A", 0.3), ("B", 0.35)) for seed in range(3)])
    gap = compare(rows, "nll", ("A", "single"), ("B", "single"))
    assert gap.mean == pytest.approx(-0.05)
    assert gap.error == pytest.approx(0, abs=1e-9)


def test_what_was_not_measured_is_not_judged():
    judge = better(("nll", ("A", "single"), ("B", "single")))
    one = row("A", single=0.3)
    assert judge(Rows([one])).reproduced is None
    assert "diverged" in judge(Rows([one, {**row("B"), "diverged": "Chain 0: at step 3"}])).measured
    assert "synthetic" in judge(Rows([{**one, "data": "noise"}, row("B", single=0.4)])).measured


def test_cycles_and_overfitting():
    def rows(cyclic, constant, half, end, least):
        cycling = {**row("ATMC", predictive=cyclic, first_half=half), "by_samples": [0.9, cyclic]}
        steady = {**row("ATMC, constant rate", predictive=constant), "by_all_looks": [1.0, constant, 0.35]}
        return Rows([cycling, steady, row("SGD, longer", single=end, best=least)])

    good = rows(cyclic=0.4, constant=0.6, half=0.45, end=0.9, least=0.5)
    assert needs_fewer_samples(good).reproduced is True
    assert "as low with 3 samples" in needs_fewer_samples(good).measured
    assert keeps_from_overfitting(good).reproduced is True
    bad = rows(cyclic=0.6, constant=0.4, half=0.45, end=0.9, least=0.5)
    assert needs_fewer_samples(bad).reproduced is False
    assert keeps_from_overfitting(bad).reproduced is False
    assert keeps_from_overfitting(rows(0.4, 0.6, 0.45, end=0.5, least=0.5)).reproduced is None


def test_the_three_way_splitting_agrees_with_the_exact_one_to_second_order():
    torch.manual_seed(0)
    u, kick, eta = torch.randn(3, 50, dtype=torch.float64)
    beta, heat = torch.rand(2, 50, dtype=torch.float64)

    def moved(integrate, h, kick, heat, eta):
        momentum = u.clone()
        integrate(momentum, Step(h, kick, -1.0, heat, beta, 1.0, eta, lambda u: 1.0))
        return momentum

    def gap(h):
        ours, exact = (moved(integrate, h, kick, 0 * heat, None) for integrate in (thermostats.three_way, fused))
        return float((ours - exact).abs().max())

    assert gap(0.02) / gap(0.01) == pytest.approx(8, rel=0.05)  # the local error is of order h³
    expected = torch.exp(-beta * 0.1) * u + torch.exp(-beta * 0.05) * (0.2 * heat).sqrt() * eta
    torch.testing.assert_close(moved(thermostats.three_way, 0.1, 0 * kick, heat, eta), expected)


def thermostat_rows(sgnht, atmc, ours, theirs):
    rows = [
        {"sampler": name, "rate": 1.0, "lr": 0.003, "seed": s, "diverged": None, "momentum": value, "loss": 1.0}
        for name, values in (("SGNHT", sgnht), ("ATMC", atmc))
        for s, value in enumerate(values)
    ]
    for name, values in (("two-way", ours), ("three-way", theirs), ("three-way, kick outside", theirs)):
        for lr, loss in values.items():
            gone = None if loss is not None else 7
            rows.append({"sampler": name, "rate": 1.0, "lr": lr, "seed": 0, "diverged": gone, "loss": loss})
    return Rows(rows)


@pytest.mark.parametrize(
    ("sgnht", "atmc", "exploded"), [((500, 500, 5), (5, 5, 5), True), ((500, 5, 5), (5, 5, 5), False),
                                    ((500, 500, 5), (5, 500, 5), False)],
)  # fmt: skip
def test_exploding_is_most_of_sgnht_and_none_of_atmc(sgnht, atmc, exploded):
    rows = thermostat_rows(sgnht, atmc, {0.1: 1.0}, {0.1: 1.0})
    assert thermostats._explodes(rows).reproduced is exploded


@pytest.mark.parametrize(
    ("ours", "theirs", "answer"),
    [({0.1: 1.0, 0.2: 1.0}, {0.1: 1.0, 0.2: None}, True), ({0.1: 1.0, 0.2: 5.0}, {0.1: 1.0, 0.2: 1.0}, False),
     ({0.1: 1.0, 0.2: 5.0}, {0.1: 1.0, 0.2: None}, None)],
)  # fmt: skip
def test_robust_is_the_larger_rate(ours, theirs, answer):
    assert thermostats._robust(thermostat_rows((5,), (5,), ours, theirs)).reproduced is answer


def test_every_method_is_a_cell():
    settings = Settings(methods=("SGD", "ATMC"), seeds=2)
    assert len(cells(settings)) == 4
