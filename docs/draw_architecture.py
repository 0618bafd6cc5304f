"""Draw docs/architecture.svg from the real import graph: `make architecture`.

Boxes are the packages of src/langevin; a box stands above everything that it imports. An arrow means "imports"; arrows
that follow from others (transitively) are left out.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp
import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).parents[1]
ROLES = {
    "errors": "RunError, DivergenceError",
    "kernels": "fast element-wise updates",
    "core": "Objective · posterior, likelihoods, priors, batches, random",
    "preconditioners": "A·g and A^½·η: RMSprop, K-FAC, BNP, Fisher",
    "samplers": "one file a method; the registry",
    "approximations": "variational, averaging, Laplace: without the loop",
    "storage": "SampleStore · memory, run directory, manifest, locks",
    "diagnostics": "temperature, R̂, ESS, stationarity, curvature",
    "ensembles": "Ensemble · run, fit, prediction, distill, export",
    "evaluation": "scores, calibration, OOD detection, attacks",
    "inference": "sample, resume, fit · engine (the only loop), steppers",
    "plots": "arrays in, axes out",
    "report": "one page: verdicts, tables, figures",
    "bandits": "Thompson sampling",
    "models": "networks by name",
    "data": "data sets by name",
    "loading": "lv.load",
    "integrations": "scikit-learn, TensorBoard",
    "demo": "the whole story in a minute",
    "cli": "one file a command",
}


def layers() -> list[list[str]]:
    """The layers that import-linter holds, low to high."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    given = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name for name in layer.split(" | ") if name in ROLES] for layer in reversed(given)]


def imports(names: list[str]) -> set[tuple[str, str]]:
    """Pairs (importer, imported) of packages, without those that follow from others."""
    graph = grimp.build_graph("langevin")
    direct: dict[str, set[str]] = {name: set() for name in names}
    for module in graph.modules:
        owner = _package(module)
        for other in graph.find_modules_directly_imported_by(module):
            if owner in direct and _package(other) in direct and _package(other) != owner:
                direct[owner].add(_package(other))

    def reach(name: str) -> set[str]:
        return direct[name] | {far for near in direct[name] for far in reach(near)}

    return {(a, b) for a in names for b in direct[a] if not any(b in reach(c) for c in direct[a] if c != b)}


def _package(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def heights(arrows: set[tuple[str, str]], names: list[str]) -> dict[str, int]:
    """How many packages lie below each one, on the longest way down."""
    below = {name: {b for a, b in arrows if a == name} for name in names}

    def height(name: str) -> int:
        return 1 + max((height(other) for other in below[name]), default=-1)

    found = {name: height(name) for name in names}
    for name in ("models", "data"):  # they import nothing of ours, and only what is high up imports them
        found[name] = min(found[a] for a, b in arrows if b == name) - 1
    return found


def positions(arrows: set[tuple[str, str]], names: list[str]) -> dict[str, tuple[float, int]]:
    """Rows by height; within a row packages stand over what they import."""
    rows: dict[int, list[str]] = {}
    for name, height in heights(arrows, names).items():
        rows.setdefault(height, []).append(name)
    place: dict[str, tuple[float, int]] = {}
    for height in sorted(rows):

        def over(name: str) -> float:
            below = [place[b][0] for a, b in arrows if a == name and b in place]
            return sum(below) / len(below) if below else 0.0

        row = sorted(rows[height], key=lambda name: (over(name), names.index(name)))
        for index, name in enumerate(row):
            place[name] = ((index - (len(row) - 1) / 2) * 5.3, height)
    return place


def draw(out: Path) -> None:
    """Write the figure."""
    names = [name for layer in layers() for name in layer]
    arrows = imports(names)
    place = positions(arrows, names)
    top = max(y for _, y in place.values())
    figure, axes = plt.subplots(figsize=(11.5, 0.95 * (top + 1)), layout="constrained")
    for name, (x, y) in place.items():
        folder = ROOT / "src" / "langevin" / name
        files = f"/  {len(list(folder.rglob('*.py')))} files" if folder.is_dir() else ".py"
        box = FancyBboxPatch(
            (x - 2.5, y - 0.23), 5.0, 0.46, boxstyle="round,pad=0.02", facecolor="#eef4fa", edgecolor="#2f5f8a"
        )
        axes.add_patch(box)
        axes.text(x, y + 0.08, name + files, ha="center", va="center", fontsize=9, fontweight="bold", color="#1d2733")
        axes.text(x, y - 0.12, ROLES[name], ha="center", va="center", fontsize=6, color="#44505c")
    for a, b in sorted(arrows):
        (x1, y1), (x2, y2) = place[a], place[b]
        far = y1 - y2 > 1
        side = 1 if x1 + x2 >= 0 else -1
        start, end = ((x1 + side * 2.52, y1), (x2 + side * 2.52, y2)) if far else ((x1, y1 - 0.25), (x2, y2 + 0.25))
        arrow = FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={-0.25 * side if far else 0.0}",
            arrowstyle="-|>",
            mutation_scale=10,
            color="#c0762b" if far else "#5d6b7a",
            linewidth=1.0,
        )
        axes.add_patch(arrow)
    axes.set(xlim=(-8.3, 8.8), ylim=(-0.45, top + 0.45))
    axes.axis("off")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "langevin"}):
        figure.savefig(out, metadata={"Date": None})
    if out.suffix == ".svg":  # so that a test can tell whether the figure is up to date
        out.write_text(out.read_text().rstrip() + f"\n<!-- {described(arrows)} -->\n")


def described(arrows: set[tuple[str, str]]) -> str:
    """The arrows as text."""
    return "imports: " + ", ".join(f"{a} > {b}" for a, b in sorted(arrows))


if __name__ == "__main__":
    draw(ROOT / "docs" / "architecture.svg")
