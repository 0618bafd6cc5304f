"""The papers, reproduced: what `python -m reproductions` runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from reproductions import heek2019, hwa2020, lange2023, palacci2018, smith2018
from reproductions.harness import SCALES, Paper, run_experiments, write_results
from reproductions.page import accepts_overview, log_verdicts, write_overview, write_page

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"  # the committed results
PAPERS: Mapping[str, Paper] = {
    "heek2019": heek2019.PAPER,
    "hwa2020": hwa2020.PAPER,
    "lange2023": lange2023.PAPER,
    "palacci2018": palacci2018.PAPER,
    "smith2018": smith2018.PAPER,
}


def reproduce_paper(
    paper: str,
    experiment: str | None = None,
    *,
    scale: str = "quick",
    out: Path | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> Path:
    """Run a paper's experiments, or one of them, and write results, figures and the page; return the page's path.

    A directory of the paper's name, `experiments/lange2023`, is one of several: the claims of all papers go into the
    overview, the README.md beside it. Results of scale quick never go there.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper={paper!r}: choose one of {', '.join(PAPERS)}.")
    if experiment is not None and experiment not in PAPERS[paper].experiments:
        raise ValueError(f"{paper} has no experiment {experiment!r}: it has {', '.join(PAPERS[paper].experiments)}.")
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: choose one of {', '.join(SCALES)}.")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one process.")
    default = Path("reproduced") / f"{paper}-{scale}"
    out = default if out is None else out
    if scale == "quick" and out.resolve().is_relative_to(EXPERIMENTS):
        raise ValueError(
            f"{out} is for committed results, and those of scale quick show only that everything runs. Leave out --out "
            f"({default}), or write --scale full."
        )
    jobs = jobs or (1 if scale == "paper" else os.cpu_count() or 1)
    run_experiments(PAPERS, paper, experiment, scale=scale, out=out, jobs=jobs, progress=progress)
    return judge_paper(paper, out=out)


def judge_paper(paper: str, *, out: Path | None = None) -> Path:
    """Judge a paper's rows again, without measuring anything, and write figures and the page; return the page's path.

    The answers, and the judges that gave them, are logged in the results file whenever they differ from the last ones.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper={paper!r}: choose one of {', '.join(PAPERS)}.")
    out = Path("experiments") / paper if out is None else out
    file = out / "results.json"
    if not file.exists():
        raise ValueError(f"{out} has no results.json: name a directory with results of {paper}, --out DIRECTORY.")
    results = json.loads(file.read_text())
    if results["paper"] != paper:
        raise ValueError(f"{out} contains results of {results['paper']}, not of {paper}.")
    log_verdicts(PAPERS[paper], results)
    write_results(file, results)
    write_page(PAPERS, results, out)
    if results["scale"] != "quick" and out.name == paper and accepts_overview(out.parent / "README.md"):
        write_overview(PAPERS, out.parent)
    return out / "README.md"
