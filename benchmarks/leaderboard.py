"""The leaderboard: what people use today, and langevin's samplers, on the same networks, data and gradients.

A cell is one method on one split of one data set; each is a file, so the command continues where it was stopped, and
`--sets`, `--methods`, `--splits` and `--max-hours` do a part. The first cells of a method on a set are those of its
settings, on a part of split 0; the others use the chosen one.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import langevin as lv
from benchmarks.leaderboard_page import page, summary
from benchmarks.leaderboard_tasks import ROWS, Task, scores
from benchmarks.rivals import METHODS, Job
from langevin.inference.environment import environment

_GUESS = 60.0  # seconds of a cell, before one was measured


@dataclass(frozen=True)
class Cell:
    """What one file has. Without a split: setting number `number` on the validation part of split 0."""

    set: str
    method: str
    split: int | None
    number: int = 0
    times: int = 1

    @property
    def file(self) -> str:
        """Its name."""
        where = f"validation-{self.number}" if self.split is None else f"{self.split}"
        return f"{self.set}-{self.method.replace(' ', '_')}-{self.times}x-{where}.json"


def run_leaderboard(
    out: Path,
    sets: Iterable[str],
    methods: Iterable[str],
    splits: int | None,
    *,
    times: int = 1,
    max_hours: float = math.inf,
    page_file: Path | None = None,
    summary_file: Path | None = None,
    say: Callable[[str], None] = print,
    tasks: Callable[[str, int], Task] | None = None,
) -> None:
    """Run the cells that are missing, and write the page after each."""
    torch.set_num_threads(1)
    folder, sets = out / "cells", list(sets)
    folder.mkdir(parents=True, exist_ok=True)
    make = tasks or (lambda name, split: ROWS[name].make(name, split))
    missing = [cell for cell in _cells(sets, list(methods), splits, times) if not (folder / cell.file).exists()]
    say(f"{len(missing)} cells to run, about {_estimate(folder, missing) / 3600:.1f} hours on one core.")
    began = time.monotonic()
    for cell in missing:
        if time.monotonic() - began > 3600 * max_hours:
            say("The time is over; the same command goes on.")
            break
        row = run_cell(folder, cell, make)
        (folder / cell.file).write_text(json.dumps(row, indent=1) + "\n")
        found = row["failure"] or f"NLL {row['scores']['nll']:.3f}"
        say(f"{cell.file.removesuffix('.json')}: {found}, {row['seconds']:.0f} s")
        write_pages(out, page_file, summary_file)
    write_pages(out, page_file, summary_file)


def write_pages(out: Path, page_file: Path | None, summary_file: Path | None = None) -> None:
    """The page, and its overview between `<!-- leaderboard -->` and `<!-- end -->` of another one."""
    cells = read(out / "cells")
    if page_file is not None:
        page_file.write_text(page(cells))
    if summary_file is not None:
        before, begin, rest = summary_file.read_text().partition("<!-- leaderboard -->\n")
        summary_file.write_text(before + begin + summary(cells) + rest[rest.index("<!-- end -->") :])


def read(folder: Path) -> list[dict[str, Any]]:
    """All cells."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _cells(sets: list[str], methods: list[str], splits: int | None, times: int) -> Iterator[Cell]:
    """In the order in which they are run: a set after another, its settings and deep ensembles first.

    The latter are the measure of budgets, so they are run in any case; with a larger budget if they are asked for.
    """
    ensemble = next(iter(METHODS))
    for name in sets:
        count = min(ROWS[name].splits, splits or ROWS[name].splits)
        yield Cell(name, ensemble, None)
        yield from (Cell(name, ensemble, split) for split in range(count))
        if times > 1 and ensemble in methods:
            yield from (Cell(name, ensemble, split, times=times) for split in range(count))
        for method in methods:
            if method != ensemble:
                settings = METHODS[method].settings
                yield from (Cell(name, method, None, number) for number in range(len(settings)) if len(settings) > 1)
                yield from (Cell(name, method, split, times=times) for split in range(count))


def run_cell(folder: Path, cell: Cell, make: Callable[[str, int], Task]) -> dict[str, Any]:
    """Fit and score; a method that diverges has no scores."""
    method, ensemble = METHODS[cell.method], next(iter(METHODS))
    number = chosen(folder, cell.set, cell.method) if cell.split is not None else cell.number
    task = make(cell.set, 0 if cell.split is None else cell.split)
    task = task.validation() if cell.split is None else task
    budget = 0
    if cell.method != ensemble:
        beside = Cell(cell.set, ensemble, cell.split)
        budget = cell.times * json.loads((folder / beside.file).read_text())["example_gradients"]
    asked = (task.test[0],) if task.ood is None else (task.test[0], task.ood)
    job = Job(task.posterior, task.train, budget, cell.times, task.seed, asked)
    found: dict[str, float] = {}
    failure = ""
    began, computed = time.perf_counter(), _computed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verdicts on runs by hand: the page says what they are
        try:
            found = scores(method.fit(job, method.settings[number]), task)
        except (lv.DivergenceError, ArithmeticError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            failure = f"{type(error).__name__}: {str(error)[:200]}"
    if found and not all(map(math.isfinite, found.values())):
        found, failure = {}, f"not finite: {found}"
    return {
        "set": cell.set,
        "method": cell.method,
        "split": cell.split,
        "times": cell.times,
        "number": number,
        "setting": method.settings[number],
        "scores": found,
        "failure": failure,
        "example_gradients": job.spent,
        "budget": budget or job.spent,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": _computed() - computed,  # of one core, whatever else the machine does
        "environment": environment(torch.device("cpu")),
    }


def _computed() -> float:
    """Seconds of processor time, of this process and of peers that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def chosen(folder: Path, name: str, method: str) -> int:
    """The setting of the lowest NLL on the validation part; the first of those that are equal."""
    count = len(METHODS[method].settings)
    if count == 1:
        return 0
    rows = [json.loads((folder / Cell(name, method, None, number).file).read_text()) for number in range(count)]
    return min(range(count), key=lambda number: rows[number]["scores"].get("nll", math.inf))


def _estimate(folder: Path, missing: list[Cell]) -> float:
    """Seconds, by the cells of the same set and method, else of the same set, else of any."""
    seconds: dict[tuple[str, ...], list[float]] = {}
    for row in read(folder):
        for key in ((row["set"], row["method"]), (row["set"],), ()):
            seconds.setdefault(key, []).append(row["seconds"])
    total = 0.0
    for cell in missing:
        keys = ((cell.set, cell.method), (cell.set,), ())
        total += cell.times * next((statistics.median(seconds[key]) for key in keys if key in seconds), _GUESS)
    return total
