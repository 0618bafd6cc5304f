"""A new sampler takes one file and one line: everything else follows from the registry.

A registered toy sampler must appear in the exports, on the command line, in the citations, the contract tests, the
support table, the gold benchmark and a stored run.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = '''
"""A toy: SGLD under another name.

    θ ← θ − ε g + √(2εT/N) η
"""
import math

import torch
from langevin.samplers import SAMPLERS, Sampler


@SAMPLERS.register
class Toy(Sampler):
    """Langevin dynamics."""

    citation = "@misc{toy2026, title={A toy}}"

    def __init__(self, params, lr, *, num_data, noise="gaussian", temperature=1.0, seed=0, chain=0):
        super().__init__(params, lr=lr, num_data=num_data, noise=noise, temperature=temperature, seed=seed, chain=chain)

    @staticmethod
    def optimizer_at_zero(params, group):
        return torch.optim.SGD(params, lr=group["lr"])

    def update(self, group, params, grads, normals):
        torch._foreach_add_(params, grads, alpha=-group["lr"])
        if group["temperature"] > 0:
            spread = math.sqrt(2 * group["lr"] * group["temperature"] / group["num_data"])
            torch._foreach_add_(params, normals(), alpha=spread)

    def stability_limit(self, curvature):
        return 2 / curvature

    def gradient_noise_temperature(self, variance):
        group = self.param_groups[0]
        return group["lr"] * group["num_data"] * variance / 2
'''


@pytest.fixture
def toy(tmp_path):
    """A directory with the sampler's file, to be added to PYTHONPATH."""
    (tmp_path / "toy_sampler.py").write_text(TOY)
    return tmp_path


def python(folder, *arguments):
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(folder, code):
    return python(folder, "-c", "import toy_sampler\n" + textwrap.dedent(code))


def test_it_is_exported_cited_sampled_stored_and_loaded(toy):
    printed = run(
        toy,
        f"""
        import langevin as lv, torch
        from langevin.samplers import SAMPLERS
        assert lv.Toy is SAMPLERS["toy"] and "Toy" in dir(lv)
        assert "toy2026" in lv.cite("toy") and "toy2026" in lv.cite(lv.Toy)
        x = torch.randn(40, 3); y = (x[:, 0] > 0).long()
        model = torch.nn.Linear(3, 2)
        posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=40)
        run = lv.sample(posterior, (x, y), "toy", lr=1e-2, steps=40, out={str(toy / "run")!r}, progress=False)
        assert run.manifest["sampler"] == {{"name": "Toy", "options": {{"lr": 0.01}}}}
        assert run.target_temperature == 1.0
        more = lv.resume({str(toy / "run")!r}, posterior, (x, y), steps=60, progress=False)
        assert len(more) > len(run)
        print(lv.evaluate(more, (x, y)))
        """,
    )
    assert "Toy: evaluation" in printed


def test_the_command_line_offers_it(toy):
    code = "import sys; from langevin.cli.main import main; sys.argv = ['langevin', {}]; main()"
    assert "toy" in run(toy, code.format("'sample', '--help'"))
    assert "toy2026" in run(toy, code.format("'cite', 'toy'"))


def test_the_contract_tests_include_it(toy):
    collected = python(
        toy, "-m", "pytest", "-p", "toy_sampler", "-n", "0", "-q", "--collect-only", "-k", "toy", "tests/contract"
    )
    for test in (
        "test_ill_conditioned_gaussian[toy-1.0]",
        "test_order_of_convergence[toy]",
        "test_the_state_dict_is_complete[toy]",
        "test_stacked_chains_equal_single_chains[toy]",
    ):
        assert test in collected
    chosen = "toy and (stepper or mechanics)"
    python(toy, "-m", "pytest", "-p", "toy_sampler", "-n", "0", "-q", "-k", chosen, "tests/contract")


def test_the_support_table_and_the_gold_benchmark_include_it(toy):
    printed = run(
        toy,
        f"""
        from pathlib import Path
        from benchmarks.gold import CASES, cases
        from benchmarks.support import NETWORKS, write_support
        print(all("toy" in cases(posterior) for posterior in CASES))
        page = Path({str(toy / "support.md")!r})
        write_support(page, lambda line: None, NETWORKS[:1])
        print("Toy" in page.read_text())
        """,
    )
    assert printed.split() == ["True", "True"]
