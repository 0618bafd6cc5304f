from itertools import count

import pytest
import torch

from benchmarks import timing
from benchmarks.speed import run_speed
from benchmarks.workloads import METHODS, TINY, plain_sgd, sampler_step


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


@pytest.mark.parametrize("name", METHODS)
def test_every_workload_step_runs(name):
    step = sampler_step(TINY, METHODS[name], noise="rademacher")
    for _ in range(2):
        step()
    plain_sgd(TINY)()


@pytest.mark.slow
def test_the_quick_benchmark_writes_results(tmp_path):
    results = run_speed(tmp_path, quick=True, threads=(torch.get_num_threads(),), say=lambda line: None)
    assert {row["method"] for row in results["steps"]} == {"SGLD", "pSGLD", "ATMC"}
    assert (tmp_path / "results.json").exists()
