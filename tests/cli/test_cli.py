import json
import os
import subprocess
import sys
import textwrap

import pytest

import langevin as lv
from langevin.models import MLP


def langevin(*words, cwd=None, fails=False):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "langevin", *map(str, words)], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout


START = ["sample", "--model", "mlp", "--data", "digits", "--out", "x", "--lr", "0.1"]
QUICK = ["--lr", "0.1", "--steps", "60", "--thin", "10", "--model-option", "widths=[8]"]


def test_sample_status_resume(tmp_path):
    run = tmp_path / "run"
    assert "4 samples in" in langevin("sample", "--model", "mlp", "--data", "digits", "--out", run, *QUICK)
    said = langevin("status", run)
    assert "SGLD(lr=0.1)" in said
    assert said.splitlines()[-1].split()[:4] == ["0", "60", "60", "4"]
    assert "6 samples in" in langevin("resume", run, "--steps", "80")
    assert len(lv.load(run, MLP(64, 10, widths=(8,)))) == 6
    assert len(lv.load(run)) == 6  # it knows its model by name
    assert lv.cite("sgld").strip() == langevin("cite", run).strip()
    again = langevin("sample", "--model", "mlp", "--data", "digits", "--out", run, *QUICK, fails=True)
    assert "never overwritten" in again


def test_bring_your_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
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

            def healthy():
                posterior = lv.Posterior(net(), lv.GaussianNoise(0.5), lv.Gaussian(), num_data=40)
                return {"posterior": posterior, "data": train(), "sampler": partial(lv.SGLD, lr=1e-3)}

            def ill():
                return lv.Posterior(net(), lv.GaussianNoise(0.5), lv.Gaussian(), num_data=4), train()
            """
        )
    )
    out = langevin(
        *("sample", "--model", "mine:net", "--data", "mine:train", "--out", "run", "--lr", "0.001", "--steps", "40"),
        *("--sampler", "sghmc", "--sampler-option", "momentum=0.8", "--chains", "2"),
        cwd=tmp_path,
    )
    assert "60 samples" in out
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["sampler"] == {"name": "SGHMC", "options": {"lr": 0.001, "momentum": 0.8}}
    assert "likelihood.log_std" in manifest["tensors"]
    streamed = ["sample", "--model", "mine:net", "--data", "mine:stream", "--out", "s", "--lr", "0.001", "--steps", "8"]
    assert "--num-data" in langevin(*streamed, cwd=tmp_path, fails=True)
    langevin(*streamed, "--num-data", "40", cwd=tmp_path)
    assert json.loads((tmp_path / "s" / "manifest.json").read_text())["num_data"] == 40
    assert "--trust" in langevin("resume", "run", "--steps", "41", cwd=tmp_path, fails=True)
    assert "62 samples" in langevin("resume", "run", "--steps", "41", "--trust", cwd=tmp_path)
    assert "error" not in langevin("doctor", "mine:healthy", cwd=tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "langevin", "doctor", "mine:ill"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "error  number of data: num_data=4, but the data set has 40" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["doctor", "nothing:here"], "can't be imported"),
        (["doctor", "nothing"], "not of the form module:function"),
        (["doctor", "json:loads2"], "has no function 'loads2'"),
        (["status", "nowhere"], "holds no run"),
        (["sample", "--model", "mlp", "--data", "digits", "--out", "x", "--lr", "1", "--sampler", "hmc"], "one of sgd"),
        (["sample", "--model", "perceptron", "--data", "digits", "--out", "x", "--lr", "1"], "is not known"),
        (["sample", "--model", "mlp", "--data", "letters", "--out", "x", "--lr", "1"], "is not known"),
        (["sample", "--model", "mlp", "--data", "digits", "--out", "x", "--lr", "-1"], "lr must be positive"),
        ([*START, "--sampler-option", "speed=3"], "has no such option"),
        ([*START, "--model-option", "depth=3"], "expected"),
        ([*START, "--sampler-option", "speed"], "name=value"),
        ([*START, "--likelihood", "poisson"], "choose one of categorical"),
    ],
)
def test_errors_are_sentences(words, says, tmp_path):
    assert says in langevin(*words, cwd=tmp_path, fails=True)


def test_help_teaches():
    assert "Begin with: langevin demo" in langevin("--help")
    assert "langevin sample --model mlp --data digits" in langevin("sample", "--help")
    assert "2/λ_max" in langevin("doctor", "--help")
    assert langevin("--version").strip() == lv.__version__


def test_the_demo_writes_its_table_figure_and_results(tmp_path):
    from langevin.demo import Settings, run_demo

    rows = run_demo(tmp_path, Settings(sgd_steps=300, sgld_steps=300, chains=2), progress=False)
    assert [row.method for row in rows] == ["SGD", "SGLD"]
    assert all(row.accuracy > 0.5 for row in rows)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["table"][0]["method"] == "SGD"
    assert (tmp_path / "table.md").read_text().startswith("| | accuracy |")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "SGLD: can it be trusted?" in (tmp_path / "report.html").read_text()
