"""The command line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from langevin import data as data_sets
from langevin import models
from langevin._version import __version__
from langevin.approximations.base import Method
from langevin.cli.evaluate import evaluate, report
from langevin.cli.logging import Log, Validation, logging
from langevin.core.posterior import Posterior
from langevin.core.schedules import cyclical
from langevin.ensembles.fit import METHODS as FITTED
from langevin.inference.distributed import says_something
from langevin.recipes import build, imported, recipe_of
from langevin.samplers import METHODS
from langevin.storage.directory import DirectoryStore

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
Model = Annotated[str, typer.Option(help=f"A network by name ({', '.join(models.names())}) or module:function.")]
Data = Annotated[str, typer.Option(help=f"Data by name ({', '.join(data_sets.names())}) or module:function.")]
Out = Annotated[Path, typer.Option(help="The directory of the run; it must not hold one yet.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step (128).")]
PriorStd = Annotated[
    float | None, typer.Option(help="Standard deviation of a Gaussian prior; by default lv.priors.default(model).")
]
Noise = Annotated[str | None, typer.Option(help="categorical, bernoulli or gaussian; by default from the targets.")]
NumData = Annotated[int | None, typer.Option(help="Examples in all, where the data do not know.")]
Seed = Annotated[int, typer.Option(help="Everything random is a function of it.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …")]


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
    out: Annotated[Path, typer.Option(help="Where the report, the figure and the results go.")] = Path("langevin-demo"),
) -> None:
    """The whole story on scikit-learn's digits, in about a minute: plain SGD against SGLD, ending in a report."""
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
    typer.echo("Confidence should be near the accuracy on digits, and low on photographs.")
    typer.echo(f"Open the report in a browser: {out / 'report.html'}")


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
    from langevin.inference.doctor import examine

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
    model: Model,
    data: Data,
    out: Out,
    lr: Annotated[float, typer.Option(help="Learning rate.")],
    sampler: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "sgld",
    steps: Annotated[int, typer.Option(help="Steps of each chain, burn-in included.")] = 10_000,
    burn_in: Annotated[int | None, typer.Option(help="Steps before the first sample (a quarter).")] = None,
    thin: Annotated[int | None, typer.Option(help="Steps from sample to sample (100 samples a chain).")] = None,
    cycle: Annotated[int | None, typer.Option(help="Length of cosine cycles of the learning rate.")] = None,
    batch_size: BatchSize = None,
    chains: Annotated[int, typer.Option(help="Independent chains.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="1 is the Bayes posterior.")] = None,
    prior_std: PriorStd = None,
    likelihood: Noise = None,
    num_data: NumData = None,
    seed: Seed = 0,
    device: Device = None,
    float16: Annotated[bool, typer.Option(help="DirectoryStore samples in half the space.")] = False,
    log: Log = None,
    validation: Validation = None,
    mesh: Annotated[
        str | None, typer.Option(help="Under torchrun: processes for chains and for parts of batches, chains=2,data=2.")
    ] = None,
    resume_if_there: Annotated[
        bool, typer.Option("--resume-if-there", help="Continue the run if the directory holds it already.")
    ] = False,
    model_option: Options = None,
    data_option: Options = None,
    sampler_option: Options = None,
) -> None:
    """Sample a posterior, to a directory.

    Examples:

        langevin sample --model mlp --data digits --sampler sgld --lr 0.1 --out runs/digits

        langevin sample --model mypackage.nets:make --data mypackage.data:train --lr 0.01 --out runs/mine

        torchrun --nproc-per-node 4 -m langevin sample … --chains 2 --mesh chains=2,data=2

    Ctrl-C leaves a run that `langevin resume` continues.
    """
    from langevin.inference.sample import sample as draw

    if sampler not in METHODS:
        raise ValueError(f"--sampler {sampler}: choose one of {', '.join(METHODS)}.")
    recipe = _recipe(model, model_option, data, data_option, likelihood, prior_std, num_data, seed)
    options = _options(sampler_option) | ({} if temperature is None else {"temperature": temperature})
    try:
        inspect.signature(METHODS[sampler].sampler).bind([], lr=lr, num_data=1, seed=0, chain=0, **options)
    except TypeError as error:
        raise ValueError(f"--sampler {sampler} has no such option: {error}.") from None
    posterior, train = build(recipe)
    with logging(log, posterior, out, recipe, validation, begun=False) as callbacks:
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
            callbacks=callbacks,
            tags={"command": recipe},
            mesh=mesh,
            resume_if_there=resume_if_there,
        )
    if says_something():
        typer.echo(f"{len(run)} samples in {out}; temperature {run.temperature()}.")


@app.command()
def fit(
    model: Model,
    data: Data,
    out: Out,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(FITTED)}.")] = "meanfield",
    lr: Annotated[float | None, typer.Option(help="Learning rate; all but laplace need one.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim (Adam; swa, swag: SGD).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps in all (10000).")] = None,
    burn_in: Annotated[int, typer.Option(help="Steps before the first snapshot.")] = 0,
    init: Annotated[Path | None, typer.Option(help="Start where this run or fit ended.")] = None,
    draws: Annotated[int, typer.Option(help="Draws of the weights that a prediction averages over.")] = 30,
    batch_size: BatchSize = None,
    prior_std: PriorStd = None,
    likelihood: Noise = None,
    num_data: NumData = None,
    seed: Seed = 0,
    device: Device = None,
    model_option: Options = None,
    data_option: Options = None,
    method_option: Options = None,
    optimizer_option: Options = None,
) -> None:
    """Fit a distribution over the weights, to a directory: the cheap alternatives to sampling.

    meanfield, lowrank: variational inference.  swa, swag: averages of SGD's iterates.  hwa: averages of variational
    parameters over a cyclical rate.  laplace: the curvature at the mode, which LBFGS searches if there is no --init.

    Examples:

        langevin fit --method meanfield --model mlp --data digits --lr 0.01 --out runs/meanfield

        langevin fit --method hwa --init runs/meanfield --lr 0.02 --method-option cycle=200 --method-option low=0.001
        --model mlp --data digits --out runs/hwa

        langevin fit --method laplace --method-option structure=kfac --model logistic --data digits --out runs/laplace

    Ctrl-C leaves a fit that `langevin resume` continues. What it found is asked like a run: lv.load("runs/hwa").
    """
    from langevin.inference.fit import fit as find
    from langevin.recipes import load

    chosen = _method(method, _options(method_option))
    recipe = _recipe(model, model_option, data, data_option, likelihood, prior_std, num_data, seed)
    posterior, train = build(recipe)
    found = find(
        posterior,
        train,
        chosen,
        optimizer=None if method == "laplace" else _optimizer(method, optimizer, lr, _options(optimizer_option)),
        steps=10_000 if steps is None and method != "laplace" else steps,
        burn_in=burn_in,
        init=None if init is None else load(init, posterior.model),
        draws=draws,
        batch_size=batch_size,
        seed=seed,
        device=device,
        out=out,
        tags={"command": recipe},
    )
    typer.echo(f"{chosen!r} in {out}, after {len(found.snapshots)} snapshots; loss {found.trace('loss')[0][-1]:.4g}.")


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="The directory of the run.")],
    steps: Annotated[int | None, typer.Option(help="The new total; by default as planned.")] = None,
    device: Device = None,
    log: Log = None,
    validation: Validation = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Call the functions (module:function) that the run names; they are yours.")
    ] = False,
    chains: Annotated[int | None, typer.Option(help="Add chains: the new total.")] = None,
    mesh: Annotated[str | None, typer.Option(help="Under torchrun, as in `langevin sample`.")] = None,
) -> None:
    """Continue a run that `langevin sample` or `langevin fit` began, exactly where its last checkpoint left it."""
    from langevin.ensembles.fit import Fit
    from langevin.inference.fit import resume as go_on

    recipe = recipe_of(path, trust)
    posterior, train = build(recipe)
    with logging(log, posterior, path, recipe, validation, begun=True) as callbacks:
        run = go_on(path, posterior, train, steps=steps, device=device, callbacks=callbacks, chains=chains, mesh=mesh)
    if isinstance(run, Fit):
        typer.echo(f"{run.method!r} in {path}, after {len(run.snapshots)} snapshots.")
    elif says_something():
        typer.echo(f"{len(run)} samples in {path}; temperature {run.temperature()}.")


app.command()(evaluate)
app.command()(report)


@app.command()
def cite(what: Annotated[str, typer.Argument(help="A method's name or the directory of a run.")]) -> None:
    """The BibTeX entry of a method."""
    from langevin.ensembles.cite import cite as entry

    manifest = DirectoryStore.open(what).manifest if Path(what, "manifest.json").exists() else {}
    recipe = manifest.get("method") or manifest.get("sampler")
    typer.echo(entry(recipe["name"] if recipe else what))


@app.command()
def status(path: Annotated[Path, typer.Argument(help="The directory of the run.")]) -> None:
    """How far a run is: steps, samples, temperature, rate and last sign of life, of each chain."""
    from langevin.storage.status import describe

    title, rows, remarks = describe(path)
    typer.echo(title)
    typer.echo(_columns(rows))
    for remark in remarks:
        typer.echo(remark)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="The directory of the run.")],
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Move damaged files of samples to RUN/damaged; the rest is then usable.")
    ] = False,
    accept_manifest: Annotated[
        bool, typer.Option("--accept-manifest", help="Sign a manifest that you edited by hand, and answer for it.")
    ] = False,
) -> None:
    """Read every file of a run and compare its checksum; the exit code is 1 if something is wrong."""
    from langevin.storage import verify as look

    if accept_manifest:
        look.accept_manifest(path)
    report = look.verify(path)
    for problem in report.problems:
        typer.echo(problem)
    typer.echo(f"{report.files} files, {report.samples} whole samples, {len(report.problems)} problems.")
    if set_aside and report.damaged:
        typer.echo(f"{len(report.damaged)} files were moved to {look.set_aside(path, report)}.")
    if report.problems:
        raise typer.Exit(1)


def _recipe(
    model: str,
    model_option: list[str] | None,
    data: str,
    data_option: list[str] | None,
    likelihood: str | None,
    prior_std: float | None,
    num_data: int | None,
    seed: int,
) -> dict[str, Any]:
    """What a command says about the posterior and the data; it stands in the manifest, for `resume`."""
    return {
        "model": model,
        "model_options": _options(model_option),
        "data": data,
        "data_options": _options(data_option),
        "likelihood": likelihood,
        "prior_std": prior_std,
        "num_data": num_data,
        "seed": seed,
    }


def _method(name: str, options: dict[str, Any]) -> Method:
    if name not in FITTED:
        raise ValueError(f"--method {name}: choose one of {', '.join(FITTED)}.")
    known = [field.name for field in dataclasses.fields(FITTED[name])]
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"--method {name} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    if isinstance(options.get("family"), str):  # of hwa, with its own settings as they are by default
        options["family"] = _method(options["family"], {})
    return FITTED[name](**options)


def _optimizer(method: str, name: str | None, lr: float | None, options: dict[str, Any]) -> Any:
    averages_weights = method in ("swa", "swag")
    kind: Any = getattr(torch.optim, name or ("SGD" if averages_weights else "Adam"), None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"--optimizer {name}: torch.optim has no such class; write --optimizer Adam.")
    if lr is None:
        raise ValueError(f"--method {method} takes steps, so it needs a learning rate: --lr 0.01.")
    if kind is torch.optim.SGD:  # as it is used for networks
        options = {"momentum": 0.9, **options}
    try:
        inspect.signature(kind).bind([], lr=lr, **options)
    except TypeError as error:
        raise ValueError(f"{kind.__name__} has no such option: {error}.") from None
    return partial(kind, lr=lr, **options)


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
