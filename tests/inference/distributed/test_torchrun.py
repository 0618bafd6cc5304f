"""The command under torchrun itself: workers that are killed are restarted and resume."""

import os
import subprocess
import sys
import textwrap

import pytest

import langevin as lv
from langevin.models import MLP
from tests.helpers import assert_same_samples, samples_of

FRAGILE = textwrap.dedent(
    """
    import os, signal
    from langevin.models import MLP

    class Fragile(MLP):
        calls = 0

        def forward(self, x):
            Fragile.calls += 1
            if Fragile.calls > 40 and os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(x)

    def net():
        return Fragile(64, 10, widths=(8,))
    """
)


def torchrun(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.fault("a worker killed under torchrun --max-restarts")
@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["chains=2,data=1", "chains=1,data=2"])
def test_a_worker_that_is_killed_is_restarted_and_resumes(tmp_path, mesh, monkeypatch, record_property):
    """a worker killed under `torchrun --max-restarts`"""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    monkeypatch.setenv("PYTHONPATH", os.path.abspath(os.environ.get("PYTHONPATH", "src")))
    chains = "2" if mesh.startswith("chains=2") else "1"
    words = ["--model", "fragile:net", "--data", "digits", "--lr", "0.1", "--steps", "60", "--thin", "5"]
    words += ["--burn-in", "0", "--batch-size", "32", "--chains", chains, "--out", "r"]
    said = torchrun(
        tmp_path, "--max-restarts", "2", "-m", "langevin", "sample", *words, "--mesh", mesh, "--resume", "auto"
    )
    assert f"{12 * int(chains)} samples in r" in said
    run = lv.load(tmp_path / "r", MLP(64, 10, widths=(8,)))
    assert len(run.manifest["resumed"]) == 1  # it came back at the first attempt
    subprocess.run(
        [sys.executable, "-m", "langevin", "sample", *words[:-1], "whole"],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_RESTART_COUNT": "1"},
    )
    whole = lv.load(tmp_path / "whole", MLP(64, 10, widths=(8,)))
    if chains == "2" and whole.manifest["settings"]["mode"] == "sequential":
        assert_same_samples(whole, run)
    else:
        first, second = samples_of(whole), samples_of(run)
        assert first.keys() == second.keys()
        assert all(bool((first[key] - second[key]).abs().max() < 1e-4) for key in first)
    record_property("faults", 1)
