"""Labelled images, held once as bytes and normalized when they are read."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel, of pixels on the scale of 0 to 1."""

UNIT: Normalization = ((0.0,), (1.0,))


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images; pixel value v is read as (v / white − mean) / std, by channel.

    `images`: uint8, (N, channels, height, width). `labels`: int64, (N,). `white` is the byte that means 1.0.
    `data[i]` is one example, (image, label); a slice, a list or a tensor of indices gives a whole batch at once.
    `.tensors` is everything, normalized. Both tensors of bytes are at hand as `.images` and `.labels`.

    >>> data = ImageDataset(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5))
    >>> data[torch.tensor([0, 3])][0].shape
    torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        normalization: Normalization = UNIT,
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
        self.normalization = normalization
        mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in normalization)
        self._scale = 1.0 / (white * std)
        self._shift = -mean / std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        return self.images[index] * self._scale + self._shift, self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the examples of a list of indices, read at once: what a DataLoader calls."""
        images, labels = self[torch.as_tensor(indices)]
        return list(zip(images, labels, strict=True))

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images, normalized to float32, and all labels."""
        return self[:]

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.images.shape[1:]))
        return f"ImageDataset({len(self)} images of {shape})"


def normalization_named(normalize: Any, own: Normalization) -> Normalization:
    """Return the normalization that `normalize` means; "standard" is `own`."""
    if normalize == "standard":
        return own
    if normalize == "unit":
        return UNIT
    return normalize  # type: ignore[no-any-return]
