"""Sampling, resuming and looking at runs from the command line."""

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import langevin as lv
from langevin.cli.main import COMMANDS, app
from langevin.models import MLP
from tests.cli.command import DIGITS, QUICK, forget_modules, langevin, run

MINE = """
import torch
import langevin as lv
from functools import partial

def net(width=3):
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

def train():
    x = torch.linspace(-1, 1, 80).reshape(40, 2)
    return x, x.sum(1, keepdim=True)

def stream():
    return torch.utils.data.DataLoader(Stream(), batch_size=8)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(list(zip(*train())))

def posterior(num_data):
    return lv.Posterior(net(), lv.likelihoods.Gaussian(0.5), lv.priors.Gaussian(), num_data=num_data)

def healthy():
    return {"posterior": posterior(40), "data": train(), "sampler": partial(lv.SGLD, lr=1e-3)}

def ill():
    return posterior(4), train()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A directory with a module of the user's."""
    monkeypatch.chdir(tmp_path)
    forget_modules(monkeypatch, "mine")
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_a_bad_verdict_is_exit_code_3_and_the_run_is_kept(tmp_path, monkeypatch):
    hot = [*DIGITS, "--lr", "20", "--steps", "200", "--thin", "2", "--out", tmp_path / "run"]
    code, said, explained = run("sample", *hot)
    assert code == 3
    assert said == f"75 samples in {tmp_path / 'run'}; verdict bad\n"
    assert "too hot" in explained
    assert "Lower the learning rate" in explained
    assert "75" in langevin("status", tmp_path / "run")
    assert run("resume", tmp_path / "run")[0] == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")  # torchrun would start it again
    assert run("resume", tmp_path / "run")[0] == 0


def test_sample_status_resume_cite(tmp_path):
    run = tmp_path / "run"
    said = langevin("sample", *QUICK, "--out", run)
    assert said.startswith(f"4 samples in {run}; verdict ")
    said = langevin("status", run)
    assert "SGLD(lr=0.1)" in said
    assert "last heartbeat" in said
    assert said.splitlines()[-1].split()[:4] == ["0", "60", "60", "4"]
    assert "6 samples in" in langevin("resume", run, "--steps", "80")
    assert len(lv.load(run, MLP(64, 10, widths=(8,)))) == 6
    assert len(lv.load(run)) == 6  # it knows its model by name
    assert lv.cite("sgld").strip() == langevin("cite", run).strip()
    assert "6 intact samples, 0 problems" in langevin("verify", run)
    again = langevin("sample", *QUICK, "--out", run, code=2)
    assert "never overwritten" in again
    assert f"langevin resume {run}" in again


def test_resume_auto_continues_the_run_that_the_directory_contains(tmp_path):
    run = tmp_path / "run"
    assert "4 samples in" in langevin("sample", *QUICK, "--out", run, "--resume", "auto")
    longer = [*QUICK, "--burn-in", "15", "--steps", "80"]
    assert "6 samples in" in langevin("sample", *longer, "--out", run, "--resume", "auto")
    assert "its seed is 0" in langevin("sample", *longer, "--seed", "1", "--out", run, "--resume", "auto", code=2)


def test_sample_dtype_halves_the_samples(tmp_path):
    langevin("sample", *QUICK, "--out", tmp_path / "half", "--sample-dtype", "float16")
    langevin("sample", *QUICK, "--out", tmp_path / "single")
    assert json.loads((tmp_path / "half" / "manifest.json").read_text())["sample_dtype"] == "float16"
    sizes = [sum(f.stat().st_size for f in (tmp_path / name / "samples").rglob("*.*")) for name in ("half", "single")]
    assert sizes[0] < 0.7 * sizes[1]


def test_likelihood_and_prior_by_name_with_options(tmp_path):
    chosen = ["--prior", "studentt", "--prior-option", "df=4", "--prior-option", "scale=0.5"]
    langevin("sample", *QUICK, "--out", tmp_path / "run", "--likelihood", "Categorical", *chosen)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["prior"] == "StudentT(df=4, scale=0.5)"
    assert manifest["likelihood"]["name"] == "Categorical"
    assert "6 samples in" in langevin("resume", tmp_path / "run", "--steps", "80")  # with the same posterior
    assert lv.load(tmp_path / "run").predict(lv.data.digits("test").tensors[0]).probs.shape == (360, 10)


def test_the_default_prior_is_that_of_the_library(tmp_path):
    langevin("sample", *QUICK, "--out", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["prior"] == repr(lv.priors.default(MLP(64, 10, widths=(8,))))


def test_bring_your_own(mine):
    out = langevin(
        *("sample", "--model", "mine:net", "--data", "mine:train", "--out", "run", "--lr", "0.001", "--steps", "40"),
        *("--sampler", "sghmc", "--sampler-option", "momentum=0.8", "--chains", "2"),
    )
    assert "60 samples" in out
    manifest = json.loads((mine / "run" / "manifest.json").read_text())
    assert manifest["sampler"] == {"name": "SGHMC", "options": {"lr": 0.001, "momentum": 0.8}}
    assert "likelihood.log_std" in manifest["tensors"]
    streamed = ["sample", "--model", "mine:net", "--data", "mine:stream", "--out", "s", "--lr", "0.001", "--steps", "8"]
    assert "--num-data" in langevin(*streamed, code=2)
    langevin(*streamed, "--num-data", "40")
    assert json.loads((mine / "s" / "manifest.json").read_text())["num_data"] == 40
    assert "langevin resume run --trust" in langevin("resume", "run", "--steps", "41", code=2)
    assert "62 samples" in langevin("resume", "run", "--steps", "41", "--trust")


def test_likelihood_options_are_those_of_the_constructor(mine):
    words = ["--model", "mine:net", "--data", "mine:train", "--lr", "0.001", "--steps", "8"]
    langevin(
        "sample", *words, "--out", "run", "--likelihood-option", "std=0.25", "--likelihood-option", "sampled=false"
    )
    manifest = json.loads((mine / "run" / "manifest.json").read_text())
    assert manifest["likelihood"] == {"name": "Gaussian", "options": {"std": 0.25, "sampled": False}}


def test_doctor(mine):
    assert "error" not in langevin("doctor", "mine:healthy")
    assert "error  number of data: num_data=4, but the data set has 40" in langevin("doctor", "mine:ill", code=1)


def test_evaluate_and_report_with_baselines(tmp_path):
    for seed, name in enumerate(("a", "b", "c")):
        langevin("sample", *QUICK, "--out", tmp_path / name, "--seed", seed)
    others = ["--baseline", tmp_path / "b", "--baseline", tmp_path / "c"]
    said = langevin("evaluate", tmp_path / "a", "--attack", "fgsm", "--json", tmp_path / "a.json", *others)
    assert "Calibration" in said
    numbers = json.loads((tmp_path / "a.json").read_text())["numbers"]
    assert numbers["samples"] == 4
    assert set(numbers["comparison"]["scores"]) == {"a", "b", "c"}
    assert set(numbers["attack"]) == {"a", "b", "c"}
    said = langevin("report", tmp_path / "a", *others, "--ood", "digits", "--out", tmp_path / "page.html")
    assert f"Open in a browser: {tmp_path / 'page.html'}" in said
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_evaluate_asks_for_test_data_that_it_can_not_know(mine):
    words = ["--data", "mine:train", "--lr", "0.001", "--steps", "40", "--thin", "2"]
    langevin("sample", "--model", "mine:net", *words, "--out", "own")
    langevin("sample", "--model", "mlp", "--model-option", "widths=[3]", *words, "--out", "named")
    assert "langevin evaluate own --trust" in langevin("evaluate", "own", "--test", "mine:train", code=2)
    assert "--test module:function" in langevin("evaluate", "own", "--trust", code=2)
    assert "Calibration" in langevin("evaluate", "own", "--trust", "--test", "mine:train")
    assert "Calibration" in langevin("evaluate", "named", "--test", "mine:train")  # nothing that it names is called
    refused = langevin("evaluate", "named", "--test", "mine:train", "--baseline", "own", code=2)
    assert "langevin evaluate named --baseline own --trust" in refused


def test_log_writes_for_tensorboard(tmp_path):
    langevin("sample", *QUICK, "--out", tmp_path / "run", "--log", "tensorboard")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    langevin("resume", tmp_path / "run", "--steps", "80", "--log", "tensorboard")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2


def test_verify_quarantines_corrupted_files_and_keeps_those_of_before(tmp_path):
    run = tmp_path / "run"
    langevin("sample", *QUICK, "--out", run)
    (file,) = (run / "samples").rglob("*.safetensors")
    content = file.read_bytes()
    for number in (1, 2):
        file.write_bytes(content[:-1] + bytes([content[-1] ^ number]))
        said = langevin("verify", run, "--quarantine", code=1)
        assert str(file) in said
        assert f"1 corrupted files were moved to {run / 'quarantine'}" in said
        assert len(list((run / "quarantine").iterdir())) == number
    assert not file.exists()


@pytest.mark.parametrize(("name", "module"), [("reproduce", "reproductions"), ("bench", "benchmarks")])
def test_moved_commands_say_where_they_are(name, module):
    assert f"run: python -m {module} all --scale full" in langevin(name, "all", "--scale", "full", code=2)
    assert f"python -m {module}" in langevin(name, "--help", code=2)
    assert f"  {name}" not in langevin("--help")


def test_help_teaches():
    assert "Begin with: langevin demo" in langevin("--help")
    assert "langevin sample --model mlp --data digits" in langevin("sample", "--help")
    assert "2/λ_max" in langevin("doctor", "--help")
    assert langevin("--version").strip() == lv.__version__
    for name in COMMANDS:
        said = langevin(name, "--help")
        assert "Example" in said, name
        assert f"  langevin {name}" in said, name


def test_a_command_is_one_file():
    assert [command.name for command in app.registered_commands if not command.hidden] == list(COMMANDS)
    for name in COMMANDS:
        module = importlib.import_module(f"langevin.cli.{name}")
        assert getattr(module, name).__module__ == module.__name__
    files = list(Path(importlib.import_module("langevin.cli").__file__).parent.glob("*.py"))
    assert all(len(file.read_text().splitlines()) <= 400 for file in files)


def test_help_imports_nothing_heavy():
    program = textwrap.dedent(
        """
        import sys
        from langevin.cli.main import main
        try:
            main(["--help"])
        except SystemExit:
            pass
        print("loaded", [name for name in ("matplotlib", "sklearn", "arviz", "scipy", "tensorboard", "langevin.report")
                         if name in sys.modules])
        """
    )
    assert "loaded []" in subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout


REGISTERED = """
import langevin as lv

@lv.samplers.SAMPLERS.register
class MySampler(lv.SGLD): ...

@lv.approximations.APPROXIMATIONS.register
class MyFit(lv.MeanField): ...

@lv.likelihoods.LIKELIHOODS.register
class MyLikelihood(lv.likelihoods.Categorical): ...

@lv.priors.PRIORS.register
class MyPrior(lv.priors.Gaussian): ...

from langevin.cli.main import main

quick = ["--model", "mlp", "--data", "digits", "--lr", "0.01", "--steps", "10"]
chosen = ["--prior", "myprior", "--likelihood", "mylikelihood"]
for words in (
    ["sample", "--help"],
    ["fit", "--help"],
    ["sample", *quick, *chosen, "--sampler", "mysampler", "--out", "run"],
    ["fit", *quick, *chosen, "--method", "myfit", "--out", "fit"],
):
    try:
        main(words)
    except SystemExit as exit:
        assert not exit.code, words
"""


def test_what_is_registered_is_offered(tmp_path):
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.count(", mysampler; by default") == 1
    assert said.count("laplace, myfit.") == 1
    assert said.count(", mylikelihood.") == 2
    assert said.count(", myprior,") == 2
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["sampler"]["name"] == "MySampler"
    assert json.loads((tmp_path / "fit" / "manifest.json").read_text())["method"]["name"] == "MyFit"


@pytest.fixture
def small_demo(monkeypatch):
    """The demo, with fewer steps; the rows that it returned."""
    import langevin.demo as module

    whole, returned = module.run_demo, []
    settings = module.Settings(num_data=100, width=8, chains=2, budget="1x")
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.STEPS", 300)
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.EPOCHS", 1)

    def run_demo(out):
        returned.extend(whole(out, settings, progress=False))
        return returned

    monkeypatch.setattr(module, "run_demo", run_demo)
    return returned


def test_the_demo_writes_its_table_figure_and_results(tmp_path, small_demo):
    said = langevin("demo", "--out", tmp_path)
    assert [row.method for row in small_demo] == ["one network", "deep ensemble", "langevin"]
    assert all(row.accuracy > 0.5 for row in small_demo)
    for line, row in zip(said.splitlines()[1:4], small_demo, strict=True):
        assert line.split()[: len(row.method.split()) + 1] == [*row.method.split(), f"{row.accuracy:.1%}"]
    assert "was chosen on a part of the training digits" in said
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["table"][0]["method"] == "one network"
    assert (tmp_path / "table.md").read_text().startswith("| | accuracy |")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "MCLMC: evaluation" in (tmp_path / "report.html").read_text()


def test_a_temperature_is_chosen_from_the_command_line(mine, monkeypatch):
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.STEPS", 100)
    monkeypatch.setattr("langevin.inference.autopilot.warm_start.EPOCHS", 1)
    words = ["--model", "mine:net", "--data", "mine:train", "--likelihood", "gaussian", "--chains", "2"]
    words += ["--temperature", "auto", "--budget", "600 steps", "--batch-size", "8", "--out", mine / "run"]
    _, said, explained = run("sample", *words)
    assert "temperature, step 0: T = " in explained
    assert "decide little" in explained  # six of 40 examples
    assert "verdict" in said
    assert lv.load(mine / "run", importlib.import_module("mine").net()).target_temperature in (1.0, 0.3, 0.1, 0.03)
