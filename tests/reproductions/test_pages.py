"""Tables in the pages are those that commands wrote."""

import json
from pathlib import Path

import pytest

from benchmarks import limits, ranks, scaling, speed_page
from benchmarks.gold import tables
from langevin.diagnostics import verdict as verdicts
from langevin.diagnostics.target_temperature import TOLERANCE
from reproductions import PAPERS
from reproductions import page as papers_page

ROOT = Path(__file__).parents[2]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"


def test_the_page_on_choosing_has_the_measured_tables():
    written = (DOCS / "gold" / "tables.md").read_text()
    assert tables(json.loads((DOCS / "gold" / "results.json").read_text())) == written
    page = (DOCS / "choosing-a-sampler.md").read_text()
    assert f"<!-- tables -->\n{written}<!-- end -->" in page
    by_rank = ranks.table(json.loads((DOCS / "gold" / "ranks.json").read_text()))
    assert f"<!-- ranks -->\n{by_rank}<!-- end -->" in page


def test_the_page_on_networks_was_written_by_its_command():
    page = (DOCS / "networks.md").read_text()
    assert "Written by `python -m benchmarks support`" in page
    assert "| ResNet++-56, width 32 | `resnet++` | 3,412,404 |" in page


def test_the_pages_on_speed_have_the_measured_tables():
    results = json.loads((BENCHMARKS / "results.json").read_text())
    assert not results["quick"]
    assert (BENCHMARKS / "README.md").read_text() == speed_page.page(results)
    assert speed_page.tables(results) in (DOCS / "speed.md").read_text()


def test_the_page_on_reports_has_the_limits_of_the_verdicts():
    page = (DOCS / "report.md").read_text()
    assert f"within {TOLERANCE:.0%}".replace("%", " %") in page
    assert f"R̂ ≤ {verdicts.RHAT_LIMIT} on {1 - verdicts.DISAGREEMENT:.0%}".replace("%", " %") in page
    assert f"| Effective sample size | {verdicts.ENOUGH_SAMPLES} or more |" in page


def test_the_page_on_scaling_has_the_measured_tables():
    page = (DOCS / "scaling.md").read_text()
    written = scaling.tables(json.loads((DOCS / "scaling" / "results.json").read_text()))
    for name, table in written.items():
        assert f"<!-- {name} -->\n{table}<!-- end -->" in page
    assert "| `kill -9` at a random moment |" in written["faults"]
    assert all(row["tried"] == row["survived"] > 0 for row in scaling_faults().values())


def test_large_runs_keep_to_their_bars():
    found = json.loads((DOCS / "scaling" / "limits.json").read_text())
    assert f"<!-- limits -->\n{limits.table(found)}<!-- end -->" in (DOCS / "scaling.md").read_text()
    assert found.keys() == limits.BARS.keys()
    assert all(value <= limits.BARS[name][0] for name, value in found.items())


def scaling_faults():
    return json.loads((DOCS / "scaling" / "results.json").read_text())["faults"]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_pages_of_the_papers_are_what_their_results_say(paper):
    out = ROOT / "experiments" / paper
    results = json.loads((out / "results.json").read_text())
    assert results["scale"] == "full"
    text = (out / "README.md").read_text()
    assert text == papers_page.page(PAPERS, results, Path("experiments") / paper)
    for name, experiment in PAPERS[paper].experiments.items():
        assert (out / f"{name}.png").exists() or name not in results["experiments"]
        assert all(claim.says.replace("|", "\\|") in text for claim in experiment.claims)


@pytest.mark.parametrize(("paper", "experiment"), [("smith2018", "theorem"), ("heek2019", "thermostats")])
def test_what_a_paper_has_not_is_not_said_to_have_its_settings(paper, experiment):
    text = (ROOT / "experiments" / paper / "README.md").read_text()
    section = text.split(f"## {PAPERS[paper].experiments[experiment].title}\n")[1].split("\n## ")[0]
    assert "All settings are our own" in section


def test_all_claims_are_in_one_table():
    assert (ROOT / "experiments" / "README.md").read_text() == papers_page.overview(PAPERS, ROOT / "experiments")
