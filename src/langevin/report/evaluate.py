"""`evaluate`: measure, judge, and put it on a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from langevin.ensembles.predict import ClassPrediction
from langevin.ensembles.run import Run
from langevin.evaluation.attacks import Attack
from langevin.evaluation.calibration import reliability
from langevin.report import verdicts
from langevin.report.citations import citations
from langevin.report.contents import Report
from langevin.report.findings import Findings, is_sampled, measure
from langevin.report.pictures import coverage_of, pictures
from langevin.report.tables import tables
from langevin.report.verdicts import Verdict


def evaluate(
    run: Any,
    test: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    attack: Attack | None = None,
    against: Mapping[str, Any] | None = None,
    name: str | None = None,
    probe: int = 50,
    attack_examples: int = 1000,
    batch_size: int = 1024,
) -> Report:
    """Answer what is asked after a run: temperature, mixing, calibration, foreign inputs, and whether it is better.

    Args:
        run: a run, a fit, a distilled network, a module that gives logits, or whatever has `predict(x)`.
        test: test data: a pair (x, y) or a data set.
        ood: inputs of another kind, by name, `{"notMNIST": other}`: does the run know that it does not know them?
        attack: `lv.FGSM(eps)` or `lv.PGD(eps)`, against the whole predictive of each run.
        against: other runs on the same task, by name, `{"SGD": other}`, compared on the same inputs.
        name: what the run is called on the page; by default its method.
        probe: test inputs on which the agreement of chains is looked at.
        attack_examples: test inputs that are attacked, at most.
        batch_size: inputs at a time.
    """
    name = name or name_of(run)
    if name in (against or {}):
        name = f"{name} (this run)"
    damaged = list(run.check().values()) if is_sampled(run) else []
    if isinstance(run, Run) and len(run) == 0:
        raise ValueError(f"{run.path} holds no usable sample, so there is nothing to evaluate. Sample more steps.")
    findings = measure(
        {name: run, **(against or {})},
        test,
        ood or {},
        attack,
        probe=probe,
        attack_examples=attack_examples,
        batch_size=batch_size,
    )
    manifest = getattr(run, "manifest", {})
    return Report(
        title=f"{name}: can it be trusted?",
        summary=_summary(findings),
        verdicts=judge(findings, attack, damaged),
        tables=tables(findings, attack),
        pictures=pictures(findings),
        configuration=_configuration(run, manifest),
        versions={key: str(value) for key, value in manifest.get("environment", {}).items()},
        citations=citations(run, findings, attack),
        numbers=_numbers(findings, damaged),
    )


def judge(findings: Findings, attack: Attack | None, damaged: list[str]) -> list[Verdict]:
    """All verdicts, what was left out first."""
    found = [verdicts.damaged(damaged, findings.samples or 0)]
    chains = findings.chains
    if chains is not None:
        found.append(verdicts.temperature(chains.temperature, chains.asked, chains.method, chains.samples_posterior))
        if chains.samples_posterior:
            m = chains.function
            found.append(
                verdicts.agreement(
                    m.chains, m.draws, m.worst_rhat, m.share_above(verdicts.RHAT_LIMIT), m.unknown.get("rhat", "")
                )
            )
            found.append(verdicts.effective(findings.samples or 0, float(np.median(m.ess_bulk))))
            found.append(verdicts.settled(chains.drift))
    found.append(_calibration(findings))
    found += verdicts.foreign({name: by_run[findings.name] for name, by_run in findings.detections.items()})
    if attack is not None:
        found.append(verdicts.attacked(verdicts.attack_name(attack), findings.attacked[findings.name]))
    found += [verdicts.against(other, row["nll"]) for other, row in findings.comparison.differences.items()]
    return [verdict for verdict in found if verdict is not None]


def name_of(run: Any) -> str:
    """What a run is called if nobody says: its method."""
    manifest = getattr(run, "manifest", {})
    recipe = manifest.get("method") or manifest.get("sampler")
    if isinstance(recipe, Mapping):
        return str(recipe.get("name", "This run"))
    return recipe.capitalize() if isinstance(recipe, str) else "This run"


def _calibration(findings: Findings) -> Verdict:
    prediction, y = findings.prediction, findings.y
    if not isinstance(prediction, ClassPrediction):
        return verdicts.interval_coverage(coverage_of(prediction, y, 0.9), 0.9, len(y))
    bins = reliability(prediction.probs, y, min(8, len(y)))
    scores = findings.comparison.scores[findings.name]
    return verdicts.calibration(
        error=scores["calibration error"].value,
        confidence=float(prediction.confidence.mean()),
        accuracy=scores["accuracy"].value,
        chance=verdicts.chance_level(bins),
    )


def _summary(findings: Findings) -> str:
    held = ""
    if findings.chains is not None:
        count = len(findings.chains.function.names) and findings.chains.function.chains
        held = f"{findings.samples:,} samples of {count} chain{'s' if count != 1 else ''}, "
    elif findings.samples is not None:
        held = f"{findings.samples:,} draws, "
    others = list(findings.predictions)[1:]
    beside = f", beside {' and '.join(others)}" if others else ""
    return f"{held}judged on {len(findings.y):,} test inputs{beside}."


def _configuration(run: Any, manifest: Mapping[str, Any]) -> dict[str, str]:
    """What the manifest says, in words; whatever has none says its class."""
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
        "created": "Begun",
    }
    found = {label: _recipe(manifest[key]) for key, label in named.items() if manifest.get(key) not in (None, False)}
    plan = manifest.get("plan", {})
    found |= {key.replace("_", " ").capitalize(): str(value) for key, value in plan.items() if value is not None}
    if tags := manifest.get("tags"):
        found["Tags"] = json.dumps(tags, ensure_ascii=False)
    if tensors := manifest.get("tensors"):
        found["Weights"] = f"{sum(math.prod(spec['shape']) for spec in tensors.values()):,}"
    if isinstance(run, Run) and not run.is_scratch:
        found["Directory"] = str(run.path)
    return found


def _recipe(value: Any) -> str:
    """A name with its options, as a call."""
    if isinstance(value, Mapping) and "name" in value:
        options = ", ".join(f"{key}={option}" for key, option in value.get("options", {}).items())
        return f"{value['name'] or 'the user’s own'}({options})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={option}" for key, option in value.items())
    return str(value)


def _numbers(findings: Findings, damaged: list[str]) -> dict[str, Any]:
    chains = findings.chains
    return {
        "samples": findings.samples,
        "damaged": damaged,
        "comparison": findings.comparison.to_dict(),
        "ood": findings.detections,
        "attack": {
            name: {k: v for k, v in vars(result).items() if not isinstance(v, torch.Tensor)}
            for name, result in findings.attacked.items()
        },
        "chains": None if chains is None else vars(chains),
    }
