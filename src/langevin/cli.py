"""The command line."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from langevin import data as data_sets
from langevin import models
from langevin._version import __version__
from langevin.named import build, imported
from langevin.posterior import Posterior
from langevin.samplers import METHODS
from langevin.schedules import cyclical
from langevin.store import Store

app = typer.Typer(
    name="langevin",
    help="Samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions from them.",
    epilog="Begin with: langevin demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Options = Annotated[
    list[str] | None, typer.Option(help="An option as name=value, the value as in JSON; may be given several times.")
]


def main() -> None:
    """Run the command line; an error of ours is a sentence, not a traceback."""
    try:
        app()
    except (ValueError, FloatingPointError, FileNotFoundError) as error:
        typer.echo(f"langevin: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the table, the figure and the results go.")] = Path("langevin-demo"),
) -> None:
    """The whole story on scikit-learn's digits, in about a minute: plain SGD against SGLD."""
    from langevin.demo import run_demo

    rows = run_demo(out)
    head = ("", "accuracy", "NLL", "calibration error", "sure of digits", "sure of photographs")
    lines = [head] + [
        (
            r.method,
            f"{r.accuracy:.1%}",
            f"{r.nll:.3f}",
            f"{r.calibration_error:.3f}",
            f"{r.confidence_on_digits:.2f}",
            f"{r.confidence_on_photographs:.2f}",
        )
        for r in rows
    ]
    typer.echo(_columns(lines))
    results = json.loads((out / "results.json").read_text())["temperature"]
    typer.echo(f"\nSGLD sampled at T = {results['measured']:.3f} ± {results['error']:.3f} (asked: 1).")
    typer.echo(f"Confidence should be near the accuracy on digits, and low on photographs. Figure: {out / 'demo.png'}")


@app.command()
def doctor(
    factory: Annotated[str, typer.Argument(help="module:function that returns (posterior, data) or a dict of both.")],
) -> None:
    """Look a set-up over before it is sampled.

    The function returns a posterior and its training data, or a dict with "posterior", "data" and, if wanted,
    "sampler" (partial(lv.SGLD, lr=…)), "loss" (your own loss of x and y) and "batch_size".

    Checked: BatchNorm and dropout, a loss that is summed instead of averaged, num_data against the data set, targets,
    frozen parameters, the learning rate against the stability limit 2/λ_max, the heat of mini-batch noise.
    """
    from langevin.doctor import examine

    given = imported(factory)()
    if isinstance(given, tuple) and len(given) == 2:
        given = {"posterior": given[0], "data": given[1]}
    if not isinstance(given, dict) or not isinstance(given.get("posterior"), Posterior) or "data" not in given:
        raise ValueError(f"{factory} must return (posterior, data) or a dict with both; it returned {type(given)}.")
    if unknown := set(given) - {"posterior", "data", "sampler", "loss", "batch_size"}:
        raise ValueError(f"{factory} returned {sorted(unknown)}, which the doctor does not know; see --help.")
    findings = examine(given.pop("posterior"), given.pop("data"), **given)
    for finding in findings:
        typer.echo(f"{finding.level:>7}  {finding.check}: {finding.says}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def sample(
    model: Annotated[str, typer.Option(help=f"A network by name ({', '.join(models.names())}) or module:function.")],
    data: Annotated[str, typer.Option(help=f"Data by name ({', '.join(data_sets.names())}) or module:function.")],
    out: Annotated[Path, typer.Option(help="The directory of the run; it must not hold one yet.")],
    lr: Annotated[float, typer.Option(help="Learning rate.")],
    sampler: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "sgld",
    steps: Annotated[int, typer.Option(help="Steps of each chain, burn-in included.")] = 10_000,
    burn_in: Annotated[int | None, typer.Option(help="Steps before the first sample (a quarter).")] = None,
    thin: Annotated[int | None, typer.Option(help="Steps from sample to sample (100 samples a chain).")] = None,
    cycle: Annotated[int | None, typer.Option(help="Length of cosine cycles of the learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step (128).")] = None,
    chains: Annotated[int, typer.Option(help="Independent chains.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="1 is the Bayes posterior.")] = None,
    prior_std: Annotated[
        float | None, typer.Option(help="Standard deviation of a Gaussian prior; by default lv.priors.default(model).")
    ] = None,
    likelihood: Annotated[
        str | None, typer.Option(help="categorical, bernoulli or gaussian; by default from the targets.")
    ] = None,
    num_data: Annotated[int | None, typer.Option(help="Examples in all, where the data do not know.")] = None,
    seed: Annotated[int, typer.Option(help="Everything random is a function of it.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    float16: Annotated[bool, typer.Option(help="Store samples in half the space.")] = False,
    model_option: Options = None,
    data_option: Options = None,
    sampler_option: Options = None,
) -> None:
    """Sample a posterior, to a directory.

    Examples:

        langevin sample --model mlp --data digits --sampler sgld --lr 0.1 --out runs/digits

        langevin sample --model mypackage.nets:make --data mypackage.data:train --lr 0.01 --out runs/mine

    Ctrl-C leaves a run that `langevin resume` continues.
    """
    from langevin.loop import sample as draw

    if sampler not in METHODS:
        raise ValueError(f"--sampler {sampler}: choose one of {', '.join(METHODS)}.")
    recipe = {
        "model": model,
        "model_options": _options(model_option),
        "data": data,
        "data_options": _options(data_option),
        "likelihood": likelihood,
        "prior_std": prior_std,
        "num_data": num_data,
        "seed": seed,
    }
    options = _options(sampler_option) | ({} if temperature is None else {"temperature": temperature})
    try:
        inspect.signature(METHODS[sampler].sampler).bind([], lr=lr, num_data=1, seed=0, chain=0, **options)
    except TypeError as error:
        raise ValueError(f"--sampler {sampler} has no such option: {error}.") from None
    posterior, train = build(recipe)
    run = draw(
        posterior,
        train,
        partial(METHODS[sampler].sampler, lr=lr, **options),
        steps=steps,
        burn_in=burn_in,
        thin=thin,
        schedule=None if cycle is None else cyclical(cycle),
        batch_size=batch_size,
        chains=chains,
        seed=seed,
        device=device,
        out=out,
        float16=float16,
        tags={"command": recipe},
    )
    typer.echo(f"{len(run)} samples in {out}; temperature {run.temperature()}.")


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="The directory of the run.")],
    steps: Annotated[int | None, typer.Option(help="The new total; by default as planned.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
) -> None:
    """Continue a run that `langevin sample` began, exactly where its last checkpoint left it."""
    from langevin.loop import resume as go_on

    recipe = Store.open(path).manifest["tags"].get("command")
    if recipe is None:
        raise ValueError(f"{path} was not begun on the command line; continue it with lv.resume({str(path)!r}, …).")
    posterior, train = build(recipe)
    run = go_on(path, posterior, train, steps=steps, device=device)
    typer.echo(f"{len(run)} samples in {path}; temperature {run.temperature()}.")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="smith2018, …; `list` shows all, with their experiments.")],
    experiment: Annotated[str | None, typer.Argument(help="One of its experiments; by default all.")] = None,
    scale: Annotated[str, typer.Option(help="quick (seconds), full (minutes, two cores) or paper (a GPU).")] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Where results, figures and the page go (reproduced/PAPER-SCALE).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes of one thread each (the cores; 1 at paper scale).")
    ] = None,
) -> None:
    """Run a paper's experiments again, and write what it says, what we measured, and whether it reproduces.

    A run that is cut off goes on where it was when the command is given again. Data that the library does not ship are
    looked for where LANGEVIN_DATA points, else downloaded.
    """
    from langevin.papers import PAPERS, reproduce_paper

    if paper == "list":
        for name, known in PAPERS.items():
            typer.echo(f"{name}: {known.title}")
            for label, one in known.experiments.items():
                typer.echo(f"    {label}: {one.title}")
        return
    page = reproduce_paper(paper, experiment, scale=scale, out=out, jobs=jobs)
    typer.echo(f"The page: {page}")


bench = typer.Typer(help="Measure langevin itself: its speed, or with a subcommand something else.")
app.add_typer(bench, name="bench")


@bench.callback(invoke_without_command=True)
def speed(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where results.json and README.md go.")] = Path("benchmarks"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Within a minute: few samplers, two networks, no peers.")
    ] = False,
) -> None:
    """Every sampler against plain SGD, step by step in turn, and against peers where they are installed."""
    if context.invoked_subcommand is None:
        from langevin.bench.speed import run_speed

        run_speed(out, quick=quick, say=typer.echo)


@bench.command()
def gold(
    out: Annotated[Path, typer.Option(help="Where results and tables go; what is there already is not run again.")],
    references: Annotated[Path, typer.Option(help="Where the gold standards lie.")] = Path("tests/reference"),
) -> None:
    """Every sampler against NUTS and HMC on two real posteriors; takes about half an hour on two cores."""
    from langevin.bench.gold import run_gold

    run_gold(out, references, typer.echo)


@bench.command()
def support(out: Annotated[Path, typer.Option(help="The page to write.")]) -> None:
    """Which sampler supports which network: two steps of each."""
    from langevin.bench.support import write_support

    write_support(out, typer.echo)


@app.command()
def cite(what: Annotated[str, typer.Argument(help="A method's name or the directory of a run.")]) -> None:
    """The BibTeX entry of a method."""
    from langevin.citation import cite as entry

    recipe = Store.open(what).manifest["sampler"] if Path(what, "manifest.json").exists() else None
    typer.echo(entry(recipe["name"] if recipe else what))


@app.command()
def status(path: Annotated[Path, typer.Argument(help="The directory of the run.")]) -> None:
    """How far a run is: steps, samples, temperature, of each chain."""
    from langevin.diagnostics.temperature import mean_and_error

    store = Store.open(path)
    plan, at = store.manifest["plan"], store.checkpoint_steps()
    recipe = store.manifest["sampler"] or {"name": "a sampler of its user's", "options": {}}
    options = ", ".join(f"{name}={value}" for name, value in recipe["options"].items())
    typer.echo(f"{recipe['name']}({options}), begun {store.manifest['created']}, {plan['mode']}")
    lines = [("chain", "step", "of", "samples", "temperature")]
    for chain in range(plan["chains"]):
        records = store.records(chain)
        heat = mean_and_error([record.notes.get("temperature", float("nan")) for record in records])
        step, count = str(at.get(chain, 0)), str(len(records))
        lines.append((str(chain), step, str(plan["steps"]), count, str(heat) if records else "unknown"))
    typer.echo(_columns(lines))
    for damaged, why in store.damaged.items():
        typer.echo(f"damaged: {damaged} ({why})")


def _options(given: list[str] | None) -> dict[str, Any]:
    options = {}
    for option in given or []:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} is not of the form name=value.")
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def _columns(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)
