"""The digits of scikit-learn: embedded, so nothing is downloaded."""

import torch

from langevin.data.images import ImageDataset, Normalization, normalization_named

STANDARD: Normalization = ((0.3054,), (0.3761,))


def digits(split: str = "train", normalize: str | Normalization = "standard") -> ImageDataset:
    """Return the handwritten digits of scikit-learn: 1,437 images to train on or 360 to test on, (1, 8, 8), 10 classes.

    Alpaydin & Kaynak (1998), "Optical Recognition of Handwritten Digits", UCI. The split is ours, fixed, with equal
    shares of the classes. `normalize`: "standard" (zero mean, unit variance of the training part), "unit" (0 to 1), or
    a pair (mean, std).

    >>> digits("test")
    ImageDataset(360 images of 1×8×8)
    """
    import sklearn.datasets
    import sklearn.model_selection

    if split not in ("train", "test"):
        raise ValueError(f'split="{split}": expected split="train" or split="test"')
    bunch = sklearn.datasets.load_digits()
    train, test = sklearn.model_selection.train_test_split(
        range(len(bunch.target)), test_size=360, random_state=0, stratify=bunch.target
    )
    rows = train if split == "train" else test
    images = torch.from_numpy(bunch.images[rows]).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[rows]).long()
    return ImageDataset(images, labels, normalization_named(normalize, STANDARD), white=16)
