"""The autopilot on images, against the networks that it starts from, with twice their example-gradients in all.

One call for every cell, `lv.sample(posterior, train, temperature="auto", budget="1x")`, with the prior N(0, 1): of it,
the default prior and N(0, 0.2²) it has the lowest NLL of a deep ensemble on validation parts of the training data, the
mean over both sets (`priors`, whose result is `images-priors.json`). The deep ensemble is the warm start of the same
run. The bars were written down before the first run:

    chain      the first chain against the network that it started from: better in NLL and in calibration error
    ensemble   all chains against the deep ensemble: not worse in NLL, calibration error and OOD AUROC
    gain       all chains against the deep ensemble: better in NLL on at least one set
    gradients  at most twice those of the deep ensemble, in all

"Better" and "worse" are by two standard errors of the mean over seeds: the larger of that within seeds (over test
examples: exact for NLL, by a paired bootstrap for the others) and that between seeds.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import langevin as lv
from benchmarks.leaderboard_tasks import ROWS, scores
from langevin.evaluation.ood import detection
from langevin.evaluation.scores import accuracy, calibration_error, negative_log_likelihood_each
from langevin.inference.environment import environment

SETS = ("digits", "fashion-mnist-10000")
SEEDS = (0, 1, 2)
BUDGET = "1x"
PRIOR = lv.priors.Gaussian(1.0)
CURVE = ("1x", "3x")  # on the first seed
RESAMPLES = 400
LABELINGS = 100  # of test examples, for the calibration error that chance alone makes
SAMPLES = 50  # of a chain, at most, that predict
ERRORS = 2.0  # standard errors that count
MEASURES = ("nll", "calibration", "auroc")
_SIGN = {"nll": 1, "calibration": 1, "auroc": -1}  # of what is worse


class Prediction(NamedTuple):
    """Class probabilities of test examples, and of OOD inputs."""

    inside: Tensor
    outside: Tensor

    def measures(self, y: Tensor) -> dict[str, float]:
        """All scores."""
        return {
            "nll": float(negative_log_likelihood_each(self.inside, y).double().mean()),
            "calibration": calibration_error(self.inside, y),
            "auroc": self.auroc(),
            "accuracy": accuracy(self.inside, y),
        }

    def auroc(self) -> float:
        """Of the confidence, as a detector of OOD inputs."""
        return detection(-self.inside.max(1).values, -self.outside.max(1).values).auroc

    def resampled(self, inside: Tensor, outside: Tensor) -> Prediction:
        """Some of the examples."""
        return Prediction(self.inside[inside], self.outside[outside])


def difference(a: Prediction, b: Prediction, y: Tensor) -> dict[str, list[float]]:
    """a − b of each measure and its standard error, paired over the same examples."""
    each = (negative_log_likelihood_each(a.inside, y) - negative_log_likelihood_each(b.inside, y)).double()
    found = {"nll": [float(each.mean()), float(each.std()) / math.sqrt(len(each))]}
    generator = torch.Generator().manual_seed(0)
    drawn: dict[str, list[float]] = {"calibration": [], "auroc": []}
    for _ in range(RESAMPLES):
        inside = torch.randint(len(a.inside), (len(a.inside),), generator=generator)
        outside = torch.randint(len(a.outside), (len(a.outside),), generator=generator)
        one, other = (each.resampled(inside, outside) for each in (a, b))
        drawn["calibration"].append(
            calibration_error(one.inside, y[inside]) - calibration_error(other.inside, y[inside])
        )
        drawn["auroc"].append(one.auroc() - other.auroc())
    exact = {
        "calibration": calibration_error(a.inside, y) - calibration_error(b.inside, y),
        "auroc": a.auroc() - b.auroc(),
    }
    return found | {name: [exact[name], statistics.stdev(values)] for name, values in drawn.items()}


def by_chance(probs: Tensor) -> float:
    """The calibration error that is measured, on average, if labels have exactly these probabilities."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(probs, LABELINGS, replacement=True, generator=generator)
    return statistics.fmean(calibration_error(probs, labels) for labels in drawn.T)


def priors(sets: Sequence[str] = SETS) -> dict[str, dict[str, float]]:
    """NLL of deep ensembles on validation parts of the first seed, by set and prior; test data are not looked at."""
    found: dict[str, dict[str, float]] = {name: {} for name in sets}
    for label, prior in (("default", None), ("N(0, 1)", PRIOR), ("N(0, 0.2²)", lv.priors.Gaussian(0.2))):
        for name in sets:
            task = ROWS[name].make(name, 0).validation()
            torch.manual_seed(0)
            posterior = lv.Posterior(task.model(), task.likelihood, prior, num_data=len(task.train[0]))
            fit = lv.fit(posterior, task.train, lv.DeepEnsemble(4), seed=0, progress=False)
            found[name][label] = scores(fit, task)["nll"]
    return found


def cell(name: str, seed: int, budget: str) -> dict[str, Any]:
    """One run and its scores."""
    task = ROWS[name].make(name, seed)
    assert task.ood is not None
    torch.manual_seed(seed)
    posterior = lv.Posterior(task.model(), task.likelihood, PRIOR, num_data=len(task.train[0]))
    began, computed = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is in the row
        run = lv.sample(posterior, task.train, temperature="auto", budget=budget, seed=seed, progress=False)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - computed
    x, y = task.test

    def predicted(ensemble: Any) -> Prediction:
        some = ensemble[:: max(1, math.ceil(len(ensemble) / SAMPLES))]
        return Prediction(some.predict(x).probs.double(), some.predict(task.ood).probs.double())

    chains = [predicted(run.chain(c)) for c in run.chains]
    starts = [predicted(run.warm_start[c : c + 1]) for c in run.chains]
    shown = {"network": starts[0], "ensemble": _mixed(starts), "chain": chains[0], "run": _mixed(chains)}
    spent = run.manifest["autopilot"]["example_gradients"]
    return {
        "set": name,
        "seed": seed,
        "budget": budget,
        "scores": {which: each.measures(y) for which, each in shown.items()},
        "calibration by chance": {which: by_chance(each.inside) for which, each in shown.items()},
        "chain": difference(shown["chain"], shown["network"], y),
        "ensemble": difference(shown["run"], shown["ensemble"], y),
        "temperature": run.target_temperature,
        "by_temperature": run.manifest["autopilot"].get("by_temperature"),
        "sampler": run.manifest["autopilot"]["plan"]["sampler"],
        "chains": len(run.chains),
        "example_gradients": spent,
        "measured_temperature": list(run.temperature()),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,  # of one core, whatever else the machine does
        "verdict": str(run.verdict()),
        "tuning": [str(decision) for decision in run.tuning],
        "environment": environment(torch.device("cpu")),
    }


def _mixed(predictions: Sequence[Prediction]) -> Prediction:
    return Prediction(*(torch.stack(list(parts)).mean(0) for parts in zip(*predictions, strict=True)))


def run_images(
    out: Path,
    say: Callable[[str], None] = print,
    *,
    sets: Sequence[str] = SETS,
    seeds: Sequence[int] = SEEDS,
    curve: bool = True,
) -> None:
    """Run the cells that are missing, and write `out/images.md`."""
    torch.set_num_threads(1)
    folder, chosen = out / "images", out / "images-priors.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not chosen.exists():
        chosen.write_text(json.dumps(priors(sets), indent=1, ensure_ascii=False) + "\n")
    wanted = [(name, seed, BUDGET) for name in sets for seed in seeds]
    wanted += [(name, seeds[0], budget) for name in sets for budget in CURVE if curve and budget != BUDGET]
    for name, seed, budget in wanted:
        file = folder / f"{name}-{seed}-{budget}.json"
        if not file.exists():
            row = cell(name, seed, budget)
            file.write_text(json.dumps(row, indent=1) + "\n")
            both = (row["scores"][which]["nll"] for which in ("ensemble", "run"))
            say(f"{file.stem}: NLL {' → '.join(f'{nll:.3f}' for nll in both)}, {row['seconds']:.0f} s")
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    (out / "images.md").write_text(table(rows) + _of_priors(json.loads(chosen.read_text())))


def pooled(rows: Sequence[dict[str, Any]], which: str, measure: str) -> tuple[float, float]:
    """The mean difference over seeds, and the larger of its two standard errors."""
    means, errors = zip(*(row[which][measure] for row in rows), strict=True)
    within = math.sqrt(sum(error**2 for error in errors)) / len(errors)
    between = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return statistics.fmean(means), max(within, between)


def is_better(rows: Sequence[dict[str, Any]], which: str, measure: str) -> bool:
    """By two standard errors."""
    mean, error = pooled(rows, which, measure)
    return _SIGN[measure] * mean < -ERRORS * error


def is_worse(rows: Sequence[dict[str, Any]], which: str, measure: str) -> bool:
    """By two standard errors."""
    mean, error = pooled(rows, which, measure)
    return _SIGN[measure] * mean > ERRORS * error


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Scores by set, and the bars."""
    lines = [
        "| set | budget | seeds | T | one network | one chain | deep ensemble | all chains | ensemble's gradients | "
        "all gradients, of those | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (SETS.index(row["set"]), float(row["budget"][:-1]), row["seed"])):
        groups.setdefault((row["set"], row["budget"]), []).append(row)
    for (name, budget), mine in groups.items():
        columns = " | ".join(_scores(mine, which) for which in ("network", "chain", "ensemble", "run"))
        temperatures = ", ".join(f"{row['temperature']:g}" for row in mine)
        seconds = statistics.median(row["cpu_seconds"] for row in mine)
        warm = statistics.fmean(row["example_gradients"]["warm start"] for row in mine)
        lines.append(
            f"| {name} | {budget} | {len(mine)} | {temperatures} | {columns} | {warm:.2g} | "
            f"{max(map(_times, mine)):.2f} | {seconds:.0f} |"
        )
    lines += ["", "Each cell: NLL / calibration error / OOD AUROC of the test part, means over seeds."]
    lines += [*_chances(groups), ""]
    lines += ["| bar | set | difference | met |", "|---|---|---|---|"]
    at_bar = {name: mine for (name, budget), mine in groups.items() if budget == BUDGET}
    for name, mine in at_bar.items():
        judged = [is_better(mine, "chain", measure) for measure in MEASURES[:2]]
        lines.append(_bar("one chain better than its start", name, mine, "chain", MEASURES[:2], all(judged)))
    for name, mine in at_bar.items():
        fine = [not is_worse(mine, "ensemble", measure) for measure in MEASURES]
        lines.append(_bar("all chains not worse than the ensemble", name, mine, "ensemble", MEASURES, all(fine)))
    for name, mine in at_bar.items():
        most = max(map(_times, mine))
        said = _said(most <= 2, len(mine))
        lines.append(f"| at most 2 × the ensemble's gradients | {name} | {most:.2f} | {said} |")
    gains = [is_better(mine, "ensemble", "nll") for mine in at_bar.values()]
    which = ", ".join(name for name, gain in zip(at_bar, gains, strict=True) if gain) or "none"
    seeds = max((len(mine) for mine, gain in zip(at_bar.values(), gains, strict=True) if gain), default=len(SEEDS))
    lines.append(f"| all chains better in NLL on one set at least | {which} | | {_said(any(gains), seeds)} |")
    verdicts = [row["verdict"].partition(":")[0] for row in rows]
    counted = ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
    lines += ["", f"Verdicts of the {len(rows)} runs on their own temperature and convergence: {counted}."]
    return "\n".join(lines) + "\n"


def _of_priors(found: dict[str, dict[str, float]]) -> str:
    """In a sentence."""
    sets = (
        f"{name} " + ", ".join(f"{nll:.3f} ({label})" for label, nll in each.items()) for name, each in found.items()
    )
    return f"\nNLL of deep ensembles on validation parts of the training data, by the prior: {'; '.join(sets)}.\n"


def _chances(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """What calibration error networks would have whose confidences are right."""
    found = []
    for (name, budget), mine in groups.items():
        known = [row["calibration by chance"]["network"] for row in mine if "calibration by chance" in row]
        if known and budget == BUDGET:
            found.append(f"{name} {statistics.fmean(known):.3f}")
    if not found:
        return []
    return ["", f"Calibration error that chance alone would make of the one network's confidences: {', '.join(found)}."]


def _bar(what: str, name: str, rows: Sequence[dict[str, Any]], which: str, measures: Sequence[str], met: bool) -> str:
    shown = []
    for measure in measures:
        mean, error = pooled(rows, which, measure)
        shown.append(f"{measure} {mean:+.4f} ± {error:.4f}")
    return f"| {what} | {name} | {', '.join(shown)} | {_said(met, len(rows))} |"


def _said(met: bool, seeds: int) -> str:
    """A bar is of all seeds: with fewer it is not met yet."""
    if seeds < len(SEEDS):
        return f"not judged: {seeds} of {len(SEEDS)} seeds, on which {'yes' if met else 'no'}"
    return "yes" if met else "**no**"


def _scores(rows: Sequence[dict[str, Any]], which: str) -> str:
    mean = {measure: statistics.fmean(row["scores"][which][measure] for row in rows) for measure in MEASURES}
    return f"{mean['nll']:.3f} / {mean['calibration']:.3f} / {mean['auroc']:.3f}"


def _times(row: dict[str, Any]) -> float:
    spent = row["example_gradients"]
    return float(sum(spent.values()) / spent["warm start"])
