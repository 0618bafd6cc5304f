"""`python -m reproductions`: run a paper's experiments again, from a clone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reproductions import PAPERS, judge_paper, reproduce_paper

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def reproduce(
    paper: Annotated[
        str,
        typer.Argument(help="smith2018, … or all; `list` shows them and their experiments, `judge` judges again."),
    ],
    experiment: Annotated[
        str | None, typer.Argument(help="One of its experiments, by default all; after `judge` a paper.")
    ] = None,
    scale: Annotated[str, typer.Option(help="quick (seconds), full (minutes, two cores) or paper (a GPU).")] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Directory of results, figures and the page (reproduced/PAPER-SCALE).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes of one thread each (the cores; 1 at paper scale).")
    ] = None,
) -> None:
    """Run a paper's experiments again, and write what it says, what we measured, and whether it reproduces.

    An interrupted reproduction resumes when the command is given again. Data that the library does not ship are read
    from the folder that LANGEVIN_DATA names, or downloaded. `judge PAPER` measures nothing: it judges the results in
    experiments/PAPER (or --out), and writes the page anew.
    """
    if paper == "list":
        for name, known in PAPERS.items():
            typer.echo(f"{name}: {known.title}")
            for label, one in known.experiments.items():
                typer.echo(f"    {label}: {one.title}")
        return
    if paper == "judge":
        if experiment is None:
            raise ValueError("judge which paper? For example: python -m reproductions judge smith2018, or judge all.")
        if experiment == "all" and out:
            raise ValueError("`judge all` judges each paper in its own directory: leave out --out.")
        for name in PAPERS if experiment == "all" else [experiment]:
            typer.echo(f"The page: {judge_paper(name, out=out)}")
        return
    if paper == "all" and (experiment or out):
        raise ValueError("`all` runs whole papers, each into its own directory: leave out the experiment and --out.")
    for name in PAPERS if paper == "all" else [paper]:
        typer.echo(f"The page: {reproduce_paper(name, experiment, scale=scale, out=out, jobs=jobs)}")


if __name__ == "__main__":
    try:
        app()
    except ValueError as error:
        typer.echo(f"reproductions: {error}", err=True)
        sys.exit(2)
