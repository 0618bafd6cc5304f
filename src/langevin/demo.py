"""The demo, in about a minute: one network, a deep ensemble and samples of the posterior, on scikit-learn's digits.

One call, `sample(posterior, train, temperature="auto", budget="5000 steps")`, gives all three: every chain starts at an
optimum of its own (AdamW with early stopping), the first of which is the one network and all of which are the deep
ensemble. The temperature is chosen on a part of the training data. All are evaluated on the test digits, and on patches
of photographs as out-of-distribution inputs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin import data
from langevin.core.likelihoods import Categorical
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.prediction import ClassPrediction
from langevin.evaluation import scores
from langevin.evaluation.attacks import FGSM
from langevin.evaluation.ood import detection
from langevin.inference.sample import sample
from langevin.models import MLP
from langevin.report import evaluate
from langevin.storage import folders


@dataclass(frozen=True)
class Settings:
    """Settings of the demo; what is not here the autopilot chooses."""

    num_data: int = 1437  # all training digits
    width: int = 50
    prior_std: float = 1.0
    chains: int = 5
    budget: str | None = "5000 steps"  # of each chain: with the 2,948 of the default ESS is too small
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    method: str
    accuracy: float
    nll: float
    calibration_error: float
    ood_auroc: float  # patches of photographs against test digits, by confidence
    ood_confidence: float  # mean on the patches


def run_demo(out: Path, settings: Settings | None = None, progress: bool = True) -> list[Row]:
    """Sample, write `report.html`, `demo.png`, `table.md` and `results.json` to `out`; return the table."""
    s = settings or Settings()
    torch.set_num_threads(1)  # a network this small is slower on two threads, ten times slower on a busy machine
    out.mkdir(parents=True, exist_ok=True)
    images, labels = data.digits("train").tensors
    train = images[: s.num_data], labels[: s.num_data]
    test_x, test_y = data.digits("test").tensors
    ood_x = photograph_patches(len(test_y))

    torch.manual_seed(s.seed)
    model = MLP(64, 10, widths=(s.width,))
    posterior = Posterior(model, Categorical(), Gaussian(s.prior_std), num_data=len(train[0]))
    run = sample(
        posterior,
        train,
        temperature="auto",
        chains=s.chains,
        budget=s.budget,
        seed=s.seed,
        mode="vectorised",  # faster here; what a timed trial chooses, the figures would depend on
        compile=False,
        progress=progress,
    )
    optima = run.warm_start
    ensembles: dict[str, Ensemble] = {"one network": optima[:1], "deep ensemble": optima, "langevin": run}
    predictions = {name: _classes(ensemble, test_x) for name, ensemble in ensembles.items()}
    ood_predictions = {name: _classes(ensemble, ood_x) for name, ensemble in ensembles.items()}
    rows = [
        Row(
            method=name,
            accuracy=scores.accuracy(predictions[name].probs, test_y),
            nll=scores.negative_log_likelihood(predictions[name].probs, test_y),
            calibration_error=scores.calibration_error(predictions[name].probs, test_y),
            ood_auroc=detection(-predictions[name].confidence, -ood_predictions[name].confidence).auroc,
            ood_confidence=float(ood_predictions[name].confidence.mean()),
        )
        for name in ensembles
    ]
    verdict, temperature = run.verdict(), run.temperature()
    results = {
        "settings": asdict(s),
        "table": [asdict(row) for row in rows],
        "temperature": {
            "target": run.target_temperature,
            "measured": temperature.mean,
            "error": temperature.error,
            "by_temperature": run.manifest["autopilot"]["by_temperature"],
        },
        "verdict": verdict.level,
        "samples": len(run),
    }
    folders.replace(out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    folders.replace(out / "table.md", as_markdown(rows).encode())
    _draw(out / "demo.png", predictions, ood_predictions, test_y)
    report = evaluate(
        run,
        (test_x, test_y),
        ood={"photographs": ood_x},
        attack=FGSM(0.2),
        baselines={name: ensembles[name] for name in ("one network", "deep ensemble")},
    )
    report.save(out / "report.html")
    return rows


def as_markdown(rows: list[Row]) -> str:
    """The table in Markdown."""
    lines = [
        "| | accuracy | negative log-likelihood | calibration error | OOD AUROC | mean confidence (OOD) |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.method} | {r.accuracy:.1%} | {r.nll:.3f} | {r.calibration_error:.3f} | {r.ood_auroc:.3f} | "
        f"{r.ood_confidence:.2f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def photograph_patches(count: int) -> Tensor:
    """Out-of-distribution inputs: 8×8 patches of scikit-learn's two photographs, normalized like the digits."""
    import sklearn.datasets

    grey = [torch.tensor(image.mean(2)) for image in sklearn.datasets.load_sample_images().images]
    shrunk = torch.stack([torch.nn.functional.avg_pool2d(image[None, :424, :640], 4)[0] for image in grey])
    patches = shrunk.unfold(1, 8, 8).unfold(2, 8, 8).reshape(-1, 1, 8, 8).float()
    generator = torch.Generator().manual_seed(0)
    patches = patches[torch.randperm(len(patches), generator=generator)[:count]]
    low, high = patches.amin((1, 2, 3), keepdim=True), patches.amax((1, 2, 3), keepdim=True)
    mean, std = data.digits("train").normalization
    unit = (patches - low) / (high - low).clamp_min(1e-6)
    return (unit - mean[0]) / std[0]


def _classes(ensemble: Ensemble, x: Tensor) -> ClassPrediction:
    prediction = ensemble.predict(x)
    assert isinstance(prediction, ClassPrediction)
    return prediction


def _draw(path: Path, predictions: dict[str, Any], ood_predictions: dict[str, Any], labels: Tensor) -> None:
    import matplotlib

    from langevin import plots
    from langevin.plots.style import new_figure, settings

    with matplotlib.rc_context(settings()):
        figure = new_figure((9, 3.4))
        left, right = figure.subplots(1, 2)
        plots.reliability({name: scores.reliability(p.probs, labels) for name, p in predictions.items()}, left)
        left.set_title("Test digits: reliability diagram")
        plots.histograms({name: p.confidence for name, p in ood_predictions.items()}, right)
        right.set_title("Out-of-distribution inputs (photographs): confidence")
        folders.replace(path, lambda file: figure.savefig(file, format="png", dpi=110))
