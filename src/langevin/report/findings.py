"""The measurements behind a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from langevin.core.batches import batch_size_of
from langevin.core.posterior import Posterior
from langevin.diagnostics.convergence import Chosen, Convergence, convergence, equal_lengths
from langevin.diagnostics.stationarity import Stationarity
from langevin.diagnostics.target_temperature import Temperatures
from langevin.diagnostics.verdict import DRIFT_LEVEL, Finding
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.fit import Fit
from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction, on_host
from langevin.ensembles.run import Run
from langevin.ensembles.summary import chain_findings
from langevin.evaluation.attacks import Attack, Attacked, under_attack
from langevin.evaluation.compare import Comparison, compare
from langevin.evaluation.inputs import examples, full_prediction_of
from langevin.evaluation.ood import Detection, detection, out_of_distribution


@dataclass(frozen=True)
class Chains:
    """Diagnostics of the chains of a run."""

    method: str
    samples_posterior: bool
    temperatures: Temperatures
    function: Convergence
    weights: Convergence
    drift: list[Stationarity]
    findings: list[Finding]


@dataclass(frozen=True)
class Findings:
    """All measurements; `predictions` and `attacked` are keyed by run, the evaluated one first."""

    x: Any
    y: Tensor
    samples: int | None
    predictions: dict[str, Prediction]
    comparison: Comparison
    chains: Chains | None
    traces: dict[str, dict[int, list[float]]]
    ood: dict[str, dict[str, Prediction]] = field(default_factory=dict)  # set → run → prediction
    detections: dict[str, dict[str, dict[str, Detection]]] = field(default_factory=dict)  # set → run → score
    attacked: dict[str, Attacked] = field(default_factory=dict)
    attacked_examples: int = 0

    @property
    def name(self) -> str:
        """The name of the evaluated run."""
        return next(iter(self.predictions))

    @property
    def prediction(self) -> Prediction:
        """The prediction of the evaluated run on the test inputs."""
        return self.predictions[self.name]


def measure(
    runs: Mapping[str, Any],
    test: Any,
    ood: Mapping[str, Any],
    attack: Attack | None,
    *,
    probe: int,
    attack_examples: int,
    batch_size: int,
    train: tuple[Posterior, Any] | None = None,
    stage: Callable[[str], None] = lambda what: None,
) -> Findings:
    """Measure the first run, with the others as baselines. Without an attack, every sample is read once.

    `stage` is told what comes next.
    """
    x, y = examples(test)
    sets = {"test": x} | {f"ood/{name}": _inputs(name, given) for name, given in ood.items()}
    this = next(iter(runs.values()))
    if isinstance(this, Run):
        sets["probe"] = _at(x, _spread(batch_size_of(x), probe))
    weights = _WeightTrace(200)
    found = {}
    for name, run in runs.items():
        stage(f"predictions of {name}")
        found[name] = _predictions(run, sets, weights if run is this else None, batch_size)
    predictions = {name: by_set["test"] for name, by_set in found.items()}
    y = _targets(predictions, y)
    attacked: dict[str, Attacked] = {}
    chosen = _spread(batch_size_of(x), attack_examples)
    if attack is not None:
        if not isinstance(next(iter(predictions.values())), ClassPrediction):
            raise ValueError("An attack needs predicted classes; leave out attack=… for regression.")
        for name, run in runs.items():
            stage(f"attack on {name}")
            attacked[name] = under_attack(run, attack, _at(x, chosen), y[chosen])
    stage("comparison")
    comparison = compare(predictions, (x, y))
    stage("chains")
    ood_predictions = {name: {run: by_set[f"ood/{name}"] for run, by_set in found.items()} for name in ood}
    return Findings(
        x=x,
        y=y,
        samples=len(this) if isinstance(this, Run | Fit) else None,
        predictions=predictions,
        comparison=comparison,
        chains=_chains(this, found[next(iter(runs))]["probe"], weights, train) if isinstance(this, Run) else None,
        traces=_traces(this),
        ood=ood_predictions,
        detections={
            name: {run_name: _detections(predictions[run_name], there) for run_name, there in by_run.items()}
            for name, by_run in ood_predictions.items()
        },
        attacked=attacked,
        attacked_examples=len(chosen) if attacked else 0,
    )


def _predictions(
    run: Any, sets: Mapping[str, Any], weights: _WeightTrace | None, batch_size: int
) -> dict[str, Prediction]:
    """Predictions of a run for every set; for the probe set, and for regression, with those of each sample."""
    if not isinstance(run, Ensemble):
        return {name: full_prediction_of(run, x, batch_size=batch_size) for name, x in sets.items() if name != "probe"}
    wanted = {name: x for name, x in sets.items() if name != "probe" or weights is not None}
    samples = [name for name in wanted if name == "probe" or (name == "test" and not run.classifies)]
    observe = None if weights is None else weights.observe
    found = run.predict_many(wanted, batch_size=batch_size, samples=samples, observe=observe)
    return {name: on_host(prediction) for name, prediction in found.items()}


class _WeightTrace:
    """A random subset of the weights, over all samples."""

    def __init__(self, subset: int) -> None:
        self._subset = subset
        self._chosen: Chosen | None = None
        self._rows: list[Tensor] = []

    def observe(self, stack: dict[str, Tensor]) -> None:
        """Record the subset of stacked samples."""
        if self._chosen is None:
            self._chosen = Chosen.of({name: t[0] for name, t in stack.items()}, None, self._subset, 0)
        self._rows.append(self._chosen.read_stack(stack))

    def convergence(self, run: Run) -> Convergence:
        """R̂ and ESS of the recorded weights, over the run's chains."""
        assert self._chosen is not None
        rows = run.split_by_chain(torch.cat(self._rows).cpu().numpy())
        return convergence(equal_lengths(rows), names=self._chosen.labels())


def _chains(run: Run, probe: Prediction, weights: _WeightTrace, train: tuple[Posterior, Any] | None) -> Chains:
    recipe = run.manifest["sampler"]
    temperatures, function = run.all_temperatures(*(train or ())), run.convergence_of(probe)
    return Chains(
        method=recipe["name"] if recipe else "This sampler",
        samples_posterior=run.sampler is None or run.sampler.target == "posterior",
        temperatures=temperatures,
        function=function,
        weights=weights.convergence(run),
        drift=run.stationarity(DRIFT_LEVEL),
        findings=chain_findings(run, temperatures, function),
    )


def _traces(run: Any) -> dict[str, dict[int, list[float]]]:
    """Recorded traces with more than one value."""
    if not hasattr(run, "trace"):
        return {}
    known = run.traces if isinstance(run, Run) else ["loss"]
    found: dict[str, Any] = {name: run.trace(name) for name in ("loss", "lr") if name in known}
    if isinstance(run, Run):
        found["temperature"] = run.temperature_readings()
    return {name: trace for name, trace in found.items() if any(len(values) > 1 for values in trace.values())}


def _detections(inside: Prediction, outside: Prediction) -> dict[str, Detection]:
    if isinstance(inside, ClassPrediction) and isinstance(outside, ClassPrediction):
        return out_of_distribution(inside, outside)
    assert isinstance(inside, ValuePrediction)
    assert isinstance(outside, ValuePrediction)
    return {
        "variance": detection(_per_input(inside.variance), _per_input(outside.variance)),
        "epistemic variance": detection(_per_input(inside.epistemic), _per_input(outside.epistemic)),
    }


def _per_input(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(1)


def _inputs(name: str, given: Any) -> Any:
    """The inputs; targets, if there are any, are dropped."""
    if isinstance(given, Tensor):
        if len(given) == 0:
            raise ValueError(f"ood[{name!r}] is empty; leave it out or give at least one input.")
        return given
    try:
        return examples(given)[0]
    except ValueError as error:
        raise ValueError(f"ood[{name!r}]: {error}") from None


def _targets(predictions: Mapping[str, Prediction], y: Tensor) -> Tensor:
    """Class labels as (n,), a trailing dimension of 1 squeezed; values unchanged."""
    first = next(iter(predictions.values()))
    if not isinstance(first, ClassPrediction):
        return y
    if first.probs.dim() != 2:
        raise ValueError(f"A report needs class probabilities of shape (n, classes); given {tuple(first.probs.shape)}.")
    return y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y


def _at(x: Any, rows: Tensor) -> Any:
    """These rows of the inputs, wherever they are."""
    return tree_map(lambda t: t[rows.to(t.device)], x)


def _spread(available: int, wanted: int) -> Tensor:
    """Up to `wanted` indices, evenly spaced."""
    if wanted < 1:
        raise ValueError(f"probe and attack_examples must be 1 or more; given {wanted}.")
    return torch.linspace(0, available - 1, min(available, wanted), device="cpu").round().long()
