"""SGHMC under Lightning: the sampler is the optimizer, everything else is Lightning's own.

    python examples/lightning_sghmc.py

A callback records the weights after burn-in, and reads the temperature; what it recorded is a run, with predictions,
diagnostics and a verdict.
"""

from __future__ import annotations

import lightning
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.integrations.lightning import Sampling


def patients() -> tuple[TensorDataset, TensorDataset]:
    """Measurements of 569 tumours, standardized, and whether each is benign; three quarters are for training."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    train_x, test_x, train_y, test_y = train_test_split(x, torch.tensor(y), test_size=0.25, random_state=0)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


class BayesianPatients(lightning.LightningModule):
    def __init__(self, posterior: lv.Posterior, sampler: lv.Sampler) -> None:
        super().__init__()
        self.posterior, self.sampler = posterior, sampler

    def training_step(self, batch, _):
        return self.posterior.loss(*batch)

    def configure_optimizers(self):
        return self.sampler


def main(steps: int = 6_000, burn_in: int = 1_000, thin: int = 20) -> lv.Run:
    """Sample, predict the test part, print the verdict."""
    torch.manual_seed(0)
    train, test = patients()
    posterior = lv.Posterior(lv.models.MLP(30, 2, widths=(10,)), lv.likelihoods.Categorical(), num_data=len(train))
    posterior.model.load_state_dict(lv.find_map(posterior, train, progress=False))  # burn-in is shorter from there
    # All data fit into a batch: the noise of smaller ones would heat stiff directions and ask for a far smaller lr, and
    # exact gradients need little friction. lr is that of lv.find_lr(…, lv.SGHMC, momentum=0.98, batch_size=len(train)).
    sampler = lv.SGHMC(posterior.parameters(), lr=0.027, momentum=0.98, num_data=len(train), seed=0)
    sampling = Sampling(posterior, sampler, burn_in=burn_in, thin=thin)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[sampling],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BayesianPatients(posterior, sampler), DataLoader(train, batch_size=len(train)))

    run = sampling.run()
    x, y = test.tensors
    prediction = run.predict(x)
    accuracy = float((prediction.labels == y).float().mean())
    print(run.verdict(x))
    print(f"{run}: accuracy {accuracy:.1%}, mean confidence {prediction.confidence.mean():.1%}")
    return run


if __name__ == "__main__":
    main()
