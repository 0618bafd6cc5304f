"""`langevin fit`, and what goes on with a fit."""

import pytest
from typer.testing import CliRunner

import langevin as lv
from langevin.cli.main import app

WHERE = ["--model", "mlp", "--data", "digits", "--model-option", "widths=[8]"]
START = ["fit", "--model", "mlp", "--data", "digits", "--out", "x"]


def langevin(*words, fails=False):
    """The command line, in this process: a new one would spend its time on importing torch."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if fails:
        assert isinstance(done.exception, ValueError), done.output
        return str(done.exception)
    assert done.exception is None, done.exception
    return done.output


def test_fit_status_resume_cite_and_start_from_it(tmp_path):
    first, second = tmp_path / "meanfield", tmp_path / "hwa"
    said = langevin("fit", "--out", first, *WHERE, "--lr", "0.01", "--steps", "60", "--method-option", "kl_warmup=20")
    assert "MeanField(" in said
    assert "after 10 snapshots" in said
    said = langevin(
        *("fit", "--out", second, *WHERE, "--lr", "0.01", "--steps", "60", "--method", "hwa", "--init", first),
        *("--method-option", "cycle=20", "--method-option", "low=0.001", "--method-option", "family=lowrank"),
        *("--optimizer", "SGD", "--optimizer-option", "nesterov=true"),
    )
    assert "after 3 snapshots" in said
    found = lv.load(second)
    assert found.method == lv.HWA(cycle=20, low=0.001, family=lv.LowRank())
    assert found.manifest["sampler"]["options"] == {"momentum": 0.9, "lr": 0.01, "nesterov": True}
    assert found.predict(lv.data.digits("test").tensors[0]).probs.shape == (360, 10)
    status = langevin("status", second)
    assert status.startswith("HWA(cycle=20")
    assert status.splitlines()[-1].split()[:4] == ["0", "60", "60", "3"]
    assert "after 4 snapshots" in langevin("resume", second, "--steps", "80")
    assert langevin("cite", second) == langevin("cite", "hwa")


def test_laplace(tmp_path):
    where = ["--model", "logistic", "--data", "digits", "--out", tmp_path / "r", "--steps", "20", "--prior-std", "1"]
    assert "LaplaceApproximation(structure='diagonal'" in langevin(
        "fit", "--method", "laplace", *where, "--method-option", "structure=diagonal"
    )
    assert len(lv.load(tmp_path / "r")) == 30


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "vogn"], "choose one of meanfield, lowrank, swa, swag, hwa, laplace"),
        ([], "needs a learning rate"),
        (["--lr", "1", "--method-option", "rank=3"], "has no option 'rank'; it has init_std"),
        (["--lr", "1", "--optimizer", "Adamant"], "no such class"),
        (["--lr", "1", "--optimizer-option", "speed=1"], "Adam has no such option"),
        (["--lr", "1", "--method", "swa", "--steps", "50"], "the cycle is longer than the 50 steps"),
    ],
)
def test_errors_are_sentences(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in langevin(*START, *words, fails=True)


def test_help_teaches():
    assert "langevin fit --method hwa --init runs/meanfield" in langevin("fit", "--help")
