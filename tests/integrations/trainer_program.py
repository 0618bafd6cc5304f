"""A program that samples adapters with a `Trainer`, to be killed and started again: trainer_program.py FOLDER STEPS."""

import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import langevin as lv
from langevin.integrations.huggingface import Sampling
from tests.transformer_models import N, adapted, adapter_posterior, bert, text_data


class Examples(torch.utils.data.Dataset):
    def __init__(self, data=None):
        self.data = text_data() if data is None else data

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {name: value[index] for name, value in self.data.items()}


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **event):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def arguments(folder, **options):
    settings = {
        "per_device_train_batch_size": 16,
        "max_steps": 20,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_steps": 6,
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 5,
    }
    return TrainingArguments(output_dir=str(folder), **{**settings, **options})


def prepared(
    folder, *, model=None, posterior=None, callbacks=(), chain=0, sampler=None, loss=True, data=None, **options
):
    """Trainer and callback."""
    if posterior is None:
        posterior = adapter_posterior(adapted(bert()) if model is None else model)
    if sampler is None:
        sampler = lv.SGHMC(posterior.parameters(), lr=1e-3, num_data=N, seed=4, chain=chain)
    sampling = Sampling(posterior, sampler, burn_in=4, thin=2, out=Path(folder) / "run")
    trainer = Trainer(
        posterior.model,
        arguments(Path(folder) / f"trainer-{chain}", **options),
        train_dataset=Examples(data),
        optimizers=(sampler, None),
        compute_loss_func=sampling.loss if loss else None,
        callbacks=[sampling, *callbacks],
    )
    return trainer, sampling


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    where, kill = Path(sys.argv[1]), int(sys.argv[2])
    trainer, sampling = prepared(where, callbacks=[KillAt(kill)] if kill else [])
    trainer.train(resume_from_checkpoint=True if list(where.glob("trainer-0/checkpoint-*")) else None)
    print(len(sampling.run()))
