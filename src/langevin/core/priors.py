"""Priors: log p(parameter), summed over the tensor.

A prior is any object with `log_prob(parameter)`; the library's are registered, `@PRIORS.register`. `PerParameter`
maps patterns of parameter names to priors. Groups, in the priors that have them, are the slices along the first
dimension: the weights into one output feature; in a vector every element is its own group.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from langevin.core.arguments import COUNT, NATURAL, POSITIVE, validated
from langevin.core.pretrained import lora_layers
from langevin.core.registry import Registry

_SMALL = 1 << 15  # weights


@runtime_checkable
class Prior(Protocol):
    """The interface of a prior."""

    def log_prob(self, parameter: Tensor) -> Tensor:
        """log p(parameter), a scalar."""
        ...


PRIORS: Registry[type[Any]] = Registry("prior")


@PRIORS.register
@dataclass(frozen=True)
class Gaussian:
    """Independent normal weights: energy θ²/(2 std²), that is weight decay of 1/(std² N) on the mean loss.

    >>> float(Gaussian(std=2.0).log_prob(torch.zeros(1)))  # −log(2√(2π))
    -1.612...
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, std=self.std)

    @property
    def log_normalizer(self) -> float:
        """log(std √2π), of one weight."""
        return math.log(self.std * math.sqrt(2 * math.pi))

    def log_prob(self, parameter: Tensor) -> Tensor:
        """−½ Σ (θ/std)² − d log(std √2π)."""
        return parameter.square().sum() * (-0.5 / self.std**2) - parameter.numel() * self.log_normalizer

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor."""
        return self.std * torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu")


@PRIORS.register
@dataclass(frozen=True)
class SampledGaussian:
    """Normal weights N(0, 1/λ) whose precision λ ~ Gamma(shape, rate) is sampled too, one λ for each tensor.

    `lv.sample` draws λ | θ exactly (Gibbs) every `every` steps, after the first `start` steps in which λ = shape/rate;
    it is in `run.trace("precision/NAME")`. Mini-batches do not enter: the draw depends on the weights alone.

    >>> SampledGaussian(shape=2.0, rate=0.5).mean_precision
    4.0
    """

    shape: float = 2.0
    rate: float = 2.0
    every: int = 10
    start: int = 0

    def __post_init__(self) -> None:
        _positive(self, shape=self.shape, rate=self.rate)
        if not (isinstance(self.every, int) and self.every >= 1 and isinstance(self.start, int) and self.start >= 0):
            raise ValueError(
                f"SampledGaussian(every={self.every}, start={self.start}): every is 1 or more steps, start 0 or more."
            )

    @property
    def mean_precision(self) -> float:
        """E[λ], the first value."""
        return self.shape / self.rate

    def log_prob(self, parameter: Tensor) -> Tensor:
        """log ∫ N(θ; 0, 1/λ) Gamma(λ) dλ: a multivariate Student's t."""
        a, b, d = self.shape, self.rate, parameter.numel()
        constant = a * math.log(b) - math.lgamma(a) + math.lgamma(a + d / 2) - d / 2 * math.log(2 * math.pi)
        return constant - (a + d / 2) * (b + parameter.square().sum() / 2).log()

    def conditional_log_prob(self, parameter: Tensor, precision: Tensor) -> Tensor:
        """log N(θ; 0, 1/λ)."""
        log_normalizer = parameter.numel() / 2 * (math.log(2 * math.pi) - precision.log())
        return -0.5 * precision * parameter.square().sum() - log_normalizer

    def posterior_of_precision(self, squares: float, size: int, temperature: float) -> tuple[float, float]:
        """Shape and rate of λ | θ with Σθ² = `squares`: the density exp(−U/T) in λ is a Gamma again."""
        shape = 1 + (self.shape - 1 + size / 2) / temperature
        return shape, (self.rate + squares / 2) / temperature

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor: first λ, then the weights."""
        precision = _gamma(torch.tensor(self.shape, device="cpu"), generator) / self.rate
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu") / precision.sqrt()


@PRIORS.register
@dataclass(frozen=True)
class Flat:
    """A constant density. It is improper, and the posterior may be improper too.

    >>> float(Flat().log_prob(torch.ones(2)))
    0.0
    """

    def log_prob(self, parameter: Tensor) -> Tensor:
        """0."""
        return parameter.new_zeros(())


@PRIORS.register
@dataclass(frozen=True)
class Laplace:
    """Independent double-exponential weights: energy |θ|/scale. The gradient at exactly 0 is taken as 0."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, scale=self.scale)

    def log_prob(self, parameter: Tensor) -> Tensor:
        """−Σ |θ|/scale − d log(2 scale)."""
        return -parameter.abs().sum() / self.scale - parameter.numel() * math.log(2 * self.scale)

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor."""
        size = torch.empty(like.shape, dtype=like.dtype, device="cpu").exponential_(1 / self.scale, generator=generator)
        return size * (torch.randint(2, like.shape, generator=generator, device="cpu") * 2 - 1)


@PRIORS.register
@dataclass(frozen=True)
class StudentT:
    """Independent heavy-tailed weights; df=1 is Cauchy, df → ∞ Gaussian(scale)."""

    df: float = 3.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, df=self.df, scale=self.scale)

    def log_prob(self, parameter: Tensor) -> Tensor:
        """−½(df + 1) Σ log(1 + (θ/scale)²/df) − d log Z."""
        log_z = (
            math.lgamma(self.df / 2)
            - math.lgamma((self.df + 1) / 2)
            + math.log(self.scale * math.sqrt(self.df * math.pi))
        )
        tails = torch.log1p((parameter / self.scale).square() / self.df).sum()
        return -0.5 * (self.df + 1) * tails - parameter.numel() * log_z

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor."""
        normal = torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu")
        chi_square = 2 * _gamma(torch.full(like.shape, self.df / 2, dtype=like.dtype, device="cpu"), generator)
        return self.scale * normal / (chi_square / self.df).sqrt()


@PRIORS.register
@dataclass(frozen=True)
class GroupLaplace:
    """Energy ‖group‖/scale (Heek & Kalchbrenner 2019): whole features can vanish. Subgradient 0 at a group of zeros.

    On the scales of a weight-normalized layer, a vector, this is |s|/scale for each, without a Jacobian.
    """

    scale: float = 5.0

    def __post_init__(self) -> None:
        _positive(self, scale=self.scale)

    def log_prob(self, parameter: Tensor) -> Tensor:
        """−Σ_groups (‖group‖/scale + log Z), Z = 2π^{d/2} Γ(d) scale^d / Γ(d/2) with d the size of a group."""
        groups = _groups(parameter)
        count, d = groups.shape
        log_z = math.log(2) + d / 2 * math.log(math.pi) + math.lgamma(d) - math.lgamma(d / 2) + d * math.log(self.scale)
        lengths: Tensor = torch.linalg.vector_norm(groups, dim=1)
        return -lengths.sum() / self.scale - count * log_z

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor: lengths Gamma(d, scale), directions uniform."""
        groups = _groups(like)
        shape = torch.full((len(groups), 1), float(groups.shape[1]), dtype=like.dtype, device="cpu")
        return (_directions(groups, generator) * _gamma(shape, generator) * self.scale).reshape(like.shape)


@PRIORS.register
@dataclass(frozen=True)
class UnitDirection:
    """Energy (d/2)(‖φ‖² − 1)² for each group φ of d numbers, up to a constant.

    It keeps the direction vectors of a weight-normalized layer from drifting. With the volume factor their length
    settles near 1.17, not 1 (the energy is that of the paper, unchanged).
    """

    def log_prob(self, parameter: Tensor) -> Tensor:
        """−Σ_groups (d/2)(‖φ‖² − 1)²."""
        groups = _groups(parameter)
        return -0.5 * groups.shape[1] * (groups.square().sum(1) - 1).square().sum()

    def sample(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw in the shape of this tensor: lengths r with density ∝ r^{d−1} exp(−(d/2)(r² − 1)²), by inversion."""
        groups = _groups(like)
        d = groups.shape[1]
        r = torch.linspace(1e-4, 4.0, 4000, dtype=torch.float64, device="cpu")
        log_density = (d - 1) * r.log() - d / 2 * (r.square() - 1).square()
        cdf = (log_density - log_density.max()).exp().cumsum(0)
        uniform = torch.rand(len(groups), 1, generator=generator, dtype=torch.float64, device="cpu") * cdf[-1]
        lengths = r[torch.searchsorted(cdf, uniform).clamp_max(len(r) - 1)]
        return (_directions(groups, generator) * lengths.to(like.dtype)).reshape(like.shape)


def with_gaussian_energy(energy: Tensor, constant: float, precision: float, params: Sequence[Tensor]) -> Tensor:
    """e + k + ½c Σ‖θₚ‖² over tensors θₚ, in few operations: for small θ the cost is the number of calls."""
    if sum(map(Tensor.numel, params)) < _SMALL:
        flat = torch.cat([p.flatten() for p in params])
        total = torch.add(energy, torch.dot(flat, flat), alpha=precision / 2)
    else:
        total = _WithGaussianEnergy.apply(energy, precision, *params)  # type: ignore[no-untyped-call]
    total.detach().add_(constant)  # a constant has no gradient: outside the graph
    return total


class _WithGaussianEnergy(torch.autograd.Function):
    """e + ½c Σ‖θₚ‖² with gradient c θₚ, one pass over memory; it can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, energy: Tensor, precision: float, *params: Tensor) -> Tensor:
        ctx.precision = precision
        ctx.save_for_backward(*params)
        lengths = torch.stack(torch._foreach_norm(params))
        return torch.add(energy, torch.dot(lengths, lengths), alpha=precision / 2)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return outer[0], None, *torch._foreach_mul(ctx.saved_tensors, outer[0] * ctx.precision)


class PerParameter:
    """Priors by name: the first pattern (`*`, `?`, `[…]`, as in `fnmatch`) that matches a parameter's name wins.

    >>> prior = PerParameter({"*.bias": Gaussian(10.0), "*": Gaussian(1.0)})
    >>> prior.for_parameter("layers.0.bias")
    Gaussian(std=10.0)
    """

    @validated()
    def __init__(self, patterns: Mapping[str, Prior], *, strict: bool = True) -> None:
        self.strict = strict
        for pattern, prior in patterns.items():
            if not isinstance(prior, Prior):
                raise ValueError(f"The prior for {pattern!r} has no log_prob: {prior!r}. Write Gaussian(std=1.0).")
        self.patterns = dict(patterns)

    def for_parameter(self, name: str) -> Prior:
        """The prior of the parameter of this name."""
        for pattern, prior in self.patterns.items():
            if fnmatchcase(name, pattern):
                return prior
        raise ValueError(
            f"No pattern matches the parameter {name!r}; the patterns are {list(self.patterns)}. "
            f'Add a default as the last one: {{…, "*": Gaussian(std=1.0)}}.'
        )

    def check(self, names: Sequence[str]) -> None:
        """Refuse a pattern that applies to no parameter, "*" excepted; without `strict`, any is fine."""
        for pattern in self.patterns if self.strict else ():
            if pattern == "*" or any(self._first(name) == pattern for name in names):
                continue
            earlier = [self._first(name) for name in names if fnmatchcase(name, pattern)]
            if earlier:
                raise ValueError(
                    f"The prior of the pattern {pattern!r} never applies: {earlier[0]!r} comes first. Put {pattern!r} "
                    f"before it."
                )
            raise ValueError(f"The pattern {pattern!r} matches no parameter; the names are {list(names)}.")

    def _first(self, name: str) -> str | None:
        return next((pattern for pattern in self.patterns if fnmatchcase(name, pattern)), None)

    def __repr__(self) -> str:
        return f"PerParameter({self.patterns})"


@validated(b=POSITIVE)
def resnetpp(b: float = 5.0) -> PerParameter:
    """The priors of Heek & Kalchbrenner (2019) for weight-normalized networks (ResNet++).

    Group Laplace of scale b on the scales, unit directions on the directions; biases, which the paper does not mention,
    get Gaussian(1).
    """
    return PerParameter(
        {"*scale": GroupLaplace(b), "*direction": UnitDirection(), "*bias": Gaussian(1.0), "*": Gaussian(1.0)},
        strict=False,
    )


def number_of_inputs(parameter: Tensor) -> int:
    """Of a weight tensor (out, in, …); 0 of a bias."""
    return parameter.shape[1:].numel() if parameter.dim() > 1 else 0


@validated(gain=POSITIVE)
def fan_in(model: nn.Module, gain: float = math.sqrt(2)) -> PerParameter:
    """Gaussians of std = gain/√fan_in, which preserve the scale of activations from layer to layer; biases have std 1.

    With gain √2 a draw from the prior is the ReLU initialization of He et al. (2015).
    """
    priors: dict[str, Prior] = {}
    for name, parameter in model.named_parameters():
        inputs = number_of_inputs(parameter)
        priors[glob.escape(name)] = Gaussian(gain / math.sqrt(inputs)) if inputs else Gaussian(1.0)
    return PerParameter({**priors, "*": Gaussian(1.0)})


@validated(shape=POSITIVE, every=COUNT, start=NATURAL)
def adaptive(model: nn.Module, shape: float = 2.0, *, every: int = 10, start: int = 0) -> PerParameter:
    """`fan_in` with a sampled scale for each weight tensor: its precision λ has mean fan_in/2. Biases have std 1.

    `shape` says how firmly: the standard deviation of λ is its mean over √shape.
    """
    priors: dict[str, Prior] = {}
    for name, parameter in model.named_parameters():
        if inputs := number_of_inputs(parameter):
            rate = 2 * shape / inputs
            priors[glob.escape(name)] = SampledGaussian(shape, rate, every=every, start=start)
    return PerParameter({**priors, "*": Gaussian(1.0)})


@validated(scale=POSITIVE)
def lora(model: nn.Module, scale: float = 1.0) -> PerParameter:
    """Gaussians on the factors of LoRA adapters, ΔW = s·B A, whose product has standard deviation scale/√fan_in.

    So `scale` is by how much an adapter changes the outputs of its layer, for inputs of variance 1, whatever the rank
    and lora_alpha. A has std 1/√fan_in and B scale/(s√rank). The likelihood does not change if A is multiplied and B
    divided by a number (or a matrix): chains agree in function space, not in weights. Other parameters: `fan_in`.
    """
    priors = dict(fan_in(model, gain=1.0).patterns)
    for layer in lora_layers(model):
        priors[glob.escape(layer.a)] = Gaussian(1 / math.sqrt(layer.inputs))
        priors[glob.escape(layer.b)] = Gaussian(scale / (layer.scaling * math.sqrt(layer.rank)))
    return PerParameter(priors)


@validated()
def default(model: nn.Module) -> PerParameter:
    """The default prior: `resnetpp()` for weight-normalized models, `lora` for LoRA adapters, `fan_in` for others."""
    if any(name.endswith("direction") for name, _ in model.named_parameters()):
        return resnetpp()
    return lora(model) if any(lora_layers(model)) else fan_in(model)


def _groups(parameter: Tensor) -> Tensor:
    """(groups, group size); every element of a scalar or a vector is its own group."""
    return parameter.reshape(-1, 1) if parameter.dim() < 2 else parameter.flatten(1)


def _directions(groups: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform directions, one for each group."""
    normal = torch.randn(groups.shape, generator=generator, dtype=groups.dtype, device="cpu")
    unit: Tensor = normal / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return unit


def _gamma(shape: Tensor, generator: torch.Generator) -> Tensor:
    drawn: Tensor = torch._standard_gamma(shape, generator=generator)
    return drawn


def _positive(prior: Prior, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{type(prior).__name__}({name}={value}): {name} must be positive and finite.")
