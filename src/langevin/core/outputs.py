"""Batches of examples, calling a model, and the tensor of what it returns that the likelihood is about.

Models of Hugging Face return a `ModelOutput`, others a dict or a tuple. Their "logits", or the only tensor, are found;
what is called otherwise is named: `lv.Posterior(model, …, output="scores")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate


def call(model: nn.Module, x: Any) -> Any:
    """The output of model(x), model(*x) for a tuple or a list, model(**x) for a dict."""
    return output_of(call_whole(model, x))


def call_whole(model: nn.Module, x: Any, **more: Any) -> Any:
    """All that the model returns."""
    if isinstance(x, Mapping):
        return model(**x, **more)
    if isinstance(x, tuple | list):
        return model(*x, **more)
    return model(x, **more)


def output_of(returned: Any, name: str | int | None = None) -> Any:
    """The output among what a model has returned: the entry of this name or place, or the one that there is."""
    if isinstance(returned, Tensor):
        if name is not None:
            raise ValueError(f"output={name!r}: the model returns one tensor; leave out output=….")
        return returned
    if isinstance(returned, Mapping):
        entries: dict[str | int, Any] = dict(returned)
    elif isinstance(returned, tuple | list):
        entries = dict(enumerate(returned))
    else:
        return returned
    tensors = [key for key, value in entries.items() if isinstance(value, Tensor) and key != "loss"]
    if name is None:
        name = "logits" if "logits" in tensors else tensors[0] if len(tensors) == 1 else None
    if name is None or name not in tensors:
        given = "several tensors" if name is None else f"nothing called {name!r}"
        example = repr(tensors[0]) if tensors else '"logits"'
        raise ValueError(
            f"The model returns {given} as its output; it has {tensors}. Name the one that the likelihood is about: "
            f"lv.Posterior(model, …, output={example})."
        )
    return entries[name]


class NamedOutput(nn.Module):
    """A model of whose outputs one is named. Its parameters keep their names (see `public_name`)."""

    def __init__(self, module: nn.Module, name: str | int) -> None:
        super().__init__()
        self.module, self.name = module, name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The entry of that name."""
        return output_of(self.module(*args, **kwargs), self.name)


def named_output(model: nn.Module, name: str | int | None) -> nn.Module:
    """The model, of whose outputs this one is taken; without a name the model itself."""
    return model if name is None else NamedOutput(model, name)


def plain_batch(batch: Any) -> Any:
    """The same with plain dicts: what a tokenizer returns is a mapping of another kind, which torch does not know."""
    if isinstance(batch, Mapping):
        return {name: plain_batch(value) for name, value in batch.items()}
    if type(batch) in (tuple, list) and any(isinstance(each, Mapping) for each in batch):
        return type(batch)(plain_batch(each) for each in batch)
    return batch


def refuse_frames(data: Any) -> None:
    """Raise for columns of pandas or polars, and for texts, with the way to make tensors of them."""
    parts = data.values() if isinstance(data, dict) else data if type(data) in (tuple, list) else [data]
    for part in parts:
        library = type(part).__module__.partition(".")[0]
        if library in ("pandas", "polars"):
            raise ValueError(
                f"Given a {type(part).__name__} of {library}; a network takes tensors of "
                f'numbers. Write torch.tensor(table.to_numpy(dtype="float32")); class labels have dtype="int64", and '
                f"texts are numbered: names, y = np.unique(labels, return_inverse=True)."
            )
        if _has_texts(part):
            raise ValueError(
                "Given texts, or other objects; a network takes tensors of numbers. Number the labels: names, y = "
                "np.unique(labels, return_inverse=True), then torch.tensor(y); names[prediction.labels] are texts."
            )


def _has_texts(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return part.dtype.kind in "USO"
    return isinstance(part, list | tuple) and len(part) > 0 and isinstance(part[0], str)


def collated(items: Sequence[Any]) -> Any:
    """The examples as one batch. Those of a Hugging Face data set may be dicts of lists of numbers."""
    if items and isinstance(items[0], Mapping):
        items = [{name: _as_tensor(value) for name, value in item.items()} for item in items]
        if texts := [name for name, value in items[0].items() if isinstance(value, str)]:
            raise ValueError(
                f"The data set has texts under {texts}; a model takes the tokens alone. Write "
                f"data.remove_columns({texts})."
            )
        for name, value in items[0].items():
            lengths = {tuple(item[name].shape) for item in items} if isinstance(value, Tensor) else set()
            if len(lengths) > 1:
                raise ValueError(
                    f"The examples differ in the shape of {name!r}: {', '.join(map(str, sorted(lengths)[:3]))}. Pad "
                    f'them alike, tokenizer(…, padding="max_length", max_length=…), or batch by batch: '
                    f"DataLoader(data, batch_size=32, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))."
                )
    return default_collate(list(items))


def _as_tensor(value: Any) -> Any:
    numbers = isinstance(value, list) and value and isinstance(value[0], int | float)
    return torch.tensor(value, device="cpu") if numbers else value
