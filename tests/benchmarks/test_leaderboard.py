"""The leaderboard at toy size: cells, selection, budgets, what is missing, what is bold."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import langevin as lv
from benchmarks import leaderboard, rivals
from benchmarks.leaderboard_page import best, page, summary
from benchmarks.leaderboard_tasks import Task
from langevin.inference.autopilot import warm_start


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr(warm_start, "STEPS", 40)
    monkeypatch.setattr(warm_start, "EPOCHS", 1)


def toy(name, split):
    generator = torch.Generator().manual_seed(split)
    x = torch.randn(100, 2, generator=generator)
    y = x[:, :1] + 0.1 * torch.randn(100, 1, generator=generator)
    return Task(
        (x[:80], y[:80]),
        (x[80:], y[80:]),
        lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)),
        lv.likelihoods.HeteroscedasticGaussian(),
        split,
        scale=2.0,
    )


def run(out, methods, said, **options):
    leaderboard.run_leaderboard(
        out, ["yacht"], methods, 2, page_file=out / "page.md", say=said.append, tasks=toy, **options
    )
    return {f"{row['method']} {row['split']}": row for row in leaderboard.read(out / "cells")}


def test_cells_are_run_once_with_equal_budgets_and_the_setting_of_the_validation_part(tmp_path):
    said = []
    rows = run(tmp_path, ["MC dropout", "Laplace"], said)
    assert said[0].startswith("15 cells to run, about 0.2 hours")  # 3 ensembles, and twice 4 settings and 2 splits
    budget = rows["deep ensemble 0"]["example_gradients"]
    assert rows["MC dropout 0"]["budget"] == budget
    assert 0.9 * budget < rows["MC dropout 0"]["example_gradients"] <= budget
    assert rows["Laplace 1"]["example_gradients"] < budget
    values = []
    for number in range(4):
        cell = leaderboard.Cell("yacht", "MC dropout", None, number)
        values.append(json.loads((tmp_path / "cells" / cell.file).read_text())["scores"]["nll"])
    assert rows["MC dropout 1"]["number"] == values.index(min(values))
    text = (tmp_path / "page.md").read_text()
    assert "Not run: one network, AdamW" in text
    assert "IVON" not in text.partition("Not run")[0]
    assert "yacht (2 splits)" in text
    assert "the autopilot has not been run" in text
    (tmp_path / "cells" / leaderboard.Cell("yacht", "Laplace", 1).file).unlink()
    again = []
    run(tmp_path, ["MC dropout", "Laplace"], again)
    assert [line.split(":")[0] for line in again[1:]] == ["yacht-Laplace-1x-1"]


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in rivals.METHODS if name != "autopilot"])
def test_every_method_spends_its_budget_and_has_scores(method, tmp_path):
    rows = run(tmp_path, [method], [])
    for split in range(2):
        row = rows[f"{method} {split}"]
        assert row["scores"], row["failure"]
        assert set(row["scores"]) == {"nll", "rmse", "calibration"}
        assert 0 < row["example_gradients"] <= 1.1 * row["budget"]


def test_no_cell_begins_after_the_time_is_over(tmp_path):
    said = []
    run(tmp_path, ["one network"], said, max_hours=0.0)
    assert said[-1].startswith("The time is over")
    assert not leaderboard.read(tmp_path / "cells")


def rows_of(method, values, failed=()):
    return [
        {
            "set": "yacht",
            "method": method,
            "split": split,
            "times": 1,
            "scores": {} if split in failed else {"nll": value},
            "example_gradients": 1,
            "seconds": 1.0,
        }
        for split, value in enumerate(values)
    ]


def test_bold_is_the_best_and_what_is_within_two_paired_standard_errors():
    rows = rows_of("deep ensemble", [1.0, 2.0, 3.0]) + rows_of("SGLD", [1.0, 2.1, 2.9])
    rows += rows_of("one network", [1.1, 2.1, 3.101]) + rows_of("HWA", [0.0, 0.0, 0.0], failed=[1])
    assert best(rows, "nll") == {"deep ensemble", "SGLD"}  # one network is behind by 0.1 ± 0.0003, HWA diverged once
    text = page(rows)
    assert "**2.000 ± 0.577**" in text
    assert "0.000 ± 0.000 (1 diverged)" in text


def test_methods_are_compared_on_the_splits_that_all_of_them_have():
    rows = rows_of("deep ensemble", [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]) + rows_of("SGLD", [1.1, 1.1, 1.1, 1.1, 1.2, 0.0])
    assert best(rows, "nll") == {"deep ensemble", "SGLD"}  # on all six SGLD is ahead, by 1.2 ± 1.6
    rows += rows_of("HWA", [2.0, 2.0, 2.0, 2.0, 2.0])  # has five, on which SGLD is behind
    assert best(rows, "nll") == {"deep ensemble"}
    rows += rows_of("ATMC", [0.0])  # has too few
    assert best(rows, "nll") == {"deep ensemble"}
    assert "(1 of 6 splits)" in page(rows)


def test_the_judges_compare_the_autopilot_with_the_best_and_with_the_deep_ensemble():
    rows = rows_of("deep ensemble", [1.0, 2.0, 3.0]) + rows_of("autopilot", [0.5, 1.4, 2.5])
    assert (
        "within two standard errors on 1; (2) ahead of the deep ensemble by more than two standard errors on 1"
        in page(rows)
    )


def test_a_set_with_three_budgets_has_a_curve_over_the_splits_of_all():
    rows = rows_of("deep ensemble", [1.0, 2.0, 3.0]) + rows_of("autopilot", [0.5, 1.4, 2.5])
    assert "## NLL by budget" not in page(rows)
    for times, value in ((3, 0.4), (30, 0.2)):
        rows += [row | {"times": times} for row in rows_of("autopilot", [value, value + 1.0])]
    text = page(rows).partition("## NLL by budget")[2]
    assert "**yacht** (2 splits)" in text
    assert "| budgets of a deep ensemble | 1 | 3 | 30 |" in text
    assert "| autopilot | 0.950 ± 0.450 | 0.900 ± 0.500 | 0.700 ± 0.500 |" in text
    assert "deep ensemble | 1.5" not in text  # it has one budget


def test_the_pages_are_of_the_cells_in_the_repository(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    cells = leaderboard.read(docs / "leaderboard" / "cells")
    assert page(cells) == (docs / "leaderboard.md").read_text()
    text = (docs / "choosing-a-method.md").read_text()
    assert f"<!-- leaderboard -->\n{summary(cells)}<!-- end -->" in text
    (tmp_path / "page.md").write_text("a\n<!-- leaderboard -->\nold\n<!-- end -->\nb\n")
    leaderboard.write_pages(docs / "leaderboard", None, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == f"a\n<!-- leaderboard -->\n{summary(cells)}<!-- end -->\nb\n"
