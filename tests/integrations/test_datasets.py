"""Hugging Face `datasets` objects as data."""

from functools import partial

import langevin as lv
from tests.helpers import assert_same_samples, toy_data, toy_posterior


def test_sampling_with_a_hugging_face_dataset():
    from datasets import Dataset

    x, y = toy_data()
    data = Dataset.from_dict({"features": x.numpy(), "label": y.numpy()}).with_format("torch")
    options = {"steps": 20, "burn_in": 0, "thin": 5, "batch_size": 16, "progress": False}
    run = lv.sample(toy_posterior(), data, partial(lv.SGLD, lr=1e-2), **options)
    assert_same_samples(run, lv.sample(toy_posterior(), (x, y), partial(lv.SGLD, lr=1e-2), **options))
    many = lv.sample(toy_posterior(), data, partial(lv.SGLD, lr=1e-2), chains=2, mode="vectorised", **options)
    assert len(many) == 8
