"""The command line: `langevin COMMAND`. A command is one file of this package and one line of COMMANDS."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn, TextIO

import typer

from langevin._version import __version__
from langevin.cli import moved
from langevin.cli.tables import say
from langevin.errors import ConvergenceWarning

COMMANDS = (  # in the order of the help; `langevin NAME` is the function NAME of cli/NAME.py
    "demo",
    "sample",
    "resume",
    "fit",
    "evaluate",
    "report",
    "status",
    "verify",
    "doctor",
    "cite",
)

app = typer.Typer(
    name="langevin",
    help="Samples of the Bayesian posterior over the weights of a PyTorch model, and calibrated predictions from them.",
    epilog="Begin with: langevin demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name in COMMANDS:
    app.command(_name)(getattr(importlib.import_module(f"langevin.cli.{_name}"), _name))
for _name in moved.MODULES:
    app.command(_name, hidden=True, add_help_option=False, context_settings=moved.ANY_ARGUMENTS)(moved.moved)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An error is a sentence and exit code 2, Ctrl-C is exit code 130; neither is a traceback."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        warnings.simplefilter("ignore", ConvergenceWarning)  # said in another line
        try:
            app(arguments)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error))
        except (ValueError, FloatingPointError) as error:
            _fail(str(error))
        except KeyboardInterrupt:
            sys.exit(130)


def _fail(message: str) -> NoReturn:
    say(*f"langevin: {message}".splitlines(), err=True)
    sys.exit(2)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Where in the library a warning was raised is nothing to a user of the command line."""
    say(*f"langevin: warning: {message}".splitlines(), err=True)
