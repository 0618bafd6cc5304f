"""What a network predicts before it has seen data: weights drawn from the prior."""

from __future__ import annotations

from typing import Any

import torch

from langevin.core import random
from langevin.core.arguments import COUNT, SEED, validated
from langevin.core.posterior import Posterior
from langevin.core.random import Stream
from langevin.ensembles.ensemble import WeightList
from langevin.ensembles.prediction import Prediction
from langevin.ensembles.predictor import Predictor


@validated(samples=COUNT, seed=SEED, batch_size=COUNT)
def prior_predictive(
    posterior: Posterior, x: Any, *, samples: int = 100, seed: int = 0, batch_size: int = 1024
) -> Prediction:
    """The predictive distribution at x under the prior, over weights drawn from it; with `.samples` of each draw.

    Under a sensible prior, class probabilities are not all near 0 and 1, and predicted values are on the scale of the
    targets. The posterior's own weights are left as they are.
    """
    draws = []
    for number in range(samples):
        generator = random.generator(seed=seed, chain=0, step=number, stream=Stream.PRIOR)
        weights = {}
        for name, prior in posterior.priors().items():
            draw = getattr(prior, "sample", None)
            if draw is None:
                raise ValueError(
                    f"{prior!r}, the prior of {name!r}, can't be drawn from: give it sample(like, generator), or use a "
                    f"proper prior such as lv.priors.Gaussian(std=1.0)."
                )
            parameter = posterior.trainable_parameters()[name].detach()
            like = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            weights[name] = draw(like, generator).to(parameter.device)
        draws.append(weights)
    ensemble = WeightList(Predictor(posterior.model, posterior.likelihood), draws)
    return ensemble.predict(x, batch_size=batch_size, samples=True)
