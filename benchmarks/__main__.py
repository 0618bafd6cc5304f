"""`python -m benchmarks`: measure langevin itself, from a clone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure langevin itself: its speed or, with a subcommand, something else.",
)


@app.callback(invoke_without_command=True)
def speed(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of results.json and README.md (benchmarks; benchmarked/quick with --quick)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Within a minute: few samplers, two networks, no peers.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Measure one section again: steps, parts, kfac, chains, prediction, …")
    ] = None,
) -> None:
    """Every sampler against plain SGD, in alternating steps, and against peers where they are installed."""
    if context.invoked_subcommand is None:
        from benchmarks.speed import default_directory, run_speed

        run_speed(out or default_directory(quick), quick=quick, only=only, say=typer.echo)


@app.command()
def gold(
    out: Annotated[Path, typer.Option(help="Directory of results and tables; finished rows are not run again.")],
    references: Annotated[Path, typer.Option(help="Directory of the reference samples.")] = Path("tests/reference"),
    page: Annotated[Path | None, typer.Option(help="The page that contains the tables.")] = None,
) -> None:
    """Every sampler against NUTS and HMC on two real posteriors; takes about half an hour on two cores."""
    from benchmarks.gold import run_gold
    from benchmarks.scaling import refresh

    run_gold(out, references, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def ranks(
    out: Annotated[Path, typer.Option(help="Directory of results and the table; finished rows are not run again.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the table.")] = None,
) -> None:
    """How KSGLD mixes with factors of low rank; takes a quarter of an hour on one core."""
    from benchmarks.ranks import run_ranks
    from benchmarks.scaling import refresh

    run_ranks(out, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def temperature(
    out: Annotated[Path, typer.Option(help="Directory of results and tables.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the tables.")] = None,
) -> None:
    """Both thermometers on targets whose temperatures are known; takes a quarter of an hour on one core."""
    from benchmarks.scaling import refresh
    from benchmarks.temperature import run_temperature

    run_temperature(out, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def references(
    out: Annotated[Path, typer.Option(help="Directory of results and the table; finished rows are not run again.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the table.")] = None,
) -> None:
    """The autopilot beside long HMC on three small networks; takes half an hour on one core."""
    from benchmarks.references import run_references
    from benchmarks.scaling import refresh

    run_references(out, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def images(
    out: Annotated[Path, typer.Option(help="Directory of results and the table; finished cells are not run again.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the table.")] = None,
    sets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "digits,fashion-mnist-10000",
    seeds: Annotated[int, typer.Option(help="Seeds of each.")] = 3,
    curve: Annotated[bool, typer.Option(help="A larger budget too, on the first seed.")] = True,
) -> None:
    """The autopilot on images, against the deep ensemble that it starts from; takes two hours on one core."""
    from benchmarks.images import SETS, run_images
    from benchmarks.scaling import refresh

    names = [name.strip() for name in sets.split(",")]
    if unknown := [name for name in names if name not in SETS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(SETS)}.", param_hint="--sets")
    run_images(out, typer.echo, sets=names, seeds=range(seeds), curve=curve)
    if page is not None:
        refresh(page, out)


@app.command()
def rates(
    out: Annotated[Path, typer.Option(help="Directory of results and tables; finished rows are not run again.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the tables.")] = None,
    only: Annotated[str, typer.Option(help="Those problems alone whose names contain this.")] = "",
) -> None:
    """What find_lr finds in twenty seeds, and how hot a run at that rate is; takes an hour on one core."""
    from benchmarks.rates import run_rates
    from benchmarks.scaling import refresh

    run_rates(out, say=typer.echo, only=only)
    if page is not None:
        refresh(page, out)


@app.command()
def linearized(
    out: Annotated[Path, typer.Option(help="Directory of results and the table.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the table (docs/variational.md).")] = None,
) -> None:
    """Laplace's two predictives against HMC on the yacht network; takes five minutes on one core."""
    from benchmarks.linearized import run_linearized
    from benchmarks.scaling import refresh

    run_linearized(out, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def autopilot(
    out: Annotated[Path, typer.Option(help="Directory of results and the page; finished cells are not run again.")],
    sets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "yacht,concrete,energy,protein",
    folds: Annotated[int | None, typer.Option(help="At most so many splits of each.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    summary: Annotated[Path | None, typer.Option(help="The page that shows an overview (README.md).")] = None,
) -> None:
    """`lv.sample(posterior, train)` on regression sets, against the deep ensemble that it starts from."""
    from benchmarks.autopilot import FOLDS, run_autopilot

    names = [name.strip() for name in sets.split(",")]
    if unknown := [name for name in names if name not in FOLDS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(FOLDS)}.", param_hint="--sets")
    run_autopilot(out, names, folds, typer.echo, threads, summary)


@app.command()
def bde(
    out: Annotated[Path, typer.Option(help="Directory of the results; finished rows are not run again.")],
    sets: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "airfoil,bikesharing",
    budgets: Annotated[str, typer.Option(help="Steps of burn-in and after it.")] = "2000+2000",
    threads: Annotated[int, typer.Option(help="Threads of both.")] = 2,
    seeds: Annotated[int, typer.Option(help="Runs of both on the split of bde's paper.")] = 3,
    splits: Annotated[int, typer.Option(help="Splits, one run of both on each but the first.")] = 5,
) -> None:
    """The autopilot beside bde, in its own Python environment (LANGEVIN_BDE_PYTHON), with the same numbers of steps."""
    from benchmarks.bde import run_bde

    pairs = [tuple(map(int, each.split("+"))) for each in budgets.split(",")]
    run_bde(out, sets.split(","), [(burn_in, steps) for burn_in, steps in pairs], typer.echo, threads, seeds, splits)


@app.command()
def leaderboard(
    out: Annotated[Path, typer.Option(help="Directory of the cells; those that are there are not run again.")],
    page: Annotated[Path | None, typer.Option(help="The page to write (docs/leaderboard.md).")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="The page that shows its overview (docs/choosing-a-method.md).")
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Data sets, separated by commas; by default all.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas; by default all.")] = None,
    splits: Annotated[int | None, typer.Option(help="At most so many splits of each set.")] = None,
    times: Annotated[int, typer.Option(help="The budget, in deep ensembles (10: the second table).")] = 1,
    max_hours: Annotated[float, typer.Option(help="Begin no cell after so many hours.")] = 1e9,
) -> None:
    """Every method on every data set with the gradients of a deep ensemble; resumable, a cell at a time."""
    from benchmarks.leaderboard import run_leaderboard
    from benchmarks.leaderboard_tasks import ROWS
    from benchmarks.rivals import METHODS

    chosen = {}
    for option, given, known in (("--sets", sets, list(ROWS)), ("--methods", methods, list(METHODS))):
        names = known if given is None else [name.strip() for name in given.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}.", param_hint=option)
        chosen[option] = names
    run_leaderboard(
        out,
        chosen["--sets"],
        chosen["--methods"],
        splits,
        times=times,
        max_hours=max_hours,
        page_file=page,
        summary_file=summary,
        say=typer.echo,
    )


@app.command()
def adapters(
    out: Annotated[Path, typer.Option(help="Directory of results and tables; finished rows are not measured again.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the tables (docs/fine-tuning.md).")] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
) -> None:
    """Posteriors over LoRA adapters of a small transformer, against fine-tuning; takes about an hour on one core."""
    from benchmarks.adapters import run_adapters
    from benchmarks.scaling import refresh

    run_adapters(out, typer.echo, threads)
    page = out.with_suffix(".md") if page is None else page
    if page.exists():
        refresh(page, out)


@app.command()
def support(out: Annotated[Path, typer.Option(help="The page to write.")]) -> None:
    """Which sampler supports which network: two steps of each."""
    from benchmarks.support import write_support

    write_support(out, typer.echo)


@app.command()
def scaling(
    out: Annotated[Path, typer.Option(help="Directory of results and tables.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the tables.")] = None,
    faults: Annotated[Path | None, typer.Option(help="The JUnit file of a run of the fault tests.")] = None,
) -> None:
    """What two processes cost and save here, and the faults that were survived."""
    from benchmarks.scaling import refresh, write_scaling

    write_scaling(out, faults, typer.echo)
    if page is not None:
        refresh(page, out)


@app.command()
def limits(
    out: Annotated[Path, typer.Option(help="Directory of results and tables.")],
    page: Annotated[Path | None, typer.Option(help="The page that contains the table.")] = None,
) -> None:
    """What large runs take: restoring a thousand chains, diagnosing 100,000 samples, memory."""
    from benchmarks.limits import write_limits
    from benchmarks.scaling import refresh

    write_limits(out, typer.echo)
    if page is not None:
        refresh(page, out)


if __name__ == "__main__":
    try:
        app()
    except ValueError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(2)
