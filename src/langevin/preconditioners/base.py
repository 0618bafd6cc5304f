"""The interface of a preconditioner: A, an inverse metric, in θ ← θ − ε A g + √(2εT/N) A^{1/2} η + (εT/N) Γ.

The object contains its settings and, once bound, a reference to the model. Its estimates are in the sampler's state,
`state[p][name]`, as tensors and plain numbers. So a sampler's `state_dict()` is complete, and a copy (`copy.deepcopy`,
pickle) is an unbound preconditioner with the same settings.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from langevin.core.numbers import Number, add_each
from langevin.core.posterior import Posterior
from langevin.core.registry import Registry
from langevin.kernels.updates import Kernel

State = Mapping[Any, dict[str, Any]]  # parameter → name → tensor or number
Group = dict[str, Any]


PRECONDITIONERS: Registry[type[Preconditioner]] = Registry("preconditioner")


class Preconditioner(ABC):
    """A, a square root of it for the noise, and the correction Γᵢ = Σⱼ ∂Aᵢⱼ/∂θⱼ where available."""

    adapts: ClassVar[bool] = True  # estimated from mini-batches until it is frozen

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kernel" not in vars(cls) and not {"update", "pace", "drift", "noise", "move", "divergence"}.isdisjoint(
            vars(cls)
        ):
            cls.kernel = Preconditioner.kernel  # type: ignore[method-assign]  # an inherited one computes another update

    @property
    def elementwise(self) -> bool:
        """Whether A is diagonal and computed for each weight separately, so that chains can be stacked."""
        return False

    def stability_limit(self, curvature: float, group: Group) -> float:
        """The lr above which the update diverges on a quadratic loss (U/N) of that curvature.

        2: with A ≈ 1/λ every preconditioned curvature is about 1.
        """
        return 2.0

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:  # noqa: B027
        """Attach to a model; `params` are the parameters of the sampler."""

    def unbind(self) -> None:  # noqa: B027
        """Detach from the model."""

    @abstractmethod
    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Update the estimate of A from the last mini-batch, before the step; not called once frozen."""

    def pace(self, state: State, params: list[Tensor]) -> float:
        """The fraction of lr to move by, from 0 to 1, while A is being learnt; not called once frozen."""
        return 1.0

    @abstractmethod
    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """A g."""

    @abstractmethod
    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """A^{1/2} η, any root with A^{1/2} A^{1/2}ᵀ = A."""

    def move(
        self,
        state: State,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        normals: list[Tensor] | None,
        rate: Number,
        spread: Number,
    ) -> None:
        """θ ← θ − rate A g + spread A^{1/2} η, without noise if `normals` is None; `normals` may be overwritten."""
        add_each(params, self.drift(state, group, params, grads), -rate)
        if normals is not None:
            add_each(params, self.noise(state, group, params, normals), spread)

    def divergence(self, state: State, group: Group, params: list[Tensor]) -> list[Tensor] | None:
        """Γ at the current θ; None if it is 0 or left out. Not called once frozen: Γ of a constant A is 0."""
        return None

    def finish(self, step: int, frozen: bool) -> None:  # noqa: B027
        """Called at the end of a step, `step` being the next one: discard what was recorded of the mini-batch."""

    def kernel(self, state: State, group: Group, params: list[Tensor], *, rate: float, spread: float) -> Kernel | None:
        """The compiled update that equals `update` (unless frozen) and `move`; None if there is none."""
        return None

    def freezable(self) -> bool:
        """Whether freezing keeps the target or makes it exact."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """The settings: all attributes without a leading underscore."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__getstate__().items())})"


@PRECONDITIONERS.register
class Identity(Preconditioner):
    """A = I: plain Langevin dynamics."""

    adapts = False
    elementwise = True

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """A is constant."""

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """g."""
        return grads

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """η."""
        return normals

    def kernel(self, state: State, group: Group, params: list[Tensor], *, rate: float, spread: float) -> Kernel | None:
        """θ ← θ − rate g + spread η. Without noise, torch operations: those of SGD, bit for bit."""
        return Kernel("langevin", (rate, spread)) if spread > 0 else None

    def stability_limit(self, curvature: float, group: Group) -> float:
        """2/λ, where 1 − ελ reaches −1."""
        return 2 / curvature


class NoiseOnly(Preconditioner):
    """A of another preconditioner for the noise, I for the drift: not the posterior as target; SGD at T = 0."""

    def __init__(self, inner: Preconditioner) -> None:
        self.inner = inner

    @property
    def elementwise(self) -> bool:
        """That of the inner preconditioner."""
        return self.inner.elementwise

    def bind(self, posterior: Posterior, params: Sequence[Tensor], data: Any) -> None:
        """Bind the inner preconditioner."""
        self.inner.bind(posterior, params, data)

    def unbind(self) -> None:
        """Unbind the inner preconditioner."""
        self.inner.unbind()

    def update(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """That of the inner preconditioner."""
        self.inner.update(state, group, params, grads)

    def drift(self, state: State, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """g."""
        return grads

    def noise(self, state: State, group: Group, params: list[Tensor], normals: list[Tensor]) -> list[Tensor]:
        """That of the inner preconditioner."""
        return self.inner.noise(state, group, params, normals)

    def pace(self, state: State, params: list[Tensor]) -> float:
        """That of the inner preconditioner."""
        return self.inner.pace(state, params)

    def stability_limit(self, curvature: float, group: Group) -> float:
        """2/λ: the drift is not preconditioned."""
        return 2 / curvature

    def finish(self, step: int, frozen: bool) -> None:
        """Forwarded to the inner preconditioner."""
        self.inner.finish(step, frozen)


def made_from(kind: type[Preconditioner], options: Mapping[str, Any], owner: str) -> Preconditioner:
    """The preconditioner of a named sampler; unknown options are refused."""
    known = list(inspect.signature(kind).parameters)
    if unknown := [name for name in options if name not in known]:
        advice = (
            f" To pass an object: lv.SGLD(…, preconditioner={kind.__name__}(…))." if "preconditioner" in unknown else ""
        )
        raise ValueError(
            f"{owner} has no option {unknown[0]!r}; the options of lv.preconditioners.{kind.__name__} are "
            f"{', '.join(known)}.{advice}"
        )
    return kind(**options)


def new_weight(keep: float, count: int) -> float:
    """The weight of the `count`-th value in a bias-corrected moving average: 1, about 1/2, …, down to 1 − keep."""
    return (1 - keep) / (1 - keep**count)


def checked(owner: object, **bounds: tuple[float, bool, str]) -> None:
    """Raise for invalid settings: name → (value, whether it is valid, what is expected)."""
    for name, (value, fine, expected) in bounds.items():
        if not fine:
            raise ValueError(f"{type(owner).__name__}({name}={value!r}): {name} must be {expected}.")
