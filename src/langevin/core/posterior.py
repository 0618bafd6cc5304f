"""The posterior: a model, a likelihood, a prior and the number of data. Only here the likelihood is rescaled.

U(θ)          = −Σᵢ log p(yᵢ|xᵢ,θ) − log p(θ)                        sum over all N data
Û(θ)          = −(N/B) Σ_{i∈batch} log p(yᵢ|xᵢ,θ) − log p(θ)         its unbiased estimate
loss(x, y)    = Û/N                                                  so learning rates are on the scale of SGD's
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from langevin.core import html, pretrained, sharding
from langevin.core.arguments import validated_init
from langevin.core.batches import batch_size_of
from langevin.core.likelihoods import Categorical, Likelihood, MeanLoss
from langevin.core.objective import Objective
from langevin.core.outputs import call, named_output
from langevin.core.parameters import check_precision, public_name
from langevin.core.precisions import GivenPrecision, PriorPrecisions
from langevin.core.priors import Gaussian, PerParameter, Prior, SampledGaussian, default, with_gaussian_energy

_SHOWN = 30  # parameters that a notebook lists


class IncompatibleLayer(NamedTuple):
    """A batch-dependent or stochastic layer: its output is not a function of the weights and one example alone."""

    kind: str  # "batchnorm" or "dropout"
    name: str
    alternative: str


@validated_init()
class Posterior(Objective):
    """p(θ | data) ∝ p(θ) Πᵢ p(yᵢ | xᵢ, θ)^weight.

    Args:
        model: any module; only its parameters that require a gradient are sampled.
        likelihood: one of `lv.likelihoods`, such as `Categorical()`, or any object with `log_prob(output, target)`.
        prior: an object with `log_prob(parameter)`, or a mapping from name patterns to such objects; by default
            `lv.priors.default(model)`, Gaussians scaled by fan-in.
        num_data: the number of training examples N. It has no default: a wrong N is a wrong temperature.
        weight: multiplies the log-likelihood; 1 is the Bayes posterior.
        sampled: name patterns of the parameters to sample, such as `"head.*"`; the others are frozen
            (`requires_grad_(False)` in the model). By default all that require a gradient.
        allow: any of `"batchnorm"`, `"dropout"`: layers that samplers otherwise refuse (see `incompatible_layers`).
        output: of a model that returns a dict, a tuple or a `ModelOutput`, the name or place of the output that the
            likelihood is about; by default "logits", or the only tensor.

    Names are the model's own ("0.weight"); parameters of the likelihood are called "likelihood.…".

    >>> import langevin as lv
    >>> posterior = lv.Posterior(nn.Linear(4, 3), lv.likelihoods.Categorical(), num_data=100)
    >>> posterior.loss(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)).shape
    torch.Size([])
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        prior: Prior | PerParameter | Mapping[str, Prior] | None = None,
        *,
        num_data: int,
        weight: float = 1.0,
        sampled: str | Sequence[str] | None = None,
        allow: Collection[str] = (),
        output: str | int | None = None,
    ) -> None:
        super().__init__()
        for given in (likelihood, prior):
            if isinstance(given, type):
                raise ValueError(f"{given.__name__} is a class; give an object: {given.__name__}(…).")
        if not isinstance(likelihood, Likelihood):
            raise ValueError(
                f"{likelihood!r} has no log_prob(output, target). Write lv.likelihoods.Categorical() for classes, "
                f"lv.likelihoods.Gaussian(0.1) for real-valued targets, lv.likelihoods.MeanLoss(loss) for a loss."
            )
        if not weight > 0:
            raise ValueError(f"The weight of the likelihood must be positive; given weight={weight}.")
        if unknown := set(allow) - {"batchnorm", "dropout"}:
            raise ValueError(f'allow={sorted(unknown)}: can be "batchnorm" and "dropout".')
        if lazy := [name for name, p in model.named_parameters() if isinstance(p, UninitializedParameter)]:
            raise ValueError(f"The model's {lazy[0]!r} has no shape yet (a lazy module); call model(x) once before.")
        pretrained.refuse_model(model)
        self.model = named_output(model, output)
        self.likelihood = likelihood
        prior = default(model) if prior is None else prior
        self.prior = PerParameter(prior) if isinstance(prior, Mapping) else prior
        self.num_data = checked_num_data(num_data)
        self.weight = weight
        self.output = output
        self.allow = frozenset(allow)
        if sampled is not None:
            self._freeze_all_but([sampled] if isinstance(sampled, str) else list(sampled))
        if isinstance(self.prior, PerParameter):
            self.prior.check([public_name(name) for name, _ in self.named_parameters()])
        self.precisions = PriorPrecisions()
        self._terms = list(self._prior_terms())
        self._others = [(owner, key, prior) for owner, key, prior in self._terms if type(prior) is not Gaussian]
        self._gaussians: dict[float, list[tuple[nn.Module, str]]] = {}  # by standard deviation
        self._constants: dict[float, float] = {}
        for owner, key, prior in self._terms:
            if type(prior) is Gaussian:
                self._gaussians.setdefault(prior.std, []).append((owner, key))
                size = getattr(owner, key).numel()
                self._constants[prior.std] = self._constants.get(prior.std, 0.0) + size * prior.log_normalizer
        self._check_parameters()
        for layer in self.incompatible_layers():
            if layer.kind not in self.allow:
                warnings.warn(_describe(layer), stacklevel=3)

    def loss(self, x: Any, y: Any, *, gaussian_priors: bool = True) -> Tensor:
        """Û/N on a mini-batch: the mean negative log-likelihood plus the negative log-prior over N.

        `x` is the model's input: a tensor, a tuple of arguments or a dict of named ones. Without `gaussian_priors` it
        lacks their terms, which a compiled update adds (see `gaussian_decays`).
        """
        return self._with_prior(self.data_loss(x, y), gaussian_priors)

    def loss_of(self, output: Tensor, y: Any) -> Tensor:
        """The same, given the model's output: for a loop that has called the model already."""
        return self._with_prior(self.data_loss_of(output, y), True)

    def forward(self, x: Any, y: Any, *, gaussian_priors: bool = True) -> Tensor:
        """The same in plain torch operations, for `torch.func` and `torch.compile`."""
        energy = self.data_loss(x, y, vectorised=True)
        for owner, key, prior in self._terms if gaussian_priors else self._others:
            energy = energy - sharding.whole(prior.log_prob(getattr(owner, key))) / self.num_data
        return energy

    def gaussian_decays(self) -> tuple[dict[str, float], float]:
        """The decay c of each parameter with a Gaussian prior, whose term of the loss is ½ c Σθ²; and the constants."""
        decays = {
            name: 1 / (prior.std**2 * self.num_data) for name, prior in self.priors().items() if type(prior) is Gaussian
        }
        return decays, sum(self._constants.values()) / self.num_data

    def data_loss(self, x: Any, y: Any, *, vectorised: bool = False) -> Tensor:
        """The data term of the loss: the mean negative log-likelihood, times its weight."""
        if isinstance(self.likelihood, MeanLoss):
            mean = self.likelihood.mean_energy(self.model, x, y)
            return mean if self.weight == 1 else mean * self.weight
        return self.data_loss_of(call(self.model, x), y, vectorised=vectorised)

    def data_loss_of(self, output: Tensor, y: Any, *, vectorised: bool = False) -> Tensor:
        """The data term, given the model's output."""
        if type(self.likelihood) is Categorical:  # a subclass may override log_prob
            energy = self.likelihood.vectorised_mean_energy if vectorised else self.likelihood.mean_energy
            mean = energy(output, y)
        else:
            log_likelihood = self.likelihood.log_prob(output, y)
            if log_likelihood.shape != (batch_size_of(y),):
                raise ValueError(
                    f"{self.likelihood!r}.log_prob returned shape {tuple(log_likelihood.shape)} for a batch of "
                    f"{batch_size_of(y)} examples; it must return one value per example, shape ({batch_size_of(y)},). "
                    f'Do not sum or average over the batch: use reduction="none".'
                )
            mean = -log_likelihood.mean()
        return mean if self.weight == 1 else mean * self.weight

    def _with_prior(self, energy: Tensor, gaussian_priors: bool) -> Tensor:
        """energy − log p(θ)/N; Gaussian priors, the usual case, in few operations."""
        if sharding.any_sharded(getattr(owner, key) for owner, key, _ in self._terms):
            return energy - self.log_prior() / self.num_data
        for owner, key, prior in self._others:
            energy = energy - prior.log_prob(getattr(owner, key)) / self.num_data
        for std, places in self._gaussians.items() if gaussian_priors else ():
            params = [getattr(owner, key) for owner, key in places]
            constant = self._constants[std] / self.num_data
            energy = with_gaussian_energy(energy, constant, 1 / (std**2 * self.num_data), params)
        return energy

    @property
    def stochastic_forward(self) -> bool:
        """Whether the forward pass is random, so that the loop has to seed each step."""
        return "dropout" in self.allow or any(layer.kind == "dropout" for layer in self.incompatible_layers())

    def __repr__(self) -> str:
        sampled = sum(p.numel() for p in self.trainable_parameters().values())
        fixed = sum(p.numel() for p in self.parameters()) - sampled
        rest = f", {fixed:,} fixed" if fixed else ""
        model = type(self.model).__name__
        return f"<Posterior of {sampled:,} weights{rest} of {model}, {self.likelihood!r}, num_data={self.num_data}>"

    def _repr_html_(self) -> str:
        rows = [(name, tuple(p.shape), self.priors()[name]) for name, p in self.trainable_parameters().items()]
        note = f"and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        return html.table(repr(self), rows[:_SHOWN], ["parameter", "shape", "prior"], note)

    def log_prior(self) -> Tensor:
        """log p(θ) of the sampled parameters."""
        terms = [sharding.whole(prior.log_prob(getattr(owner, key))) for owner, key, prior in self._terms]
        return torch.stack(terms).sum()

    def priors(self) -> dict[str, Prior]:
        """The prior of each trainable parameter, by name."""
        found = dict(zip(self.trainable_parameters(), (prior for _, _, prior in self._terms), strict=True))
        return {name: prior.prior if isinstance(prior, GivenPrecision) else prior for name, prior in found.items()}

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are sampled, by name."""
        return {public_name(name): p for name, p in self.named_parameters() if p.requires_grad}

    def fixed_tensors(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers, by name: the rest of what a prediction needs.

        Not those of the base model of adapters, which is the user's and large (see `backbone`).
        """
        skipped = self.backbone()
        frozen = {name: p for name, p in self._frozen().items() if name not in skipped}
        buffers = {public_name(name): b for name, b in self.named_buffers() if not name.startswith("precisions.")}
        return frozen | buffers

    def backbone(self) -> dict[str, Tensor]:
        """The frozen parameters of a model with adapters: a run knows them by a digest only."""
        return self._frozen() if pretrained.is_adapted(self.model) else {}

    def _frozen(self) -> dict[str, Tensor]:
        return {public_name(name): p.detach() for name, p in self.named_parameters() if not p.requires_grad}

    def __deepcopy__(self, memo: dict[int, Any]) -> Posterior:
        """A copy shares the memory of frozen parameters with the original: they may be those of a large model."""
        memo |= {key: p for key, p in pretrained.shared_frozen(self).items() if key not in memo}
        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def running_statistics(self) -> dict[str, Tensor]:
        """The buffers that training updates (of BatchNorm), by name; they are part of a sample of the weights."""
        owners = {name for name, module in self.named_modules() if _keeps_statistics(module)}
        return {public_name(name): buffer for name, buffer in self.named_buffers() if name.rpartition(".")[0] in owners}

    def incompatible_layers(self) -> list[IncompatibleLayer]:
        """Layers in training mode that make the loss batch-dependent or stochastic.

        A sampler then has no fixed target density: BatchNorm couples the examples of a batch, dropout changes the
        model at every step. `sample` refuses such layers unless they are in `allow`.
        """
        return list(_find_incompatible(self.model))

    def _freeze_all_but(self, patterns: list[str]) -> None:
        parameters = {public_name(name): p for name, p in self.named_parameters()}
        if unmatched := [each for each in patterns if not any(fnmatchcase(name, each) for name in parameters)]:
            raise ValueError(f"sampled={unmatched} matches no parameter; the names are {list(parameters)}.")
        for name, parameter in parameters.items():
            parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))

    def _prior_terms(self) -> Iterator[tuple[nn.Module, str, Prior]]:
        modules = dict(self.named_modules())
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                owner, _, key = name.rpartition(".")
                prior = self.prior
                if isinstance(prior, PerParameter):
                    prior = prior.for_parameter(public_name(name))
                if not isinstance(prior, Prior):
                    raise ValueError(
                        f"{prior!r} has no log_prob(parameter). Write lv.priors.Gaussian(std=1.0), for example."
                    )
                if isinstance(prior, SampledGaussian):
                    prior = self.precisions.add(public_name(name), prior, parameter)
                yield modules[owner], key, prior

    def _check_parameters(self) -> None:
        sampled = self.trainable_parameters()
        if not sampled:
            raise ValueError(
                f"The model has no trainable parameter, so there is nothing to sample. "
                f"{pretrained.how_to_unfreeze(self.model)}"
            )
        if len(sampled) < sum(p.requires_grad for p in self.parameters()):
            raise ValueError('The model has parameters called "likelihood.…", like the likelihood\'s own; rename them.')
        for name, parameter in sampled.items():
            check_precision(name, parameter)


def checked_num_data(num_data: int) -> int:
    """The number of training examples; raises unless it is a positive integer."""
    if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
        raise ValueError(
            f"num_data is the number of training examples, a positive integer; given {num_data!r}. "
            f"Write num_data=len(train)."
        )
    return num_data


def refuse_incompatible_layers(posterior: Posterior, tolerated: Collection[str] = ()) -> None:
    """Raise for layers with which a sampler has no target density, unless they are allowed or tolerated."""
    if found := [
        layer for layer in posterior.incompatible_layers() if layer.kind not in {*posterior.allow, *tolerated}
    ]:
        kinds = sorted({layer.kind for layer in found})
        raise ValueError(
            "\n".join(_describe(layer) for layer in found[:3])
            + f"\nTo sample anyway: Posterior(…, allow={kinds}); to use the layers in evaluation mode: model.eval()."
        )


def _describe(layer: IncompatibleLayer) -> str:
    what = {
        "batchnorm": "couples the examples of a batch, so the likelihood does not factorize over examples",
        "dropout": "changes the model at random in every step, so there is no fixed posterior to sample",
    }[layer.kind]
    return f"Layer {layer.name!r} {what}. Use {layer.alternative} instead."


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm | _InstanceNorm) and module.running_mean is not None and module.training


def _find_incompatible(model: nn.Module) -> Iterator[IncompatibleLayer]:
    for name, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, _BatchNorm) or _keeps_statistics(module):
            yield IncompatibleLayer(
                "batchnorm", public_name(name) or type(module).__name__, "GroupNorm, LayerNorm or weight normalization"
            )
        elif (isinstance(module, _DropoutNd) and module.p > 0) or isinstance(module, nn.RReLU):
            yield IncompatibleLayer(
                "dropout", public_name(name) or type(module).__name__, "a prior (it regularizes already)"
            )
