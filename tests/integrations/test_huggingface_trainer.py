"""The Trainer of Hugging Face as a real client: its optimizer is a sampler, and its checkpoints resume the chain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback

import langevin as lv
from tests.helpers import killed, samples_of
from tests.inference.distributed.launch import launch
from tests.integrations.trainer_program import Examples, KillAt, prepared
from tests.transformer_models import N, adapted, adapter_posterior, bert, gpt2, inputs_of, text_data


class StopAt(TrainerCallback):
    """Stops a training in the middle, after a checkpoint."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **event):
        control.should_training_stop = control.should_training_stop or state.global_step == self.step


def samples(folder):
    return samples_of(lv.load(folder / "run", adapted(bert())))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, sampling = prepared(folder)
    trainer.train()
    sampling._recording.close()
    return folder


def test_samples_are_those_of_a_loop_of_ones_own(tmp_path):
    """With all data in every batch, whose order does not matter then."""
    trainer, sampling = prepared(tmp_path, per_device_train_batch_size=N, max_steps=8)
    trainer.train()
    run, data = sampling.run(), text_data()
    posterior = adapter_posterior(adapted(bert()))
    sampler = lv.SGHMC(posterior.parameters(), lr=1e-3, num_data=N, seed=4)
    recorder = lv.Recorder(posterior, sampler)
    for step in range(1, 9):
        sampler.zero_grad()
        loss = posterior.loss(inputs_of(data), data["labels"])
        loss.backward()
        sampler.step()
        if step > 4 and step % 2 == 0:
            recorder.record(step, loss=float(loss))
    mine, theirs = samples_of(recorder.run()), samples_of(run)
    assert mine.keys() == theirs.keys() == {(0, 6), (0, 8)}
    for key, value in mine.items():
        torch.testing.assert_close(theirs[key], value, atol=1e-6, rtol=1e-5)
    assert run.trace("loss")[0] == pytest.approx(recorder.run().trace("loss")[0], abs=1e-5)
    assert run.sampler is lv.SGHMC
    assert run.predict(inputs_of(data)).probs.shape == (N, 3)


@pytest.mark.slow
def test_a_trainer_resumes_from_its_checkpoint_and_the_run_goes_on(whole, tmp_path):
    trainer, sampling = prepared(tmp_path)
    trainer.add_callback(StopAt(15))
    trainer.train()
    sampling._recording.close()
    trainer, sampling = prepared(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    sampling._recording.close()
    expected, found = samples(whole), samples(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_killed_trainer_resumes_in_this_process(whole, tmp_path):
    killed(lambda: prepared(tmp_path, callbacks=[KillAt(14)])[0].train())
    trainer, sampling = prepared(tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert len(sampling.run()) == 8
    sampling._recording.close()
    expected, found = samples(whole), samples(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def in_parallel(folder, **options):
    trainer, sampling = prepared(folder, max_steps=8, save_strategy="no", **options)
    trainer.train()
    sampling._recording.close()
    return torch.distributed.get_world_size()


@pytest.mark.slow
def test_two_processes_of_torchrun_are_one_to_rounding(tmp_path):
    """With all data in every step, half of them in each process."""
    options = {"per_device_train_batch_size": N // 2, "ddp_backend": "gloo"}
    refused = launch(in_parallel, 2, tmp_path / "refused", **options)
    assert all("average_tokens_across_devices=True multiplies the loss" in each for each in refused)
    options["average_tokens_across_devices"] = False
    assert launch(in_parallel, 2, tmp_path / "two", **options) == [2, 2]
    trainer, sampling = prepared(tmp_path / "one", per_device_train_batch_size=N, max_steps=8, save_strategy="no")
    trainer.train()
    sampling._recording.close()
    one, two = samples(tmp_path / "one"), samples(tmp_path / "two")
    assert one.keys() == two.keys() == {(0, 6), (0, 8)}
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_second_chain_is_recorded_beside_the_first(whole, tmp_path):
    for chain in (0, 1):
        trainer, sampling = prepared(tmp_path, chain=chain, max_steps=8)
        trainer.train()
        sampling._recording.close()
    run = lv.load(tmp_path / "run", adapted(bert()))
    assert run.chains == [0, 1]
    assert not torch.equal(samples_of(run)[0, 8], samples_of(run)[1, 8])


@pytest.mark.slow
@pytest.mark.parametrize("kill", [9, 12, 13])
def test_a_killed_trainer_resumes_in_another_process(whole, tmp_path, kill):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, str(root / "tests/integrations/trainer_program.py"), str(tmp_path)]
    killed = subprocess.run([*command, str(kill)], env=environment, capture_output=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL
    ended = subprocess.run([*command, "0"], env=environment, capture_output=True, timeout=200, text=True)
    assert ended.stdout.split()[-1] == "8", ended.stderr[-2000:]
    expected, found = samples(whole), samples(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 1.0}, r"max_grad_norm=1.0 clips gradients.*max_grad_norm=0.0"),
        pytest.param({"weight_decay": 0.01}, r"weight_decay=0.01 is a second prior", marks=pytest.mark.slow),
        ({"lr_scheduler_type": "linear"}, r'decays from 0.001 to 0 in 20 steps.*lr_scheduler_type="constant"'),
        pytest.param({"lr_scheduler_type": "cosine"}, r"decays from", marks=pytest.mark.slow),
        ({"gradient_accumulation_steps": 2}, r"gradient_accumulation_steps=2 scales the loss"),
        pytest.param(
            {"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 changes the labels", marks=pytest.mark.slow
        ),
        pytest.param({"neftune_noise_alpha": 5.0}, "adds noise to the embeddings", marks=pytest.mark.slow),
        ({"loss": False}, r"loss of its own.*compute_loss_func=sampling.loss"),
        pytest.param(
            {"model": "dropout"}, r"training mode.*dropout to 0 in the model's config", marks=pytest.mark.slow
        ),
        ({"data": "unlabelled"}, r'have no "labels".*rename_column'),
        pytest.param(
            {"posterior": "of other data"}, r"num_data=7, but the training set has 48", marks=pytest.mark.slow
        ),
    ],
)
def test_settings_that_change_the_target_are_refused(options, message, tmp_path):
    if options.get("model") == "dropout":
        options = {"model": adapted(bert(dropout=0.1)).eval()}
    if options.get("data") == "unlabelled":
        options = {"data": inputs_of(text_data())}
    if "posterior" in options:
        posterior = lv.Posterior(adapted(bert()), lv.likelihoods.Categorical(), num_data=7)
        sampler = lv.SGHMC(posterior.parameters(), lr=1e-3, num_data=7)
        options = {"posterior": posterior, "sampler": sampler}
    trainer, _ = prepared(tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_samplers_and_schedules(tmp_path):
    posterior = adapter_posterior(adapted(bert()))
    with pytest.raises(ValueError, match=r"AdamW is not a langevin.Sampler"):
        prepared(tmp_path, posterior=posterior, sampler=torch.optim.AdamW(posterior.parameters()))
    with pytest.raises(ValueError, match="num_data=12, the posterior 48"):
        prepared(tmp_path, posterior=posterior, sampler=lv.SGLD(posterior.parameters(), lr=1e-3, num_data=12))
    with pytest.raises(ValueError, match="HMC needs several gradients"):
        prepared(tmp_path, posterior=posterior, sampler=lv.HMC(posterior.parameters(), lr=1e-3, num_data=N))
    sampler = lv.SGHMC(posterior.parameters(), lr=1e-3, num_data=N)
    trainer, _ = prepared(tmp_path, posterior=posterior, sampler=sampler)
    trainer.optimizer = torch.optim.AdamW(posterior.parameters())
    with pytest.raises(ValueError, match=r"steps AdamW.*optimizers=\(sampler, None\)"):
        trainer.train()
    from langevin.integrations.recording import refuse_schedule

    refuse_schedule(lv.cyclical(10)(sampler), 40)
    with pytest.raises(ValueError, match="decays"):
        refuse_schedule(torch.optim.lr_scheduler.CosineAnnealingLR(sampler, T_max=50), 50)


def test_padding_on_the_wrong_side_is_refused(tmp_path):
    data = text_data()
    left = {name: value.flip(1) for name, value in inputs_of(data).items()}
    posterior = lv.Posterior(adapted(gpt2()), lv.likelihoods.Tokens(), num_data=N)
    trainer, _ = prepared(tmp_path, posterior=posterior, data={**left, "labels": left["input_ids"]})
    with pytest.raises(ValueError, match="padded on the left"):
        trainer.train()


def test_the_loader_of_the_trainer_is_a_source_of_batches_too():
    trainer_data = DataLoader(Examples(), batch_size=16, shuffle=True)
    posterior = adapter_posterior(adapted(bert()).eval())
    run = lv.sample(posterior, trainer_data, lv.SGHMC, lr=1e-3, steps=6, burn_in=2, thin=2, progress=False)
    assert len(run) == 2
