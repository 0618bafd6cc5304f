"""Tiny transformers with random weights, and data for them: no hub is needed."""

import peft
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, logging

import langevin as lv

logging.set_verbosity_error()
WORDS, LENGTH, N = 40, 8, 48


def bert(dropout=0.0, classes=3, **options):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        num_labels=classes,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **options,
    )
    return BertForSequenceClassification(config)


def gpt2(**options):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
    return GPT2LMHeadModel(config)


def adapted(model=None, rank=2, seed=1, **options):
    """With LoRA adapters, whose B is not zero."""
    model = bert() if model is None else model
    kind = "CAUSAL_LM" if isinstance(model, GPT2LMHeadModel) else "SEQ_CLS"
    targets = ["c_attn"] if kind == "CAUSAL_LM" else ["query", "value"]
    torch.manual_seed(seed)
    config = peft.LoraConfig(task_type=kind, r=rank, lora_alpha=4, target_modules=targets, **options)
    return peft.get_peft_model(model, config)


def text_data(n=N, classes=3):
    """Sequences of tokens, padded on the right; the class is told by the tokens."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(classes, (n,), generator=generator)
    tokens = torch.randint(3, WORDS, (n, LENGTH), generator=generator)
    marked = torch.rand(n, LENGTH, generator=generator) < 0.4
    tokens = torch.where(marked, 3 + labels[:, None], tokens)
    lengths = torch.randint(4, LENGTH + 1, (n, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def inputs_of(data):
    return {name: value for name, value in data.items() if name != "labels"}


def adapter_posterior(model=None, **options):
    return lv.Posterior(adapted() if model is None else model, lv.likelihoods.Categorical(), num_data=N, **options)


SHORT = {"lr": 1e-3, "steps": 12, "burn_in": 4, "thin": 2, "batch_size": 16, "progress": False, "mode": "sequential"}


def sampled(posterior, data=None, **options):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lv.sample(posterior, text_data() if data is None else data, lv.SGHMC, **{**SHORT, **options})
