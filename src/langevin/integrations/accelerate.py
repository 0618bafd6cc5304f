"""Accelerate: records samples in a loop of one's own, and refuses settings that change the target.

```python
accelerator = Accelerator()
prepared, sampler, loader = accelerator.prepare(posterior, sampler, loader)
sampling = lv.integrations.accelerate.Sampling(
    accelerator, posterior, sampler, burn_in=500, thin=10, out="runs/mine"
)
for x, y in loader:
    sampler.zero_grad()
    loss = prepared(x, y)
    accelerator.backward(loss)
    sampler.step()
    sampling.record(loss)
run = sampling.run()
```
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

from langevin.core.arguments import COUNT, NATURAL, validated
from langevin.core.posterior import Posterior
from langevin.ensembles.run import Run
from langevin.integrations import recording


class Sampling:
    """Records the weights that a loop with an `Accelerator` visits, and refuses what changes the target.

    Gradients of the sampled parameters can't be clipped by this accelerator any more. A learning rate that decays to
    zero is known if its schedule was prepared before.

    Args:
        accelerator: the `Accelerator`.
        posterior: what is sampled, as it was before `prepare`.
        sampler: what the loop steps, as `prepare` returned it.
        burn_in: steps before the first sample.
        thin: steps from one sample to the next.
        out: the directory of the run; a loop that continues after `accelerator.load_state` continues it too. Call
            `flush` before `accelerator.save_state`. Without `out`, the run is in memory.
    """

    @validated(burn_in=NATURAL, thin=COUNT)
    def __init__(
        self,
        accelerator: Any,
        posterior: Posterior,
        sampler: Any,
        *,
        burn_in: int = 0,
        thin: int = 10,
        out: str | Path | None = None,
    ) -> None:
        own = recording.unwrapped(sampler)
        leads = bool(accelerator.is_main_process)
        self._recording = recording.Recording(posterior, own, burn_in, thin, out, leads)
        recording.refuse_accumulation("gradient_accumulation_steps", accelerator.gradient_accumulation_steps)
        if accelerator.mixed_precision == "fp16":
            why = "scales the loss and skips steps in which gradients overflow"
            recording.refuse("mixed_precision", "fp16", why, 'mixed_precision="bf16"')
        recording.refuse_dropout(posterior)
        for scheduler in accelerator._schedulers:
            recording.refuse_schedule(scheduler, recording.planned_steps(scheduler))
        _guard_clipping(accelerator, posterior)

    def record(self, loss: Any = None) -> None:
        """After every step: record the weights, if their turn has come."""
        step = self._recording.sampler.param_groups[0]["step"]
        self._recording.record(step, loss)

    def flush(self) -> None:
        """Write what is buffered."""
        self._recording.flush()

    def run(self) -> Run:
        """The samples so far."""
        return self._recording.run()


def _guard_clipping(accelerator: Any, posterior: Posterior) -> None:
    """Let the accelerator refuse to clip gradients of these parameters; those of others it clips as before."""
    sampled = {id(p) for p in posterior.trainable_parameters().values()}

    def guarded(clip: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(clip)
        def checked(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            if any(id(p) in sampled for p in given):
                raise ValueError(
                    f"accelerator.{clip.__name__}(…) clips gradients of the sampled parameters, so the samples would "
                    f"not be of the posterior. Take the call out of the loop; a sampler's step is bounded by its lr."
                )
            return clip(given, *args, **kwargs)

        return checked

    accelerator.clip_grad_norm_ = guarded(accelerator.clip_grad_norm_)
    accelerator.clip_grad_value_ = guarded(accelerator.clip_grad_value_)
