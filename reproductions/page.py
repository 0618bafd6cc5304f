"""The pages: what the paper says, what we measured, and whether it reproduces. All of it is written by this module."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reproductions.harness import Claim, Experiment, Paper, judged_by
from reproductions.judges import Verdict, digest_of
from reproductions.rows import Rows

_TITLE = "# Five papers, reproduced"


def write_page(papers: Mapping[str, Paper], results: dict[str, Any], out: Path) -> None:
    """Figures and `README.md` of one paper from its results."""
    from matplotlib.figure import Figure

    for name, experiment, rows in _measured(papers[results["paper"]], results):
        if not rows:
            continue
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
        f"{_minutes(results)} of computing on one core. ± is one standard error over seeds. A verdict is that of "
        "Student's t over seeds at 5 % (`reproductions/judges.py`), by the judges below, the same function for all.",
        "" if results["scale"] != "quick" else "**Quick: it shows that everything runs. The verdicts mean nothing.**",
        paper.remarks,
        _table(
            ("experiment", "the paper says", "we measured", "reproduced?"),
            [
                (name, claim, verdict.measured + (f" {verdict.why}" if verdict.why else ""), verdict.answer)
                for name, claim, verdict in verdicts(paper, results)
            ],
        ),
    ]
    for name, experiment, rows in _measured(paper, results):
        figure = f"![{experiment.title}]({name}.png)" if rows else "Not run yet."
        parts += [f"## {experiment.title}", figure, _judges(experiment, results["experiments"].get(name, {}), rows)]
        known = paper.settings_known and experiment.settings_known
        parts += [_versions(rows), _reductions(experiment, results, known)]
    parts += ["## Citation", f"```bibtex\n{paper.citation}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdicts(paper: Paper, results: dict[str, Any]) -> list[tuple[str, str, Verdict]]:
    """Every claim with its verdict, from the seeds that are complete."""
    return [
        (name, claim.says, _explained(claim, claim.judge(rows)))
        for name, experiment, rows in _measured(paper, results)
        for claim in experiment.claims
    ]


def log_verdicts(paper: Paper, results: dict[str, Any]) -> None:
    """Add the answers and the judges that gave them to the results, where they differ from the last ones there."""
    found = verdicts(paper, results)
    for name, part in results["experiments"].items():
        if name not in paper.experiments:
            continue
        judges = paper.experiments[name].judges
        answers = {says: verdict.answer for experiment, says, verdict in found if experiment == name}
        entry = {"judges": digest_of(judges), "answers": answers}
        log = part.setdefault("judged", [])
        if not log or log[-1] != entry:
            log.append(entry)
            part.setdefault("judges", {})[entry["judges"]] = judges


def _measured(paper: Paper, results: dict[str, Any]) -> Iterator[tuple[str, Experiment, Rows]]:
    """The experiments with the rows of the seeds that miss no cell."""
    for name, experiment in paper.experiments.items():
        rows = Rows(results["experiments"].get(name, {}).get("rows", []))
        yield name, experiment, experiment.complete(experiment.settings[results["scale"]], rows)


def _versions(rows: Rows) -> str:
    """A warning, if rows were measured with different versions of the library."""
    counts = Counter(row.get("library") for row in rows)
    if len(counts) < 2:
        return ""
    shown = ", ".join(f"{n} rows with {f'`{v}`' if v else 'one before this was recorded'}" for v, n in counts.items())
    return f"Measured with {len(counts)} versions of the library (digests of its source): {shown}."


def _judges(experiment: Experiment, part: dict[str, Any], rows: Rows) -> str:
    """What each claim is taken to say, and whether that was fixed before the rows were measured."""
    return _table(
        ("claim", "judge: what is compared, and where every contrast must lie", "digest", "judge fixed"),
        [
            (claim.says, claim.judge.rule, f"`{claim.judge.digest}`", judged_by(claim, part, rows))
            for claim in experiment.claims
        ],
    )


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
                (f"[{name}]({name}/README.md)", experiment, says, verdict.measured, verdict.answer)
                for experiment, says, verdict in found
            ]
            answers = ["not judged" if verdict.missing else verdict.answer for _, _, verdict in found]
            kinds = ("yes", "**no**", "can't tell", "not judged")
            counts.append((f"[{paper.title}]({name}/README.md)", *(str(answers.count(kind)) for kind in kinds)))
    return (
        f"{_TITLE}\n\n"
        "Every claim, from the results that `python -m reproductions PAPER --scale full --out experiments/PAPER` "
        "wrote, on two cores, with networks, data and runs that are smaller than the papers' (each page says how). A "
        "claim is judged from the results by Student's t over seeds; one that does not reproduce is said not to, and "
        "one with fewer seeds than its judge wants is not judged. Each page has the judges, and says which of them "
        "were written after the rows were measured.\n\n"
        + _table(("paper", "claims that reproduce", "do not", "can't be told", "not judged"), counts)
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


def _reductions(experiment: Experiment, results: dict[str, Any], known: bool) -> str:
    ours = json.loads(json.dumps(asdict(experiment.settings[results["scale"]])))
    paper = json.loads(json.dumps(asdict(experiment.settings["paper"])))
    changed = [(name, _short(ours[name]), _short(paper[name])) for name in ours if ours[name] != paper[name]]
    if not changed:
        return "All settings are the paper's." if known else "All settings are our own, at full size."
    return _table(("setting", "here", "in the paper" if known else "our guess at full size"), changed)


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
