"""Hugging Face: the sampler as optimizer of a `Trainer`, and samples as adapters in PEFT's format.

```python
posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=len(train))
sampler = lv.SGHMC(posterior.parameters(), lr=1e-3, num_data=len(train))
sampling = lv.integrations.huggingface.Sampling(posterior, sampler, burn_in=500, thin=10, out="runs/mine")
args = TrainingArguments(…, lr_scheduler_type="constant", max_grad_norm=0.0)
trainer = Trainer(
    model, args, train_dataset=train, optimizers=(sampler, None),
    compute_loss_func=sampling.loss, callbacks=[sampling],
)
trainer.train()
run = sampling.run()
```
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from langevin.core.arguments import COUNT, NATURAL, validated
from langevin.core.likelihoods import Likelihood
from langevin.core.outputs import output_of
from langevin.core.parameters import load_tensors, public_name
from langevin.core.posterior import Posterior
from langevin.core.pretrained import is_adapted, refuse_model, refuse_padding, shared_frozen
from langevin.ensembles.ensemble import Ensemble
from langevin.ensembles.run import Run
from langevin.integrations import recording

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ValueError("This needs transformers: pip install 'langevin[hf]'.") from None


class Sampling(TrainerCallback):
    """A callback that records samples while a `Trainer` steps the sampler, and refuses what changes the target.

    Args:
        posterior: what is sampled; its model is the trainer's.
        sampler: the trainer's optimizer: `Trainer(…, optimizers=(sampler, None))`.
        burn_in: steps before the first sample.
        thin: steps from one sample to the next.
        out: the directory of the run. `trainer.train(resume_from_checkpoint=True)` continues it. Without one, it is in
            memory. Several chains are trainings one after another, with `lv.SGHMC(…, chain=1)` and the same `out`.
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
        self._loss: Tensor | None = None

    def loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        """Û/N, for `Trainer(compute_loss_func=sampling.loss)`."""
        if labels is None:
            raise ValueError(
                'The batches have no "labels", so there is no likelihood. Rename the column of the targets: '
                'data.rename_column("…", "labels").'
            )
        loss = self._posterior.loss_of(output_of(outputs, self._posterior.output), labels)
        self._loss = loss.detach()
        return loss

    def run(self) -> Run:
        """The samples so far."""
        return self._recording.run()

    # events of the trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Refuse settings that change the target."""
        self._loss = None
        self._recording._active = state.is_world_process_zero
        posterior, model = self._posterior, event["model"]
        if getattr(posterior.model, "module", posterior.model) is not model and posterior.model is not model:
            raise ValueError("The trainer has another model than the posterior: lv.Posterior(trainer.model, …).")
        if recording.unwrapped(event["optimizer"]) is not self._sampler:
            given = type(recording.unwrapped(event["optimizer"])).__name__
            raise ValueError(f"The trainer steps {given}. Give it the sampler: Trainer(…, optimizers=(sampler, None)).")
        recording.refuse_clipping("max_grad_norm", args.max_grad_norm, "max_grad_norm=0.0")
        recording.refuse_accumulation("gradient_accumulation_steps", args.gradient_accumulation_steps)
        recording.refuse_decay(args.weight_decay, posterior.prior)
        recording.refuse_schedule(event["lr_scheduler"], state.max_steps)
        recording.refuse_dropout(posterior)
        recording.refuse_other_data(posterior, event["train_dataloader"])
        for name, why in _CHANGES.items():
            if getattr(args, name, None):
                instead = {"fp16": "bf16=True", "neftune_noise_alpha": "neftune_noise_alpha=None"}.get(
                    name, f"{name}=0"
                )
                recording.refuse(name, getattr(args, name), why, instead)
        if args.n_gpu > 1:
            recording.refuse("n_gpu", args.n_gpu, "splits batches among devices", "one process per device: torchrun")
        if args.world_size > 1 and args.average_tokens_across_devices:
            why = f"multiplies the loss by the number of processes, {args.world_size}"
            recording.refuse("average_tokens_across_devices", True, why, "average_tokens_across_devices=False")
        _check_first_batch(posterior, event["train_dataloader"])

    def on_step_end(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Record the weights, if their turn has come."""
        if self._loss is None:
            raise ValueError(
                "The trainer minimizes a loss of its own, without the prior. Give it the posterior's: "
                "Trainer(…, compute_loss_func=sampling.loss)."
            )
        self._recording.record(state.global_step, self._loss)
        if control.should_save:  # the checkpoint is written next; what is before it has to be on disk
            self._recording.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Write what is buffered."""
        self._recording.flush()


_CHANGES = {
    "fp16": "scales the loss and skips steps in which gradients overflow, so that steps are lost",
    "label_smoothing_factor": "changes the labels, and so the likelihood",
    "neftune_noise_alpha": "adds noise to the embeddings, so that there is no fixed posterior",
}


def _check_first_batch(posterior: Posterior, loader: Any) -> None:
    """Raise for a first batch without labels, or with padding on the wrong side; a stream is not touched."""
    dataset: Any = getattr(loader, "dataset", None)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and len(dataset)):
        return
    count = min(64, len(dataset))  # enough that some are shorter than others, and padded
    try:
        batch = loader.collate_fn([dataset[i] for i in range(count)])
    except Exception:  # a collator of its own kind: the trainer will say
        return
    if hasattr(batch, "get"):
        if batch.get("labels") is None:
            raise ValueError(
                f'The batches have no "labels"; they have {list(batch)}. Rename the column of the targets: '
                f'data.rename_column("…", "labels").'
            )
        refuse_padding(posterior.model, batch)


# adapters


@validated()
def save_adapters(ensemble: Ensemble, model: nn.Module, path: str | Path) -> list[Path]:
    """Write every sample as an adapter in PEFT's own format, and return their directories.

    Each is loaded by `PeftModel.from_pretrained(base_model, directory)`. `model` is the model that was sampled.

    >>> import langevin as lv  # doctest: +SKIP
    >>> lv.integrations.huggingface.save_adapters(run[::10], model, "adapters")  # doctest: +SKIP
    """
    peft_model = _peft_model(model)
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"path={str(path)!r} is not empty; give a new directory for the adapters.")
    scratch = copy.deepcopy(peft_model, shared_frozen(peft_model))
    written = []
    for number, weights in enumerate(ensemble):
        load_tensors(scratch, {name: t for name, t in weights.items() if not name.startswith("likelihood.")})
        written.append(folder / f"sample-{number:05d}")
        scratch.save_pretrained(str(written[-1]), save_embedding_layers=False)
    return written


@validated()
def load_adapters(path: str | Path, model: nn.Module, likelihood: Likelihood) -> Ensemble:
    """The adapters in the directories below `path`, each in PEFT's format, as an ensemble that predicts.

    `model` is a PEFT model with the same configuration; its adapter's weights do not matter and are not changed.
    """
    from peft import load_peft_weights, set_peft_model_state_dict

    peft_model = _peft_model(model)
    folders = sorted(file.parent for file in Path(path).glob("*/adapter_config.json"))
    if not folders:
        raise ValueError(f"path={str(path)!r} contains no adapter (no */adapter_config.json).")
    scratch = copy.deepcopy(peft_model, shared_frozen(peft_model))
    names = [name for name, p in scratch.named_parameters() if p.requires_grad]
    if not names:
        raise ValueError(
            "The model's adapter is frozen, so it is not known which parameters are its own; make it with "
            "peft.get_peft_model(base, config), or PeftModel.from_pretrained(…, is_trainable=True)."
        )
    rank = scratch.peft_config[scratch.active_adapter].to_dict().get("r")
    members = []
    for folder in folders:
        stored = json.loads((folder / "adapter_config.json").read_text()).get("r")
        if stored != rank:
            raise ValueError(f"{folder} has adapters of rank {stored}, the model of rank {rank}; give the same config.")
        set_peft_model_state_dict(scratch, load_peft_weights(str(folder), device="cpu"))
        own = dict(scratch.named_parameters())
        members.append({public_name(name): own[name].detach().clone() for name in names})
    return Ensemble.from_weights(peft_model, likelihood, members)


def _peft_model(model: nn.Module) -> Any:
    refuse_model(model)
    found = next((m for m in model.modules() if hasattr(m, "peft_config") and hasattr(m, "save_pretrained")), None)
    if not is_adapted(model) or found is None:
        raise ValueError(
            f"model is a {type(model).__name__} without adapters. Make it with peft.get_peft_model(base, "
            f"LoraConfig(…)); samples of other models are written by run.save(path)."
        )
    return found
