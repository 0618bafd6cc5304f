"""What every reproduction shares: cells that are measured once, claims that are judged from them, a page from both.

An experiment is a table. Its `cells` are the settings of the rows (method, temperature, seed, …), `measure` turns a
cell into numbers, `draw` makes the paper's figure from the rows, and each claim has a judge, which sees the rows alone.
A row is written as soon as it is measured, so an interrupted reproduction resumes at the first missing row; it comes
with the definitions of the judges at that time, so that a judge that was changed after the run is seen to be.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import langevin as lv
from langevin.inference.callbacks import StepInfo
from langevin.inference.environment import environment
from langevin.storage import files
from reproductions.judges import Judge, digest_of
from reproductions.rows import Cell, Rows, cell_of

SCALES = ("quick", "full", "paper")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and its judge."""

    says: str
    judge: Judge
    otherwise: str = ""  # the reason that we suspect, if it does not reproduce


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    `settings` has a dataclass for each scale; every field in which it differs from the paper's is printed.
    """

    title: str
    settings: Mapping[str, Any]
    cells: Callable[[Any], list[Cell]]
    measure: Callable[..., Cell]  # (settings, workplace, **cell) → numbers
    draw: Callable[[Any, Rows], None]  # (figure, rows)
    claims: Sequence[Claim]
    figure_size: tuple[float, float] = (9.0, 3.6)
    further: Callable[[Any, Rows], list[Cell]] | None = None  # cells that depend on the rows measured so far
    settings_known: bool = True  # whether the paper has this experiment, and says its settings

    def wanted(self, settings: Any, rows: Rows) -> list[Cell]:
        """All cells that are needed, given these rows."""
        return self.cells(settings) + (self.further(settings, rows) if self.further and rows else [])

    def missing(self, settings: Any, rows: Rows) -> list[Cell]:
        """The wanted cells that have no row yet."""
        have = [cell_of(row) for row in rows]
        return [cell for cell in self.wanted(settings, rows) if cell not in have]

    def complete(self, settings: Any, rows: Rows) -> Rows:
        """The rows of the seeds that miss no cell."""
        lacking = {cell["seed"] for cell in self.missing(settings, rows)}
        return Rows(row for row in rows if row["seed"] not in lacking)

    @property
    def judges(self) -> dict[str, dict[str, Any]]:
        """The definitions of all judges, by the claim's sentence."""
        return {claim.says: {"digest": claim.judge.digest, **claim.judge.definition} for claim in self.claims}


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments by name."""

    title: str
    citation: str
    experiments: Mapping[str, Experiment]
    remarks: str = ""
    settings_known: bool = True  # whether the text that was at hand says them


def run_experiments(
    papers: Mapping[str, Paper],
    paper: str,
    only: str | None,
    *,
    scale: str,
    out: Path,
    jobs: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure all cells that `out/results.json` does not have yet, with these settings; return the results."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if results and (results["paper"], results["scale"]) != (paper, scale):
        raise ValueError(
            f"{out} contains results of {results['paper']} at scale {results['scale']}; choose another directory for "
            f"{paper} at scale {scale}: --out {out}-{scale}."
        )
    results |= {"paper": paper, "scale": scale, "environment": environment(torch.device("cpu"))}
    known = results.setdefault("experiments", {})
    chosen = {name: papers[paper].experiments[name] for name in papers[paper].experiments if only in (None, name)}
    for name, experiment in chosen.items():
        settings = json.loads(json.dumps(asdict(experiment.settings[scale])))
        if name in known and _without_seeds(known[name]["settings"]) != _without_seeds(settings):
            known.pop(name)
            shutil.rmtree(out / "work" / name, ignore_errors=True)  # interrupted cells of the other settings
        known[name] = {"judges": {}, "rows": [], **known.get(name, {}), "settings": settings}
    write_results(file, results)  # so that the settings of interrupted cells are known

    def todo() -> list[tuple[str, Cell]]:
        return [
            (name, cell)
            for name, experiment in chosen.items()
            for cell in experiment.missing(experiment.settings[scale], Rows(known[name]["rows"]))
        ]

    library = library_digest()
    interval = 0.2 if sys.stderr.isatty() else 30.0  # a log file wants few lines
    with tqdm(total=0, unit="cell", disable=not progress, file=sys.stderr, mininterval=interval) as bar:
        while cells := todo():  # more than once where rows lead to further cells
            bar.total += len(cells)
            for name, row in _measured(papers[paper], scale, cells, out / "work", jobs):
                judges = chosen[name].judges
                row |= {"judges": digest_of(judges), "library": library}
                known[name]["judges"][row["judges"]] = judges
                known[name]["rows"].append(row)
                write_results(file, results)
                bar.set_postfix_str(f"{name}: {', '.join(f'{k}={row[k]}' for k in row['cell'])}", refresh=False)
                bar.update()
    for name, experiment in chosen.items():  # in the order of the cells, whatever order they were measured in
        order = experiment.wanted(experiment.settings[scale], Rows(known[name]["rows"]))
        known[name]["rows"].sort(key=lambda row, order=order: _place_in(order, cell_of(row)))
    write_results(file, results)
    shutil.rmtree(out / "work", ignore_errors=True)
    return results


def judged_by(claim: Claim, part: dict[str, Any], rows: Rows) -> str:
    """Whether the claim's judge is the one that was defined when the rows were measured, in words."""
    then = [part.get("judges", {}).get(row.get("judges"), {}).get(claim.says, {}).get("digest") for row in rows]
    before = sum(digest is None for digest in then)
    other = sum(digest not in (None, claim.judge.digest) for digest in then)
    if not (before or other):
        return "before the rows" if then else "before the rows, of which there are none yet"
    words = (
        f"after {before} of {len(then)} rows were measured" if before else "",
        f"{other} of {len(then)} rows were measured under another judge" if other else "",
    )
    return "**" + "; ".join(word for word in words if word) + "**"


def library_digest() -> str:
    """Twelve hexadecimal digits of the library's source: seeds that are added later may run with another one."""
    root = Path(lv.__file__).parent
    return digest_of({str(file.relative_to(root)): file.read_text() for file in root.rglob("*.py")})


def _without_seeds(settings: Any) -> Any:
    """Settings without the number of seeds, on which no row depends."""
    if not isinstance(settings, dict):
        return settings
    return {name: _without_seeds(value) for name, value in settings.items() if name != "seeds"}


def write_results(file: Path, results: dict[str, Any]) -> None:
    """`results.json`, at once or not at all."""
    files.write(file, (json.dumps(results, indent=1) + "\n").encode())


def sample_or_resume(workplace: Path, posterior: lv.Posterior, data: Any, sampler: Any, **options: Any) -> lv.Run:
    """`lv.sample` into the workplace of a cell; an interrupted run there is resumed."""
    return lv.sample(posterior, data, sampler, out=workplace, resume="auto", progress=False, **options)


def freeze_from(step: int) -> Callable[[StepInfo], None]:
    """A callback that freezes an adaptive sampler at that step: for runs that save samples from the first step on."""

    def freeze(info: StepInfo) -> None:
        if info.step >= step and isinstance(info.sampler, lv.Sampler):
            info.sampler.freeze()

    return freeze


def _measured(
    paper: Paper, scale: str, todo: list[tuple[str, Cell]], work: Path, jobs: int
) -> Iterator[tuple[str, Cell]]:
    """The rows as they are measured, in this process or in several."""
    if jobs == 1:
        with _threads(torch.get_num_threads() if scale == "paper" else 1):
            for name, cell in todo:
                experiment = paper.experiments[name]
                yield name, _row(experiment.measure, experiment.settings[scale], cell, _place(work, name, cell))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = {}
        for name, cell in todo:
            experiment = paper.experiments[name]
            job = pool.submit(_row, experiment.measure, experiment.settings[scale], cell, _place(work, name, cell))
            waiting[job] = name
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(measure: Callable[..., Cell], settings: Any, cell: Cell, workplace: Path) -> Cell:
    """The settings of a cell, what was measured, and how long that took."""
    began = time.perf_counter()
    measured = measure(settings, workplace, **cell)
    shutil.rmtree(workplace, ignore_errors=True)
    return {"cell": list(cell), **cell, **measured, "seconds": round(time.perf_counter() - began, 1)}


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _place_in(order: list[Cell], cell: Cell) -> int:
    """The position of a cell; the end, if it was wanted once and is not any more."""
    return order.index(cell) if cell in order else len(order)


def _place(work: Path, name: str, cell: Cell) -> Path:
    return work / name / "-".join(f"{key}={value}" for key, value in cell.items()).replace("/", "_")
