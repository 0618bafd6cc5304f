"""`evaluate`: measure a run, interpret the measurements, and collect both in a report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch

from langevin.core.arguments import COUNT, validated
from langevin.core.posterior import Posterior
from langevin.core.progress import tqdm
from langevin.diagnostics.verdict import Finding
from langevin.ensembles.fit import Fit
from langevin.ensembles.prediction import ClassPrediction
from langevin.ensembles.run import Run
from langevin.evaluation.attacks import Attack
from langevin.evaluation.calibration import interval_coverage, reliability
from langevin.report import verdicts
from langevin.report.citations import citations
from langevin.report.contents import Report
from langevin.report.findings import Findings, measure
from langevin.report.pictures import pictures
from langevin.report.tables import tables
from langevin.report.tuning import tuning_pictures, tuning_tables


@validated(probe=COUNT, attack_examples=COUNT, batch_size=COUNT)
def evaluate(
    run: Any,
    test: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    attack: Attack | None = None,
    baselines: Mapping[str, Any] | None = None,
    name: str | None = None,
    probe: int = 50,
    attack_examples: int = 1000,
    batch_size: int = 1024,
    train: tuple[Posterior, Any] | None = None,
    progress: bool = True,
) -> Report:
    """Evaluate a run: temperature, convergence, calibration, out-of-distribution detection, comparison with baselines.

    Args:
        run: a run, a fit or another ensemble, a module that returns logits, or any object with `predict(x)`.
        test: test data, a pair (x, y) or a data set.
        ood: out-of-distribution inputs by name, `{"notMNIST": other}`.
        attack: `lv.evaluation.FGSM(eps)` or `lv.evaluation.PGD(eps)`, on the predictive distribution of each run.
        baselines: other runs on the same task by name, `{"SGD": other}`, compared on the same inputs.
        name: of the run, for the page; by default its method.
        probe: number of test inputs for R̂ and ESS in function space.
        attack_examples: the largest number of test inputs to attack.
        batch_size: inputs per forward pass.
        train: the posterior and the training data, to measure temperatures along the softest directions too; it costs a
            pass over the data per sample.
        progress: show what is being computed.
    """
    for option, given in (("baselines", baselines), ("ood", ood)):
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f'{option} are given by name: {option}={{"name": …}}; given {type(given).__name__}.')
    name = name or name_of(run)
    if name in (baselines or {}):
        name = f"{name} (this run)"
    if isinstance(run, Run) and len(run) == 0:
        raise ValueError(f"{run!r} has no usable sample, so there is nothing to evaluate. Sample more steps.")
    runs = {name: run, **(baselines or {})}
    stages = len(runs) * (1 if attack is None else 2) + 3  # predictions, attacks, comparison, chains, figures
    with tqdm(total=stages, unit="part", disable=not progress, delay=1.0, leave=False, file=sys.stderr) as bar:
        findings = measure(
            runs,
            test,
            ood or {},
            attack,
            probe=probe,
            attack_examples=attack_examples,
            batch_size=batch_size,
            train=train,
            stage=lambda what: _next(bar, what),
        )
        _next(bar, "figures")
        drawn = pictures(findings)
    corrupted = list(run.corrupted.values()) if isinstance(run, Run) else []
    manifest = getattr(run, "manifest", {})
    return Report(
        title=f"{name}: evaluation",
        summary=_summary(findings),
        verdicts=judge(findings, attack),
        tables=tables(findings, attack) + tuning_tables(manifest),
        pictures=drawn + tuning_pictures(manifest),
        configuration=_configuration(run, manifest),
        versions={key: str(value) for key, value in manifest.get("environment", {}).items()},
        citations=citations(run, findings, attack),
        numbers=_numbers(findings, corrupted),
    )


def _next(bar: Any, what: str) -> None:
    bar.set_description_str(what, refresh=False)
    bar.update()


def judge(findings: Findings, attack: Attack | None) -> list[Finding]:
    """All verdicts, those about the chains first."""
    found = list(findings.chains.findings) if findings.chains is not None else []
    found.append(_calibration(findings))
    found += verdicts.ood({name: by_run[findings.name] for name, by_run in findings.detections.items()})
    if attack is not None:
        found.append(verdicts.attacked(verdicts.attack_name(attack), findings.attacked[findings.name]))
    found += [verdicts.baseline(other, row["nll"]) for other, row in findings.comparison.differences.items()]
    return found


def name_of(run: Any) -> str:
    """The default name of a run: its method."""
    manifest = getattr(run, "manifest", {})
    recipe = manifest.get("method") or manifest.get("sampler")
    if isinstance(recipe, Mapping):
        return str(recipe.get("name", "This run"))
    return recipe.capitalize() if isinstance(recipe, str) else "This run"


def _calibration(findings: Findings) -> Finding:
    prediction, y = findings.prediction, findings.y
    if not isinstance(prediction, ClassPrediction):
        return verdicts.coverage(interval_coverage(prediction, y), len(y))
    bins = reliability(prediction.probs, y, min(8, len(y)))
    scores = findings.comparison.scores[findings.name]
    return verdicts.calibration(
        error=scores["calibration error"].value,
        confidence=float(prediction.confidence.mean()),
        accuracy=scores["accuracy"].value,
        chance=verdicts.chance_level(bins),
    )


def _summary(findings: Findings) -> str:
    samples = ""
    if findings.chains is not None:
        count = findings.chains.function.chains
        samples = f"{findings.samples:,} samples of {count} chain{'s' if count != 1 else ''}, "
    elif findings.samples is not None:
        samples = f"{findings.samples:,} draws, "
    others = list(findings.predictions)[1:]
    baselines = f", compared with {_listed(others)}" if others else ""
    return f"{samples}evaluated on {len(findings.y):,} test inputs{baselines}."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _configuration(run: Any, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The manifest as labels and values; without a manifest, the class."""
    if not manifest:
        return {"Kind": type(run).__name__}
    named = {
        "sampler": "Sampler",
        "method": "Method",
        "schedule": "Schedule",
        "prior": "Prior",
        "likelihood": "Likelihood",
        "num_data": "Training examples",
        "weight": "Weight of the likelihood",
        "options": "Options",
        "created": "Started",
    }
    found = {label: _recipe(manifest[key]) for key, label in named.items() if manifest.get(key) not in (None, False)}
    settings = manifest.get("settings", {})
    found |= {key.replace("_", " ").capitalize(): str(value) for key, value in settings.items() if value is not None}
    if tags := manifest.get("tags"):
        found["Tags"] = json.dumps(tags, ensure_ascii=False)
    if tensors := manifest.get("tensors"):
        found["Weights"] = f"{sum(math.prod(spec['shape']) for spec in tensors.values()):,}"
    if isinstance(run, Run | Fit) and run.path is not None:
        found["Directory"] = str(run.path)
    return found


def _recipe(value: Any) -> str:
    """A name with its options, written as a call."""
    if isinstance(value, Mapping) and "name" in value:
        options = ", ".join(f"{key}={option}" for key, option in value.get("options", {}).items())
        return f"{value['name'] or 'custom'}({options})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={option}" for key, option in value.items())
    return str(value)


def _numbers(findings: Findings, corrupted: list[str]) -> dict[str, Any]:
    chains = findings.chains
    return {
        "samples": findings.samples,
        "corrupted": corrupted,
        "comparison": findings.comparison.to_dict(),
        "ood": findings.detections,
        "attack": {
            name: {k: v for k, v in vars(result).items() if not isinstance(v, torch.Tensor)}
            for name, result in findings.attacked.items()
        },
        "chains": None if chains is None else {k: v for k, v in vars(chains).items() if k != "findings"},
    }
