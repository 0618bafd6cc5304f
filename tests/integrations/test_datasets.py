"""Hugging Face `datasets` objects as data."""

from functools import partial

import pytest
import torch

import langevin as lv
from tests.helpers import assert_same_samples, toy_data, toy_posterior
from tests.transformer_models import N, adapted, adapter_posterior, inputs_of, sampled, text_data


def test_sampling_with_a_hugging_face_dataset():
    from datasets import Dataset

    x, y = toy_data()
    data = Dataset.from_dict({"features": x.numpy(), "label": y.numpy()}).with_format("torch")
    options = {"steps": 20, "burn_in": 0, "thin": 5, "batch_size": 16, "progress": False}
    run = lv.sample(toy_posterior(), data, partial(lv.SGLD, lr=1e-2), **options)
    assert_same_samples(run, lv.sample(toy_posterior(), (x, y), partial(lv.SGLD, lr=1e-2), **options))
    many = lv.sample(toy_posterior(), data, partial(lv.SGLD, lr=1e-2), chains=2, mode="vectorised", **options)
    assert len(many) == 8


def test_tokens_in_lists_are_a_batch_and_what_is_none_is_refused():
    """As `data.map(tokenizer)` leaves them, without a format."""
    from datasets import Dataset

    data, posterior = text_data(), adapter_posterior(adapted().eval())
    lists = Dataset.from_dict({name: value.tolist() for name, value in data.items()})
    assert_same_samples(sampled(posterior, lists), sampled(posterior, lists.with_format("torch")))
    run = sampled(posterior, data)
    assert torch.equal(run.predict(lists).probs, run.predict(inputs_of(data)).probs)
    with pytest.raises(ValueError, match=r"texts under \['text'\].*remove_columns\(\['text'\]\)"):
        sampled(posterior, lists.add_column("text", ["a b"] * N))
    ragged = [
        {name: value[i][:4] if i % 2 and name != "labels" else value[i] for name, value in data.items()}
        for i in range(N)
    ]
    with pytest.raises(ValueError, match=r"shape of 'input_ids'.*padding=\"max_length\".*DataCollatorWithPadding"):
        sampled(posterior, ragged)


def test_streaming_and_its_resume(tmp_path):
    """A stream that is the same when it is read again is replayed up to the checkpoint."""
    from datasets import Dataset
    from torch.utils.data import DataLoader

    x, y = toy_data()

    def stream():
        data = Dataset.from_dict({"features": x.numpy(), "label": y.numpy()}).with_format("torch")
        return DataLoader(data.to_iterable_dataset(num_shards=2).shuffle(seed=0, buffer_size=20), batch_size=16)

    with pytest.raises(ValueError, match=r"DataLoader\(data, batch_size=128\)"):
        lv.sample(toy_posterior(), stream().dataset, lv.SGLD, lr=1e-2, steps=5, progress=False)
    options = {"burn_in": 0, "thin": 3, "progress": False}
    whole = lv.sample(toy_posterior(), stream(), lv.SGLD, lr=1e-2, steps=18, **options)
    lv.sample(toy_posterior(), stream(), lv.SGLD, lr=1e-2, steps=9, out=tmp_path / "run", **options)
    with pytest.warns(UserWarning, match="can't be repeated"):
        resumed = lv.resume(tmp_path / "run", toy_posterior(), stream(), steps=18, progress=False)
    assert_same_samples(whole, resumed)
