"""The digits of scikit-learn, which need no download."""

from collections.abc import Sequence

import torch

from langevin.core.arguments import validated
from langevin.data.checks import check_split
from langevin.data.images import ImageDataset, Normalization


@validated()
def digits(
    split: str = "train", normalize: str | Normalization = "digits", augment: Sequence[str] = ()
) -> ImageDataset:
    """Return the handwritten digits of scikit-learn: 1,437 images to train on or 360 to test on, (1, 8, 8), 10 classes.

    Alpaydin & Kaynak (1998), "Optical recognition of handwritten digits", UCI. The split is ours, fixed and
    stratified by class. `normalize` and `augment` are those of `ImageDataset`.

    >>> digits("test")
    ImageDataset(360 images of 1×8×8)
    """
    import sklearn.datasets
    import sklearn.model_selection

    check_split(split)
    bunch = sklearn.datasets.load_digits()
    train, test = sklearn.model_selection.train_test_split(
        range(len(bunch.target)), test_size=360, random_state=0, stratify=bunch.target
    )
    rows = train if split == "train" else test
    images = torch.from_numpy(bunch.images[rows]).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target[rows]).long()
    return ImageDataset(images, labels, normalize, augment, white=16)
