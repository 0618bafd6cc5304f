"""Run the tutorials and write what they print, and their figures, into their pages.

    python docs/tutorials/run.py                 those whose code has changed since they were run
    python docs/tutorials/run.py quickstart      these
    python docs/tutorials/run.py --check         says which have changed, and runs nothing

A page is Markdown. Its ```python blocks are run in turn, in one namespace and in an empty directory, and ```bash blocks
too; what a block prints stands in the ```output block after it, and figures that it saves go to docs/tutorials/figures.
A line `<!-- toy: OLD => NEW -->` says how tests make the code smaller.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```output\n.*?^```\n)?", re.DOTALL | re.MULTILINE)
_TOY = re.compile(r"<!-- toy: (.*?) => (.*?) -->")
_MARK = re.compile(r"\n<!-- written by .*? -->\n")


def pages() -> list[Path]:
    """The tutorials."""
    return sorted(page for page in HERE.glob("*.md") if page.name != "index.md")


def code_of(page: Path, toy: bool = False) -> list[tuple[str, str]]:
    """The blocks of a page, each with its language; smaller for tests."""
    text = page.read_text()
    blocks = [(match.group(1), match.group(2)) for match in _BLOCK.finditer(text)]
    for old, new in _TOY.findall(text) if toy else ():
        if not any(old in code for _, code in blocks):
            raise ValueError(f"{page.name}: no block contains {old!r}, which the toy size replaces.")
        blocks = [(language, code.replace(old, new)) for language, code in blocks]
    return blocks


def digest(page: Path) -> str:
    """Of the code of a page; it is written into the page when it is run."""
    return hashlib.sha256(repr(code_of(page)).encode()).hexdigest()[:12]


def is_current(page: Path) -> bool:
    """Whether the outputs in a page are those of its code."""
    return f"code {digest(page)}" in page.read_text()


def run_blocks(page: Path, toy: bool = False) -> tuple[list[str], dict[str, Any], list[Path], float]:
    """Run a page in the current directory: what each block printed, the namespace, the figures, the CPU seconds."""
    import matplotlib

    matplotlib.use("agg")
    space: dict[str, Any] = {"__name__": "tutorial"}
    printed, began = [], _cpu_seconds()
    for language, code in code_of(page, toy):
        if language == "bash":
            printed.append(_shell(code))
            continue
        out = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(out):
            warnings.simplefilter("ignore")
            exec(compile(code, page.name, "exec"), space)
        printed.append(out.getvalue())
    return printed, space, sorted(Path.cwd().glob("*.png")), _cpu_seconds() - began


def _cpu_seconds() -> float:
    """Of this process and of those that it has started: what a page takes on one idle core, whatever else runs."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _shell(code: str) -> str:
    """Run a shell block with the library of this clone and this interpreter's programs first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(["bash", "-ec", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{code}\nended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def anonymous(text: str) -> str:
    """What was printed, without the name of the machine and where its files are."""
    places = {str(ROOT): "langevin", str(Path.home()): "~", os.path.realpath(tempfile.gettempdir()): "tmp"}
    for place, name in places.items():
        text = text.replace(place, name)
    return re.sub(rf"\bon {re.escape(socket.gethostname())}\b", "on host", text)


def write(page: Path) -> float:
    """Run a page and write its outputs into it; return the CPU seconds that it took."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            printed, _, figures, seconds = run_blocks(page)
            (HERE / "figures").mkdir(exist_ok=True)
            for figure in figures:
                shutil.copy(figure, HERE / "figures" / f"{page.stem}-{figure.name}")
        finally:
            os.chdir(before)
    outputs = iter(printed)

    def with_output(match: re.Match[str]) -> str:
        text = "\n".join(line.rstrip() for line in anonymous(next(outputs)).strip("\n").splitlines())
        block = f"```{match.group(1)}\n{match.group(2)}```\n"
        return f"{block}\n```output\n{text}\n```\n" if text.strip() else block

    text = _MARK.sub("", _BLOCK.sub(with_output, page.read_text())).rstrip("\n")
    made = f"written by `python docs/tutorials/run.py {page.stem}`, code {digest(page)}, {seconds:.0f} CPU seconds"
    page.write_text(f"{text}\n\n<!-- {made} -->\n")
    return seconds


def main(arguments: list[str]) -> int:
    """Run the tutorials that are named, or those that have changed."""
    named = [page for page in pages() if page.stem in arguments]
    changed = [page for page in pages() if not is_current(page)]
    if "--check" in arguments:
        print("\n".join(f"{page.name}: run it again" for page in changed) or "all outputs are those of the code")
        return bool(changed)
    for page in named or changed:
        print(f"{page.stem} …", flush=True)
        print(f"{page.stem}: {write(page):.0f} CPU seconds", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
