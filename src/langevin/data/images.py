"""Labelled images, stored as uint8 and normalized when read."""

import functools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from langevin.core.arguments import validated_init

Normalization = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation per channel, of pixels from 0 to 1."""

NORMALIZATIONS: dict[str, Normalization] = {
    "unit": ((0.0,), (1.0,)),
    # Per channel, over all pixels of the training part.
    "digits": ((0.3054,), (0.3761,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # the values in common use
}

CROP_PADDING = 4


@validated_init()
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images; a pixel value v is read as (v / white − mean) / std, per channel.

    `images`: uint8, (N, channels, height, width). `labels`: int64, (N,). `white` is the pixel value that maps to 1.
    `normalize`: "unit" (pixels from 0 to 1), the name of a data set ("mnist": zero mean and unit variance on MNIST; OOD
    inputs of a model trained on MNIST need the normalization of MNIST), or a pair (mean, std).

    `data[i]` is one example, (image, label); a slice, a list or a tensor of indices gives a whole batch at once.
    `data.tensors` is all data, normalized; `data.images` and `data.labels` are the original tensors.

    `augment` may contain "crop" (a shift of up to 4 pixels, zero-padded) and "flip" (horizontal, with probability ½);
    both draw from torch's global generator at every read. Augmentation changes the likelihood: the term of an example
    becomes an average over its variants, which are not independent data. `num_data` stays `len(data)`, the number of
    original images; samples are then not from the posterior given the original data. A warning is given once.

    >>> data = ImageDataset(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5))
    >>> data[torch.tensor([0, 3])][0].shape
    torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        normalize: str | Normalization = "unit",
        augment: Sequence[str] = (),
        *,
        white: int = 255,
    ) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"images of type {images.dtype} and shape {tuple(images.shape)} with labels of shape "
                f"{tuple(labels.shape)}: expected uint8 images (N, channels, height, width) and N labels"
            )
        self.images = images
        self.labels = labels
        self.normalization = normalization(normalize, channels=images.shape[1])
        self.augment = augmentations(augment)
        mean, std = (torch.tensor(v, dtype=torch.float32, device="cpu").view(-1, 1, 1) for v in self.normalization)
        self._scale = 1.0 / (white * std)
        self._shift = -mean / std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        images, labels = self.images[index], self.labels[index]
        if self.augment:
            images = self._augmented(images) if labels.dim() else self._augmented(images.unsqueeze(0)).squeeze(0)
        return images * self._scale + self._shift, labels

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch; called by `langevin.sample`."""
        return self[indices]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the examples of a list of indices, read at once; called by DataLoader."""
        images, labels = self[torch.as_tensor(indices, device="cpu")]
        return list(zip(images, labels, strict=True))

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images, normalized float32, and all labels. Not for augmented data, which differ at each read."""
        if self.augment:
            raise AttributeError(
                f"data with augment={self.augment} differ at each read and have no tensors; index them, or load them "
                "with augment=()"
            )
        return self[:]

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.images.shape[1:]))
        augmented = f", augmented by {' and '.join(self.augment)}" if self.augment else ""
        return f"ImageDataset({len(self)} images of {shape}{augmented})"

    def _augmented(self, images: Tensor) -> Tensor:
        n, channels, height, width = images.shape
        if "crop" in self.augment:
            p = CROP_PADDING
            padded = F.pad(images, (p, p, p, p))
            top, left = torch.randint(0, 2 * p + 1, (2, n, 1, 1, 1), device="cpu")
            image, channel, row, column = (torch.arange(k, device="cpu") for k in (n, channels, height, width))
            image, channel = image.view(n, 1, 1, 1), channel.view(channels, 1, 1)
            images = padded[image, channel, top + row.view(height, 1), left + column]
        if "flip" in self.augment:
            images = torch.where((torch.rand(n, device="cpu") < 0.5).view(n, 1, 1, 1), images.flip(-1), images)
        return images


def normalization(normalize: str | Normalization, channels: int) -> Normalization:
    """Return mean and standard deviation of `normalize`, validated."""
    if isinstance(normalize, str):
        if normalize not in NORMALIZATIONS:
            raise ValueError(
                f'normalize="{normalize}": expected one of {", ".join(NORMALIZATIONS)}, or a pair (mean, std) such as '
                "normalize=((0.5,), (0.25,))"
            )
        normalize = NORMALIZATIONS[normalize]
    try:
        mean, std = (tuple(map(float, values)) for values in normalize)
        fits = len(mean) == len(std) and len(mean) in (1, channels) and min(std) > 0
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"normalize={normalize}: expected a pair (mean, std) with one value, or one for each of {channels} "
            f"channels, and std positive, such as normalize={((0.5,) * channels, (0.25,) * channels)}"
        )
    return mean, std


def augmentations(augment: Sequence[str]) -> tuple[str, ...]:
    """Return the augmentations, validated; warn once about their effect on the likelihood."""
    if isinstance(augment, str) or not set(augment) <= {"crop", "flip"}:
        raise ValueError(
            f'augment={augment!r}: expected some of ("crop", "flip"), for example augment=("crop", "flip")'
        )
    if augment:
        _warn_of_augmentation()
    return tuple(augment)


@functools.cache
def _warn_of_augmentation() -> None:
    warnings.warn(
        "augmented images are not independent data: the likelihood becomes an average over the variants of each image. "
        "Keep num_data=len(data), the number of original images; for the posterior given the original data use "
        "augment=()",
        stacklevel=4,
    )
