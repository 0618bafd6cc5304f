"""The command line in this process: a new one would spend its time on importing torch."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

from langevin.cli.main import main

DIGITS = ["--model", "mlp", "--data", "digits", "--model-option", "widths=[8]"]
QUICK = [*DIGITS, "--lr", "0.1", "--steps", "60", "--thin", "10"]


class Terminal(io.StringIO):
    """What is printed, as a terminal would get it."""

    def isatty(self):
        return True


def run(*words, out=None):
    """The exit code of `langevin WORDS`, what it prints to stdout, and to stderr. A traceback fails the test."""
    out, err = out or io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as exit_:
            code = exit_.code or 0
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return code, out.getvalue(), err.getvalue()


def langevin(*words, code=0):
    """What `langevin WORDS` prints: to stderr if it is refused (exit code 2), to stdout otherwise.

    The verdict on a run as short as those of the tests may be bad (exit code 3).
    """
    returned, out, err = run(*words)
    assert returned == code or (returned, code) == (3, 0), f"{out}\n{err}"
    return err if code == 2 else out


def forget_modules(monkeypatch, *names):
    """Modules of a test's own directory are not those of the next test's."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # so that what is there at the end is removed
        monkeypatch.delitem(sys.modules, name)
