"""Palacci & Hess 2018: what is chosen from the grid, the judges, the attack, and interrupted runs."""

import dataclasses
import math

import pytest
import torch

from langevin.evaluation.attacks import FGSM, under_attack
from reproductions.palacci2018 import claims, mnist, small, training
from reproductions.palacci2018.judging import at_best, best
from reproductions.rows import Rows

torch.set_num_threads(1)
TINY = dataclasses.replace(mnist.EXPERIMENT.settings["quick"], train_size=200, epochs=8, attacked=60)


def rows(spread=2e-4, **by_method):
    """Two points of a grid, three seeds: the second is better in validation and worse in the test."""
    found = Rows()
    for number, method in enumerate(training.VARIANTS):
        for lr, better in ((0.1, 0.0), (0.3, 0.01)):
            for seed in range(3):
                noise = spread * (1 + number) * ((seed + number) % 3 - 1)  # so that differences have a spread too
                row = {
                    "accuracy": 0.97,
                    "auroc": 0.9,
                    "confidence": 0.9 if method == "SGD" else 0.8,
                    "mess_share": 0.03,
                    "settled": 0.05,
                    "stationary": 0.01,
                    "perhaps_stationary": 0.9,
                    "fall": 0.02,
                    "train_accuracy": 1.0,
                }
                row = {name: value + noise for name, value in (row | by_method.get(method, {})).items()}
                after = by_method.get(method, {}).get("after", 0.02) + noise
                found.append(
                    {"method": method, "lr": lr, "decay": 0.1, "damping": None, "seed": seed}
                    | row
                    | {"attack": [[0.0, 0.97], [0.25, after]], "accuracy": row["accuracy"] - better}
                    | {"validation": 0.9 + better}
                )
    return found


def test_the_grid_is_judged_by_validation_and_a_point_that_diverged_is_out():
    found = rows()
    assert best(found)["SGD"] == {"method": "SGD", "lr": 0.3, "decay": 0.1, "damping": None}
    assert len(at_best(found)) == 3 * len(training.VARIANTS)
    found.where(method="SGD", lr=0.3)[1]["validation"] = None
    assert best(found)["SGD"]["lr"] == 0.1
    found.where(method="SGD", lr=0.1)[0]["validation"] = None
    assert "SGD" not in best(found)
    assert claims.LESS_CONFIDENT(found).answer == "not judged: SGD diverged at every point of its grid"


def test_the_first_seed_chooses_and_the_others_repeat_its_choice():
    found = rows()
    for row in found.where(method="SGD", lr=0.1):
        row["validation"] = 0.9 if row["seed"] == 0 else 1.0
    assert best(found)["SGD"]["lr"] == 0.3
    settings = mnist.EXPERIMENT.settings["full"]
    assert {cell["seed"] for cell in mnist.EXPERIMENT.cells(settings)} == {0}
    again = [cell for cell in mnist.EXPERIMENT.further(settings, found) if cell["method"] == "SGD"]
    assert again == [{"method": "SGD", "lr": 0.3, "decay": 0.1, "damping": None, "seed": seed} for seed in (1, 2)]


def worse(name, by, methods=("SGLD",)):
    base = {"accuracy": 0.97, "auroc": 0.9}[name]
    return {method: {name: base - by} for method in methods}


@pytest.mark.parametrize(
    ("judge", "changes", "answer"),
    [
        (claims.CLOSE, {}, True),
        (claims.CLOSE, worse("accuracy", 0.05), False),
        (claims.NO_GAIN, {}, True),
        (claims.NO_GAIN, worse("accuracy", -0.01), False),
        (claims.MIXES_POORLY, {}, True),
        (claims.MIXES_POORLY, {"KSGLD": {"mess_share": 0.3}}, False),
        (claims.MIXES_POORLY, {"KSGLD, both": {"mess_share": 0.3}}, True),
        (claims.NOT_STATIONARY, {}, True),
        (claims.NOT_STATIONARY, {"FSGD": {"settled": 0.5}}, False),
        (claims.FALLS_TO_ATTACKS, {}, True),
        (claims.FALLS_TO_ATTACKS, {"SGLD": {"after": 0.4}}, False),
        (claims.LESS_CONFIDENT, {}, True),
        (claims.LESS_CONFIDENT, {"FSGD": {"confidence": 0.95}}, False),
        (claims.DETECTS, worse("auroc", 0.05, ["SGD"]), True),
        (claims.DETECTS, worse("auroc", 0.05), False),
        (claims.AS_GOOD, {}, True),
        (claims.AS_GOOD, worse("accuracy", 0.02, ["FSGD"]), False),
        (small.OVERFITS, {}, True),
        (small.OVERFITS, {"SGD": {"fall": 0.0}}, False),
        (small.BELOW, worse("accuracy", 0.02, training.LANGEVIN), True),
        (small.BELOW, worse("accuracy", -0.02), False),
        (small.MATCHES, {}, True),
        (small.MATCHES, worse("accuracy", 0.02, ["FSGD"]), False),
    ],
)
def test_judges(judge, changes, answer):
    verdict = judge(rows(**changes))
    assert verdict.reproduced is answer, verdict
    assert verdict.measured


@pytest.mark.parametrize("claim", [*mnist.EXPERIMENT.claims, *small.EXPERIMENT.claims], ids=lambda claim: claim.says)
def test_judges_can_not_tell_what_differs_from_seed_to_seed(claim):
    assert claim.judge(rows(spread=0.3)).answer == "can't tell"


def cell(method, seed=0):
    lr, decay, damping = training.VARIANTS[method].grid[0]
    return {"method": method, "lr": lr, "decay": decay, "damping": damping, "seed": seed}


def test_the_attack_is_fgsm_in_pixels_from_0_to_1(tmp_path):
    data = training.read_data(TINY)
    found = training.ensemble(TINY, training.train(TINY, tmp_path, **cell("FSGD")), "FSGD")
    curve = dict(map(tuple, mnist.attack(TINY, found, data)))
    x, y = (part[: TINY.attacked] for part in data.test)
    white, black = 0.6946 / 0.3761, -0.3054 / 0.3761  # of scikit-learn's digits
    attack = FGSM(0.1 / 0.3761, clip=(black, white))
    assert curve[0.1] == under_attack(found, attack, x, y).accuracy
    assert curve[0.0] == under_attack(found, attack, x, y).clean_accuracy
    assert curve[0.1] < curve[0.0]


def test_sgd_predicts_with_its_last_iterate_and_the_others_with_their_second_half(tmp_path):
    run = training.train(TINY, tmp_path, **cell("SGLD"))
    assert len(run) == 25  # 8 epochs of 200 images, 64 a step
    (last,) = training.ensemble(TINY, run, "SGD")
    assert torch.equal(last["head.bias"], run[24]["head.bias"])
    members = list(training.ensemble(TINY, run, "SGLD"))
    expected = [run[index]["head.bias"] for index in (12, 15, 18, 21, 24)]
    assert torch.equal(torch.stack([member["head.bias"] for member in members]), torch.stack(expected))


@pytest.mark.parametrize("method", ["KSGLD", "KSGLD, both"])
@pytest.mark.parametrize("stop", [5, 20])
def test_an_interrupted_run_resumes_and_only_ours_is_frozen_half_way(method, stop, tmp_path, monkeypatch):
    undisturbed = training.train(TINY, tmp_path / "whole", **cell(method))
    honest = training.sample_or_resume

    def stopped(*args, callbacks, **options):
        def cut(info):
            if info.step == stop:
                raise KeyboardInterrupt

        return honest(*args, callbacks=[*callbacks, cut], **options)

    monkeypatch.setattr(training, "sample_or_resume", stopped)
    with pytest.raises(KeyboardInterrupt):
        training.train(TINY, tmp_path / "cut", **cell(method))
    monkeypatch.undo()
    resumed = training.train(TINY, tmp_path / "cut", **cell(method))
    assert resumed.steps == undisturbed.steps
    assert all(torch.equal(resumed[-1][name], tensor) for name, tensor in undisturbed[-1].items())
    (checkpoint,) = resumed.store.checkpoints([0])
    assert checkpoint.values["groups"][0]["frozen"] is training.VARIANTS[method].ours


def test_the_measures_of_mixing_tell_independent_draws_from_a_drift(monkeypatch):
    draws = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    found = {}
    for name, traces in {"independent": draws, "drift": draws + torch.linspace(0, 20, 400)[:, None]}.items():
        monkeypatch.setattr(mnist, "probed", lambda settings, run, traces=traces: traces)
        found[name] = mnist.convergence(TINY, draws)
    assert found["independent"]["mess_share"] > 0.7  # the rule that cuts at the first negative lag loses some
    assert found["independent"]["settled"] == 1
    assert found["independent"]["stationary"] > 0.8  # 0.95 ± 0.03
    assert found["drift"]["mess_share"] < 0.1
    assert found["drift"]["settled"] == 0
    assert found["drift"]["stationary"] < 0.1
    walks = torch.randn(180, 4000, generator=torch.Generator().manual_seed(1)).cumsum(0)
    share = float((mnist.halves_rhat(walks) < 1.1).mean())
    assert share == pytest.approx(claims.WALK, abs=4 * math.sqrt(0.22 * 0.78 / 4000))


@pytest.mark.parametrize(
    ("experiment", "method", "epochs"),
    [
        (mnist, "pSGLD", 4),  # eight steps: mESS of a half needs four draws
        (small, "SGD", 1),
        pytest.param(mnist, "KSGLD, both", 4, marks=pytest.mark.slow),  # eigenvectors of order 3,137
    ],
)
def test_the_papers_configuration_runs(experiment, method, epochs, tmp_path):
    """A few steps at batch 2 on images of noise."""
    paper = experiment.EXPERIMENT.settings["paper"]
    little = {"train_size": 4, "validation_size": 2, "test_size": 4, "batch_size": 2, "thin": 1, "looks": 1}
    settings = dataclasses.replace(paper, data="noise", epochs=epochs, averaged=2, **little)
    row = experiment.measure(settings, tmp_path, **cell(method))
    assert row["validation"] is None or len(row["curve"]) == 1
