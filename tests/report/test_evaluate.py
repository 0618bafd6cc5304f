"""`evaluate` on small runs: what applies is reported, what cannot be determined is reported as unknown."""

import functools
import json
import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import langevin as lv
from langevin.cli.evaluate import _names
from langevin.cli.main import app
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation.calibration import interval_coverage
from tests.helpers import store_nan, toy_data, toy_model, toy_posterior

EVIL = "<script>alert(1)</script>"
draw = partial(lv.sample, sampler=partial(lv.SGLD, lr=1e-2), steps=60, burn_in=20, thin=2, progress=False)


def images():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 1, 4, 4, generator=generator)
    return x, (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0.5).long()


def image_posterior():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    return lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.Gaussian(1.0), num_data=80)


@functools.cache
def image_runs():
    """Four chains of SGLD, and one SGD."""
    sgd = lv.sample(image_posterior(), images(), partial(lv.SGD, lr=0.1), steps=50, thin=50, burn_in=0, progress=False)
    return draw(image_posterior(), images(), chains=4), sgd


@functools.cache
def full_report():
    """A report with everything: out-of-distribution inputs, an attack, a baseline."""
    run, sgd = image_runs()
    outside = 5 * torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    return lv.evaluate(
        run, images(), ood={EVIL: outside}, attack=lv.evaluation.FGSM(0.1), baselines={"SGD": sgd}, probe=5
    )


def about(report, what):
    return [verdict for verdict in report.verdicts if verdict.about == what]


def test_a_report_with_everything():
    report = full_report()
    kinds = [verdict.about for verdict in report.verdicts]
    assert kinds == [
        "Temperature",
        "Convergence",
        "Effective sample size",
        "Stationarity",
        "Calibration",
        "OOD detection",
        "Attack",
        "Comparison",
    ]
    assert report.title == "SGLD: evaluation"
    assert report.summary == "80 samples of 4 chains, evaluated on 80 test inputs, compared with SGD."
    assert [table.title for table in report.tables] == [
        "Scores",
        "Differences from SGLD",
        f"Out-of-distribution inputs: {EVIL}",
        "Attack: FGSM(0.1)",
        "Convergence",
        "Temperature",
    ]
    assert len(report.pictures) == 7
    assert report.configuration["Sampler"] == "SGLD(lr=0.01)"
    assert report.configuration["Weights"] == "51"
    assert report.versions["torch"] == torch.__version__
    assert [entry.partition("{")[2].partition(",")[0] for entry in report.citations] == [
        "welling2011bayesian",
        "vehtari2021rank",
        "goodfellow2015explaining",
    ]


def test_the_page_escapes_names_of_the_user_and_is_small():
    page = full_report().html()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert len(page.encode()) < 1_000_000


def test_the_numbers_are_those_of_the_evaluation():
    run, sgd = image_runs()
    x, y = images()
    numbers = json.loads(json.dumps(full_report().to_dict()))["numbers"]
    expected = lv.compare({"SGLD": run, "SGD": sgd}, (x, y)).to_dict()
    assert numbers["comparison"] == json.loads(json.dumps(expected))
    rows = {row[0]: row[1:] for row in full_report().tables[0].rows}
    assert rows["Accuracy"][0] == f"{float((run.predict(x).labels == y).double().mean()):.1%}"
    assert rows["Mean confidence"][1] == f"{float(sgd.predict(x).confidence.mean()):.3f}"
    assert numbers["chains"]["temperatures"]["virial"]["mean"] == pytest.approx(run.temperature().mean)
    assert numbers["attack"]["SGLD"]["clean_accuracy"] == pytest.approx(float(rows["Accuracy"][0][:-1]) / 100, abs=1e-3)


def test_convergence_of_one_chain_is_unknown():
    report = lv.evaluate(draw(toy_posterior(), toy_data()), toy_data(), probe=5)
    (verdict,) = about(report, "Convergence")
    assert verdict.level == "unknown"
    assert about(report, "OOD detection")[0].level == "unknown"
    assert ["R̂, largest", "unknown", "unknown"] in next(t for t in report.tables if t.title == "Convergence").rows
    report.html()


def test_one_sample_has_unknown_diagnostics():
    run = draw(toy_posterior(), toy_data(), thin=40)
    assert len(run) == 1
    report = lv.evaluate(run, toy_data(), probe=5)
    for what in ("Temperature", "Convergence", "Effective sample size", "Stationarity"):
        (verdict,) = about(report, what)
        assert verdict.level == "unknown", verdict
    assert about(report, "Calibration")
    assert "nan" not in report.html().replace("nanoseconds", "").lower().split("</style>")[1].replace("finance", "")


def test_a_thermostat_sets_the_kinetic_temperature_by_construction():
    run = draw(toy_posterior(), toy_data(), sampler=partial(lv.SGNHT, lr=1e-2))
    (table,) = [t for t in lv.evaluate(run, toy_data(), probe=5).tables if t.title == "Temperature"]
    assert "SGNHT's thermostat makes the kinetic temperature T by construction" in table.caption
    assert table.rows[-1][0] == "Kinetic, all weights"
    assert {row[0] for row in table.rows} >= {"0.weight", "2.bias"}


def test_sgd_does_not_sample_the_posterior():
    _, sgd = image_runs()
    report = lv.evaluate(sgd, images(), probe=5)
    (verdict,) = about(report, "Temperature")
    assert "SGD" in verdict.message
    assert "not samples of the posterior" in verdict.message
    assert not about(report, "Convergence")


def test_non_finite_samples_are_reported_first_and_excluded(tmp_path, monkeypatch):
    store_nan(monkeypatch, number=3)
    draw(toy_posterior(), toy_data(), out=tmp_path / "run")
    with pytest.warns(UserWarning, match="2.bias"):
        report = lv.evaluate(lv.load(tmp_path / "run", toy_model()), toy_data(), probe=5)
    first = report.verdicts[0]
    assert first.level == "bad"
    assert "2.bias" in first.message
    assert "19 samples remain" in first.message
    assert report.to_dict()["numbers"]["samples"] == 19
    assert report.html().index("2.bias") < report.html().index("Calibration")


def test_regression():
    x = toy_data()[0]
    run = draw(regression_posterior(), (x, x[:, :2]), chains=2)
    report = lv.evaluate(run, (x, x[:, :2]), ood={"far": 10 * x}, baselines={"same": run}, probe=5)
    assert "intervals" in about(report, "Calibration")[0].message
    assert about(report, "OOD detection")[0].level == "good"
    assert about(report, "Comparison")[0].level == "unknown"
    assert report.tables[0].rows[0][0] == "Root mean square error"
    report.html()
    with pytest.raises(ValueError, match="leave out attack"):
        lv.evaluate(run, (x, x[:, :2]), attack=lv.evaluation.FGSM(0.1))


def regression_posterior():
    torch.manual_seed(0)
    likelihood = lv.likelihoods.Gaussian(0.5, sampled=True)
    return lv.Posterior(nn.Linear(4, 2), likelihood, lv.priors.Gaussian(), num_data=60)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_without_an_attack_every_sample_is_read_once(task, tmp_path, monkeypatch):
    """Of the run and of the baseline; a second prediction, or diagnostics of the weights, would read them again."""
    monkeypatch.setattr("langevin.storage.stored_samples._CACHED", 0)
    x, y = toy_data()
    posterior, data = (toy_posterior, (x, y)) if task == "classification" else (regression_posterior, (x, x[:, :2]))
    runs = [draw(posterior(), data, chains=2, seed=seed, out=tmp_path / f"run{seed}") for seed in (0, 1)]
    reads, predictions = Counter(), Counter()

    def counted(run):
        read_rows, predict_many = run.store.read_rows, run.predict_many

        def counting_read_rows(records):
            reads.update((run.path, record.chain, record.step) for record in records)
            return read_rows(records)

        def counting_predict_many(*arguments, **options):
            predictions[run.path] += 1
            return predict_many(*arguments, **options)

        monkeypatch.setattr(run.store, "read_rows", counting_read_rows)
        monkeypatch.setattr(run, "predict_many", counting_predict_many)
        return run

    run, baseline = (counted(lv.load(made.path, posterior().model, posterior().likelihood)) for made in runs)
    lv.evaluate(run, data, ood={"far": 10 * x}, baselines={"other": baseline}, probe=5).html()
    places = {(r.path, record.chain, record.step) for r in (run, baseline) for record in r.samples.records}
    assert len(places) == len(run) + len(baseline) == 80
    assert reads == dict.fromkeys(places, 1)
    assert predictions == {run.path: 1, baseline.path: 1}


def test_the_coverage_of_a_gaussian_is_nominal():
    from langevin.ensembles.prediction import ValuePrediction

    n = 20_000
    prediction = ValuePrediction(torch.zeros(n), torch.full((n,), 3.0), torch.full((n,), 1.0))
    target = 2 * torch.randn(n, generator=torch.Generator().manual_seed(0))
    for nominal, share in interval_coverage(prediction, target).items():
        assert abs(share - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / n)


def test_the_coverage_of_counts_is_nominal():
    from langevin.ensembles.mixture import Mixture
    from langevin.ensembles.prediction import ValuePrediction

    n = 20_000
    rates = torch.rand(2, n, generator=torch.Generator().manual_seed(0)) * 3
    components = Mixture(lv.likelihoods.Poisson().distribution, (rates,))
    prediction = ValuePrediction(rates.mean(0), rates.mean(0), rates.var(0, correction=0), components=components)
    for nominal, share in interval_coverage(prediction, prediction.sample(1, seed=2)[0]).items():
        assert abs(share - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / n)


def test_bernoulli_labels_of_shape_n_1():
    x = toy_data()[0]
    y = (x[:, :1] > 0).float()
    posterior = lv.Posterior(nn.Linear(4, 1), lv.likelihoods.Bernoulli(), lv.priors.Gaussian(), num_data=60)
    report = lv.evaluate(draw(posterior, (x, y)), (x, y), probe=5)
    assert report.tables[0].rows[0][0] == "Accuracy"


def test_a_distilled_network_against_its_ensemble():
    run, _ = image_runs()
    x, y = images()
    student = lv.distill(run, image_posterior().model, x, steps=100, lr=0.05)
    report = lv.evaluate(run, (x, y), baselines={"distilled": student}, attack=lv.evaluation.FGSM(0.1), probe=5)
    assert about(report, "Comparison")
    alone = lv.evaluate(student, (x, y))
    assert [verdict.about for verdict in alone.verdicts] == ["Calibration", "OOD detection"]
    assert "korattikara2015bayesian" in alone.citations[0]
    assert alone.title.startswith("Distilled")
    alone.html()


class Fitted:
    """The interface of a fit."""

    manifest = {"method": {"name": "SWAG", "options": {"rank": 3}}, "environment": {"torch": "2"}}  # noqa: RUF012

    def predict(self, x, *, batch_size=1024, samples=False):
        probs = torch.full((len(x), 3), 1 / 3)
        entropy = torch.special.entr(probs).sum(1)
        return ClassPrediction(probs, entropy, 0.9 * entropy)

    def trace(self, name):
        return {0: [3.0, 2.0, 1.0]}


def test_a_plain_network():
    x, y = toy_data()
    network = toy_model()
    report = lv.evaluate(
        network, (x, y), ood={"far": 9 * x}, attack=lv.evaluation.FGSM(0.1), baselines={"again": network}
    )
    assert [verdict.about for verdict in report.verdicts] == ["Calibration", "OOD detection", "Attack", "Comparison"]
    assert report.configuration == {"Kind": "Sequential"}
    assert report.citations[0].startswith("@inproceedings{goodfellow")


def test_diagnostics_of_chains_are_not_shown_for_a_fit():
    report = lv.evaluate(Fitted(), toy_data())
    assert report.title == "SWAG: evaluation"
    assert [verdict.about for verdict in report.verdicts] == ["Calibration", "OOD detection"]
    assert [table.title for table in report.tables] == ["Scores"]
    assert "Training loss (trace)" in [picture.title for picture in report.pictures]
    assert report.configuration["Method"] == "SWAG(rank=3)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ood": {"empty": torch.zeros(0, 4)}}, r"ood\['empty'\] is empty"),
        ({"ood": {"odd": 3}}, r"ood\['odd'\]"),
        ({"test": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))}, "empty"),
        ({"test": (torch.zeros(5, 4), torch.full((5,), 7))}, "found label 7"),
        ({"baselines": {"two": 3}}, "Give a run"),
        ({"probe": 0}, "probe must be an integer, 1 or more; given probe=0"),
    ],
)
def test_bad_input(options, message):
    run = draw(toy_posterior(), toy_data())
    with pytest.raises(ValueError, match=message):
        lv.evaluate(run, options.pop("test", toy_data()), **options)


def test_runs_with_different_classes_are_not_compared():
    run = draw(toy_posterior(), toy_data())
    other = draw(toy_posterior(toy_model(classes=4)), toy_data())
    with pytest.raises(ValueError, match="'four': 4 classes"):
        lv.evaluate(run, toy_data(), baselines={"four": other})


def test_a_baseline_of_the_same_name_renames_the_run():
    run = draw(toy_posterior(), toy_data())
    assert lv.evaluate(run, toy_data(), baselines={"SGLD": run}, probe=5).title.startswith("SGLD (this run)")


def test_the_command_line_evaluates_and_writes_reports(tmp_path):
    quick = ["--model", "mlp", "--data", "digits", "--lr", "0.1", "--thin", "5", "--model-option", "widths=[8]"]
    for seed, name in enumerate(("a", "b")):
        command("sample", *quick, "--steps", "40", "--seed", seed, "--out", tmp_path / name)
    output = command("evaluate", tmp_path / "a", "--attack", "fgsm", "--json", tmp_path / "a.json")
    assert "Calibration" in output
    assert json.loads((tmp_path / "a.json").read_text())["numbers"]["samples"] == 6
    output = command("report", tmp_path / "a", "--baseline", tmp_path / "b", "--ood", "digits")
    assert "report.html" in output
    assert "No significant difference from b" in output or "than b" in output
    assert (tmp_path / "a" / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ValueError, match="choose fgsm or pgd"):
        command("report", tmp_path / "a", "--attack", "stone")
    draw(toy_posterior(), toy_data(), out=tmp_path / "mine")
    with pytest.raises(ValueError, match=r"lv.evaluate\(lv.load\("):
        command("report", tmp_path / "mine")


def test_the_command_line_needs_test_data_for_custom_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "theirs.py").write_text(
        "import torch\n"
        "def net(width=2):\n    return torch.nn.Linear(4, width)\n"
        "def data():\n    x = torch.linspace(-1, 1, 80).reshape(20, 4)\n    return x, (x[:, 0] > 0).long()\n"
        "def other():\n    return torch.full((5, 4), 9.0)\n"
    )
    options = ["--model", "theirs:net", "--data", "theirs:data", "--lr", "0.01", "--steps", "20", "--out", "run"]
    command("sample", *options)
    with pytest.raises(ValueError, match="--test module:function"):
        command("evaluate", "run", "--trust")
    output = command("evaluate", "run", "--trust", "--test", "theirs:data", "--ood", "theirs:other")
    assert "theirs:other" in output


def test_runs_of_the_same_name_are_shown_by_their_paths():
    assert list(_names([Path("x/a"), Path("y/a"), Path("y/b")])) == ["x/a", "y/a", "b"]


def command(*words):
    """Run the command line in this process; errors are raised."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return done.stdout
