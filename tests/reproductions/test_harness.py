"""The harness: rows are measured once, an interrupted reproduction resumes, claims are judged from rows alone."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import reproductions
from langevin.core.statistics import Estimate
from reproductions import EXPERIMENTS, PAPERS, judge_paper, reproduce_paper
from reproductions.__main__ import app
from reproductions.harness import Claim, Experiment, Paper, run_experiments
from reproductions.judges import Judge
from reproductions.page import verdicts, write_overview, write_page
from reproductions.rows import Rows


@dataclass(frozen=True)
class Settings:
    slope: float = 2.0
    seeds: int = 3


measured = []


def cells(settings):
    return [{"x": x, "seed": seed} for seed in range(settings.seeds) for x in (1, 2)]


def measure(settings, workplace, *, x, seed):
    if x == 2 and seed == 1 and measured.count((2, 1)) == 0:
        measured.append((x, seed))
        raise KeyboardInterrupt
    measured.append((x, seed))
    return {"y": settings.slope * x + seed}


def draw(figure, rows):
    figure.subplots().plot(rows.values("x"), [rows.mean("y", x=x).mean for x in rows.values("x")])


def rise(rows):
    return {"rise less 2": {seed: y - 2 for seed, y in rows.difference("y", {"x": 2}, {"x": 1}).items()}}


def shown(rows):
    return f"y rises by {rows.mean('y', x=2).mean - rows.mean('y', x=1).mean:g} | per x."


JUDGE = Judge("rise of y less 2", rise, shown, "within", 0.5)


def paper(**settings):
    experiment = Experiment(
        "A line",
        {"quick": Settings(**settings), "full": Settings(), "paper": Settings(slope=3.0)},
        cells,
        measure,
        draw,
        [Claim("y rises by 2 per x.", JUDGE, "The slope was another.")],
    )
    return {"made-up": Paper("A made-up paper", "@misc{}", {"line": experiment})}


def test_an_interrupted_reproduction_resumes_and_measures_nothing_twice(tmp_path):
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        run_experiments(paper(), "made-up", None, scale="quick", out=tmp_path, progress=False)
    assert len(json.loads((tmp_path / "results.json").read_text())["experiments"]["line"]["rows"]) == 3
    results = run_experiments(paper(), "made-up", None, scale="quick", out=tmp_path, progress=False)
    rows = results["experiments"]["line"]["rows"]
    assert [(row["x"], row["seed"]) for row in rows] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert len(measured) == 7  # six rows, and the one that was interrupted twice
    run_experiments(paper(), "made-up", None, scale="quick", out=tmp_path, progress=False)
    assert len(measured) == 7


def test_rows_lead_to_further_cells_until_no_more_are_wanted(tmp_path):
    """The best x at seed 0 is repeated; it fails at seed 1, so the next best is."""

    def measure(settings, workplace, *, x, seed):
        measured.append((x, seed))
        return {"y": None if (x, seed) == (2, 1) else x}

    def further(settings, rows):
        sound = [x for x in rows.values("x") if all(row["y"] is not None for row in rows.where(x=x))]
        return [{"x": max(sound), "seed": seed} for seed in range(1, settings.seeds)]

    made_up = paper()
    line = replace(
        made_up["made-up"].experiments["line"],
        cells=lambda settings: [{"x": x, "seed": 0} for x in (1, 2)],
        measure=measure,
        further=further,
    )
    made_up = {"made-up": replace(made_up["made-up"], experiments={"line": line})}
    for _ in range(2):  # the second time there is nothing left to do
        measured.clear()
        results = run_experiments(made_up, "made-up", None, scale="quick", out=tmp_path, progress=False)
    assert measured == []
    found = [(row["x"], row["seed"]) for row in results["experiments"]["line"]["rows"]]
    assert found == [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1), (2, 2)]  # what is not wanted any more comes last


def test_other_settings_are_measured_anew_and_other_scales_are_refused(tmp_path):
    measured[:] = [(2, 1)]
    run_experiments(paper(), "made-up", None, scale="quick", out=tmp_path, progress=False)
    results = run_experiments(paper(slope=5.0), "made-up", None, scale="quick", out=tmp_path, progress=False)
    assert [row["y"] for row in results["experiments"]["line"]["rows"]] == [5, 10, 6, 11, 7, 12]
    with pytest.raises(ValueError, match="scale quick; choose another directory"):
        run_experiments(paper(), "made-up", None, scale="full", out=tmp_path, progress=False)


def test_the_page_says_what_was_measured_and_what_was_changed(tmp_path):
    measured[:] = [(2, 1)]
    made_up = paper()
    results = run_experiments(made_up, "made-up", None, scale="full", out=tmp_path / "made-up", progress=False)
    write_page(made_up, results, tmp_path / "made-up")
    page = (tmp_path / "made-up" / "README.md").read_text()
    assert (
        "| line | y rises by 2 per x. | y rises by 2 \\| per x. rise less 2: +0 (95 % interval +0 to +0). | yes |"
        in page
    )
    assert "| y rises by 2 per x. | rise of y less 2: within ±0.5; 3 seeds. |" in page
    assert "| slope | 2.0 | 3.0 |" in page
    assert (tmp_path / "made-up" / "line.png").stat().st_size > 1000
    write_overview(made_up, tmp_path)
    whole = (tmp_path / "README.md").read_text()
    assert "| [made-up](made-up/README.md) | line | y rises by 2 per x. |" in whole
    assert "| [A made-up paper](made-up/README.md) | 1 | 0 | 0 | 0 |" in whole
    assert verdicts(made_up["made-up"], results)[0][2].reproduced is True


def test_a_claim_that_does_not_reproduce_comes_with_our_guess_at_the_reason(tmp_path):
    measured[:] = [(2, 1)]
    for slope, reason in ((2.0, ""), (5.0, "The slope was another.")):
        made_up = paper(slope=slope)
        results = run_experiments(made_up, "made-up", None, scale="quick", out=tmp_path, progress=False)
        assert verdicts(made_up["made-up"], results)[0][2].why == reason


def test_an_experiment_that_is_not_finished_is_not_judged(tmp_path):
    measured[:] = [(2, 1)]
    made_up = paper()
    results = run_experiments(made_up, "made-up", None, scale="full", out=tmp_path / "made-up", progress=False)
    results["experiments"]["line"]["rows"].pop()
    (tmp_path / "made-up" / "results.json").write_text(json.dumps(results))
    write_overview(made_up, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| y rises by 2 per x. | y rises by 2 \\| per x. | not judged: 2 of 3 seeds |" in text
    assert "made-up/README.md) | 0 | 0 | 0 | 1 |" in text


def test_rows_are_judged_again_without_measuring(tmp_path, monkeypatch):
    measured[:] = [(2, 1)]
    monkeypatch.setattr(reproductions, "PAPERS", paper())
    before = reproduce_paper("made-up", scale="full", out=tmp_path / "made-up", jobs=1, progress=False).read_text()
    count = len(measured)
    assert judge_paper("made-up", out=tmp_path / "made-up").read_text() == before
    changed = paper()["made-up"]
    line = changed.experiments["line"]
    stricter = replace(line, claims=[replace(line.claims[0], judge=replace(JUDGE, seeds=5))])
    monkeypatch.setattr(reproductions, "PAPERS", {"made-up": replace(changed, experiments={"line": stricter})})
    after = judge_paper("made-up", out=tmp_path / "made-up").read_text()
    assert "not judged: 3 of 5 seeds" in after
    assert "**6 of 6 rows were measured under another judge**" in after
    assert len(measured) == count
    with pytest.raises(ValueError, match="has no results.json"):
        judge_paper("made-up", out=tmp_path / "elsewhere")


def test_rows():
    rows = Rows([{"a": 1, "seed": 0, "v": 1.0}, {"a": 1, "seed": 1, "v": 3.0}, {"a": 2, "seed": 1, "v": 7.0}])
    assert rows.mean("v", a=1) == Estimate(2.0, math.sqrt(2) / math.sqrt(2))
    assert math.isnan(rows.mean("v", a=2).error)
    assert rows.difference("v", {"a": 2}, {"a": 1}) == {1: 4.0}  # seed 1 alone has both
    assert rows.log_ratio("v", {"a": 2}, {"a": 1}) == {1: pytest.approx(math.log(7 / 3))}
    with pytest.raises(KeyError):
        rows.mean("v", a=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"paper": "smith2019"}, "choose one of .*smith2018"),
        ({"paper": "smith2018", "experiment": "figure9"}, "it has theorem"),
        ({"paper": "smith2018", "scale": "huge"}, "quick, full, paper"),
        ({"paper": "smith2018", "jobs": 0}, "at least one process"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        reproduce_paper(**arguments)


@pytest.mark.parametrize("name", PAPERS)
def test_quick(name, tmp_path):
    """Every experiment runs, is drawn and judged, and the page is written."""
    page = reproduce_paper(name, scale="quick", out=tmp_path, jobs=1, progress=False)
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["experiments"]) == set(PAPERS[name].experiments)
    text = page.read_text()
    for label, experiment in PAPERS[name].experiments.items():
        assert (tmp_path / f"{label}.png").exists()
        assert all(claim.says.replace("|", "\\|") in text for claim in experiment.claims)


def test_the_command_lists_what_there_is_and_says_what_it_can_not_do():
    listed = CliRunner().invoke(app, ["list"]).output
    assert all(name in listed for name in PAPERS)
    assert "ellipses" in listed
    failed = CliRunner().invoke(app, ["all", "--out", "somewhere"])
    assert isinstance(failed.exception, ValueError)
    assert "judge which paper?" in str(CliRunner().invoke(app, ["judge"]).exception)
    assert "choose one of" in str(CliRunner().invoke(app, ["judge", "smith2019"]).exception)


@pytest.mark.parametrize("folder", ["lange2023", "lange2023/quick", "new"])
def test_quick_results_do_not_go_where_committed_ones_are(folder, monkeypatch):
    """Whatever is there already, and however the directory is written."""
    monkeypatch.chdir(EXPERIMENTS.parent)
    before = {file: file.read_bytes() for file in EXPERIMENTS.rglob("*") if file.is_file()}
    for out in (EXPERIMENTS / folder, Path("experiments") / folder, Path("tests/../experiments") / folder):
        with pytest.raises(ValueError, match="committed results.*reproduced/lange2023-quick"):
            reproduce_paper("lange2023", scale="quick", out=out, progress=False)
    assert before == {file: file.read_bytes() for file in EXPERIMENTS.rglob("*") if file.is_file()}
    failed = CliRunner().invoke(app, ["lange2023", "--out", f"experiments/{folder}"])
    assert isinstance(failed.exception, ValueError)


def test_quick_results_do_not_replace_full_ones_anywhere(tmp_path):
    written = {"paper": "lange2023", "scale": "full", "experiments": {}}
    (tmp_path / "results.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match="scale full; choose another directory"):
        reproduce_paper("lange2023", scale="quick", out=tmp_path, progress=False)
    assert json.loads((tmp_path / "results.json").read_text()) == written


def test_the_overview_is_written_for_full_results_and_over_no_other_page(tmp_path, monkeypatch):
    measured[:] = [(2, 1)]
    monkeypatch.setattr(reproductions, "PAPERS", paper())
    reproduce_paper("made-up", scale="quick", out=tmp_path / "quick" / "made-up", jobs=1, progress=False)
    assert not (tmp_path / "quick" / "README.md").exists()
    reproduce_paper("made-up", scale="full", out=tmp_path / "full" / "made-up", jobs=1, progress=False)
    assert "Five papers" in (tmp_path / "full" / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Another page")
    reproduce_paper("made-up", scale="full", out=tmp_path / "made-up", jobs=1, progress=False)
    assert (tmp_path / "README.md").read_text() == "# Another page"


@pytest.mark.parametrize("slope", [2.0, 5.0])
def test_an_interrupted_cell_finds_its_files_unless_they_are_of_other_settings(slope, tmp_path):
    found = []

    def made_up(interrupted, **settings):
        def measure(settings, workplace, *, x, seed):
            found.append(workplace.exists())
            workplace.mkdir(parents=True, exist_ok=True)
            if interrupted:
                raise KeyboardInterrupt
            return {"y": 0}

        whole = paper(**settings)["made-up"]
        return {"made-up": replace(whole, experiments={"line": replace(whole.experiments["line"], measure=measure)})}

    with pytest.raises(KeyboardInterrupt):
        run_experiments(made_up(True), "made-up", None, scale="quick", out=tmp_path, progress=False)
    run_experiments(made_up(False, slope=slope), "made-up", None, scale="quick", out=tmp_path, progress=False)
    assert found == [False, slope == 2.0, *[False] * 5]
