"""Speed: how it is measured, what is measured, and where results go."""

import json
from itertools import count
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import speed, timing
from benchmarks.__main__ import app
from benchmarks.speed import COMMITTED, default_directory, run_speed
from benchmarks.workloads import TIMED, TINY, plain_sgd, sampler_step
from langevin.samplers import SAMPLERS


def test_contenders_take_turns_and_ratios_are_of_the_same_round(monkeypatch):
    """By a clock that the steps move: B takes twice as long as A in even rounds and four times in odd ones."""
    now, turns = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "process_time", lambda: now[0] / 2)
    calls = count()

    def a():
        turns.append("a")
        now[0] += 1.0

    def b():
        turns.append("b")
        now[0] += 2.0 if next(calls) // 2 % 2 == 0 else 4.0

    measured = timing.compare({"a": a, "b": b}, "a", seconds=0.0, steps_per_round=2, warm_up=0, least=5)["b"]
    assert turns == ["a", "b"] * 10
    assert (measured.low, measured.ratio, measured.high) == (2.0, 2.0, 4.0)
    assert (measured.processor, measured.baseline, measured.rounds) == (2.0, 1.0, 5)


@pytest.mark.parametrize("name", TIMED)
def test_every_workload_step_runs(name):
    step = sampler_step(TINY, TIMED[name])
    for _ in range(2):
        step()
    plain_sgd(TINY)()


def test_every_sampler_that_draws_noise_is_timed():
    drawn = [name for name, sampler in SAMPLERS.exports().items() if sampler.injects_noise and not sampler.full_batch]
    assert set(TIMED) == set(drawn) - {"NLD"}


def results_file(out, quick):
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps({"quick": quick, "steps": []}))


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """Sections take no time and find nothing."""
    monkeypatch.setattr(speed, "_plan", lambda quick: [])
    monkeypatch.setattr(speed, "_kfac", lambda *args: {})


def run(out, **options):
    return run_speed(out, threads=(), say=lambda line: None, **options)


def test_quick_results_do_not_replace_full_ones(tmp_path, monkeypatch, nothing_is_measured):
    committed = (COMMITTED / "results.json").read_bytes()
    monkeypatch.chdir(COMMITTED.parent)
    for out in (COMMITTED, Path("benchmarks"), Path("tests/../benchmarks")):
        with pytest.raises(ValueError, match="--out benchmarked/quick"):
            run(out, quick=True)
    failed = CliRunner().invoke(app, ["--quick", "--out", "benchmarks"])
    assert isinstance(failed.exception, ValueError)
    assert (COMMITTED / "results.json").read_bytes() == committed

    results_file(tmp_path / "full", quick=False)
    with pytest.raises(ValueError, match="--out benchmarked/quick"):
        run(tmp_path / "full", quick=True)
    assert json.loads((tmp_path / "full" / "results.json").read_text())["quick"] is False

    results_file(tmp_path / "quick", quick=True)
    for out in (tmp_path / "quick", tmp_path / "new"):
        assert run(out, quick=True)["quick"]
        assert json.loads((out / "results.json").read_text())["quick"] is True


def test_sections_are_not_mixed_with_quick_ones(tmp_path, nothing_is_measured):
    with pytest.raises(ValueError, match="steps only"):
        run(tmp_path / "new", quick=True, only="kfac")
    assert not (tmp_path / "new").exists()
    results_file(tmp_path, quick=True)
    with pytest.raises(ValueError, match="quick results"):
        run(tmp_path, only="kfac")
    results_file(tmp_path, quick=False)
    assert set(run(tmp_path, only="kfac")) >= {"steps", "kfac"}
    assert "steps" not in run(tmp_path / "new", only="kfac")
    assert (tmp_path / "new" / "README.md").read_text().startswith("# Speed")


def test_where_results_go_by_default(tmp_path, monkeypatch, nothing_is_measured):
    assert default_directory(quick=False) == Path("benchmarks")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["--quick"]).exit_code == 0
    assert json.loads((tmp_path / "benchmarked" / "quick" / "results.json").read_text())["quick"] is True
    assert not (tmp_path / "benchmarks").exists()


@pytest.mark.slow
def test_the_quick_benchmark_writes_results(tmp_path):
    results = run_speed(tmp_path, quick=True, threads=(torch.get_num_threads(),), say=lambda line: None)
    assert {row["method"] for row in results["steps"]} == {"SGLD", "pSGLD", "ATMC"}
    assert (tmp_path / "results.json").exists()
