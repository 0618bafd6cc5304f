"""`langevin fit`, and what continues a fit."""

import pytest

import langevin as lv
from tests.cli.command import DIGITS, langevin

START = ["fit", "--model", "mlp", "--data", "digits", "--out", "x"]


def test_fit_status_resume_cite_and_init(tmp_path):
    first, second = tmp_path / "meanfield", tmp_path / "hwa"
    said = langevin("fit", "--out", first, *DIGITS, "--lr", "0.01", "--steps", "60", "--method-option", "kl_warmup=20")
    assert "MeanField(" in said
    assert "after 10 snapshots" in said
    said = langevin(
        *("fit", "--out", second, *DIGITS, "--lr", "0.01", "--steps", "60", "--method", "hwa", "--init", first),
        *("--method-option", "cycle=20", "--method-option", "low=0.001", "--method-option", "family=lowrank"),
        *("--optimizer", "SGD", "--optimizer-option", "nesterov=true"),
    )
    assert "after 3 snapshots" in said
    found = lv.load(second)
    assert found.approximation == lv.HWA(cycle=20, low=0.001, family=lv.LowRank())
    assert found.manifest["sampler"]["options"] == {"momentum": 0.9, "lr": 0.01, "nesterov": True}
    assert found.predict(lv.data.digits("test").tensors[0]).probs.shape == (360, 10)
    status = langevin("status", second)
    assert status.startswith("HWA(cycle=20")
    assert status.splitlines()[-1].split()[:4] == ["0", "60", "60", "3"]
    assert "after 4 snapshots" in langevin("resume", second, "--steps", "80")
    assert langevin("cite", second) == langevin("cite", "hwa")
    assert "never overwritten" in langevin("fit", "--out", second, *DIGITS, "--lr", "0.01", code=2)


def test_laplace(tmp_path):
    where = ["--model", "logistic", "--data", "digits", "--out", tmp_path / "r", "--steps", "20"]
    prior = ["--prior", "gaussian", "--prior-option", "std=1"]
    assert "Laplace(structure='diagonal'" in langevin(
        "fit", "--method", "laplace", *where, *prior, "--method-option", "structure=diagonal"
    )
    assert len(lv.load(tmp_path / "r")) == 100
    assert lv.load(tmp_path / "r").manifest["prior"] == "Gaussian(std=1)"
    assert "0 problems" in langevin("verify", tmp_path / "r")  # it has no checkpoint, and needs none
    assert "nothing to continue" in langevin("resume", tmp_path / "r", code=2)


def test_methods_with_and_without_an_optimizer_of_their_own(tmp_path):
    words = ["--method", "ivon", "--method-option", "lr=0.05", "--steps", "20"]
    assert "IVON(lr=0.05" in langevin("fit", "--out", tmp_path / "ivon", *DIGITS, *words)
    assert "after 12 snapshots" in langevin("resume", tmp_path / "ivon", "--steps", "24")
    words = ["--method", "mcdropout", "--method-option", "rate=0.2", "--lr", "0.01", "--steps", "20"]
    assert "MCDropout(rate=0.2)" in langevin("fit", "--out", tmp_path / "dropout", *DIGITS, *words)
    assert len(lv.load(tmp_path / "dropout")) == 50


def test_swa_averages_the_iterates_of_sgd(tmp_path):
    words = ["--lr", "0.01", "--steps", "40", "--method", "swa", "--method-option", "cycle=10"]
    langevin("fit", "--out", tmp_path / "r", *DIGITS, *words)
    assert lv.load(tmp_path / "r").manifest["sampler"]["name"] == "torch.optim.SGD"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "vogn"], f"--method vogn: choose one of {', '.join(lv.approximations.APPROXIMATIONS)}."),
        ([], "needs a learning rate"),
        (["--lr", "1", "--method-option", "rank=3"], "has no option 'rank'; it has init_std"),
        (
            ["--lr", "1", "--method-option", "init_std=abc"],
            "init_std must be a number, 0 or more",
        ),
        (["--lr", "1", "--method", "hwa", "--method-option", "family=5"], "give lv.MeanField"),
        (["--lr", "1", "--method", "hwa", "--method-option", "family=vogn"], "choose one of"),
        (["--lr", "1", "--optimizer", "Adamant"], "no such class"),
        (["--lr", "1", "--optimizer-option", "speed=1"], "--optimizer Adam can't be called with"),
        (["--lr", "1", "--optimizer-option", "weight_decay=abc"], "--optimizer Adam can't be made with"),
        (["--lr", "1", "--method", "swa", "--steps", "50"], "the cycle is longer than the 50 steps"),
        (["--method", "laplace", "--lr", "1"], "takes no steps"),
        (["--method", "ivon", "--lr", "1"], "is an optimizer itself (--method-option lr=0.1)"),
        (["--method", "mcdropout", "--lr", "1"], "write lv.MCDropout(rate=0.1)"),
        (["--lr", "1", "--init", "nowhere"], "nowhere contains no run"),
    ],
)
def test_errors_are_sentences(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in langevin(*START, *words, code=2)
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_help_teaches():
    said = langevin("fit", "--help")
    assert "langevin fit --method hwa --init runs/meanfield" in said
    assert f"One of {', '.join(lv.approximations.APPROXIMATIONS)}." in " ".join(said.split())
