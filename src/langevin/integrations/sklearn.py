"""Bayesian neural networks as scikit-learn estimators, for pipelines and `cross_val_score`.

>>> from sklearn.datasets import load_iris
>>> from sklearn.model_selection import cross_val_score
>>> X, y = load_iris(return_X_y=True)
>>> scores = cross_val_score(BayesianClassifier(steps=400, random_state=0), X, y, cv=3)
>>> bool(scores.mean() > 0.9)
True
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from langevin.core import likelihoods, random
from langevin.core.batches import as_batches
from langevin.core.likelihoods import Likelihood
from langevin.core.posterior import Posterior
from langevin.core.priors import Gaussian
from langevin.diagnostics.curvature import largest_curvature
from langevin.ensembles.ensemble import WeightList
from langevin.ensembles.prediction import ClassPrediction, Prediction, ValuePrediction
from langevin.ensembles.predictor import Predictor
from langevin.inference.autopilot.plan import choose_regime, full_batch_sampler
from langevin.inference.checks import preserve_rng_state
from langevin.inference.find_lr import find_lr
from langevin.inference.find_map import find_map
from langevin.inference.sample import sample
from langevin.inference.steppers import SamplerLike
from langevin.samplers import SAMPLERS, SGD, SGHMC

Net = nn.Module | Callable[[int, int], nn.Module] | None


class _BayesianNetwork(BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators. The samples are in memory, so that a fitted estimator can be pickled."""

    def __init__(
        self,
        net: Net = None,
        sampler: SamplerLike | None = None,
        *,
        prior: Any = None,
        steps: int = 2000,
        burn_in: int | None = None,
        batch_size: int = 128,
        chains: int = 4,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.net = net
        self.sampler = sampler
        self.prior = prior
        self.steps = steps
        self.burn_in = burn_in
        self.batch_size = batch_size
        self.chains = chains
        self.random_state = random_state
        self.progress = progress

    def _sample(self, x: np.ndarray, y: Tensor, outputs: int, likelihood: Likelihood) -> None:
        self.center_, self.scale_ = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
        inputs = self._inputs(x)
        seed = int(check_random_state(self.random_state).randint(2**31))
        with preserve_rng_state():
            random.seed_generators(seed)
            model = self._network(inputs.shape[1], outputs)
        posterior = Posterior(model, likelihood, self.prior or Gaussian(1.0), num_data=len(inputs))
        data = inputs, y
        options: dict[str, Any] = {"seed": seed, "progress": self.progress}
        size = min(self.batch_size, len(inputs))
        start = self._start(posterior, data, size, options)
        sampler, batch_size = self._sampler(posterior, data, size, start, options)
        run = sample(
            posterior,
            data,
            sampler,
            batch_size=batch_size,
            steps=self.steps,
            burn_in=self.burn_in,
            chains=self.chains,
            init=start,
            **options,
        )
        # double precision, so that the prediction of a row does not depend on the other rows
        self.ensemble_ = WeightList(Predictor(posterior.model, posterior.likelihood), run).double()
        self.temperature_, self.verdict_ = run.temperature(), run.verdict()

    def _start(self, posterior: Posterior, data: Any, size: int, options: dict[str, Any]) -> dict[str, Tensor]:
        """The MAP estimate."""
        probe = SGD(posterior.parameters(), lr=1.0, num_data=posterior.num_data)
        curvature = max(largest_curvature(posterior, *data), 1e-6)
        rate = 0.02 * probe.stability_limit(curvature)
        return find_map(posterior, data, method="sgd", lr=rate, steps=self.steps, batch_size=size, **options)

    def _sampler(
        self, posterior: Posterior, data: Any, size: int, start: dict[str, Tensor], options: dict[str, Any]
    ) -> tuple[SamplerLike, int | Literal["full"]]:
        """The sampler and its batches; if none is given, by the rule of the autopilot."""
        if self.sampler is not None:
            kind = self.sampler.func if isinstance(self.sampler, partial) else self.sampler
            kind = SAMPLERS.named(kind) if isinstance(kind, str) else kind
            return self.sampler, "full" if getattr(kind, "full_batch", False) else size
        full, _, _ = choose_regime(posterior, as_batches(data, 1, 0, data[0].device))
        if full:
            return full_batch_sampler(posterior), "full"
        return partial(SGHMC, lr=find_lr(posterior, data, SGHMC, batch_size=size, init=start, **options).lr), size

    def _network(self, features: int, outputs: int) -> nn.Module:
        if self.net is None:
            return nn.Sequential(nn.Linear(features, 50), nn.Tanh(), nn.Linear(50, outputs))
        if isinstance(self.net, nn.Module):
            return copy.deepcopy(self.net)
        return self.net(features, outputs)

    def _inputs(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor((x - self.center_) / self.scale_, dtype=torch.float32, device="cpu")  # as the samples

    def _predict(self, x: Any) -> Prediction:
        check_is_fitted(self)
        x = validate_data(self, x, reset=False)
        return self.ensemble_.predict(self._inputs(x).double())


class BayesianClassifier(ClassifierMixin, _BayesianNetwork):  # type: ignore[misc]
    """A classifier whose probabilities are averaged over samples of the posterior.

    Args:
        net: a module, or a function (features, classes) → module; by default one hidden layer of 50 units. Features are
            standardized.
        sampler: a sampler class, a name or `partial(lv.SGLD, lr=…)`; by default MCLMC on all data or, of many data,
            SGHMC at the rate that `find_lr` finds.
        prior: prior of the weights; by default `Gaussian(1.0)`.
        steps: number of steps of the MAP estimate that chains start from, and of each chain, burn-in included.
        burn_in: steps before the first sample; by default a quarter.
        batch_size: examples per step, where not all are taken.
        chains: independent chains.
        random_state: random seed; an integer makes the result reproducible.
        progress: show progress bars.

    After `fit`, `verdict_` says whether the samples can be trusted, by temperatures, R̂ and ESS.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Sample the posterior given features X, (n, features), and labels y, (n,)."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"A classifier needs at least two classes; y has one class, {self.classes_[0]!r}.")
        self._sample(X, torch.as_tensor(labels, device="cpu"), len(self.classes_), likelihoods.Categorical())
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities, (n, classes)."""
        prediction = self._predict(X)
        assert isinstance(prediction, ClassPrediction)
        probs = prediction.probs.double().numpy()
        return np.asarray(probs / probs.sum(1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])


class BayesianRegressor(RegressorMixin, _BayesianNetwork):  # type: ignore[misc]
    """A regressor with predictive standard deviations: Gaussian noise, whose scale is sampled too.

    The arguments are those of `BayesianClassifier`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Sample the posterior given features X, (n, features), and values y, (n,)."""
        X, y = validate_data(self, X, y, y_numeric=True)
        self.target_mean_, self.target_std_ = float(np.mean(y)), float(np.std(y)) or 1.0
        scaled = torch.as_tensor((y - self.target_mean_) / self.target_std_, dtype=torch.float32, device="cpu")[:, None]
        self._sample(X, scaled, 1, likelihoods.Gaussian(0.5, sampled=True))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean of each row; with `return_std` also the standard deviation (aleatoric and epistemic)."""
        prediction = self._predict(X)
        assert isinstance(prediction, ValuePrediction)
        mean = prediction.mean[:, 0].double().numpy() * self.target_std_ + self.target_mean_
        if not return_std:
            return mean
        return mean, prediction.variance[:, 0].double().sqrt().numpy() * self.target_std_
