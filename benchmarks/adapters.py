"""Posteriors over LoRA adapters, measured: what they predict, and what a step, a sample and a prediction cost.

Rows are kept in results.json, one by one, so the command continues where it was stopped. Settings are chosen on the
validation part by `RULE`, which stood before the first row was measured.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import langevin as lv
from benchmarks.adapter_costs import costs
from benchmarks.adapter_task import Batch, Task, adapted, make_task, trained_base
from langevin.core.parameters import load_tensors
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation.calibration import calibration_error
from langevin.evaluation.ood import out_of_distribution
from langevin.evaluation.scores import accuracy, negative_log_likelihood
from langevin.inference.environment import environment

RULE = (
    "The scale of the prior and the rate of AdamW are those of the MAP estimate with the lowest validation NLL, of all "
    "pairs tried, with seed 0; every other method has that prior, at temperature 1. The rate of SGLD and of SGHMC is "
    "the one with the lowest validation NLL of those tried, with seed 0. Nothing is chosen for the deep ensemble, "
    "Laplace, the last layer and the autopilot. The test part is used once, by the rows of the table."
)
SCALES, RATES = (1.0, 3.0, 10.0), (1e-3, 3e-3)
SAMPLER_RATES = {"SGLD": (0.01, 0.03, 0.1), "SGHMC": (0.0003, 0.001, 0.003, 0.01)}
SEEDS, MEMBERS, CHAINS, BATCH = 3, 4, 2, 32
MAP_STEPS, STEPS, BURN_IN, TRIAL_STEPS, THIN = 600, 1200, 400, 800, 20
BUDGET = "8 min"
SCORED = 80  # members that predict, about: as many as SGLD and SGHMC have
METHODS = ("MAP", "deep ensemble", "Laplace", "last layer", "SGLD", "SGHMC", "autopilot")

Say = Callable[[str], None]
Rows = dict[str, dict[str, Any]]


class Bench:
    """The task, the base model, and the rows so far."""

    def __init__(self, out: Path, say: Say) -> None:
        self.file, self.say = out / "results.json", say
        self.rows: Rows = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.task: Task = make_task()
        self.base = trained_base(self.task, out / "work" / "base.safetensors")
        self.work = out / "work"
        self._found: dict[int, list[dict[str, Tensor]]] = {}

    def row(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A row, measured unless it is there."""
        if name not in self.rows:
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.rows[name] = measure()
            self.rows[name]["seconds"] = round(time.perf_counter() - began, 1)
            partial_file = self.file.with_suffix(".part")
            partial_file.write_text(json.dumps(self.rows, indent=1) + "\n")
            partial_file.replace(self.file)
            self.say(f"{name}: {self.rows[name]}")
        return self.rows[name]

    def posterior(self, scale: float, seed: int = 0) -> lv.Posterior:
        """Over fresh adapters and a fresh head."""
        model = adapted(self.base, seed)
        prior = lv.priors.lora(model, scale)
        return lv.Posterior(model, lv.likelihoods.Categorical(), prior, num_data=len(self.task.train["labels"]))

    @property
    def chosen(self) -> tuple[float, float]:
        """Scale of the prior and rate of AdamW, by the rule."""
        found = {
            (scale, rate): self.row(
                f"choose MAP, scale {scale:g}, lr {rate:g}",
                lambda s=scale, r=rate: self.validated(self.posterior(s), [self.optimum(s, r, 0)]),  # type: ignore[misc]
            )["nll"]
            for scale in SCALES
            for rate in RATES
        }
        return min(found, key=found.__getitem__)

    def optimum(self, scale: float, rate: float, seed: int) -> dict[str, Tensor]:
        """AdamW on the posterior's loss, with a cosine."""
        posterior = self.posterior(scale, seed)
        params = posterior.trainable_parameters()
        optimizer = torch.optim.AdamW(params.values(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=MAP_STEPS)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(MAP_STEPS):
            rows = torch.randint(posterior.num_data, (BATCH,), generator=generator)
            batch = {name: value[rows] for name, value in self.task.train.items()}
            optimizer.zero_grad()
            posterior.loss(inputs_of(batch), batch["labels"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        return {name: p.detach().clone() for name, p in params.items()}

    def members(self, seed: int) -> list[dict[str, Tensor]]:
        """The optima of a deep ensemble, kept in files: chains start there."""
        from safetensors.torch import load_file, save_file

        found = []
        for number in range(MEMBERS):
            file = self.work / f"optimum-{seed}-{number}.safetensors"
            if not file.exists():
                save_file(self.optimum(*self.chosen, 100 * seed + number), str(file))
            found.append(load_file(str(file)))
        return found

    def sampled(self, name: str, rate: float, seed: int, steps: int, chains: int) -> lv.Run:
        """Chains from the optima of the deep ensemble of that seed."""
        starts = self.members(seed)
        return lv.sample(
            self.posterior(self.chosen[0]),
            self.task.train,
            getattr(lv, name),
            lr=rate,
            steps=steps,
            burn_in=min(BURN_IN, steps // 2),
            thin=THIN,
            chains=chains,
            batch_size=BATCH,
            init=lambda chain: starts[chain],
            seed=seed,
            progress=False,
            probe=0.0,
        )

    def rate(self, name: str) -> float:
        """The rate of a sampler, by the rule."""
        found = {}
        for rate in SAMPLER_RATES[name]:

            def measure(rate: float = rate) -> dict[str, Any]:
                try:
                    run = self.sampled(name, rate, 0, TRIAL_STEPS, 1)
                except lv.DivergenceError:
                    return {"nll": math.inf}
                return self.validated(None, run)

            found[rate] = self.row(f"choose {name}, lr {rate:g}", measure)["nll"]
        return min(found, key=found.__getitem__)

    def validated(self, posterior: lv.Posterior | None, ensemble: Any) -> dict[str, Any]:
        """NLL on the validation part."""
        if posterior is not None:
            ensemble = Ensemble.from_weights(posterior.model, posterior.likelihood, ensemble)
        labels = self.task.validation["labels"]
        predicted = ensemble.predict(inputs_of(self.task.validation))
        return {"nll": negative_log_likelihood(predicted.probs, labels), "accuracy": accuracy(predicted.probs, labels)}

    def last_layer(self, seed: int) -> dict[str, Any]:
        """The head alone, on the features of the MAP estimate: MCLMC on all data."""
        posterior = self.posterior(self.chosen[0])
        load_tensors(posterior.model, self.members(seed)[0])
        began = time.perf_counter()
        last = lv.last_layer(posterior.model)
        features = last.features(self.task.train)
        computed = time.perf_counter()
        head = lv.Posterior(last.head, posterior.likelihood, num_data=posterior.num_data)
        run = lv.sample(head, features, lv.MCLMC, steps=1000, burn_in=500, thin=1, chains=4, seed=seed, progress=False)
        sampled = time.perf_counter()
        return self.scored(run, last.features_of) | {
            "rhat": float(max(run.function_convergence(last.features_of(inputs_of(self.task.test))[:16]).rhat)),
            "feature_seconds": round(computed - began, 2),
            "sampling_seconds": round(sampled - computed, 2),
            "weights": sum(p.numel() for p in last.head.parameters()),
            "temperature": run.temperature().mean,
            "verdict": str(run.verdict()),
        }

    def scored(self, ensemble: Ensemble, inputs: Callable[[Batch], Any] = lambda batch: batch) -> dict[str, Any]:
        """Scores on the test part, and against texts from elsewhere; `inputs` are made of texts."""
        test, outside = self.task.test, self.task.outside
        predicted = ensemble.predict_many({"test": inputs(inputs_of(test)), "outside": inputs(inputs_of(outside))})
        inside, other = predicted["test"], predicted["outside"]
        assert isinstance(inside, ClassPrediction)
        assert isinstance(other, ClassPrediction)
        detected = out_of_distribution(inside, other)
        return {
            "nll": negative_log_likelihood(inside.probs, test["labels"]),
            "accuracy": accuracy(inside.probs, test["labels"]),
            "ece": calibration_error(inside.probs, test["labels"]),
            "auroc": {name: found.auroc for name, found in detected.items()},
            "members": len(ensemble),
        }

    def measured(self, method: str, seed: int) -> dict[str, Any]:
        """A row of the table."""
        scale = self.chosen[0]
        posterior = self.posterior(scale)
        weighted = partial(Ensemble.from_weights, posterior.model, posterior.likelihood)
        if method == "MAP":
            return self.scored(weighted(self.members(seed)[:1]))
        if method == "deep ensemble":
            return self.scored(weighted(self.members(seed)))
        if method == "Laplace":
            fit = lv.fit(
                posterior, self.task.train, lv.Laplace(), init=self.members(seed)[0], seed=seed, progress=False
            )
            return self.scored(fit)
        if method == "last layer":
            return self.last_layer(seed)
        if method == "autopilot":
            run = lv.sample(posterior, self.task.train, budget=BUDGET, seed=seed, progress=False)
            decisions: dict[str, Any] = {"tuning": [str(decision) for decision in run.tuning]}
        else:
            run = self.sampled(method, self.rate(method), seed, STEPS, CHAINS)
            decisions = {"lr": self.rate(method)}
        row = self.scored(run[:: max(1, len(run) // SCORED)])
        convergence = run.function_convergence({n: t[:16] for n, t in inputs_of(self.task.test).items()})
        verdict = run.verdict()
        return (
            row
            | decisions
            | {
                "rhat": float(max(convergence.rhat)),
                "ess": float(statistics.median(convergence.ess)),
                "temperature": run.temperature().mean,
                "verdict": str(verdict),
            }
        )


def run_adapters(out: Path, say: Say = print, threads: int = 1) -> None:
    """Measure the rows that are missing, and write the tables."""
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(out, say)
    bench.row("setting", lambda: setting(bench))
    bench.row("costs", lambda: costs(partial(bench.posterior, bench.chosen[0]), bench.task.train, bench.work))
    for seed in range(SEEDS):
        for method in METHODS:
            bench.row(f"{method}, seed {seed}", partial(bench.measured, method, seed))
            write_tables(out, bench.rows)


def setting(bench: Bench) -> dict[str, Any]:
    """What was measured."""
    model: nn.Module = bench.posterior(1.0).model
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {
        name: len(getattr(bench.task, name)["labels"]) for name in ("base", "train", "validation", "test", "outside")
    }
    return {
        "rule": RULE,
        "sizes": sizes,
        "trainable": trainable,
        "weights": sum(p.numel() for p in model.parameters()),
        "versions": bench.task.versions,
        "environment": environment(torch.device("cpu")),
    }


def inputs_of(batch: Batch) -> Batch:
    """All but the labels."""
    return {name: value for name, value in batch.items() if name != "labels"}


def write_tables(out: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """What docs/fine-tuning.md contains."""
    lines = [
        "| method | seeds | members | test NLL | accuracy | calibration error | AUROC, entropy | "
        "AUROC, mutual information | R̂ |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        mine = [row for seed in range(SEEDS) if (row := rows.get(f"{method}, seed {seed}")) is not None]
        if not mine:
            continue
        entropy = [row["auroc"]["entropy"] for row in mine]
        information = [row["auroc"].get("mutual information", math.nan) for row in mine]
        rhat = f"{max(row['rhat'] for row in mine):.2f}" if "rhat" in mine[0] else ""
        lines.append(
            f"| {method} | {len(mine)} | {mine[0]['members']} | {_mean([row['nll'] for row in mine])} | "
            f"{_mean([row['accuracy'] for row in mine])} | {_mean([row['ece'] for row in mine])} | {_mean(entropy)} | "
            f"{_mean(information) if mine[0]['members'] > 1 else ''} | {rhat} |"
        )
    chosen = [f"- {name}: validation NLL {row['nll']:.3f}" for name, row in rows.items() if name.startswith("choose")]
    found = rows["setting"]
    about = (
        f"{found['sizes']['train']} training, {found['sizes']['validation']} validation and {found['sizes']['test']} "
        f"test paragraphs, {found['sizes']['outside']} out-of-distribution ones; {found['trainable']:,} of "
        f"{found['weights']:,} weights are sampled; mean ± standard error over seeds."
    )
    (out / "scores.md").write_text("\n".join([about, "", *lines]) + "\n")
    (out / "chosen.md").write_text("\n".join([found["rule"], "", *chosen]) + "\n")
    if "costs" in rows:
        (out / "costs.md").write_text(cost_table(rows["costs"]) + head_cost(rows))


def cost_table(found: Mapping[str, Any]) -> str:
    """Time, memory, disk."""
    lines = [
        "| | time of a step, relative to AdamW | memory above fine-tuning, copies of the adapters |",
        "|---|---|---|",
    ]
    for name, memory in found["memory"].items():
        step = found["steps"].get(name)
        ratio = "" if step is None else f"{step['ratio']:.3f} (quartiles {step['low']:.3f} to {step['high']:.3f})"
        lines.append(f"| {name} | {ratio} | {memory:+.2f} |")
    lines += [
        "",
        f"A sample takes {found['sample_bytes'] / 1e3:.1f} kB on disk, the whole model "
        f"{found['model_bytes'] / 1e6:.2f} MB. "
        f"{found['samples']} samples at one input: {found['together']:.1f} ms together, "
        f"{found['one_by_one']:.1f} ms one after another.",
    ]
    return "\n".join(lines) + "\n"


def head_cost(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What the posterior of the last layer took, by the slowest seed."""
    mine = [row for name, row in rows.items() if name.startswith("last layer, seed")]
    if not mine:
        return ""
    return (
        f"\nLast layer, {mine[0]['weights']} weights: {max(row['feature_seconds'] for row in mine):.1f} s for the "
        f"features, {max(row['sampling_seconds'] for row in mine):.1f} s for {mine[0]['members']:,} samples, burn-in "
        f"included.\n"
    )


def _mean(values: list[float]) -> str:
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"
