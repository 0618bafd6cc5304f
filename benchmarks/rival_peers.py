"""Other libraries in the leaderboard: bde and laplace-torch, each in a Python environment of its own.

They get the rows of a table, the widths of its network and the example-gradients of the deep ensemble, train, and
predict in their own process what they are asked for; scores are computed here. For tables and networks of ReLUs. The
noise of a regression is that of the library: Gaussian, with a predicted scale (bde) or one for all (laplace-torch).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import langevin as lv
from langevin.core.likelihoods.base import gaussian
from langevin.ensembles.prediction import ClassAccumulator, Prediction, ValueAccumulator

if TYPE_CHECKING:
    from benchmarks.rivals import Job, Settings

_INSTALL = {
    "LANGEVIN_BDE_PYTHON": "pip install sklearn-contrib-bde",
    "LANGEVIN_LAPLACE_PYTHON": "pip install torch numpy && pip install --no-deps laplace-torch asdfghjkl "
    "backpack-for-pytorch curvlinops-for-pytorch opt_einsum einconv einops torchmetrics lightning-utilities unfoldNd "
    "linear_operator jaxtyping mpmath packaging tqdm scipy",  # torchvision can't be installed beside a CPU torch
}
_MEMBERS = 5
_HELD_OUT = 0.15  # by bde, to stop early
_WARM_SHARE = 0.5  # of bde's gradients; half of its sampling is burn-in, as by its default
_KEPT = 50  # samples of each of bde's chains
_PATIENCE = 100  # epochs of full batches
_SQUARED = 0.1  # of standardized targets, the noise by which squared errors are weighed against the prior

_BDE = """
import json, sys
import numpy as np
from bde import BdeClassifier, BdeRegressor
data, told = np.load(sys.argv[1]), json.loads(sys.argv[2])
model = (BdeClassifier if told["classifies"] else BdeRegressor)(**told["options"])
model.fit(data["x"], data["y"])
epochs = sum(len(each["epoch"]) for each in model.history().values())  # of all members
asked = [name for name in data.files if name.startswith("asked")]
np.savez(sys.argv[3], epochs=epochs, **{name: np.asarray(model.predict(data[name], raw=True)) for name in asked})
"""

_LAPLACE = """
import json, math, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from laplace import Laplace
torch.set_num_threads(1)
data, told = np.load(sys.argv[1]), json.loads(sys.argv[2])
torch.manual_seed(told["seed"])
x, y, classifies = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), told["classifies"]
layers = []
for a, b in zip(told["widths"], told["widths"][1:]):
    layers += [nn.Linear(a, b), nn.ReLU()]
model = nn.Sequential(*layers[:-1])
for index, parameter in enumerate(model.parameters()):
    parameter.data.copy_(torch.from_numpy(data[f"weight{index}"]))
loader = DataLoader(TensorDataset(x, y), batch_size=256)
la = Laplace(
    model, "classification" if classifies else "regression", subset_of_weights=told["layers"],
    hessian_structure=told["structure"],
)
la.fit(loader)
if classifies:
    la.optimize_prior_precision(method="marglik")
else:
    log_prior, log_sigma = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    hyper = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
    for _ in range(100):
        hyper.zero_grad()
        (-la.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
        hyper.step()
found = {}
for name in (name for name in data.files if name.startswith("asked")):
    given = torch.from_numpy(data[name])
    if classifies:
        found[name] = la(given, link_approx="probit").detach().numpy()
    else:
        mean, variance = la(given)
        variance = variance.reshape(len(given), -1) + la.sigma_noise.item() ** 2
        found[name] = torch.stack([mean.reshape(len(given), -1), variance], -1).detach().numpy()
np.savez(sys.argv[3], **found)
"""


class Answers:
    """What a peer predicts for the inputs that it was asked for."""

    def __init__(self, asked: tuple[Tensor, ...], predictions: list[Prediction]) -> None:
        self.asked, self.predictions = asked, predictions

    def predict(self, x: Tensor) -> Prediction:
        """The prediction for these inputs."""
        return next(found for asked, found in zip(self.asked, self.predictions, strict=True) if asked is x)


def bde(job: Job, settings: Settings) -> Answers:
    """A deep ensemble by full batches and MCLMC from it, in half of the budget each."""
    count = len(job.train[0])
    trained = _MEMBERS * math.ceil((1 - _HELD_OUT) * count)  # example-gradients of an epoch
    epochs = max(1, int(_WARM_SHARE * job.budget / trained))
    steps = max(4, (job.budget - epochs * trained) // (2 * 2 * _MEMBERS * count))  # of burn-in, and after it
    options = {
        "n_members": _MEMBERS,
        "hidden_layers": _widths(job)[1:-1],
        "seed": job.seed,
        "epochs": epochs,
        "patience": _PATIENCE,
        "validation_split": _HELD_OUT,
        "warmup_steps": steps,
        "n_samples": steps,
        "n_thinning": max(1, steps // _KEPT),
        **settings,
    }
    found = _asked("LANGEVIN_BDE_PYTHON", _BDE, job, {"options": options})
    job.spent += int(found.pop("epochs")) * trained // _MEMBERS + 2 * 2 * steps * _MEMBERS * count
    return Answers(job.asked, [_of_bde(torch.from_numpy(raw), _classifies(job)) for raw in found.values()])


def _of_bde(raw: Tensor, classifies: bool) -> Prediction:
    """From outputs of networks, (members, samples, n, outputs)."""
    outputs = raw.flatten(0, 1).double()
    if classifies:
        classes = ClassAccumulator(keep=False)
        classes.add([outputs.softmax(-1)])
        return classes.result()
    values = ValueAccumulator(keep=True, family=gaussian, members=len(outputs))
    values.add([(outputs[..., :1], (functional.softplus(outputs[..., 1:]) + 1e-6).square())])
    return values.result()


def laplace_torch(job: Job, settings: Settings) -> Answers:
    """At one network, which is ours; prior precision and noise by marginal likelihood; linearized predictions."""
    widths = _widths(job)
    if _classifies(job):
        network = job.ensemble(1)
    else:  # one output, trained on squared errors
        layers = [each for a, b in pairwise(widths[:-1]) for each in (nn.Linear(a, b), nn.ReLU())]
        model, widths[-1] = nn.Sequential(*layers, nn.Linear(widths[-2], 1)), 1
        noise, prior = lv.likelihoods.Gaussian(_SQUARED), lv.priors.Gaussian(1.0)
        posterior = lv.Posterior(model, noise, prior, num_data=len(job.train[0]))
        network = lv.fit(posterior, job.train, lv.DeepEnsemble(1), seed=job.seed, progress=False)
        job.spent += network.manifest["example_gradients"]
    weights = {f"weight{index}": w.numpy() for index, w in enumerate(network[0].values())}
    told = {"widths": widths, "seed": job.seed, **settings}
    found = _asked("LANGEVIN_LAPLACE_PYTHON", _LAPLACE, job, told, weights)
    job.spent += len(job.train[0])  # a pass for the curvature
    return Answers(job.asked, [_of_laplace(torch.from_numpy(each), _classifies(job)) for each in found.values()])


def _of_laplace(found: Tensor, classifies: bool) -> Prediction:
    """From probabilities, or means and variances."""
    if classifies:
        classes = ClassAccumulator(keep=False)
        classes.add([found.double()[None]])
        return classes.result()
    values = ValueAccumulator(keep=True, family=gaussian)
    values.add([(found[None, ..., 0].double(), found[None, ..., 1].double())])
    return values.result()


def _asked(
    variable: str, script: str, job: Job, told: dict[str, Any], weights: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Run the script in the environment of the peer, and read what it found."""
    python = os.environ.get(variable)
    if not python:
        raise ValueError(
            f"A peer runs in an environment of its own: `python -m venv DIR`, `DIR/bin/{_INSTALL[variable]}`, and "
            f"{variable}=DIR/bin/python; or leave it out by --methods."
        )
    x, y = job.train[0].flatten(1).numpy(), job.train[1].numpy()
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder, "data.npz"), Path(folder, "out.npz")
        arrays = {f"asked{i}": t.flatten(1).numpy() for i, t in enumerate(job.asked)}
        arrays |= {"x": x, "y": y} | (weights or {})
        np.savez(data, **arrays)  # type: ignore[arg-type]
        told |= {"classifies": _classifies(job)}
        ended = subprocess.run(
            [python, "-c", script, str(data), json.dumps(told), str(out)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
            capture_output=True,
            text=True,
        )
        if "ModuleNotFoundError" in ended.stderr:  # says nothing of the method
            raise ValueError(
                f"{variable}={python} lacks a package: {ended.stderr.strip().splitlines()[-1]}. Install it there: "
                f"DIR/bin/{_INSTALL[variable]}."
            )
        if ended.returncode:
            raise ArithmeticError(f"the peer failed: {ended.stderr.strip()[-500:]}")
        with np.load(out) as found:
            return {name: found[name] for name in sorted(found.files)}


def _classifies(job: Job) -> bool:
    return not job.train[1].is_floating_point()


def _widths(job: Job) -> list[int]:
    """Of the inputs and of every layer."""
    layers = [module for module in job.posterior.model.modules() if isinstance(module, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]
