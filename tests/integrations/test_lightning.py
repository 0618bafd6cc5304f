"""Lightning as a real client: its trainer runs our samplers as they are, and resumes them from its own checkpoint."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from tests.helpers import toy_data, toy_posterior


class Sampling(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.posterior = toy_posterior()

    def training_step(self, batch, _):
        return self.posterior.loss(*batch)

    def configure_optimizers(self):
        sampler = lv.SGLD(self.posterior.parameters(), lr=1e-2, num_data=60, seed=4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sampler, T_0=5)
        return {"optimizer": sampler, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def fit(path, epochs, checkpoint=None):
    loader = DataLoader(TensorDataset(*toy_data()), batch_size=20)
    module = Sampling()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=path,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
    return module, trainer


def test_sgld_under_lightning_and_resumed(tmp_path):
    whole, _ = fit(tmp_path, 6)
    _, trainer = fit(tmp_path, 3)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, trainer = fit(tmp_path, 6, tmp_path / "half.ckpt")
    assert torch.equal(weights(whole), weights(resumed))
    assert trainer.optimizers[0].param_groups[0]["step"] == 18

    plain = toy_posterior()
    sampler = lv.SGLD(plain.parameters(), lr=1e-2, num_data=60, seed=4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sampler, T_0=5)
    for _ in range(6):
        for batch in DataLoader(TensorDataset(*toy_data()), batch_size=20):
            sampler.zero_grad()
            plain.loss(*batch).backward()
            sampler.step()
            schedule.step()
    torch.testing.assert_close(weights(plain), weights(whole), atol=1e-6, rtol=1e-6)
