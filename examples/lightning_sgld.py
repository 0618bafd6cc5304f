"""SGLD under Lightning: the sampler is the optimizer, everything else is Lightning's own.

    python examples/lightning_sgld.py

A callback records the weights after burn-in; what it recorded is a run, with predictions and diagnostics.
"""

from __future__ import annotations

import lightning
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv


class BayesianDigits(lightning.LightningModule):
    def __init__(self, num_data: int, lr: float = 5e-3) -> None:
        super().__init__()
        self.lr = lr
        self.posterior = lv.Posterior(
            lv.models.MLP(64, 10, widths=(50,)),
            lv.likelihoods.Categorical(),
            lv.priors.Gaussian(std=1.0),
            num_data=num_data,
        )

    def training_step(self, batch, _):
        loss = self.posterior.loss(*batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return lv.SGLD(self.posterior.parameters(), lr=self.lr, num_data=self.posterior.num_data, seed=0)


class RecordSamples(lightning.Callback):
    """Record the weights every `thin` steps after `burn_in`."""

    def __init__(self, burn_in: int, thin: int) -> None:
        self.burn_in, self.thin = burn_in, thin

    def on_train_start(self, trainer, module):
        self.recorder = lv.Recorder(module.posterior, trainer.optimizers[0])

    def on_train_batch_end(self, trainer, module, outputs, *_):
        step = trainer.global_step
        if step > self.burn_in and step % self.thin == 0:
            self.recorder.record(step, loss=float(outputs["loss"]))


def main(steps: int = 3000, burn_in: int = 1000, thin: int = 50) -> float:
    """Sample, predict the test digits, return the accuracy."""
    train, (x, y) = lv.data.digits("train").tensors, lv.data.digits("test").tensors
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    module, record = BayesianDigits(num_data=len(train[0])), RecordSamples(burn_in, thin)
    start = lv.find_map(module.posterior, train)  # else burn-in takes far longer at this rate
    module.posterior.model.load_state_dict(start)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[record],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)

    run = record.recorder.run()
    prediction = run.predict(x)
    accuracy = float((prediction.labels == y).float().mean())
    print(run.verdict())  # a loop of one's own has no thermometer, and SGLD takes long to mix: lv.sample
    print(f"{run}: accuracy {accuracy:.1%}, mean confidence {prediction.confidence.mean():.1%}")
    return accuracy


if __name__ == "__main__":
    main()
