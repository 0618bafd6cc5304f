"""MNIST and related data sets: Fashion-MNIST, notMNIST, small-MNIST, MNIST projected to a few features."""

import gzip
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from langevin.core.arguments import validated
from langevin.data.checks import check_size, check_split
from langevin.data.files import fetch
from langevin.data.images import ImageDataset, Normalization


@validated()
def mnist(
    split: str = "train",
    normalize: str | Normalization = "mnist",
    augment: Sequence[str] = (),
    size: int | None = None,
) -> ImageDataset:
    """Return MNIST: 60,000 images to train on or 10,000 to test on, (1, 28, 28), 10 classes.

    LeCun, Bottou, Bengio & Haffner (1998), "Gradient-based learning applied to document recognition". `size` selects
    the first images. `normalize` and `augment` are those of `ImageDataset`.
    """
    return _load("mnist", split, normalize, augment, size)


@validated()
def fashion_mnist(
    split: str = "train",
    normalize: str | Normalization = "fashion-mnist",
    augment: Sequence[str] = (),
    size: int | None = None,
) -> ImageDataset:
    """Return Fashion-MNIST: 60,000 images to train on or 10,000 to test on, (1, 28, 28), 10 classes.

    Xiao, Rasul & Vollgraf (2017), "Fashion-MNIST". As OOD inputs of a model trained on MNIST: `normalize="mnist"`.
    """
    return _load("fashion-mnist", split, normalize, augment, size)


@validated()
def notmnist(split: str = "test", normalize: str | Normalization = "mnist", size: int | None = None) -> ImageDataset:
    """Return notMNIST: 10,000 letters A to J in many fonts to test on, (1, 28, 28), 10 classes, shuffled.

    Bulatov (2011). It serves as OOD inputs of models trained on MNIST, so there is no training part and the
    normalization is that of MNIST.
    """
    check_split(split, "test")
    return _load("notmnist", split, normalize, (), size)


@validated()
def small_mnist(
    split: str = "train", normalize: str | Normalization = "mnist", augment: Sequence[str] = ()
) -> ImageDataset:
    """Return small-MNIST: the first 5,000 images of MNIST to train on, all 10,000 to test on.

    Palacci & Hess (2018), "Scalable natural gradient Langevin dynamics in practice", section 4.3.
    """
    return mnist(split, normalize, augment, size=5_000 if split == "train" else None)


@validated()
def projected_mnist(split: str = "train", size: int | None = None, features: int = 10, seed: int = 0) -> TensorDataset:
    """Return MNIST projected to a few features: inputs (features,), 10 classes.

    Smith, Duckworth, Le et al. (2018), "Stochastic natural gradient descent draws posterior samples in function
    space", section 6.3: the 784 pixels, from 0 to 1, times a standard normal matrix (from `seed`, the same for both
    splits). `size` selects the first examples; by default 1,024 to train on, as in the paper, and all to test on.
    """
    if features < 1:
        raise ValueError(f"features={features}: expected a positive integer, for example features=10")
    images, labels = mnist(split, "unit", size=1024 if size is None and split == "train" else size).tensors
    projection = torch.randn(28 * 28, features, generator=torch.Generator().manual_seed(seed), device="cpu")
    return TensorDataset(images.flatten(1) @ projection, labels)


def _load(
    folder: str, split: str, normalize: str | Normalization, augment: Sequence[str], size: int | None
) -> ImageDataset:
    check_split(split)
    prefix = "train" if split == "train" else "t10k"
    images = read_idx(fetch(f"{folder}/{prefix}-images-idx3-ubyte.gz"))
    labels = read_idx(fetch(f"{folder}/{prefix}-labels-idx1-ubyte.gz"))
    check_size(size, len(labels))
    return ImageDataset(images[:size].unsqueeze(1), labels[:size].long(), normalize, augment)


def read_idx(file: Path) -> Tensor:
    """Return the uint8 tensor of a gzipped idx file.

    The header is two zero bytes, the type (8: unsigned byte), the number of dimensions, and each dimension as a
    big-endian 32-bit integer.
    """
    content = bytearray(gzip.decompress(file.read_bytes()))
    dimensions = content[3] if content[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if not shape or len(content) != start + math.prod(shape):
        raise ValueError(f"{file} is not an idx file of unsigned bytes; delete it to download it again")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(shape)
