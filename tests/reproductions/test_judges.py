"""The statistics of verdicts: false positives, power, what is not judged, and judges that are changed after the run."""

import json
import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from reproductions import PAPERS, judges
from reproductions.harness import Claim, Experiment, Paper, judged_by, run_experiments
from reproductions.judges import Judge, NotJudged, decide, interval, p_below
from reproductions.page import log_verdicts, page, verdicts
from reproductions.rows import Rows


def share_answered(seeds, contrasts=1, direction="below", limit=0.0, repeats=2000, mean=0.0):
    """How often nulls (every contrast at the limit) are answered by yes or no."""
    rng = np.random.default_rng(seeds * 10 + contrasts)
    draws = rng.normal(mean, 1, (repeats, contrasts, seeds)).tolist()
    answers = [decide(values, direction, limit) for values in draws]
    return sum(answer is not None for answer in answers) / repeats


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("contrasts", [1, 4])
def test_at_most_one_null_in_twenty_is_answered(seeds, contrasts):
    """0.05 is the bound, 0.005 the standard error of 2,000 repeats; one contrast uses all of it."""
    found = share_answered(seeds, contrasts)
    assert found <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 2000)
    if contrasts == 1:
        assert found >= 0.05 - 2.5 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("direction", ["within", "outside"])
def test_nulls_of_intervals_lie_at_their_ends(direction):
    assert share_answered(3, 1, direction, limit=5.0, mean=5.0) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 2000)


def test_two_standard_errors_of_three_seeds_would_pass_eighteen_per_cent():
    """What the t-quantile corrects: the same nulls by |mean| > 2 standard errors."""
    draws = np.random.default_rng(0).normal(size=(20_000, 3))
    passed = np.abs(draws.mean(1)) > 2 * draws.std(1, ddof=1) / math.sqrt(3)
    assert passed.mean() == pytest.approx(0.184, abs=0.01)


def test_large_effects_are_seen():
    assert share_answered(3, mean=-8.0, repeats=300) > 0.9
    assert share_answered(5, 4, mean=-4.0, repeats=300) > 0.9
    assert share_answered(3, 1, "within", limit=10.0, repeats=300) > 0.9


@pytest.mark.parametrize(
    ("contrasts", "direction", "limit", "answer"),
    [
        ([[-1, -1.1, -0.9]], "below", 0, True),
        ([[-1, -1.1, -0.9]], "above", 0, False),
        ([[-1, -1.1, -0.9]], "below", -2, False),  # an effect that is too small to count
        ([[-1, -1.1, -0.9], [1, 1.1, 0.9]], "below", 0, False),
        ([[-1, -1.1, -0.9], [-1, 1, 0.1]], "below", 0, None),
        ([[1, 1.1, 0.9]], "within", 2, True),
        ([[1, 1.1, 0.9]], "within", 0.5, False),
        ([[1, 1.1, 0.9]], "outside", 0.5, True),
        ([[1, 1.1, 0.9]], "outside", 2, False),
        ([[0.1, 1.1, 0.9]], "outside", 1, None),
        ([[-1, -1, -1]], "below", 0, True),  # the same for every seed
        ([[0, 0, 0]], "below", 0, None),
        ([[-1.0]], "below", 0, None),
    ],
)
def test_decide(contrasts, direction, limit, answer):
    assert decide(contrasts, direction, limit) is answer


def test_one_bad_contest_of_many_needs_stronger_evidence():
    """t of one contrast is 5: enough alone (4.3), not as the worst of four (9.9 with α/2k)."""
    bad, fair = [1 - 0.2 * math.sqrt(3), 1.0, 1 + 0.2 * math.sqrt(3)], [-1.0, 0.0, 1.0]
    assert decide([bad]) is False
    assert decide([bad, fair, fair, fair]) is None


def test_equal_values_of_a_grid_have_the_spread_of_rounding():
    assert decide([[1.0, 1.0, 1.0]], "above", resolution=1.0) is True
    assert decide([[1.0, 1.0]], "above", resolution=1.0) is None
    assert math.isnan(p_below([1.0]))
    assert interval([1.0]) == (-math.inf, math.inf)


def contrast(rows, name="y"):
    if "gone" in rows[0]:
        raise NotJudged("it is gone")
    return {"b less a": rows.difference(name, {"x": "b"}, {"x": "a"})}


def shown(rows):
    return f"b is {rows.mean('y', x='b')}."


JUDGE = Judge("y of b less that of a", contrast, shown)


def rows(seeds, gap=-1.0):
    noise = [0.0, 0.1, -0.1, 0.05, 5.0, 5.0]
    return Rows(
        {"x": x, "seed": seed, "y": seed + (gap + noise[seed] if x == "b" else 0.0)}
        for seed in range(seeds)
        for x in "ab"
    )


def test_a_judge_answers_with_its_number_of_seeds_and_no_fewer():
    for seeds in (1, 2):
        verdict = JUDGE(rows(seeds))
        assert verdict.reproduced is None
        assert verdict.answer == f"not judged: {seeds} of 3 seeds"
        assert verdict.measured
    assert JUDGE(Rows()).answer == "not judged: 0 of 3 seeds"
    assert JUDGE(rows(3)).answer == "yes"
    assert JUDGE(rows(3, gap=1.0)).answer == "**no**"
    assert JUDGE(rows(3, gap=0.0)).answer == "can't tell"
    assert "b less a: -1 (95 % interval" in JUDGE(rows(3)).measured


def test_a_judge_looks_at_no_more_seeds_than_it_wants():
    """Two outliers follow, after which one could not tell."""
    assert JUDGE(rows(6)).answer == "yes"
    assert replace(JUDGE, seeds=6)(rows(6)).answer == "can't tell"


def test_what_is_missing_is_said():
    found = rows(3)
    assert (
        JUDGE(Rows(row for row in found if (row["x"], row["seed"]) != ("b", 2))).missing == "b less a has 2 of 3 seeds"
    )
    found[0]["gone"] = True
    assert JUDGE(found).answer == "not judged: it is gone"


@pytest.mark.parametrize("options", [{"seeds": 2}, {"direction": "within"}])
def test_bad_judges(options):
    with pytest.raises(ValueError, match=r"at least 3|limit > 0"):
        replace(JUDGE, **options)


def contrast_2(rows, name="y"):
    return {"b less a": rows.difference(name, {"x": "b"}, {"x": "a"})}


@pytest.mark.parametrize(
    "changes",
    [
        {"compares": "something else"},
        {"direction": "above"},
        {"limit": 0.1},
        {"seeds": 4},
        {"resolution": 0.1},
        {"contrasts": contrast_2},
        {"contrasts": partial(contrast, name="z")},
    ],
)
def test_every_change_of_a_judge_changes_its_digest(changes):
    assert replace(JUDGE, **changes).digest != JUDGE.digest
    assert replace(JUDGE).digest == JUDGE.digest
    json.dumps(JUDGE.definition)


def test_the_level_is_part_of_the_digest(monkeypatch):
    before = JUDGE.digest
    monkeypatch.setattr(judges, "LEVEL", 0.1)
    assert replace(JUDGE).digest != before


def test_the_sentence_on_the_page_is_not():
    assert replace(JUDGE, shows=str).digest == JUDGE.digest


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_has_its_own_sentence_and_at_least_three_seeds_at_full_scale(paper):
    for name, experiment in PAPERS[paper].experiments.items():
        assert len({claim.says for claim in experiment.claims}) == len(experiment.claims)
        json.dumps(experiment.judges)
        settings = experiment.settings["full"]
        seeds = getattr(settings, "seeds", None) or settings.rounds
        assert all(3 <= claim.judge.seeds <= seeds for claim in experiment.claims), name


@dataclass(frozen=True)
class Settings:
    seeds: int = 3
    size: int = 1


def made_up(judge=JUDGE, seeds=3, size=1, measured=None):
    def measure(settings, workplace, *, x, seed):
        if measured is not None:
            measured.append((x, seed))
        return {"y": rows(6).where(x=x, seed=seed)[0]["y"]}

    experiment = Experiment(
        "Made up",
        {"quick": Settings(seeds, size), "full": Settings(seeds, size), "paper": Settings()},
        lambda settings: [{"x": x, "seed": seed} for seed in range(settings.seeds) for x in "ab"],
        measure,
        lambda figure, rows: None,
        [Claim("b is less than a.", judge)],
    )
    return {"made-up": Paper("A made-up paper", "@misc{}", {"one": experiment})}


def test_more_seeds_keep_the_rows_and_other_settings_do_not(tmp_path):
    measured = []
    run = partial(run_experiments, paper="made-up", only=None, scale="full", out=tmp_path, progress=False)
    results = run(made_up(seeds=1, measured=measured))
    paper = made_up()["made-up"]
    assert verdicts(paper, results)[0][2].answer == "not judged: 1 of 3 seeds"
    results = run(made_up(seeds=3, measured=measured))
    assert measured == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert results["experiments"]["one"]["settings"]["seeds"] == 3
    assert verdicts(paper, results)[0][2].answer == "yes"
    run(made_up(size=2, measured=measured))
    assert len(measured) == 12


def test_a_seed_counts_when_all_its_cells_are_measured(tmp_path):
    results = run_experiments(made_up(), "made-up", None, scale="full", out=tmp_path, progress=False)
    results["experiments"]["one"]["rows"].pop()
    assert verdicts(made_up()["made-up"], results)[0][2].answer == "not judged: 2 of 3 seeds"
    assert verdicts(made_up()["made-up"], {**results, "experiments": {}})[0][2].answer == "not judged: 0 of 3 seeds"


def test_the_page_tells_judges_that_were_fixed_before_the_run_from_later_ones(tmp_path):
    results = run_experiments(made_up(), "made-up", None, scale="full", out=tmp_path, progress=False)
    part, found = results["experiments"]["one"], Rows(results["experiments"]["one"]["rows"])
    claim, later = (made_up(j)["made-up"].experiments["one"].claims[0] for j in (JUDGE, replace(JUDGE, limit=-0.5)))
    assert part["judges"][found[0]["judges"]]["b is less than a."]["digest"] == JUDGE.digest
    assert judged_by(claim, part, found) == "before the rows"
    assert judged_by(later, part, found) == "**6 of 6 rows were measured under another judge**"
    for row in found[:4]:
        del row["judges"]
    assert judged_by(claim, part, found) == "**after 4 of 6 rows were measured**"
    text = page(made_up(), results, tmp_path)
    assert f"| b is less than a. | y of b less that of a: below 0; 3 seeds. | `{JUDGE.digest}` | **after 4 of 6" in text


def test_the_page_says_if_seeds_were_measured_with_different_versions_of_the_library(tmp_path):
    results = run_experiments(made_up(), "made-up", None, scale="full", out=tmp_path, progress=False)
    assert "versions of the library" not in page(made_up(), results, tmp_path)
    results["experiments"]["one"]["rows"][0]["library"] = "0123456789ab"
    found = results["experiments"]["one"]["rows"][1]["library"]
    expected = f"2 versions of the library (digests of its source): 1 rows with `0123456789ab`, 5 rows with `{found}`."
    assert expected in page(made_up(), results, tmp_path)


def test_answers_are_logged_with_their_judges_whenever_they_change(tmp_path):
    results = run_experiments(made_up(), "made-up", None, scale="full", out=tmp_path, progress=False)
    for judge in (JUDGE, JUDGE, replace(JUDGE, limit=-0.9)):
        log_verdicts(made_up(judge)["made-up"], results)
    part = results["experiments"]["one"]
    assert [entry["answers"]["b is less than a."] for entry in part["judged"]] == ["yes", "can't tell"]
    assert part["judges"][part["judged"][1]["judges"]]["b is less than a."]["limit"] == -0.9
