"""Models of Hugging Face as they are: their outputs, inputs, losses and tied weights."""

import copy

import pytest
import torch
from torch import nn
from transformers import BatchEncoding

import langevin as lv
from tests.transformer_models import LENGTH, N, adapted, adapter_posterior, bert, gpt2, inputs_of, sampled, text_data


class Returning(nn.Module):
    """Returns what a function makes of the logits."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(4, 3), make

    def forward(self, x):
        return self.make(self.layer(x))


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda out: {"logits": out, "hidden": out * 2}, None),
        (lambda out: {"loss": out.sum(), "scores": out}, None),
        (lambda out: (out,), None),
        (lambda out: (out * 2, out), 1),
        (lambda out: {"scores": out, "hidden": out * 2}, "scores"),
    ],
)
def test_outputs_are_found_or_named(make, output, tmp_path):
    torch.manual_seed(0)
    model, x, y = Returning(make), torch.randn(12, 4), torch.randint(3, (12,))
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), num_data=12, output=output)
    plain = lv.Posterior(model.layer, lv.likelihoods.Categorical(), lv.priors.default(model.layer), num_data=12)
    torch.testing.assert_close(posterior.loss(x, y), plain.loss(x, y))
    assert list(posterior.trainable_parameters()) == ["layer.weight", "layer.bias"]
    run = sampled(posterior, (x, y), batch_size=4, out=tmp_path / "run")
    assert torch.equal(lv.load(tmp_path / "run", Returning(make)).predict(x).probs, run.predict(x).probs)


def test_outputs_that_can_not_be_found_are_asked_for():
    x, y = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
    several = Returning(lambda out: (out, out))
    with pytest.raises(ValueError, match=r"several tensors.*output=0"):
        lv.Posterior(several, lv.likelihoods.Categorical(), num_data=6).loss(x, y)
    named = Returning(lambda out: {"a": out, "b": out})
    with pytest.raises(ValueError, match=r"nothing called 'scores'.*'a'"):
        lv.Posterior(named, lv.likelihoods.Categorical(), num_data=6, output="scores").loss(x, y)
    with pytest.raises(ValueError, match="one tensor; leave out output"):
        lv.Posterior(nn.Linear(4, 3), lv.likelihoods.Categorical(), num_data=6, output="logits").loss(x, y)


def test_a_classifier_with_dict_inputs_of_any_kind():
    data = text_data()
    posterior = lv.Posterior(bert().eval(), lv.likelihoods.Categorical(), num_data=N)
    expected = posterior.model(**data).loss - posterior.log_prior() / N
    x, y = inputs_of(data), data["labels"]
    torch.testing.assert_close(posterior.loss(x, y), expected)
    torch.testing.assert_close(posterior.loss(BatchEncoding(x), y), expected)
    a = sampled(posterior, BatchEncoding(data))
    b = sampled(posterior, (x, y))
    assert all(torch.equal(a[-1][name], b[-1][name]) for name in a[-1])
    assert torch.equal(a.predict(BatchEncoding(x)).probs, a.predict(data).probs)


def test_the_models_own_loss_is_the_likelihood():
    data = text_data()
    x, y = inputs_of(data), data["labels"]
    own = lv.Posterior(bert().eval(), lv.likelihoods.MeanLoss(likelihood=lv.likelihoods.Categorical()), num_data=N)
    known = lv.Posterior(own.model, lv.likelihoods.Categorical(), num_data=N)
    torch.testing.assert_close(own.loss(x, y), known.loss(x, y))
    a, b = sampled(own, data), sampled(known, data)
    torch.testing.assert_close(a[-1]["classifier.weight"], b[-1]["classifier.weight"])
    torch.testing.assert_close(a.predict(x).probs, b.predict(x).probs)
    function = lv.Posterior(own.model, lv.likelihoods.MeanLoss(nn.CrossEntropyLoss()), num_data=N)
    torch.testing.assert_close(function.loss(x, y), known.loss(x, y))


def test_a_loss_that_is_no_mean_over_examples_is_refused():
    data = text_data()
    total = lv.Posterior(bert().eval(), lv.likelihoods.MeanLoss(nn.CrossEntropyLoss(reduction="sum")), num_data=N)
    with pytest.raises(ValueError, match='It is their sum: use reduction="mean"'):
        sampled(total, data)
    labels = data["input_ids"].masked_fill(data["attention_mask"] == 0, -100)
    tokens = lv.Posterior(gpt2().eval(), lv.likelihoods.MeanLoss(), num_data=N)
    with pytest.raises(ValueError, match=r"mean over tokens is not one over examples: use lv.likelihoods.Tokens"):
        sampled(tokens, {**data, "labels": labels})
    of_equal_length = {"input_ids": data["input_ids"], "labels": data["input_ids"]}  # the mean of means is the mean
    with pytest.raises(ValueError, match=r"mean over the 8 labels of an example.*use lv.likelihoods.Tokens"):
        sampled(tokens, of_equal_length)
    with pytest.raises(ValueError, match=r"\(16, 8, 40\), with the classes last.*lv.likelihoods.Tokens"):
        sampled(lv.Posterior(gpt2().eval(), lv.likelihoods.Categorical(), num_data=N), of_equal_length)


def test_tokens_are_summed_over_the_positions_that_count():
    data, model = text_data(), gpt2().eval()
    labels = data["input_ids"].masked_fill(data["attention_mask"] == 0, -100)
    output, likelihood = model(**inputs_of(data)).logits, lv.likelihoods.Tokens()
    each = likelihood.log_prob(output, labels)
    counted = (labels[:, 1:] != -100).sum(1)
    for i in range(3):
        one = model(**{name: t[i : i + 1] for name, t in data.items() if name != "labels"}, labels=labels[i : i + 1])
        torch.testing.assert_close(each[i], -one.loss * counted[i])
    posterior = lv.Posterior(model, likelihood, num_data=N)
    torch.testing.assert_close(posterior.data_loss(inputs_of(data), labels), -each.mean())
    run = sampled(posterior, {**data, "labels": labels}, lr=1e-4)
    assert run.predict(inputs_of(data)).probs.shape == (N, model.config.vocab_size, LENGTH)
    with pytest.raises(ValueError, match="found 40"):
        likelihood.validate(output, labels.masked_fill(labels == -100, 40))
    with pytest.raises(ValueError, match="No position has a label"):
        likelihood.validate(output, torch.full_like(labels, -100))


def test_tied_weights_are_one_parameter_with_one_prior(tmp_path):
    model = gpt2().eval()
    posterior = lv.Posterior(model, lv.likelihoods.Tokens(), lv.priors.Gaussian(1.0), num_data=N)
    assert "lm_head.weight" not in posterior.trainable_parameters()
    size = sum(p.numel() for p in model.parameters())
    squares = sum(float(p.square().sum()) for p in model.parameters())
    expected = -0.5 * squares - size * lv.priors.Gaussian(1.0).log_normalizer
    assert float(posterior.log_prior()) == pytest.approx(expected, rel=1e-5)
    data = text_data()
    run = sampled(posterior, {**data, "labels": data["input_ids"]}, lr=1e-4, out=tmp_path / "run")
    x, sample = inputs_of(data), copy.deepcopy(model)
    sample.load_state_dict(run[-1], strict=False)
    probs = run[-1:].predict(x).probs
    torch.testing.assert_close(probs, sample(**x).logits.softmax(-1).mT, atol=1e-5, rtol=1e-4)
    assert torch.equal(lv.load(tmp_path / "run", gpt2())[-1:].predict(x).probs, probs)


def test_gradient_checkpointing_changes_memory_not_gradients():
    data = text_data()
    x, y = inputs_of(data), data["labels"]
    gradients = []
    for checkpointing in (False, True):
        posterior = adapter_posterior(adapted(bert()).train())
        if checkpointing:
            posterior.model.enable_input_require_grads()
            posterior.model.gradient_checkpointing_enable({"use_reentrant": False})
        posterior.loss(x, y).backward()
        gradients.append([p.grad.clone() for p in posterior.trainable_parameters().values()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_a_bfloat16_base_with_float32_adapters():
    data = text_data()
    model = adapted(bert().to(torch.bfloat16))
    with pytest.raises(ValueError, match=r"classifier.*bfloat16.*p.data = p.data.float\(\)"):
        adapter_posterior(model)  # PEFT casts its factors, not the head
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.float()
    run = sampled(adapter_posterior(model.eval()), data, autocast=torch.bfloat16)
    single = sampled(adapter_posterior(adapted().eval()), data)
    assert {t.dtype for t in run[-1].values()} == {torch.float32}
    for name, tensor in run[-1].items():
        torch.testing.assert_close(tensor, single[-1][name], atol=0.02, rtol=0.1)


def test_a_causal_model_with_padding_on_the_left_is_refused():
    data = text_data()
    x = {name: value.flip(1) for name, value in inputs_of(data).items()}
    posterior = lv.Posterior(gpt2().eval(), lv.likelihoods.Tokens(), num_data=N)
    with pytest.raises(ValueError, match='padding_side = "right"'):
        sampled(posterior, {**x, "labels": x["input_ids"]})
    positions = (x["attention_mask"].cumsum(1) - 1).clamp_min(0)
    sampled(posterior, {**x, "position_ids": positions, "labels": x["input_ids"]}, lr=1e-5)
    classifier = lv.Posterior(bert().eval(), lv.likelihoods.Categorical(), num_data=N)
    sampled(classifier, {**x, "labels": data["labels"]})  # an encoder, whose padding may be anywhere


def test_labels_that_are_missing_are_asked_for():
    with pytest.raises(ValueError, match=r"needs its target under one of.*rename_column"):
        sampled(adapter_posterior(adapted().eval()), inputs_of(text_data()))
