"""The page on speed, made from its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.workloads import WORKLOADS

_BEGIN, _END = "<!-- tables -->\n", "<!-- end -->"
BARS = {  # ratios to plain SGD with two threads that were set before anything was measured
    ("cnn", "SGLD"): 1.05,
    ("cnn", "pSGLD"): 1.08,
    ("cnn", "SGNHT"): 1.10,
    ("cnn", "ATMC"): 1.10,
    ("cnn", "BNPSGLD"): 1.20,
    ("resnet", "SGLD"): 1.05,
    ("resnet", "pSGLD"): 1.08,
    ("resnet", "SGNHT"): 1.10,
    ("resnet", "ATMC"): 1.10,
    ("resnet", "BNPSGLD"): 1.20,
    ("wide", "SGLD"): 1.5,
    ("wide", "pSGLD"): 1.7,
    ("wide", "SGNHT"): 2.0,
    ("wide", "ATMC"): 2.0,
    ("wide", "BNPSGLD"): 2.0,
    ("tiny", "SGLD"): 1.3,
    ("tiny", "pSGLD"): 1.5,
    ("tiny", "SGNHT"): 1.8,
    ("tiny", "ATMC"): 1.8,
}
KFAC_BARS = {"wide": 4.0, "cnn": 1.5, "resnet": 1.5}


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
        "Median over rounds in which all take turns, with the quartiles; in brackets the ratio of processor times. "
        "The bar is for two threads.\n"
    )
    for model in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == model]
        threads = sorted({row["threads"] for row in here})
        spent = ", ".join(
            f"{next(r['baseline'] for r in here if r['threads'] == t) * 1e3:.3g} ms with {t} thread{'s' * (t > 1)}"
            for t in threads
        )
        text += f"\n**{WORKLOADS[model].label}** (a step of SGD: {spent})\n\n"
        text += "| | noise | " + " | ".join(f"{t} thread{'s' * (t > 1)}" for t in threads) + " | bar |\n"
        text += "|---|---|" + "---|" * len(threads) + "---|\n"
        for method, noise in dict.fromkeys((row["method"], row["noise"]) for row in here):
            cells = []
            for t in threads:
                row = next(r for r in here if (r["method"], r["noise"], r["threads"]) == (method, noise, t))
                cells.append(f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f}) [{row['processor']:.2f}]")
            bar = BARS.get((model, method.removesuffix(", compiled")))
            text += f"| {method} | {noise} | {' | '.join(cells)} | {f'≤ {bar}' if bar else ''} |\n"
    return text


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
        "| threads | chains | one after another | vectorised | compiled too | blackjax, jitted | compiling, s |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for row in rows:
        keys = ("threads", "chains", "sequential", "vectorised", "compiled", "blackjax", "compile_seconds")
        text += "| " + " | ".join(f"{row.get(key, '')}" for key in keys) + " |\n"
    return text


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
        f"## To begin with\n\n`import torch` takes {row['import_torch']} s, `import langevin` "
        f"{row['import_langevin']} s ({row['ratio']} times as long; bar: ≤ 1.3); a process that samples one step ends "
        f"after {row['first_step']} s.\n"
    )


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "steps": _steps,
    "parts": _parts,
    "kfac": _kfac,
    "chains": _chains,
    "prediction": _prediction,
    "fisher": _fisher,
    "cost": _cost,
    "memory": _memory,
    "start": _start,
}
