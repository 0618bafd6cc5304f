"""SGLD under Lightning: the sampler is the optimizer, everything else is Lightning's own.

    python examples/lightning_sgld.py

The samples are the weights that a callback keeps after burn-in; predictions are averaged over them.
"""

from __future__ import annotations

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv


class BayesianDigits(lightning.LightningModule):
    def __init__(self, num_data: int, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.posterior = lv.Posterior(
            lv.models.MLP(64, 10, widths=(50,)), lv.Categorical(), lv.Gaussian(std=1.0), num_data=num_data
        )

    def training_step(self, batch, _):
        loss = self.posterior.loss(*batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return lv.SGLD(self.posterior.parameters(), lr=self.lr, num_data=self.posterior.num_data, seed=0)


class KeepSamples(lightning.Callback):
    """Keep the weights every `thin` steps after `burn_in`."""

    def __init__(self, burn_in: int, thin: int) -> None:
        self.burn_in, self.thin = burn_in, thin
        self.samples: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > self.burn_in and trainer.global_step % self.thin == 0:
            self.samples.append({k: v.detach().clone() for k, v in module.posterior.model.state_dict().items()})


def main(steps: int = 3000, burn_in: int = 1000, thin: int = 50) -> float:
    """Sample, predict the test digits, return the accuracy."""
    train, (x, y) = lv.data.digits("train").tensors, lv.data.digits("test").tensors
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    module, keep = BayesianDigits(num_data=len(train[0])), KeepSamples(burn_in, thin)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[keep],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    model = module.posterior.model
    probs = torch.stack([torch.func.functional_call(model, s, (x,)).softmax(1) for s in keep.samples]).mean(0)
    accuracy = float((probs.argmax(1) == y).float().mean())
    print(f"{len(keep.samples)} samples, accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
