"""A text task at hand: paragraphs of the documentation inside installed packages.

The base model, a small BERT from scratch, is trained to tell which part of which of six packages a paragraph is from
(`sklearn.cluster`, `torch.distributions`, …). The shifted task is to tell which part of SciPy one is from, with few
labels; paragraphs of NetworkX are out of distribution. All of these packages are dependencies of langevin, so the texts
are on every machine that has it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BASE = ("numpy", "torch", "sklearn", "matplotlib", "sympy", "pandas")
PARTS = ("stats", "signal", "linalg", "optimize", "sparse", "spatial", "interpolate", "integrate")
OUTSIDE = "networkx"
LENGTH, VOCABULARY, WIDTH, LAYERS = 32, 4000, 64, 2
_PAD, _UNKNOWN, _START = 0, 1, 2

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Examples of each class."""

    least: int = 300  # of a class of the base task; smaller ones are left out
    most: int = 800
    train: int = 100
    validation: int = 60
    test: int = 150
    outside: int = 1200


@dataclass(frozen=True)
class Task:
    """Encoded texts: of the base task, of the three parts of the shifted one, and out-of-distribution ones."""

    base: Batch
    train: Batch
    validation: Batch
    test: Batch
    outside: Batch
    versions: dict[str, str]


def make_task(sizes: Sizes = Sizes()) -> Task:
    """The same texts in the same order, for the same versions of the packages."""
    hidden = {*BASE, *PARTS, OUTSIDE, "scipy", "np", "pd", "plt"}  # a name would tell the class
    folders = [folder for name in BASE for folder in sorted(_package(name).iterdir()) if folder.is_dir()]
    found = {folder: _words(folder, sizes.most, hidden) for folder in folders}
    base = {folder: texts for folder, texts in found.items() if len(texts) >= sizes.least}
    counts = Counter(word for texts in base.values() for text in texts for word in text)
    known = {word: number for number, (word, _) in enumerate(counts.most_common(VOCABULARY - 3), 3)}
    each = sizes.train + sizes.validation + sizes.test
    parts = {name: _words(_package("scipy") / name, each, hidden) for name in PARTS}
    splits = {}
    for name, begin, end in (
        ("train", 0, sizes.train),
        ("validation", sizes.train, sizes.train + sizes.validation),
        ("test", sizes.train + sizes.validation, each),
    ):
        splits[name] = _encoded([texts[begin:end] for texts in parts.values()], known)
    outside = _encoded([_words(_package(OUTSIDE), sizes.outside, hidden)], known)
    names = [*(name.replace("sklearn", "scikit-learn") for name in BASE), "scipy", OUTSIDE]
    return Task(
        _encoded(list(base.values()), known), **splits, outside=outside, versions={n: version(n) for n in names}
    )


def small_bert(classes: int) -> Any:
    """A BERT without dropout, with fresh weights."""
    from transformers import BertConfig, BertForSequenceClassification

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": LENGTH,
        "num_labels": classes,
        "pad_token_id": _PAD,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertForSequenceClassification(BertConfig(**settings))  # type: ignore[no-untyped-call]


def trained_base(task: Task, file: Path, steps: int = 3000, batch_size: int = 64) -> dict[str, Tensor]:
    """The weights of the base model, from the file if they are there: AdamW at up to 1e-3, in minutes."""
    from safetensors.torch import load_file, save_file

    if file.exists():
        return load_file(str(file))
    torch.manual_seed(0)
    model = small_bert(int(task.base["labels"].max()) + 1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(task.base["labels"]), (batch_size,), generator=generator)
        optimizer.zero_grad()
        model(**{name: value[rows] for name, value in task.base.items()}).loss.backward()
        optimizer.step()
        schedule.step()
    weights = {name: tensor.contiguous() for name, tensor in model.bert.state_dict().items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(file))
    return weights


def adapted(base: dict[str, Tensor], seed: int, rank: int = 8) -> nn.Module:
    """The base model with fresh LoRA adapters on all linear layers, and a fresh head."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    model = small_bert(len(PARTS))
    model.bert.load_state_dict(base)
    config = LoraConfig(
        task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=["query", "key", "value", "dense"]
    )
    peft_model: nn.Module = get_peft_model(model, config)
    return peft_model.eval()


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _words(folder: Path, count: int, hidden: set[str]) -> list[list[str]]:
    """Up to `count` paragraphs of docstrings below a folder as words, in a random order that is always the same."""
    found = sorted({text for file in sorted(folder.rglob("*.py")) for text in _paragraphs(file)})
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
    texts = []
    for index in order:
        words = [word for word in re.findall(r"[a-z]+", found[index].lower()) if word not in hidden]
        if len(words) >= 8:
            texts.append(words[: LENGTH - 1])
        if len(texts) == count:
            break
    return texts


def _paragraphs(file: Path) -> Iterator[str]:
    if "tests" in file.parts:
        return
    try:
        tree = ast.parse(file.read_text(errors="ignore"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for text in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if ">>>" not in text:
                    yield " ".join(text.split())


def _encoded(classes: Sequence[Sequence[Sequence[str]]], known: dict[str, int]) -> Batch:
    """Padded on the right."""
    texts = [(words, label) for label, group in enumerate(classes) for words in group]
    tokens = torch.full((len(texts), LENGTH), _PAD)
    for row, (words, _) in enumerate(texts):
        numbers = [_START, *(known.get(word, _UNKNOWN) for word in words)]
        tokens[row, : len(numbers)] = torch.tensor(numbers)
    labels = torch.tensor([label for _, label in texts])
    return {"input_ids": tokens, "attention_mask": (tokens != _PAD).long(), "labels": labels}
