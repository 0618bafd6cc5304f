"""MC dropout (Gal & Ghahramani 2016): dropout in training, and in predictions, as a distribution over the weights.

Dropping an input of a layer is setting a column of its weights to 0:

    W = Ŵ diag(z)/(1 − p),     zⱼ ~ Bernoulli(1 − p)        a column of a convolution is an input channel

So a draw of z for all layers is a draw of the weights, a function of (seed, number of the draw), and predictions
average over draws like those of any other fit. In training every example has a z of its own.

Target: none; the loss is the posterior's with masks, and the spread of predictions is set by p, not by the data. N
enters through the prior's term of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from langevin.approximations.base import APPROXIMATIONS, Approximation
from langevin.approximations.distributions import WeightDistribution, Weights
from langevin.approximations.variational.layers import find_noisy_layers
from langevin.core.objective import Objective
from langevin.core.posterior import Posterior

_RATE = "dropout/"  # before the name of a weight, in snapshots: its rate


@APPROXIMATIONS.register
@dataclass(frozen=True)
class MCDropout(Approximation):
    """`lv.fit(posterior, train, lv.MCDropout(rate=0.1), optimizer=partial(torch.optim.Adam, lr=1e-3), steps=10_000)`.

    Args:
        rate: p, the probability that an input of a linear or convolution layer is dropped, in every such layer but the
            first (in a model of one layer, there). By default the rates of the model's own dropout layers, each of
            which has to come directly before a linear layer (`nn.Dropout`) or a convolution (`nn.Dropout2d`) in an
            `nn.Sequential`.
    """

    rate: float | None = None
    tolerates: ClassVar[tuple[str, ...]] = ("dropout",)
    default_draws: ClassVar[int] = 50
    citation: ClassVar[str] = """@inproceedings{gal2016dropout,
  title={Dropout as a {B}ayesian approximation: representing model uncertainty in deep learning},
  author={Gal, Yarin and Ghahramani, Zoubin}, booktitle={International Conference on Machine Learning},
  pages={1050--1059}, year={2016}}"""

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < 1:
            raise ValueError(f"MCDropout(rate={self.rate}): a probability between 0 and 1, such as rate=0.1.")

    def objective(self, posterior: Posterior) -> Objective:
        """The posterior's loss with masks."""
        return Dropout(posterior, self.rate)

    def check(self, posterior: Posterior, snapshots: int) -> None:
        """Raise unless the layers can be masked."""
        Dropout(posterior, self.rate)

    def distribution(self, snapshots: Sequence[Weights], names: list[str]) -> WeightDistribution:
        """W at the last snapshot, with its masks."""
        last = snapshots[-1]
        rates = {key.removeprefix(_RATE): float(last[key]) for key in last if key.startswith(_RATE)}
        return MaskedColumns({name: last[name] for name in names}, rates)


class Dropout(Objective):
    """The loss of a posterior, with dropout from torch's global generator, which the loop seeds at every step."""

    def __init__(self, posterior: Posterior, rate: float | None) -> None:
        super().__init__()
        self.posterior, self.num_data = posterior, posterior.num_data
        own = [module for module in posterior.model.modules() if isinstance(module, _DropoutNd) and module.training]
        if rate is None:
            self._masked: dict[str, tuple[nn.Module, float]] = {}  # none: the model's own layers do it
            self._rates = _rates_of_model(posterior)
        elif any(module.p > 0 for module in own):
            raise ValueError(
                f"MCDropout(rate={rate}): the model has dropout layers of its own, {own[0]}. Leave out rate=… to use "
                f"them, or take them out of the model."
            )
        else:
            names = _names(posterior)
            inside = {n for n, p in posterior.model.named_parameters() if id(p) in names}
            layers = [each.module for each in find_noisy_layers(posterior.model, inside) if _has_columns(each.module)]
            if not layers:
                raise ValueError("MCDropout(rate=…) masks inputs of linear and convolution layers; the model has none.")
            self._masked = {names[id(layer.weight)]: (layer, rate) for layer in layers[1:] or layers}
            self._rates = dict.fromkeys(self._masked, rate)

    def loss(self, x: Any, y: Any) -> Tensor:
        """Û/N of the masked model."""
        with self._masks():
            return self.posterior.loss(x, y)

    forward = loss

    @contextmanager
    def _masks(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for module, rate in self._masked.values():
                hooks.enter_context(module.register_forward_pre_hook(_mask(rate)))
            yield

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Those of the posterior."""
        return self.posterior.trainable_parameters()

    def fixed_tensors(self) -> dict[str, Tensor]:
        """Those of the posterior."""
        return self.posterior.fixed_tensors()

    def running_statistics(self) -> dict[str, Tensor]:
        """Those of the posterior, and the rates, so that snapshots have them."""
        like = next(self.posterior.parameters())
        rates = {f"{_RATE}{name}": like.new_tensor(rate, requires_grad=False) for name, rate in self._rates.items()}
        return self.posterior.running_statistics() | rates

    @property
    def stochastic_forward(self) -> bool:
        """True: every pass draws masks."""
        return True


class MaskedColumns(WeightDistribution):
    """Weights of which whole columns (dimension 1) are 0 with the rates p of their names, else divided by 1 − p."""

    def __init__(self, mean: dict[str, Tensor], rates: dict[str, float]) -> None:
        self.mean, self.rates = mean, rates
        if wrong := [name for name in rates if name not in mean or mean[name].dim() < 2 or not 0 <= rates[name] < 1]:
            raise ValueError(f"{wrong[0]!r} has no columns to drop with rate {rates[wrong[0]]}")

    @torch.no_grad()
    def draw(self, seed: int, number: int) -> dict[str, Tensor]:
        """Ŵ diag(z)/(1 − p); zⱼ from the uniform numbers of the stream, one for every column."""
        columns = [self.mean[name].shape[1] for name in self.rates]
        drawn = torch.special.ndtr(self._normals(sum(columns), seed, number).double()).split(columns)
        weights = dict(self.mean)
        for (name, rate), u in zip(self.rates.items(), drawn, strict=True):
            keep = (u >= rate).to(weights[name].dtype) / (1 - rate)
            weights[name] = weights[name] * keep.reshape(1, -1, *(1,) * (weights[name].dim() - 2))
        return weights

    def entropy(self) -> Tensor:
        """−∞: it has no density."""
        return next(iter(self.mean.values())).new_full((), -math.inf)

    def _squared_distance(self, deviation: Weights) -> Tensor:
        return next(iter(self.mean.values())).new_full((), math.inf)

    def covariance(self) -> Tensor:
        """p/(1 − p) ŵⱼ ŵⱼᵀ within a column j, 0 elsewhere."""
        device = next(iter(self.mean.values())).device
        whole = torch.zeros(self.count(), self.count(), dtype=torch.float64, device=device)
        start = 0
        for name, weight in self.mean.items():
            places = torch.arange(start, start + weight.numel(), device=device).reshape(weight.shape)
            for column in range(weight.shape[1]) if name in self.rates else ():
                at, own = places[:, column].flatten(), weight[:, column].flatten().double()
                whole[at[:, None], at] = torch.outer(own, own) * self.rates[name] / (1 - self.rates[name])
            start += weight.numel()
        return whole


def _mask(rate: float) -> Callable[[nn.Module, Any], Any]:
    """A hook that drops features of a linear layer's input, or channels of a convolution's, of each example."""

    def hook(module: nn.Module, args: Any) -> Any:
        x, *rest = args
        between = (1,) * (x.dim() - 2)  # positions: one mask for all
        shape = (len(x), *between, x.shape[-1]) if isinstance(module, nn.Linear) else (len(x), x.shape[1], *between)
        return x * functional.dropout(x.new_ones(shape), rate, training=True), *rest

    return hook


def _rates_of_model(posterior: Posterior) -> dict[str, float]:
    """The rates of the weights that follow the model's own dropout layers."""
    rates: dict[str, float] = {}
    ours = {id(module) for module in posterior.model.modules() if isinstance(module, _DropoutNd)}
    names = _names(posterior)
    for parent in posterior.model.modules():
        if not isinstance(parent, nn.Sequential):
            continue
        children: list[Any] = list(parent)
        for place, module in enumerate(children):
            following = [m for m in children[place + 1 :] if not isinstance(m, nn.Identity)]
            if id(module) in ours and following and _fits(module, following[0], names):
                ours.discard(id(module))
                if module.p > 0 and module.training:
                    rates[names[id(following[0].weight)]] = float(module.p)
    if ours:
        raise ValueError(
            "MCDropout() predicts with the masks of nn.Dropout directly before nn.Linear, or nn.Dropout2d directly "
            "before nn.Conv2d, in an nn.Sequential; the model has dropout elsewhere. Move it there, or take the "
            "dropout layers out of the model and write lv.MCDropout(rate=0.1)."
        )
    if not rates:
        raise ValueError("The model has no dropout layer in training mode; write lv.MCDropout(rate=0.1).")
    return rates


def _fits(dropout: nn.Module, layer: nn.Module, names: dict[int, str]) -> bool:
    kinds: dict[type, type] = {
        nn.Dropout: nn.Linear,
        nn.Dropout1d: nn.Conv1d,
        nn.Dropout2d: nn.Conv2d,
        nn.Dropout3d: nn.Conv3d,
    }
    return type(layer) is kinds.get(type(dropout)) and _has_columns(layer) and id(layer.weight) in names


def _has_columns(layer: nn.Module) -> bool:
    """Whether dimension 1 of the weight are the inputs: not in a convolution of several groups."""
    return getattr(layer, "groups", 1) == 1


def _names(posterior: Posterior) -> dict[int, str]:
    """The names of the trainable parameters, by identity."""
    return {id(p): name for name, p in posterior.trainable_parameters().items()}
