"""The pages: what the paper says, what we measured, and whether it reproduces. All of it is written by this module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reproductions.harness import Claim, Experiment, Paper, Rows, Verdict

_TITLE = "# Five papers, reproduced"
_WORDS = {True: "yes", False: "**no**", None: "can't tell"}


def write_page(papers: Mapping[str, Paper], results: dict[str, Any], out: Path) -> None:
    """Figures and `README.md` of one paper from its results."""
    from matplotlib.figure import Figure

    for name, experiment, rows in _finished(papers[results["paper"]], results):
        figure = Figure(figsize=experiment.figure_size, layout="constrained")
        experiment.draw(figure, rows)
        figure.savefig(out / f"{name}.png", dpi=110, metadata={"Software": None})
    (out / "README.md").write_text(page(papers, results, out))


def page(papers: Mapping[str, Paper], results: dict[str, Any], out: Path) -> str:
    """The text of `README.md`."""
    paper = papers[results["paper"]]
    command = f"python -m reproductions {results['paper']} --scale {results['scale']} --out {out.as_posix()}"
    parts = [
        f"# {paper.title}",
        f"Written by `{command}` ([results](results.json)); torch {results['environment']['torch']}, "
        f"{_minutes(results)} of computing on one core. ± is one standard error over seeds.",
        "" if results["scale"] != "quick" else "**Quick: it shows that everything runs. The verdicts mean nothing.**",
        paper.remarks,
        _table(
            ("experiment", "the paper says", "we measured", "reproduced?"),
            [
                (name, claim, verdict.measured + (f" {verdict.why}" if verdict.why else ""), _WORDS[verdict.reproduced])
                for name, claim, verdict in verdicts(paper, results)
            ],
        ),
    ]
    for name, experiment, _ in _finished(paper, results):
        parts += [f"## {experiment.title}", f"![{experiment.title}]({name}.png)", _reductions(experiment, results)]
    parts += ["## Citation", f"```bibtex\n{paper.citation}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdicts(paper: Paper, results: dict[str, Any]) -> list[tuple[str, str, Verdict]]:
    """Every claim of the experiments that are complete, with its verdict."""
    return [
        (name, claim.says, _explained(claim, claim.judge(rows)))
        for name, experiment, rows in _finished(paper, results)
        for claim in experiment.claims
    ]


def _finished(paper: Paper, results: dict[str, Any]) -> Iterator[tuple[str, Experiment, Rows]]:
    """The experiments of which every cell is measured."""
    for name, experiment in paper.experiments.items():
        rows = Rows(results["experiments"].get(name, {}).get("rows", []))
        if rows and not experiment.missing(experiment.settings[results["scale"]], rows):
            yield name, experiment, rows


def _explained(claim: Claim, verdict: Verdict) -> Verdict:
    """With the reason that we suspect, if it does not reproduce."""
    if verdict.reproduced is not False:
        return verdict
    return verdict._replace(why=" ".join(part for part in (verdict.why, claim.otherwise) if part))


def overview(papers: Mapping[str, Paper], experiments: Path) -> str:
    """All claims of all papers in one table."""
    lines, counts = [], []
    for name, paper in papers.items():
        file = experiments / name / "results.json"
        if file.exists():
            found = verdicts(paper, json.loads(file.read_text()))
            lines += [
                (f"[{name}]({name}/README.md)", experiment, says, verdict.measured, _WORDS[verdict.reproduced])
                for experiment, says, verdict in found
            ]
            answers = [verdict.reproduced for _, _, verdict in found]
            counts.append(
                (f"[{paper.title}]({name}/README.md)", *(str(answers.count(answer)) for answer in (True, False, None)))
            )
    return (
        f"{_TITLE}\n\n"
        "Every claim, from the results that `python -m reproductions PAPER --scale full --out experiments/PAPER` "
        "wrote, on two cores, with networks, data and runs that are smaller than the papers' (each page says how). A "
        "claim is judged by a function of the results; one that does not reproduce is said not to.\n\n"
        + _table(("paper", "claims that reproduce", "do not", "can't be told"), counts)
        + "\n\n"
        + _table(("paper", "experiment", "it says", "we measured", "reproduced?"), lines)
        + "\n"
    )


def write_overview(papers: Mapping[str, Paper], experiments: Path) -> None:
    """`experiments/README.md`."""
    (experiments / "README.md").write_text(overview(papers, experiments))


def accepts_overview(file: Path) -> bool:
    """Whether the overview may be written there: there is no file yet, or it is an overview."""
    return not file.exists() or file.read_text().startswith(_TITLE)


def _reductions(experiment: Experiment, results: dict[str, Any]) -> str:
    ours = json.loads(json.dumps(asdict(experiment.settings[results["scale"]])))
    paper = json.loads(json.dumps(asdict(experiment.settings["paper"])))
    changed = [(name, _short(ours[name]), _short(paper[name])) for name in ours if ours[name] != paper[name]]
    if not changed:
        return "All settings are the paper's."
    return _table(("setting", "here", "in the paper"), changed)


def _table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _short(value: Any) -> str:
    return (
        ", ".join(map(_short, value)) if isinstance(value, list) else f"{value:,}" if type(value) is int else str(value)
    )


def _minutes(results: dict[str, Any]) -> str:
    seconds = sum(row["seconds"] for part in results["experiments"].values() for row in part["rows"])
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
