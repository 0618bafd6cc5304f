"""The page on speed, made from its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.workloads import WORKLOADS

_BEGIN, _END = "<!-- tables -->\n", "<!-- end -->"
_COLUMNS = ("SGLD", "pSGLD", "SGHMC", "SGNHT", "ATMC")
_LIMITS = {
    "tiny": (1.15, 1.25, 1.2, 1.25, 1.25),
    "wide": (1.25, 1.4, 1.35, 1.55, 1.55),
    "cnn64": (1.06, 1.10, 1.08, 1.15, 1.15),
    "cnn": (1.02, 1.03, 1.03, 1.05, 1.05),
    "resnet": (1.02, 1.03, 1.03, 1.05, 1.05),
}
BARS = (
    {  # of the figure, with two threads; set before anything was measured
        (model, method): bar for model, bars in _LIMITS.items() for method, bar in zip(_COLUMNS, bars, strict=True)
    }
    | {("tiny", f"{method}, own loop"): 1.35 for method in _COLUMNS[:1]}
)
KFAC_BARS = {"wide": 4.0, "cnn": 1.5, "resnet": 1.25}


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    where = results["environment"]
    peers = ", ".join(f"{name} {version or '(not installed)'}" for name, version in results["peers"].items())
    return (
        "# Speed\n\n"
        f"Written by `python -m benchmarks` on {results['made'][:10]}: {where['cpu']}, PyTorch {where['torch']}; "
        f"peers: {peers}. [What it means, and what to choose](../docs/speed.md).\n\n" + tables(results)
    )


def renewed(text: str, results: dict[str, Any]) -> str:
    """A page with these tables in place of those between its marks."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{tables(results)}{_END}{rest.partition(_END)[2]}"


def tables(results: dict[str, Any]) -> str:
    """The tables, which the documentation contains too."""
    return "\n".join(make(results[name]) for name, make in _SECTIONS.items() if results.get(name))


def _steps(rows: list[dict[str, Any]]) -> str:
    text = (
        "## A step, as a multiple of a plain `torch.optim.SGD` step\n\n"
        "In the engine of `lv.sample`, with Gaussian noise and a Gaussian prior, nothing compiled by the user. The "
        "figure is 1 + (our update with the prior − SGD's update, each by itself)/(a whole step of SGD); beside it "
        "the ratio of whole steps that take turns, the median over rounds with the quartiles. The bar is for the "
        "figure with two threads; for a loop of one's own it is for the ratio.\n"
    )
    for model in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == model]
        threads = sorted({row["threads"] for row in here})
        spent = ", ".join(
            f"{next(r['baseline'] for r in here if r['threads'] == t) * 1e3:.3g} ms with {t} thread{'s' * (t > 1)}"
            for t in threads
        )
        text += f"\n**{WORKLOADS[model].label}** (a step of SGD: {spent})\n\n"
        names = [f"{what}, {t} thread{'s' * (t > 1)}" for t in threads for what in ("figure", "in turns")]
        text += f"| | {' | '.join(names)} | bar | |\n|---|{'---|' * len(names)}---|---|\n"
        for method in dict.fromkeys(row["method"] for row in here):
            cells, last = [], {}
            for t in threads:
                last = next(r for r in here if (r["method"], r["threads"]) == (method, t))
                cells.append(f"{last['figure']:.3f}" if "figure" in last else "")
                cells.append(f"{last['ratio']:.2f} ({last['low']:.2f}–{last['high']:.2f})")
            bar = BARS.get((model, method))
            kept = "" if bar is None else ("met" if last.get("figure", last["ratio"]) <= bar else "**not met**")
            text += f"| {method} | {' | '.join(cells)} | {f'≤ {bar}' if bar else ''} | {kept} |\n"
    return text


def _numbers(rows: list[dict[str, Any]]) -> str:
    text = "## A normal deviate, one thread\n\n| | ns | times faster than `Tensor.normal_` |\n|---|---|---|\n"
    text += "".join(f"| {row['dtype']} | {row['ns']} | {row['faster']} |\n" for row in rows)
    return text + "\nBars, in float32: ≤ 1.0 ns, at least 3.5 times faster.\n"


def _large(row: dict[str, Any]) -> str:
    return (
        f"## Fifty million weights\n\nThe update of SGLD takes {row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f}) "
        f"times that of `torch.optim.SGD`, {row['seconds']:.3g} s on two threads (bar: ≤ 3).\n"
    )


def _parts(rows: list[dict[str, Any]]) -> str:
    text = (
        f"## The parts of a step of the {WORKLOADS['wide'].label}\n\nProcessor time on one thread, in steps of SGD.\n\n"
        "| part | steps of SGD |\n|---|---|\n"
    )
    return text + "".join(f"| {row['part']} | {row['share']} |\n" for row in rows)


def _kfac(rows: list[dict[str, Any]]) -> str:
    text = (
        "## KSGLD, as a multiple of a plain SGD step\n\n"
        "| | threads | ordinary step | with new factors | with new inverses too | mean, intervals 10 and 100 | bar |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for row in rows:
        bar = KFAC_BARS.get(row["model"]) if row["threads"] == 2 else None
        cells = " | ".join(f"{row[key]}" for key in ("threads", "ordinary", "with_factors", "with_inverses", "mean"))
        text += f"| {WORKLOADS[row['model']].label} | {cells} | {f'≤ {bar}' if bar else ''} |\n"
    return text


def _chains(rows: list[dict[str, Any]]) -> str:
    text = (
        f"## Chains of the {WORKLOADS['tiny'].label}: microseconds per chain and step\n\n"
        "| threads | chains | one after another | vectorised | compiled too | blackjax, jitted | its speed over "
        "blackjax's | bar | compiling, s |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    for row in rows:
        keys = ("threads", "chains", "sequential", "vectorised", "compiled", "blackjax")
        faster = f"{row['blackjax'] / min(row['compiled'], row['vectorised']):.2f}" if "blackjax" in row else ""
        bar = {32: "≥ 1.1", 128: "≥ 0.75"}.get(row["chains"], "")
        cells = [*(f"{row.get(key, '')}" for key in keys), faster, bar, f"{row.get('compile_seconds', '')}"]
        text += "| " + " | ".join(cells) + " |\n"
    return text + (
        "\n`lv.sample` compiles vectorised chains by itself if the run is long enough to pay for it, a C++ compiler "
        "exists and a trial finds it faster.\n"
    )


def _prediction(rows: list[dict[str, Any]]) -> str:
    text = (
        "## Prediction from stored samples: throughput as a share of bare forward passes\n\n"
        "| | samples | inputs | throughput |\n|---|---|---|---|\n"
    )
    for row in rows:
        text += f"| {WORKLOADS[row['model']].label} | {row['samples']} | {row['inputs']} | {row['throughput']} |\n"
    return text


def _fisher(row: dict[str, Any]) -> str:
    return (
        f"## The full Fisher\n\nA step in the metric of {row['parameters']:,} weights takes {row['ratio']:.2f} "
        f"({row['low']:.2f}–{row['high']:.2f}) times one JᵀJ of 10,240 rows plus one Cholesky factor (bar: ≤ 1.5).\n"
    )


def _cost(rows: dict[str, Any]) -> str:
    text = "## What it costs to grow\n\n| parameters | SGLD, × SGD | µs a step |\n|---|---|---|\n"
    for row in rows["parameters"]:
        text += f"| {row['parameters']:,} | {row['ratio']} | {row['microseconds']} |\n"
    text += "\n| training examples | µs a step of `sample` (tiny MLP) |\n|---|---|\n"
    for row in rows["data"]:
        text += f"| {row['data']:,} | {row['microseconds']} |\n"
    return text


def _memory(rows: list[dict[str, Any]]) -> str:
    text = "## Peak memory\n\n| samples kept | MB | × the first |\n|---|---|---|\n"
    for row in rows:
        text += f"| {row['samples']:,} | {row['megabytes']} | {row['megabytes'] / rows[0]['megabytes']:.2f} |\n"
    return text


def _start(row: dict[str, Any]) -> str:
    return (
        f"## To begin with\n\n`import torch` takes {row['import_torch']} s, both `import torch, langevin` "
        f"{row['import_langevin']} s ({row['ratio']} times as long; bar: ≤ 1.15): modules are loaded when they are "
        f"first used: with `lv.Posterior` and `lv.sample` {row['first_use']} s. A process that samples one step ends "
        f"after {row['first_step']} s.\n"
    )


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "steps": _steps,
    "numbers": _numbers,
    "parts": _parts,
    "large": _large,
    "kfac": _kfac,
    "chains": _chains,
    "prediction": _prediction,
    "fisher": _fisher,
    "cost": _cost,
    "memory": _memory,
    "start": _start,
}
