"""Adapters of PEFT: what is sampled, its prior, storage, and prediction without copies of the base model."""

import copy
import gc
import json
import math
import os
import signal

import peft
import pytest
import torch
from safetensors import safe_open

import langevin as lv
from langevin.integrations.huggingface import load_adapters, save_adapters
from tests.helpers import assert_same_samples, killed
from tests.inference.distributed.launch import launch
from tests.transformer_models import N, adapted, adapter_posterior, bert, gpt2, inputs_of, sampled, text_data


def quiet(**options):
    return adapter_posterior(adapted(**options).eval())


def test_exactly_the_trainable_parameters_are_sampled_and_the_base_model_is_shared():
    posterior, data = quiet(), text_data()
    trainable = {name for name, p in posterior.model.named_parameters() if p.requires_grad}
    assert {name.rsplit(".", 3)[1] for name in trainable if "lora" in name} == {"lora_A", "lora_B"}
    before = {name: p.detach().clone() for name, p in posterior.model.named_parameters()}
    run = sampled(posterior, data, chains=2)
    assert set(run[0]) == trainable
    run.predict(inputs_of(data))
    after = dict(posterior.model.named_parameters())
    assert all(torch.equal(before[name], p) for name, p in after.items())
    places = {p.data_ptr() for p in after.values() if not p.requires_grad}
    copies = [run.predictors[0][0].model, copy.deepcopy(posterior).model]
    for model in copies:
        assert {p.data_ptr() for n, p in model.named_parameters() if n not in trainable} <= places


@pytest.mark.slow  # looks at all objects that there are
def test_sampling_and_prediction_need_no_second_base_model():
    class Large(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(1000, 1000).requires_grad_(False)
            self.head = torch.nn.Linear(1000, 2)

        def forward(self, x):
            return self.head(self.base(x).tanh())

    def largest_tensors():
        gc.collect()
        found = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.numel() == 10**6]
        return len({tensor.untyped_storage().data_ptr() for tensor in found})

    model, x, y = Large(), torch.randn(20, 1000), torch.randint(2, (20,))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=20)
    count = largest_tensors()
    seen = []
    look = lambda info: seen.append(largest_tensors()) if info.step == 5 else None  # noqa: E731
    run = sampled(posterior, (x, y), chains=2, lr=1e-5, callbacks=[look])
    assert len(seen) == 2
    assert max(seen) <= count + 1  # what a run in memory keeps of frozen weights
    run.predict(x)
    assert largest_tensors() <= count + 1


@pytest.mark.slow  # looks at all objects that there are
def test_sampling_takes_at_most_two_more_copies_of_the_adapters_than_fine_tuning(tmp_path):
    """Of adapters whose sums over the thermometer's windows would take 32 copies."""
    from benchmarks.adapter_costs import fine_tuning, live_bytes, live_in_sample
    from benchmarks.adapter_task import adapted as adapted_bert
    from benchmarks.adapter_task import small_bert

    base, data = small_bert(2).bert.state_dict(), text_data(classes=8)

    def make():
        return lv.Posterior(adapted_bert(base, 0), lv.likelihoods.Categorical(), num_data=N)

    adapters = sum(p.nbytes for p in make().trainable_parameters().values())
    plain = live_bytes(lambda: fine_tuning(make(), data))
    assert live_in_sample(make, data, tmp_path) - plain <= 2 * adapters


def test_a_frozen_weight_that_is_changed_afterwards_is_noticed():
    posterior, data = quiet(), text_data()
    run = sampled(posterior, data)
    run.predict(inputs_of(data))
    with torch.no_grad():
        posterior.model.get_parameter("base_model.model.bert.pooler.dense.bias").add_(1.0)
    with pytest.raises(ValueError, match=r"pooler.dense.bias' of the model was changed after sampling.*deepcopy"):
        run.predict(inputs_of(data))


@pytest.mark.parametrize(("rank", "scale"), [(2, 1.0), (8, 0.3)])
def test_the_lora_prior_has_the_scale_of_the_product(rank, scale):
    model = adapted(rank=rank)
    priors = lv.priors.lora(model, scale)
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    prefix = "base_model.model.bert.encoder.layer.0.attention.self.query"
    generator, squares = torch.Generator().manual_seed(0), []
    for _ in range(400):
        a = priors.for_parameter(f"{prefix}.lora_A.default.weight").sample(layer.lora_A.default.weight, generator)
        b = priors.for_parameter(f"{prefix}.lora_B.default.weight").sample(layer.lora_B.default.weight, generator)
        squares.append(float((layer.scaling["default"] * b @ a).square().mean()))
    mean, error = torch.tensor(squares).mean(), torch.tensor(squares).std() / math.sqrt(len(squares))
    assert abs(float(mean) - scale**2 / 16) < 4 * float(error)
    assert float(error) < 0.05 * scale**2 / 16
    default = adapter_posterior(model).priors()
    assert default == {name: lv.priors.lora(model).for_parameter(name) for name in default}


def test_other_chains_start_at_fresh_adapters_with_the_function_of_the_base_model():
    posterior, data = quiet(), text_data()
    run = sampled(posterior, data, chains=2, steps=1, burn_in=0, thin=1, lr=1e-12)
    first, second = run.chain(0)[0], run.chain(1)[0]
    for name in first:
        if "lora_A" in name:
            assert not torch.allclose(first[name], second[name], atol=1e-2)
        if "lora_B" in name:
            torch.testing.assert_close(second[name], torch.zeros_like(second[name]), atol=1e-4, rtol=0)


def test_samples_on_disk_are_adapters_only_and_the_base_model_is_known_by_its_digest(tmp_path):
    posterior, data = quiet(), text_data()
    run = sampled(posterior, data, out=tmp_path / "run", chains=2)
    frozen = {name for name, p in posterior.model.named_parameters() if not p.requires_grad}
    for file in (tmp_path / "run").rglob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            assert not frozen & set(opened.keys())
    loaded = lv.load(tmp_path / "run", adapted())
    assert torch.equal(loaded.predict(inputs_of(data)).probs, run.predict(inputs_of(data)).probs)
    other = bert()
    with torch.no_grad():
        other.bert.pooler.dense.bias.add_(1e-3)
    with pytest.raises(lv.RunError, match="frozen weights differ"):
        lv.load(tmp_path / "run", adapted(other))
    with pytest.raises(lv.RunError, match="same base model"):
        lv.resume(tmp_path / "run", adapter_posterior(adapted(other).eval()), data, steps=20, progress=False)


def kill_at(step):
    return lambda info: os.kill(os.getpid(), signal.SIGKILL) if info.step == step else None


@pytest.mark.parametrize("step", [9, pytest.param(3, marks=pytest.mark.slow), pytest.param(17, marks=pytest.mark.slow)])
def test_a_killed_run_of_adapters_resumes_bit_for_bit(step, tmp_path):
    data, options = text_data(), {"chains": 2, "steps": 20, "checkpoint_steps": 5}
    whole = sampled(quiet(), data, **options)
    killed(lambda: sampled(quiet(), data, out=tmp_path / "run", callbacks=[kill_at(step)], **options))
    resumed = lv.resume(tmp_path / "run", quiet(), data, progress=False)
    assert_same_samples(whole, resumed)


@pytest.mark.parametrize("kind", ["classifier", pytest.param("language model", marks=pytest.mark.slow)])
def test_samples_are_written_and_read_as_adapters_of_peft(kind, tmp_path):
    data = text_data()
    if kind == "classifier":
        posterior, base = quiet(), bert()
    else:
        posterior, base = lv.Posterior(adapted(gpt2()).eval(), lv.likelihoods.Tokens(), num_data=N), gpt2()
        data = {**data, "labels": data["input_ids"]}
    x = inputs_of(data)
    run = sampled(posterior, data)
    folders = save_adapters(run, posterior.model, tmp_path / "adapters")
    assert len(folders) == len(run)
    assert json.loads((folders[0] / "adapter_config.json").read_text())["r"] == 2
    for number in (0, len(run) - 1):
        one = peft.PeftModel.from_pretrained(copy.deepcopy(base), folders[number]).eval()
        torch.testing.assert_close(
            posterior.likelihood.probs(one(**x).logits), run[number : number + 1].predict(x).probs, atol=1e-6, rtol=1e-5
        )
    again = load_adapters(tmp_path / "adapters", posterior.model, posterior.likelihood)
    assert len(again) == len(run)
    assert torch.equal(again.predict(x).probs, run.predict(x).probs)
    with pytest.raises(ValueError, match="not empty"):
        save_adapters(run, posterior.model, tmp_path / "adapters")
    with pytest.raises(ValueError, match="rank 2, the model of rank 3"):
        load_adapters(tmp_path / "adapters", adapted(copy.deepcopy(base), rank=3), posterior.likelihood)
    with pytest.raises(ValueError, match="without adapters"):
        save_adapters(run, base, tmp_path / "more")


def test_batched_prediction_over_samples_is_that_of_one_sample_after_another():
    posterior, data = quiet(), text_data()
    x = {name: value[:5] for name, value in inputs_of(data).items()}
    run = sampled(posterior, data)
    predictor, stacks = run.predictors[0]
    (stack,) = stacks(len(run))
    named = {predictor._names[name]: tensor for name, tensor in stack.items()}
    with torch.no_grad():
        assert predictor._can_vectorise(named, x)
        together, one_by_one = predictor._vectorised(named, x), predictor._one_by_one(named, x)
    torch.testing.assert_close(together, one_by_one)


def test_adapters_that_do_nothing_are_refused():
    model = adapted()
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"merged.*unmerge_adapter"):
        adapter_posterior(model)
    model.unmerge_adapter()
    adapter_posterior(model.eval())
    model.disable_adapter_layers()
    with pytest.raises(ValueError, match=r"disabled.*enable_adapter_layers"):
        adapter_posterior(model)
    with pytest.raises(ValueError, match=r"no trainable parameter.*merge_and_unload"):
        lv.Posterior(adapted(gpt2()).merge_and_unload(), lv.likelihoods.Tokens(), num_data=N)


def test_an_adapter_that_was_loaded_for_inference_is_refused(tmp_path):
    adapted().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is_trainable=True"):
        adapter_posterior(peft.PeftModel.from_pretrained(bert(), tmp_path))
    adapter_posterior(peft.PeftModel.from_pretrained(bert(), tmp_path, is_trainable=True).eval())


def test_trainable_quantized_weights_are_refused():
    """bitsandbytes marks its weights by `quant_state`, and keeps them in bytes."""
    model = torch.nn.Linear(4, 3)
    model.weight.quant_state = object()
    with pytest.raises(ValueError, match=r"'weight' is quantized.*get_peft_model"):
        lv.Posterior(model, lv.likelihoods.Categorical(), num_data=10)
    model.weight.requires_grad_(False)
    lv.Posterior(model, lv.likelihoods.Categorical(), num_data=10)


def test_a_base_model_in_four_bits_is_shared_and_its_adapters_are_sampled():
    """bitsandbytes is not among the requirements: this runs where it is installed."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    quantized = bitsandbytes.nn.Linear4bit(64, 64, compute_dtype=torch.float32)
    quantized.load_state_dict(model[0].state_dict())
    model[0] = quantized.to("cpu")
    whole = bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False).requires_grad_(True)
    with pytest.raises(ValueError, match="quantized"):
        lv.Posterior(whole, lv.likelihoods.Categorical(), num_data=20)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"])).eval()
    x, y = torch.randn(20, 64), torch.randint(3, (20,))
    model(x)  # on a CPU the weights are packed anew in the first pass
    run = sampled(lv.Posterior(model, lv.likelihoods.Categorical(), num_data=20), (x, y), chains=2)
    probs = run.predict(x).probs
    assert len(probs) == 20
    own = next(p for p in model.parameters() if hasattr(p, "quant_state"))
    copied = next(p for p in run.predictors[0][0].model.parameters() if hasattr(p, "quant_state"))
    assert copied.data_ptr() == own.data_ptr()
    for name, tensor in run[-1].items():
        model.get_parameter(name).data = tensor
    torch.testing.assert_close(run[-1:].predict(x).probs, model(x).softmax(1), atol=1e-5, rtol=1e-4)


def test_weights_that_are_more_than_numbers_keep_what_they_know():
    """As quantized ones do: copies for chains and predictions have the same memory and the same attributes."""

    class Packed(torch.nn.Parameter):
        def __copy__(self):
            other = Packed(self.data, requires_grad=False)
            other.quant_state = self.quant_state
            return other

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = Packed(torch.randn(4, 5), requires_grad=False)
            self.weight.quant_state = 2.0

        def forward(self, x):
            return x @ self.weight * self.weight.quant_state

    torch.manual_seed(0)
    model, x, y = torch.nn.Sequential(Layer(), torch.nn.Linear(5, 3)), torch.randn(20, 4), torch.randint(3, (20,))
    run = sampled(lv.Posterior(model, lv.likelihoods.Categorical(), num_data=20), (x, y), chains=2, mode="auto")
    assert run.predict(x).probs.shape == (20, 3)
    assert run.predictors[0][0].model[0].weight.data_ptr() == model[0].weight.data_ptr()


def in_parallel(out):
    return len(sampled(quiet(), text_data(), out=out, mesh="data=2"))


@pytest.mark.slow
def test_two_processes_along_data_are_one_to_rounding(tmp_path):
    whole = sampled(quiet(), text_data())
    assert launch(in_parallel, 2, tmp_path / "run") == [len(whole)] * 2
    run = lv.load(tmp_path / "run", adapted())
    for name, tensor in whole[-1].items():
        torch.testing.assert_close(run[-1][name], tensor, atol=2e-5, rtol=2e-5)
