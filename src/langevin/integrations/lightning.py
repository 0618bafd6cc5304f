"""Lightning: a callback that records samples while a `Trainer` steps the sampler.

```python
class Module(lightning.LightningModule):
    def training_step(self, batch, _):
        return self.posterior.loss(*batch)
    def configure_optimizers(self):
        return self.sampler

sampling = lv.integrations.lightning.Sampling(posterior, sampler, burn_in=500, thin=10, out="runs/mine")
lightning.Trainer(…, callbacks=[sampling]).fit(module, loader)
run = sampling.run()
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from langevin.core.arguments import COUNT, NATURAL, validated
from langevin.core.posterior import Posterior
from langevin.ensembles.run import Run
from langevin.integrations import recording

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    raise ValueError("This needs lightning: pip install lightning.") from None


class Sampling(Callback):
    """Records samples, and refuses settings of the trainer that change the target.

    Args:
        posterior: what is sampled; `training_step` returns its loss.
        sampler: what `configure_optimizers` returns.
        burn_in: steps before the first sample.
        thin: steps from one sample to the next.
        out: the directory of the run, which `fit(…, ckpt_path=…)` continues. Without one, it is in memory.
    """

    @validated(burn_in=NATURAL, thin=COUNT)
    def __init__(
        self,
        posterior: Posterior,
        sampler: Optimizer,
        *,
        burn_in: int = 0,
        thin: int = 10,
        out: str | Path | None = None,
    ) -> None:
        self._recording = recording.Recording(posterior, sampler, burn_in, thin, out)
        self._posterior, self._sampler = posterior, sampler

    def run(self) -> Run:
        """The samples so far."""
        return self._recording.run()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse settings that change the target."""
        self._recording._active = trainer.is_global_zero
        if [recording.unwrapped(optimizer) for optimizer in trainer.optimizers] != [self._sampler]:
            raise ValueError("The trainer steps another optimizer. Return the sampler in configure_optimizers.")
        recording.refuse_clipping("gradient_clip_val", trainer.gradient_clip_val, "gradient_clip_val=None")
        recording.refuse_accumulation("accumulate_grad_batches", trainer.accumulate_grad_batches)
        if str(trainer.precision).startswith("16"):
            why = "scales the loss and skips steps in which gradients overflow"
            recording.refuse("precision", trainer.precision, why, 'precision="bf16-mixed"')
        for config in trainer.lr_scheduler_configs:
            recording.refuse_schedule(config.scheduler, int(trainer.estimated_stepping_batches))
        recording.refuse_dropout(self._posterior)
        recording.refuse_other_data(self._posterior, trainer.train_dataloader)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the weights, if their turn has come."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._recording.record(trainer.global_step, loss)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """What is before a checkpoint has to be on disk."""
        self._recording.flush()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is buffered."""
        self._recording.flush()
