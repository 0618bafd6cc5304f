"""docs/leaderboard.md, from the cells that there are. Rules and judges stand here, written before any run."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.leaderboard_tasks import REGRESSION, ROWS
from benchmarks.rivals import METHODS

Cells = list[dict[str, Any]]
_COLUMNS = {
    "nll": "NLL",
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "calibration": "calibration error",
    "ood": "OOD AUROC",
}
_HIGHER = ("accuracy", "ood")
_COMPARED = 5  # splits that a method needs to be compared with those that have more

_RULES = """# Leaderboard

Written by `python -m benchmarks leaderboard --out docs/leaderboard --page docs/leaderboard.md` (`make leaderboard`)
from the files in [docs/leaderboard/cells](leaderboard/cells): one for every method, data set and split. The command
continues where it was stopped. Every table says how many splits it has, and which methods were not run.

## Rules, written before the first run

- **Same everything.** One network, likelihood and prior N(0, 1) for all methods on a data set. Regression: one hidden
  layer of 50 ReLUs (protein 100), a mean and a scale of Student's t noise (4 degrees of freedom) as outputs; digits
  and mushroom: one hidden layer of 50; Fashion-MNIST at 14 × 14: two convolutions and a linear layer. (With Gaussian
  noise, as measured before, single test rows decided the means. Energy and concrete led to the change; what is here
  of regression was run after it.)
- **Equal budgets.** The deep ensemble (five networks, AdamW with early stopping) sets the number of example-gradients
  of a split; every other method may spend as many. One network, temperature scaling and Laplace need less. A second
  table gives all ten times that, with the same settings. (After all sets had been run, the autopilot's warm start was
  changed where budgets are short: a higher rate that decays to 0, examples weighted by their predicted scale at first,
  80 % of the budget where there are ten examples for each weight, and small batches instead of fewer than 500 full
  ones. All of that was decided on validation parts of the first splits, and its cells were run anew. The deep ensemble,
  which sets the budgets, has none of it.)
- **Settings.** At most four a method ([benchmarks/rivals.py](../benchmarks/rivals.py)). Each is fitted to four fifths
  of the training part of split 0 with the budget of a deep ensemble there; the one with the lowest negative
  log-likelihood (NLL) of the last fifth is used on all splits. A fit that diverges has an infinite NLL. Test data are
  not looked at.
- **One network** is a member of a deep ensemble, stopped early; **AdamW** one network that spends the whole budget at a
  rate that decays to 0. (AdamW was added after the first cells of yacht were seen, since one network was no match for
  methods that spend five times as much.)
- **Starts.** SWAG, HWA, Laplace and the samplers start at one network (a fifth of the budget); samplers have five
  chains, whose first quarter is burn-in. Others start at a fresh initialization.
- **Peers.** bde and laplace-torch run in environments of their own, on the same rows, widths and gradients. Their noise
  is Gaussian: bde's with a predicted scale, laplace-torch's with one scale for all. bde trains with full batches; it
  has half of the gradients for its ensemble of five and half for MCLMC, which fails where these are some ten steps.
  laplace-torch starts at our one network, for regression at one of a single output, trained on squared errors.
- **Scores.** NLL of the predictive mixture and RMSE in the units of the data; calibration error: the mean distance of
  the coverage of central intervals from their probability at nine levels, or the expected calibration error of eight
  bins of equal mass; OOD AUROC by confidence, against patches of photographs (digits) or letters (Fashion-MNIST).
- **NLL by budget**: on wine, where the autopilot is not the best at equal budgets, it and what is ahead of it there are
  run with more. (That was decided after the equal budgets and before the larger ones were run.)
- **Bold**: the best mean, and every method whose mean difference from it, paired over splits, is within two standard
  errors, on the splits that all methods of the table were run on. With one split nothing but the best is bold.

Judges: (1) on every regression set the autopilot has the best mean NLL or is within two standard errors of it; (2)
its NLL is lower than the deep ensemble's by more than two standard errors on at least six of the eight.
"""


def page(cells: Cells) -> str:
    """The whole page."""
    lines = [_RULES]
    for times, title in ((1, "Equal budgets"), (10, "Ten times the budget")):
        rows = [row for row in cells if row["times"] == times and row["split"] is not None]
        if times == 1 or rows:
            lines += [f"## {title}", "", *_verdicts(rows), *_overview(rows)]
        for name in ROWS:
            own = [row for row in rows if row["set"] == name]
            if own:
                lines += _table(name, own)
    lines += _curves([row for row in cells if row["split"] is not None])
    lines += _settings([row for row in cells if row["split"] is None])
    missing = [name for name in ROWS if not any(row["set"] == name for row in cells)]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _curves(rows: Cells) -> list[str]:
    """NLL by budget, on sets with three budgets or more: on the splits that all methods and budgets have."""
    lines: list[str] = []
    for name in ROWS:
        own = [row for row in rows if row["set"] == name and row["scores"]]
        budgets = sorted({row["times"] for row in own})
        if len(budgets) < 3:
            continue
        larger = {row["method"] for row in own if row["times"] > 1}
        kinds = [(method, times) for method in METHODS if method in larger for times in budgets]
        found = {
            (method, times): _by_split([row for row in own if row["times"] == times], method, "nll")
            for method, times in kinds
        }
        found = {kind: values for kind, values in found.items() if values}
        splits = set.intersection(*map(set, found.values()))
        lines += [f"**{name}** ({len(splits)} split{'s' if len(splits) > 1 else ''})", ""]
        lines += [
            "| budgets of a deep ensemble | " + " | ".join(map(str, budgets)) + " |",
            "|---" * (len(budgets) + 1) + "|",
        ]
        for method in (method for method in METHODS if method in larger):
            values = [
                [found[method, times][s] for s in splits] if (method, times) in found else [] for times in budgets
            ]
            lines.append(f"| {method} | " + " | ".join(map(_mean, values)) + " |")
        lines.append("")
    return ["## NLL by budget", "", *lines] if lines else []


def _mean(values: list[float], digits: int = 3) -> str:
    """With its standard error."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{error}"


def summary(cells: Cells) -> str:
    """What docs/choosing-a-method.md shows: the table of equal budgets, and how much of it was measured."""
    rows = [row for row in cells if row["times"] == 1 and row["split"] is not None]
    splits = {name: len({row["split"] for row in rows if row["set"] == name}) for name in ROWS}
    most, sets = max(splits.values()), sum(map(bool, splits.values()))
    how_many = f"up to {most} splits" if most > 1 else "one split"
    text = f"Measured so far: {sets} of {len(ROWS)} data sets, {how_many} of each."
    if most < 2:
        text += " That shows which differences are large, not which are significant."
    return "\n".join([text, "", *_overview(rows), ""])


def _by_split(rows: Cells, method: str, score: str) -> dict[int, float]:
    return {row["split"]: row["scores"][score] for row in rows if row["method"] == method and row["scores"]}


def _overview(rows: Cells) -> list[str]:
    """NLL of all methods and sets."""
    sets = [name for name in ROWS if any(row["set"] == name for row in rows)]
    if not sets:
        return ["No cell has been run.", ""]
    counts = {name: len({row["split"] for row in rows if row["set"] == name}) for name in sets}
    head = [f"{name} ({counts[name]} splits)" if counts[name] > 1 else f"{name} (1 split)" for name in sets]
    lines = ["Negative log-likelihood, mean ± standard error over splits.", ""]
    lines += ["| | " + " | ".join(head) + " |", "|---" * (len(sets) + 1) + "|"]
    bold = {name: best([row for row in rows if row["set"] == name], "nll") for name in sets}
    for method in _run(rows):
        texts = []
        for name in sets:
            own = [row for row in rows if row["set"] == name]
            texts.append(_text(own, method, "nll", method in bold[name], counts[name]))
        lines.append(f"| {method} | " + " | ".join(texts) + " |")
    return [*lines, "", *_not_run(rows)]


def _run(rows: Cells) -> list[str]:
    run = {row["method"] for row in rows}
    return [method for method in METHODS if method in run]


def _not_run(rows: Cells) -> list[str]:
    missing = [method for method in METHODS if method not in _run(rows)]
    return [f"Not run: {', '.join(missing)}.", ""] if missing else []


def _table(name: str, rows: Cells) -> list[str]:
    """All scores of a data set."""
    names = [score for score in _COLUMNS if any(score in row["scores"] for row in rows)]
    count = len({row["split"] for row in rows})
    lines = [f"### {name}", ""]
    lines += ["| | " + " | ".join(_COLUMNS[score] for score in names) + " | example-gradients | CPU seconds |"]
    lines += ["|---" * (len(names) + 3) + "|"]
    bold = {score: best(rows, score) for score in names}
    for method in _run(rows):
        own = [row for row in rows if row["method"] == method]
        texts = [_text(rows, method, score, method in bold[score], count) for score in names]
        spent = f"{statistics.fmean(row['example_gradients'] for row in own):,.0f}"
        measured = [row["cpu_seconds"] for row in own if "cpu_seconds" in row]
        seconds = f"{statistics.median(measured):.0f}" if measured else ""
        lines.append(f"| {method} | " + " | ".join(texts) + f" | {spent} | {seconds} |")
    return [*lines, "", *_not_run(rows)]


def _text(rows: Cells, method: str, score: str, bold: bool, count: int) -> str:
    values = list(_by_split(rows, method, score).values())
    run = [row for row in rows if row["method"] == method]
    if not run:
        return "missing"
    without = [_how(row) for row in run if not row["scores"]]
    if not values:
        return " or ".join(sorted(set(without)))
    digits = 2 if score in ("nll", "rmse") and max(map(abs, values)) >= 10 else 3
    text = f"**{_mean(values, digits)}**" if bold else _mean(values, digits)
    notes = []
    if len(run) < count:
        notes.append(f"{len(run)} of {count} splits")
    notes += [f"{without.count(how)} {how}" for how in sorted(set(without))]
    return text + (f" ({', '.join(notes)})" if notes else "")


def _how(row: dict[str, Any]) -> str:
    """What happened to a cell without scores."""
    return "failed" if "the peer failed" in row.get("failure", "") else "diverged"


def best(rows: Cells, score: str) -> set[str]:
    """The methods with the best mean or within two standard errors of it, on the splits that all of them were run on.

    A method that was run on fewer than five of more splits, or that diverged on one, is not compared.
    """
    least = min(_COMPARED, len({row["split"] for row in rows}))
    diverged = {row["method"] for row in rows if not row["scores"]}
    found = {method: _by_split(rows, method, score) for method in _run(rows) if method not in diverged}
    found = {method: values for method, values in found.items() if len(values) >= least}
    splits = set.intersection(*map(set, found.values())) if found else set()
    if not splits:
        return set()
    sign = -1 if score in _HIGHER else 1
    means = {method: sign * statistics.fmean(values[split] for split in splits) for method, values in found.items()}
    first = min(means, key=lambda method: means[method])
    chosen = {first}
    for method, values in found.items():
        gaps = [sign * (values[split] - found[first][split]) for split in splits]
        if len(gaps) > 1 and statistics.fmean(gaps) <= 2 * statistics.stdev(gaps) / math.sqrt(len(gaps)):
            chosen.add(method)
    return chosen


def _verdicts(rows: Cells) -> list[str]:
    """The judges."""
    judged, won, level = 0, 0, 0
    for name in REGRESSION:
        own = [row for row in rows if row["set"] == name]
        ours, theirs = _by_split(own, "autopilot", "nll"), _by_split(own, "deep ensemble", "nll")
        common = sorted(set(ours) & set(theirs))
        if len(common) < 2:
            continue
        judged += 1
        level += "autopilot" in best(own, "nll")
        gaps = [ours[split] - theirs[split] for split in common]
        won += statistics.fmean(gaps) < -2 * statistics.stdev(gaps) / math.sqrt(len(gaps))
    if not judged:
        return ["Judges: the autopilot has not been run.", ""]
    return [
        f"Judges, on {judged} of {len(REGRESSION)} regression sets: (1) best or within two standard errors on {level}; "
        f"(2) ahead of the deep ensemble by more than two standard errors on {won}.",
        "",
    ]


def _settings(rows: Cells) -> list[str]:
    """What was chosen."""
    lines = ["## Settings", "", "NLL on the validation part of split 0; the chosen ones in bold.", ""]
    lines += ["| set | method | settings |", "|---|---|---|"]
    for name in ROWS:
        for method in METHODS:
            own = [row for row in rows if row["set"] == name and row["method"] == method]
            if len(METHODS[method].settings) == 1 or not own:
                continue
            values = {row["number"]: row["scores"].get("nll", math.inf) for row in own}
            least = min(values, key=lambda number: (values[number], number))
            texts = []
            for row in sorted(own, key=lambda row: row["number"]):
                what = ", ".join(f"{key} {value}" for key, value in row["setting"].items())
                text = f"{what}: {values[row['number']]:.3f}" if row["scores"] else f"{what}: {_how(row)}"
                texts.append(f"**{text}**" if row["number"] == least else text)
            lines.append(f"| {name} | {method} | {'; '.join(texts)} |")
    return [*lines, ""]
