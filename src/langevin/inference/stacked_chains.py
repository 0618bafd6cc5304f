"""Several chains as one vectorised computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, vmap

from langevin.core.batches import LoaderBatches, stack_batches
from langevin.core.devices import on_device
from langevin.core.parameters import internal_names
from langevin.core.posterior import Posterior
from langevin.inference import traced
from langevin.inference.chains import Chains, Weights
from langevin.inference.control_variate import ControlVariate
from langevin.inference.traced import Traced, can_be_recorded
from langevin.samplers import Sampler


class StackedChains(Chains):
    """Several chains as one vectorised computation (`torch.func.vmap`); for element-wise samplers."""

    stacked = True
    _compiled: Callable[..., Any] | None = None
    _gradients_at: Callable[..., Any]

    def _leaves(self, starts: Sequence[Weights]) -> list[Tensor]:
        if self.buffers:
            raise ValueError("running statistics can't be carried by stacked chains.")
        if isinstance(self.batches, LoaderBatches):
            raise ValueError("a DataLoader feeds one chain after another.")
        names = internal_names(self.objective)
        self._internal = [names[name] for name in self.names]
        device = next(self.objective.parameters()).device
        return [torch.stack([s[name].to(device) for s in starts]).requires_grad_() for name in self.names]

    def _fetch(self) -> tuple[Any, Any]:
        if not self.one_batch_each:
            chain = self.numbers[0]
            batch = self.batches.fetch(chain, self.step) if self.replicas is None else self._part(chain)
        elif self.replicas is None:
            batch = self.batches.fetch_stacked(self.numbers, self.step)
        else:
            batch = stack_batches([self._part(chain) for chain in self.numbers])
        x, y = on_device(batch, self.params[0].device)
        return x, y

    def _average_gradients(self) -> None:
        assert self.replicas is not None
        self.replicas.average_gradients(self.params)

    def _loss(self, weights: dict[str, Tensor], x: Any, y: Any, whole: bool) -> Tensor:
        """The loss of one chain."""
        options = {} if whole else {"gaussian_priors": False}
        loss: Tensor = functional_call(self.objective, weights, (x, y), options)
        return loss

    def _losses(self, x: Any, y: Any) -> Tensor:
        weights = dict(zip(self._internal, self.params, strict=True)) | self.prior_scales.inputs()
        losses: Tensor = vmap(self._loss, in_dims=self._axes)(weights, x, y, self._whole and not self._gaussian[0])
        return losses

    @cached_property
    def _gaussian(self) -> tuple[dict[Tensor, float], float]:
        """Parameters with a Gaussian prior and its decays, and the constant terms of its energy.

        Their terms are added in closed form: through autograd and vmap they took a fifth of a step of a small network.
        """
        if type(self.objective) is not Posterior:
            return {}, 0.0
        decays, constant = self.objective.gaussian_decays()
        return {p: decays[name] for name, p in zip(self.names, self.params, strict=True) if name in decays}, constant

    @property
    def _axes(self) -> tuple[int | None, ...]:
        """Of chains, in weights, x, y and `whole`."""
        return (0, 0, 0, None) if self.one_batch_each else (0, None, None, None)

    def _compile(self) -> None:
        """Compile loss and gradient together: apart, the compiled backward pass is slower than none."""
        if self._autocast is not None:
            raise ValueError("stacked chains can't be compiled with autocast; leave out compile=True.")
        one = grad_and_value(self._loss)
        every = vmap(one, in_dims=self._axes)
        self._compiled = torch.compile(every, dynamic=False)
        if self.control is not None:
            self._gradients_at = torch.compile(self._gradients_at, dynamic=False)

    def _accumulate(self, x: Any, y: Any, weight: float) -> Tensor:
        if self._compiled is None:
            losses = self._recorded_losses(x, y) if weight == 1 else None
            losses = super()._accumulate(x, y, weight) if losses is None else losses
            return losses + weight * self._add_gaussian_priors(weight) if self._whole and self._gaussian[0] else losses
        weights = {name: p.detach() for name, p in zip(self._internal, self.params, strict=True)}
        weights |= self.prior_scales.inputs()
        gradients, losses = self._compiled(weights, x, y, self._whole)
        for p, g in zip(self.params, (gradients[name] for name in self._internal), strict=True):
            scaled = g if weight == 1 else g * weight
            p.grad = scaled.contiguous() if p.grad is None else p.grad + scaled
        weighted: Tensor = losses * weight
        return weighted

    @cached_property
    def _traced(self) -> dict[bool, Traced]:
        """Losses and gradients, with and without the terms of the prior, to be recorded; empty if they can't be."""
        posterior = type(self.objective) is Posterior and self._on_cpu and self._autocast is None
        if not posterior or self._stochastic or self._compiled or not can_be_recorded(self.objective):
            return {}
        count = len(self.params)
        return {whole: Traced(partial(self._losses_with_gradients, whole), count) for whole in (True, False)}

    @property
    def will_be_recorded(self) -> bool:
        """Whether losses and gradients are recorded, if that is possible."""
        return bool(self._traced)

    def _recorded_losses(self, x: Any, y: Any) -> Tensor | None:
        """As `_accumulate` without a weight, by a recording; None if there is none."""
        if self.step < traced.FIRST or not self._traced or not isinstance(x, Tensor) or not isinstance(y, Tensor):
            return None
        scales = self.prior_scales.inputs().values()
        found = self._traced[self._whole and not self._gaussian[0]]([*(p.detach() for p in self.params), *scales, x, y])
        if found is None:
            return None
        losses, *gradients = found
        for p, g in zip(self.params, gradients, strict=True):
            p.grad = g.contiguous() if p.grad is None else p.grad + g
        return losses

    @torch.enable_grad()
    def _losses_with_gradients(self, whole: bool, *tensors: Tensor) -> list[Tensor]:
        *weights, x, y = tensors
        leaves = [weight.detach().requires_grad_() for weight in weights[: len(self._internal)]]
        scales = dict(zip(self.prior_scales.inputs(), weights[len(leaves) :], strict=True))
        named = dict(zip(self._internal, leaves, strict=True)) | scales
        losses = vmap(self._loss, in_dims=self._axes)(named, x, y, whole)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), leaves)]

    def advance(self) -> None:
        """One step; where recordings begin, gradients that were kept are computed anew, as a resumed run does."""
        super().advance()
        if self.step == traced.FIRST and self._ahead is not None and self._traced:
            self._ahead = None
            if isinstance(self.stepper, Sampler):
                self.stepper.forget()

    @torch.no_grad()
    def _add_gaussian_priors(self, weight: float) -> Tensor:
        """Their gradients, times the weight, to those of `params`; their energy of each chain, over N."""
        decays, constant = self._gaussian
        energy = torch.full((len(self.numbers),), constant, dtype=torch.float64, device=self.params[0].device)
        for p, decay in decays.items():
            energy += (decay / 2) * p.square().reshape(len(p), -1).sum(1)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.add_(p, alpha=weight * decay)
        return energy

    def _place_center(self, control: ControlVariate) -> None:
        names = internal_names(self.objective)
        self._center = {names[name]: tensor for name, tensor in control.center.items()}
        self._gradients_at = vmap(grad(self._loss), in_dims=(None, 0, 0, None))

    def _center_gradients(self, x: Any, y: Any) -> Sequence[Tensor]:
        gradients = self._gradients_at(self._center, x, y, True)
        return [gradients[name] for name in self._internal]

    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        return tensor[index]

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(tensors))
