"""`langevin sample`: sample a posterior, to a directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from langevin.cli import options
from langevin.cli.logging import Log, Validation, logging
from langevin.cli.options import parse_options
from langevin.cli.tables import say
from langevin.samplers import SAMPLERS

if TYPE_CHECKING:
    from langevin.ensembles.run import Run

BAD_VERDICT = 3  # exit code
_DTYPES = ("float16", "bfloat16", "float32", "float64")

SamplerName = Annotated[
    str | None,
    typer.Option(
        callback=options.choice("--sampler", SAMPLERS), help=f"One of {', '.join(SAMPLERS)}; by default chosen."
    ),
]
SamplerOption = Annotated[list[str] | None, options.repeated("the sampler", "momentum=0.9")]
SampleDtype = Annotated[
    str | None,
    typer.Option(
        callback=options.choice("--sample-dtype", _DTYPES),
        help=f"Store samples in this precision ({', '.join(_DTYPES)}): float16 takes half the space.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        callback=options.choice("--resume", ["auto"]),
        help='"auto": continue the run if the directory contains it already, so that the command can be repeated.',
    ),
]


def _temperature(text: str | None) -> Any:
    """A number, or "auto"."""
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f'{text!r} is neither a number nor "auto".') from None


Temperature = Annotated[
    str | None,
    typer.Option(
        callback=_temperature,
        metavar="<float or auto>",
        help='Target temperature; 1 is the Bayes posterior, "auto" chooses by the prediction of held-out data.',
    ),
]


def sample(
    model: options.Model,
    data: options.Data,
    out: options.Out,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default adapted.")] = None,
    sampler: SamplerName = None,
    sampler_option: SamplerOption = None,
    temperature: Temperature = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each chain, burn-in included; by default until there are enough.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help='How much to spend: "10 min" or "1e6 gradients" in all; after the warm start "5x" what it took, or '
            '"5000 steps" of each chain.'
        ),
    ] = None,
    burn_in: Annotated[int | None, typer.Option(help="Steps before the first sample (a quarter).")] = None,
    thin: Annotated[int | None, typer.Option(help="Steps from sample to sample (100 samples a chain).")] = None,
    cycle: Annotated[int | None, typer.Option(help="Length of the cosine cycles of the learning rate.")] = None,
    batch_size: options.BatchSize = None,
    chains: Annotated[int | None, typer.Option(help="Independent chains: 1, or as the autopilot chooses.")] = None,
    likelihood: options.Likelihood = None,
    likelihood_option: options.LikelihoodOption = None,
    prior: options.Prior = None,
    prior_option: options.PriorOption = None,
    model_option: options.ModelOption = None,
    data_option: options.DataOption = None,
    num_data: options.NumData = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    sample_dtype: SampleDtype = None,
    resume: Resume = None,
    log: Log = None,
    validation: Validation = None,
    mesh: options.Mesh = None,
) -> None:
    """Sample a posterior, to a directory.

    Examples:

    \b
        langevin sample --model mlp --data digits --out runs/digits
        langevin sample --model mlp --data digits --budget "5 min" --out runs/digits
        langevin sample --model mypackage:net --data mypackage:train \\
            --sampler sghmc --sampler-option momentum=0.95 --lr 0.01 \\
            --steps 20000 --prior gaussian --prior-option std=0.5 \\
            --chains 4 --out runs/mine
        torchrun --nproc-per-node 4 -m langevin sample … \\
            --chains 2 --mesh chains=2,data=2

    Your own model and data are functions: mypackage:net is the function `net` of mypackage.py, and returns a
    torch.nn.Module; mypackage:train returns tensors (x, y), a data set or a DataLoader.

    Without --lr and --steps the autopilot chooses: warm start, sampler, rate, burn-in and length.

    Ctrl-C leaves a run that `langevin resume` continues. Exit codes: 0; 3 if the run is complete and kept but its
    verdict is bad (see `run.verdict()`); 2 for an error; 130 after Ctrl-C.
    """
    from langevin.cli.recipes import build, new_recipe
    from langevin.core.schedules import cyclical
    from langevin.inference.distributed import is_main_process
    from langevin.inference.sample import sample as draw

    given = {"lr": lr, "temperature": temperature, **parse_options(sampler_option)}
    given = {name: value for name, value in given.items() if value is not None}
    if sampler is None and lr is not None:
        sampler = "sgld"
    if temperature == "auto" and lr is not None:
        raise ValueError(
            "--temperature auto is for the autopilot, which chooses the learning rate too. Leave out --lr, or give a "
            "number: --temperature 1."
        )
    if sampler is not None and "lr" in given:
        check_sampler(sampler, given)
    recipe = new_recipe(
        model=model,
        model_options=parse_options(model_option),
        data=data,
        data_options=parse_options(data_option),
        likelihood=likelihood,
        likelihood_options=parse_options(likelihood_option),
        prior=prior,
        prior_options=parse_options(prior_option),
        num_data=num_data,
        seed=seed,
    )
    if resume is None:
        options.check_new(out, "sample")
    posterior, train = build(recipe)
    with logging(log, posterior, out, recipe, validation) as callbacks:
        run = draw(
            posterior,
            train,
            sampler,
            steps=(10_000 if lr is not None and budget is None else None) if steps is None else steps,
            budget=budget,
            burn_in=burn_in,
            thin=thin,
            schedule=None if cycle is None else cyclical(cycle),
            batch_size=batch_size,
            chains=chains,
            seed=seed,
            device=device,
            out=out,
            sample_dtype=None if sample_dtype is None else getattr(torch, sample_dtype),
            callbacks=callbacks,
            tags={"command": recipe},
            mesh=mesh,
            resume="auto" if resume else None,
            **given,
        )
    if is_main_process():
        conclude(run)


def check_sampler(name: str, given: dict[str, Any]) -> None:
    """Raise for options that the sampler does not have, or can't have with these values: before data are loaded."""
    from langevin.inference.steppers import sampler_factory

    make = sampler_factory(name, given)
    try:
        make([torch.zeros(2, requires_grad=True)], num_data=1, seed=0, chain=0)
    except (TypeError, AttributeError) as error:
        written = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(
            f"--sampler {name} can't be made with {written}: {error}. Values are written as in JSON: "
            f"--sampler-option temperature=0.5."
        ) from error


def conclude(run: Run) -> None:
    """Say what a run is when it ends, after its verdict was explained on stderr; a bad one is exit code 3."""
    verdict = run.verdict()
    say(f"{len(run)} samples in {run.path}; verdict {verdict.level}")
    if verdict.level == "bad" and "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun would start it again
        raise typer.Exit(BAD_VERDICT)
