"""Callbacks for Lightning and Accelerate: samples are recorded, and what changes the target is refused."""

import lightning
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

import langevin as lv
from langevin.integrations.accelerate import Sampling as AccelerateSampling
from langevin.integrations.lightning import Sampling
from tests.helpers import samples_of, toy_data, toy_model, toy_posterior


class Module(lightning.LightningModule):
    def __init__(self, posterior, schedule=None):
        super().__init__()
        self.posterior, self.schedule = posterior, schedule
        self.sampler = lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60, seed=4)

    def training_step(self, batch, _):
        return self.posterior.loss(*batch)

    def configure_optimizers(self):
        if self.schedule is None:
            return self.sampler
        schedule = self.schedule(self.sampler)
        return {"optimizer": self.sampler, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader():
    return DataLoader(TensorDataset(*toy_data()), batch_size=20)


def fit(tmp_path, *, posterior=None, schedule=None, epochs=4, checkpoint=None, **options):
    module = Module(toy_posterior() if posterior is None else posterior, schedule)
    sampling = Sampling(module.posterior, module.sampler, burn_in=3, thin=2, out=tmp_path / "run")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        callbacks=[sampling],
        **options,
    )
    trainer.fit(module, loader(), ckpt_path=checkpoint, weights_only=False)
    return trainer, sampling


def test_lightning_records_and_resumes(tmp_path):
    _, sampling = fit(tmp_path / "whole")
    whole = samples_of(sampling.run())
    assert set(whole) == {(0, step) for step in (5, 7, 9, 11)}
    assert len(sampling.run().trace("loss")[0]) == 4
    trainer, sampling = fit(tmp_path / "half", epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    sampling._recording.close()
    _, sampling = fit(tmp_path / "half", checkpoint=tmp_path / "half.ckpt")
    resumed = samples_of(sampling.run())
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_clip_val": 1.0}, r"gradient_clip_val=1.0 clips gradients"),
        ({"accumulate_grad_batches": 2}, r"accumulate_grad_batches=2 scales the loss"),
        ({"schedule": lambda s: torch.optim.lr_scheduler.CosineAnnealingLR(s, T_max=12)}, "learning rate decays"),
    ],
)
def test_lightning_refuses_what_changes_the_target(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, **options)


def test_lightning_refuses_dropout(tmp_path):
    model = nn.Sequential(toy_model(), nn.Dropout(0.1)).eval()
    with pytest.raises(ValueError, match="training mode"):
        fit(tmp_path, posterior=toy_posterior(model))


def test_accelerate_records_and_refuses(tmp_path):
    accelerator = Accelerator(cpu=True)
    posterior = toy_posterior()
    sampler = lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60, seed=4)
    prepared, stepped, batches = accelerator.prepare(posterior, sampler, loader())
    sampling = AccelerateSampling(accelerator, posterior, stepped, burn_in=1, thin=1, out=tmp_path / "run")
    for x, y in batches:
        stepped.zero_grad()
        loss = prepared(x, y)
        accelerator.backward(loss)
        stepped.step()
        sampling.record(loss.detach())
    sampling.flush()
    assert set(samples_of(sampling.run())) == {(0, 2), (0, 3)}
    accelerator.gradient_state.plugin_kwargs["num_steps"] = 2
    try:
        with pytest.raises(ValueError, match="gradient_accumulation_steps=2 scales the loss"):
            AccelerateSampling(accelerator, posterior, stepped)
    finally:
        accelerator.gradient_state.plugin_kwargs["num_steps"] = 1
    with pytest.raises(ValueError, match="AdamW is not a langevin.Sampler"):
        AccelerateSampling(accelerator, posterior, torch.optim.AdamW(posterior.parameters()))


def test_accelerate_refuses_to_clip_and_to_come_to_rest():
    accelerator, posterior, other = Accelerator(cpu=True), toy_posterior(), nn.Linear(2, 1)
    sampler = lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60)
    prepared, stepped = accelerator.prepare(posterior, sampler)
    AccelerateSampling(accelerator, posterior, stepped)
    with pytest.raises(ValueError, match=r"clip_grad_norm_\(…\) clips gradients.*out of the loop"):
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
    with pytest.raises(ValueError, match=r"clip_grad_value_\(…\) clips gradients"):
        accelerator.clip_grad_value_(prepared.parameters(), 1.0)
    other(torch.ones(1, 2)).sum().backward()
    accelerator.clip_grad_norm_(other.parameters(), 1e-3)
    assert float(other.weight.grad.norm()) < 2e-3
    for make in (
        lambda s: torch.optim.lr_scheduler.CosineAnnealingLR(s, T_max=30),
        lambda s: get_linear_schedule_with_warmup(s, 3, 30),
    ):
        accelerator, sampler = Accelerator(cpu=True), lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60)
        _, stepped, _ = accelerator.prepare(posterior, sampler, make(sampler))
        with pytest.raises(ValueError, match="learning rate decays from 0.01 to 0 in 30 steps"):
            AccelerateSampling(accelerator, posterior, stepped)
    accelerator, sampler = Accelerator(cpu=True), lv.SGLD(posterior.parameters(), lr=1e-2, num_data=60)
    AccelerateSampling(accelerator, posterior, accelerator.prepare(posterior, sampler, lv.cyclical(10)(sampler))[1])


def test_a_recorder_goes_on_only_in_a_run_of_its_own(tmp_path):
    with lv.Recorder(toy_posterior(), out=tmp_path / "run") as recorder:
        recorder.record(1)
    with lv.Recorder(toy_posterior(), out=tmp_path / "run", resume="auto") as recorder:
        recorder.record(1)
        recorder.record(2)
    assert [record.step for record in recorder.run().samples.records] == [1, 2]
    with pytest.raises(lv.RunError, match="num_data differs"):
        lv.Recorder(toy_posterior(n=50), out=tmp_path / "run", resume="auto")
    sampler = lv.SGLD(toy_posterior().parameters(), lr=1e-3, num_data=60)
    with pytest.raises(lv.RunError, match="not SGLD"):
        lv.Recorder(toy_posterior(), sampler, out=tmp_path / "run", resume="auto")
    with pytest.raises(lv.RunError, match="contains a run already"):
        lv.Recorder(toy_posterior(), out=tmp_path / "run")
