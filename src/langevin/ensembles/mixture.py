"""The predictive distribution of values: the mixture, over members, of the likelihood's own distributions.

p(y|x) = mean_s p(y|x,θ_s).  Everything is computed for some inputs at a time, so that memory does not grow with
inputs × members beyond the parameters themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from langevin.core.likelihoods.base import drawn
from langevin.core.random import Source, Stream

_TOGETHER = 1 << 21  # numbers of an intermediate result
_PRECISION = 1e-6  # of a quantile, in standard deviations of the mixture,
_AGREEMENT = 1e-7  # or of its level
_TINY = 1e-15  # a cdf beyond is 0 or 1
_CHORDS, _STEPS = 14, 80  # after the first number of steps brackets are halved; the second reaches neighbouring numbers
_DRAWS = 4096  # for quantiles of distributions without cdf


@dataclass(frozen=True)
class Mixture:
    """Equal weights on `members` distributions for each of n inputs; `parameters` are (members, n, …) each."""

    family: Callable[..., Distribution]
    parameters: tuple[Tensor, ...]

    @property
    def members(self) -> int:
        """The number of components."""
        return len(self.parameters[0])

    @property
    def shape(self) -> torch.Size:
        """Of y, for all inputs."""
        first = self._of(slice(0, 1))
        return torch.Size([self.parameters[0].shape[1], *first.shape()[2:]])

    @property
    def discrete(self) -> bool:
        """Whether y is a whole number."""
        support = self._of(slice(0, 1)).distribution.support
        return support is not None and bool(support.is_discrete)

    @property
    def gaussian(self) -> bool:
        """Whether the components are Gaussian."""
        return isinstance(self._of(slice(0, 1)).distribution, Normal)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y of each member, (members, n, …)."""
        means, variances = zip(*(part.moments() for _, part in self._parts()), strict=True)
        return torch.cat(means, 1), torch.cat(variances, 1)

    def log_prob(self, y: Tensor) -> Tensor:
        """log mean_s p_s(y), jointly for the values of an example, (n,)."""
        parts = [part.log_prob(y[rows]) for rows, part in self._parts()]
        return torch.cat(parts)

    def cdf(self, y: Tensor) -> Tensor:
        """mean_s P_s(Y ≤ y) of every value, in the shape of y; without a cdf of the distribution, from draws."""
        return torch.cat([part.cdf(y[rows]) for rows, part in self._parts()])

    def quantile(self, q: float) -> Tensor:
        """The smallest y with cdf(y) ≥ q, (n, …), by bisection, or by regula falsi if the cdf is continuous."""
        return torch.cat([part.quantile(q, self.discrete) for _, part in self._parts()])

    def sample(self, count: int, seed: int) -> Tensor:
        """Draws of y, (count, n, …): each from a random member, the same for all values of an example."""
        n, found = self.parameters[0].shape[1], []
        step = max(1, _TOGETHER // (count * max(1, self.parameters[0][0, :1].numel())))
        for start in range(0, n, step):
            device = self.parameters[0].device
            column = torch.arange(start, min(start + step, n), device=device)
            source = Source(seed, chain=0, step=start, stream=Stream.DRAWS)
            drawn_from = source.uniform(torch.empty(count, len(column), device=device))
            member = (drawn_from * self.members).long().clamp_max(self.members - 1)
            chosen = [p[member, column] for p in self.parameters]
            draws = drawn(self.family(*(p.flatten(0, 1) for p in chosen)), 1, source.integer())[0]
            found.append(draws.reshape(count, len(column), *draws.shape[1:]))
        return torch.cat(found, 1)

    def _parts(self) -> Iterator[tuple[slice, _Part]]:
        n = self.parameters[0].shape[1]
        step = max(1, _TOGETHER // (self.members * max(1, self.parameters[0][0, :1].numel())))
        for start in range(0, n, step):
            rows = slice(start, start + step)
            yield rows, self._of(rows)

    def _of(self, rows: slice) -> _Part:
        parameters = [p[:, rows].double() for p in self.parameters]
        shape = parameters[0].shape[:2]
        part = _Part(self.family(*(p.flatten(0, 1) for p in parameters)), shape[0], shape[1])
        own: Any = part.distribution
        while own is not None:  # quantiles are searched for outside the support too
            own._validate_args, own = False, getattr(own, "base_dist", None)
        return part


@dataclass(frozen=True)
class _Part:
    """The mixture of some inputs; members and inputs are one axis in the distribution, as a likelihood expects."""

    distribution: Distribution
    members: int
    inputs: int

    def shape(self) -> torch.Size:
        own = self.distribution
        return torch.Size([self.members, self.inputs, *own.batch_shape[1:], *own.event_shape])

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.distribution.mean.reshape(self.shape()), self.distribution.variance.reshape(self.shape())

    def log_prob(self, y: Tensor) -> Tensor:
        self._refuse_outside(y)
        each = self.distribution.log_prob(self._repeated(y)).reshape(self.members, self.inputs, -1).sum(2)
        return each.logsumexp(0) - math.log(self.members)

    def _refuse_outside(self, y: Tensor) -> None:
        """Raise for values that the distribution can't have: their log-density would be any number."""
        try:
            support: Any = _base(self.distribution).support
        except NotImplementedError:
            return
        inside = support.check(self._repeated(y)).reshape(self.members, self.inputs, -1).all(0)
        if not bool(inside.all()):
            first = y.reshape(inside.shape)[~inside][0].item()
            raise ValueError(
                f"The predictive distribution has values in {support}; {int((~inside).sum())} of {inside.numel()} "
                f"targets are outside, such as {first:g}. Leave them out: prediction.log_prob(y) takes targets like "
                f"those of the training data."
            )

    def cdf(self, y: Tensor) -> Tensor:
        own = _base(self.distribution)
        y = y.reshape(self.shape()[1:]).double()
        try:
            below = own.cdf(self._repeated(y)).reshape(self.shape()).mean(0)
            if bool(below.isnan().any()):  # outside the support
                below = torch.where(below.isnan(), (y > self.moments()[0].mean(0)).double(), below)
            return below
        except NotImplementedError:
            return (self._draws().to(y.device) <= y.reshape(self.shape()[1:])).double().mean(0)

    def quantile(self, q: float, discrete: bool) -> Tensor:
        if self.members == 1 and isinstance(self.distribution, Normal):
            level = torch.full_like(self.distribution.loc, q)
            value: Tensor = self.distribution.icdf(level)  # type: ignore[no-untyped-call]
            return value.reshape(self.shape()[1:])
        means, variances = self.moments()
        mean = means.mean(0)
        spread = (variances.mean(0) + means.var(0, correction=0)).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        try:
            _base(self.distribution).cdf(self._repeated(mean))
        except NotImplementedError:
            return torch.quantile(self._draws(), q, dim=0)
        low, high = mean - 4 * spread, mean + 4 * spread
        if discrete:
            low, high = low.floor() - 1, high.ceil() + 1
        for _ in range(200):  # heavy tails, and levels close to 0 and 1
            at_low, at_high = self.cdf(low), self.cdf(high)
            outside, beyond = (at_low >= q) & (low > mean - 1e12 * spread), at_high < q
            if not bool(outside.any() | beyond.any()):
                break
            low = torch.where(outside, mean - 2 * (mean - low), low)
            high = torch.where(beyond, mean + 2 * (high - mean), high)
            if discrete:
                low, high = low.floor(), high.ceil()
        if not discrete:
            return self._between(low, high, at_low, at_high, q, _PRECISION * spread)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            above = self.cdf(middle) >= q
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high

    def _between(
        self, low: Tensor, high: Tensor, at_low: Tensor, at_high: Tensor, q: float, precision: Tensor
    ) -> Tensor:
        """Where the cdf is q, from its values at both ends.

        On the scale of a Gaussian's quantiles the cdf is nearly straight, so chords find the place in a few steps (the
        end that stays counts half: Illinois). Every eighth step, and all after some, halve the bracket, which a chord
        may not.
        """
        level = torch.special.ndtri(low.new_tensor(q))
        at_low, at_high = (torch.special.ndtri(at.clamp(_TINY, 1 - _TINY)) - level for at in (at_low, at_high))
        enough = _AGREEMENT * min(q, 1 - q)
        stayed = torch.zeros_like(low)  # -1: the lower end did in the last step, 1: the upper one
        found, done = (low + high) / 2, high - low <= precision
        for step in range(_STEPS):
            if bool(done.all()):
                break
            chord = low + (high - low) * (at_low / (at_low - at_high)).nan_to_num(0.5)
            middle = (low + high) / 2 if step % 8 == 7 or step > _CHORDS else chord.clamp(low, high)
            found = torch.where(done, found, middle)
            at = self.cdf(found)
            value, above = torch.special.ndtri(at.clamp(_TINY, 1 - _TINY)) - level, at >= q
            at_low = torch.where(above, torch.where(stayed < 0, at_low / 2, at_low), value)
            at_high = torch.where(above, value, torch.where(stayed > 0, at_high / 2, at_high))
            low, high = torch.where(above, low, found), torch.where(above, found, high)
            stayed = torch.where(above, -1.0, 1.0)
            done = done | ((at - q).abs() <= enough) | (high - low <= precision)
        return found

    def _draws(self) -> Tensor:
        """Draws from all members, equally many of each, always the same."""
        each = drawn(self.distribution, -(-_DRAWS // self.members), seed=0)
        return each.reshape(-1, *self.shape()[1:]).double()

    def _repeated(self, y: Tensor) -> Tensor:
        """y for every member, in the shape of the distribution."""
        y = y.reshape(self.shape()[1:]).double()
        own = self.distribution
        return y.expand(self.shape()).reshape(*own.batch_shape, *own.event_shape)


def _base(distribution: Distribution) -> Distribution:
    """The distribution of single values."""
    return distribution.base_dist if isinstance(distribution, Independent) else distribution
