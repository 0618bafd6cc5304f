"""Errors are sentences with exit code 2; Ctrl-C is exit code 130. Neither is a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import langevin as lv
from tests.cli.command import QUICK, forget_modules, langevin, run

START = ["sample", "--model", "mlp", "--data", "digits", "--out", "x", "--lr", "0.1"]
MINE = """
import torch

def number():
    return 3

def net(width):
    return torch.nn.Linear(64, width)

def numbers():
    return 3
"""


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forget_modules(monkeypatch, "errors_mine")
    (tmp_path / "errors_mine.py").write_text(MINE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["doctor"], "Give a set-up or a device"),
        (["doctor", "nothing:here"], "can't be imported"),
        (["doctor", "nothing"], "not of the form module:function"),
        (["doctor", "json:loads2"], "has no function 'loads2'"),
        (["doctor", "errors_mine:number"], "must return (posterior, data) or a dict with both; it returned int"),
        ([*START, "--sampler", "gibbs"], f"--sampler gibbs: choose one of {', '.join(lv.samplers.SAMPLERS)}."),
        ([*START, "--likelihood", "binomial"], f"choose one of {', '.join(lv.likelihoods.LIKELIHOODS)}."),
        ([*START, "--prior", "horseshoe"], f"--prior horseshoe: choose one of {', '.join(lv.priors.PRIORS)}."),
        (["sample", "--model", "perceptron", *START[3:]], "--model perceptron is not known; choose one of cnn"),
        ([*START[:3], "--data", "letters", *START[5:]], "--data letters is not known; choose one of binary-logistic"),
        ([*START[:-1], "-1"], "lr must be positive"),
        ([*START, "--sampler-option", "speed=3"], "unexpected keyword argument 'speed'; its options are lr, "),
        ([*START, "--sampler-option", "speed"], "name=value"),
        ([*START, "--sampler-option", "=3"], "name=value"),
        (
            [*START, "--sampler-option", "temperature=abc"],
            "temperature must be a number, 0 or more; given temperature='abc'",
        ),
        ([*START, "--sampler-option", "seed=3"], "is not an option of the sampler"),
        ([*START, "--temperature", "auto"], "--temperature auto is for the autopilot, which chooses the learning rate"),
        ([*START, "--temperature", "hot"], "'hot' is neither a number nor \"auto\""),
        ([*START, "--sampler", "sgd", "--temperature", "1"], "unexpected keyword argument 'temperature'"),
        ([*START, "--model-option", "depth=3"], "expected"),
        ([*START, "--model-option", "widths=abc"], "widths='abc'"),
        ([*START, "--model-option", "widths=[0]"], "expected positive integers"),
        ([*START, "--data-option", "normalize=5"], "normalize=5"),
        ([*START, "--likelihood-option", "std=1"], "--likelihood categorical can't be called with std=1"),
        (
            [*START, "--likelihood", "gaussian", "--likelihood-option", "std=abc"],
            "std must be a number, 0 or more; given std='abc'",
        ),
        (
            [*START, "--prior", "gaussian", "--prior-option", "std=abc"],
            "std must be a number, 0 or more; given std='abc'",
        ),
        ([*START, "--prior", "gaussian", "--prior-option", "std=-1"], "std must be positive"),
        ([*START, "--prior-option", "std=1"], "--prior gaussian --prior-option std=1.0"),
        ([*START, "--seed", "-1"], "--seed -1: give an integer from 0"),
        ([*START, "--seed", 2**64], "give an integer from 0"),
        ([*START, "--seed", "one"], "--seed"),
        ([*START, "--device", "tpu"], "--device tpu can't be used"),
        ([*START, "--device", "meta"], "--device meta can't be used"),
        ([*START, "--sample-dtype", "int8"], "choose one of float16, bfloat16"),
        ([*START, "--resume", "yes"], "--resume yes: choose one of auto."),
        ([*START, "--log", "wandb"], "--log wandb: choose one of tensorboard."),
        ([*START, "--validation", "digits"], "write --log tensorboard too"),
        ([*START, "--mesh", "rows=2"], "not of the form chains=2,data=2"),
        ([*START, "--steps", "0"], "steps must be an integer, 1 or more"),
        ([*START, "--num-data", "0"], "num_data"),
        (["sample", "--model", "errors_mine:number", *START[3:]], "must return a torch.nn.Module; it returned int"),
        (["sample", "--model", "errors_mine:net", *START[3:]], "missing a required argument: 'width'"),
        ([*START[:3], "--data", "errors_mine:numbers", *START[5:]], "data must be a pair of tensors"),
        (["cite", "nothing"], "choose one of"),
        (["evaluate", "x", "--eps", "0.1"], "--attack fgsm"),
        (["evaluate", "x", "--attack", "stone"], "choose fgsm or pgd"),
        (["evaluate", "x", "--json", "numbers.txt"], "write --json numbers.json"),
        (["report", "x", "--out", "page.pdf"], "write --out page.html"),
    ],
)
def test_errors_are_sentences(words, says, tmp_path):
    code, out, err = run(*words)
    assert code == 2
    assert says in err
    assert out == ""
    assert not (tmp_path / "x" / "manifest.json").exists()


@pytest.mark.parametrize("words", [["status"], ["verify"], ["resume"], ["evaluate"], ["report"]])
def test_a_missing_run_is_said_to_be_missing(words):
    assert "nowhere contains no run" in langevin(*words, "nowhere", code=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_cuda_device_that_is_not_there_is_refused(device):
    assert f"--device {device}: torch finds no CUDA device here" in langevin(*START, "--device", device, code=2)
    assert f"--device {device}: torch finds no CUDA device here" in langevin("resume", "x", "--device", device, code=2)


def test_a_cuda_device_beyond_those_that_are_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "--device cuda:2: there are 2 CUDA devices, cuda:0 to cuda:1" in langevin(
        *START, "--device", "cuda:2", code=2
    )


def test_places_that_can_not_be_written_are_refused_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    said = langevin(*START[:5], "--out", "file/run", "--lr", "0.1", code=2)
    assert "--out file/run can't be written" in said
    assert "file is a file, not a directory" in said
    assert "--out file can't be written" in langevin(*START[:5], "--out", "file", "--lr", "0.1", code=2)
    assert "file is a file" in langevin("fit", *START[1:5], "--out", "file/run", "--lr", "0.1", code=2)
    langevin("sample", *QUICK, "--out", "run")
    monkeypatch.setattr("langevin.report.evaluate", pytest.fail)
    (tmp_path / "folder.html").mkdir()
    assert "file is a file" in langevin("report", "run", "--out", "file/page.html", code=2)
    assert "folder.html is a directory" in langevin("report", "run", "--out", "folder.html", code=2)
    assert "file is a file" in langevin("evaluate", "run", "--json", "file/numbers.json", code=2)
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert "is not writable" in langevin("report", "run", "--out", "page.html", code=2)


def test_an_error_of_the_system_is_a_sentence(tmp_path, monkeypatch):
    """A disk that fills up, a directory that is taken away: what no check before could know."""

    def full(*_):
        raise OSError(28, "No space left on device", "page.html")

    langevin("sample", *QUICK, "--out", "run")
    monkeypatch.setattr("langevin.report.Report.save", full)
    assert langevin("report", "run", code=2) == "langevin: page.html: No space left on device.\n"


def test_an_error_in_a_function_of_the_users_is_shown_as_it_is(tmp_path):
    (tmp_path / "errors_mine.py").write_text("def net():\n    return None + 1\n")
    with pytest.raises(TypeError, match="NoneType"):
        run("sample", "--model", "errors_mine:net", *START[3:])


def test_interrupted_runs_exit_with_130_and_resume(tmp_path):
    endless = ["--model", "mlp", "--data", "digits", "--lr", "0.1", "--steps", "10000000", "--thin", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "langevin", "sample", *endless, "--out", "run"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run" / "writers").glob("*.json")):  # a heartbeat: it samples
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "resume from run" in said
    step = int(langevin("status", "run").splitlines()[-1].split()[1])
    assert 0 < step < 10_000_000


def test_an_interrupt_outside_of_the_loop_exits_with_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("langevin.storage.status.describe", interrupted)
    assert run("status", "run")[0] == 130


def test_an_interrupted_stage_of_the_autopilot_exits_with_130_and_says_how_to_go_on(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("langevin.inference.autopilot.autopilot.run_warm_start", interrupted)
    code, _, said = run("sample", "--model", "mlp", "--data", "digits", "--out", "run")
    assert code == 130
    assert said.splitlines()[-1] == "Stopped in the stage 'warm start'; resume from run: langevin resume run."
    assert "autopilot, stage: warm start" in langevin("status", "run")
