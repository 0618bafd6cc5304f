"""The networks of the paper, their priors, and the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import langevin as lv
from langevin.data import ImageDataset, ImageFolder, cifar10, digits, fashion_mnist, image_folder
from langevin.models import CifarResNet, CifarResNetPP, ResNet50, ResNetPP50
from langevin.models.resnet import ResidualBlock
from reproductions.layout import memory_format

if TYPE_CHECKING:
    from reproductions.heek2019.runs import Settings

COLOURED = ("cifar10", "imagenet", "noise")


def make_posterior(settings: Settings, method: str, seed: int) -> lv.Posterior:
    """ResNet++ with the paper's priors; for the methods with BatchNorm a ResNet, with weight decay or (ATMC) fan-in."""
    torch.manual_seed(seed)
    channels = 3 if settings.data in COLOURED else 1
    sizes: dict[str, Any] = {"width": settings.width, "num_classes": settings.classes, "in_channels": channels}
    imagenet = settings.depth == 50
    if "BatchNorm" in method:
        model: nn.Module = ResNet50(**sizes) if imagenet else CifarResNet(settings.depth, **sizes)
        with_xavier(model)
        decay = lv.priors.Gaussian((settings.weight_decay * settings.num_data) ** -0.5)
        prior = (
            lv.priors.PerParameter({"*norm*": lv.priors.Flat(), "*": decay})
            if method.startswith("SGD")
            else lv.priors.fan_in(model)
        )
    else:
        model = ResNetPP50(**sizes) if imagenet else CifarResNetPP(settings.depth, **sizes)
        if "dropout" in method:
            with_dropout(model, settings.dropout)
        prior = lv.priors.resnetpp()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device=device, memory_format=memory_format(settings.width))  # type: ignore[call-overload]
    return lv.Posterior(
        model, lv.likelihoods.Categorical(), prior, num_data=settings.num_data, allow=["batchnorm", "dropout"]
    )


def with_xavier(model: nn.Module) -> None:
    """Initialize the convolutions as Glorot & Bengio (2010) do."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)


def with_dropout(model: nn.Module, rate: float) -> None:
    """Put dropout before the last convolution of every residual branch, where wide residual networks have it."""
    for block in model.modules():
        if isinstance(block, ResidualBlock):
            block.units[-1] = nn.Sequential(nn.Dropout(rate), block.units[-1])


def training_data(settings: Settings) -> Any:
    """The training data: tensors, or a data set if it is augmented or on disk."""
    data = _read_data(settings, "train", settings.augment)
    if settings.augment or isinstance(data, ImageFolder):
        return data
    x, y = data.tensors
    return x.contiguous(memory_format=memory_format(settings.width)), y


def pieces(settings: Settings, split: str, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first so many images of a split (of ImageNet: spread over its classes) and labels, without augmentation."""
    data = _read_data(settings, split, ())
    chosen = torch.arange(size) * len(data) // size if isinstance(data, ImageFolder) else torch.arange(size)
    for rows in torch.split(chosen, 1000):
        x, y = data.read_batch(rows)
        yield x.contiguous(memory_format=memory_format(settings.width)), y


@cache
def _read_data(settings: Settings, split: str, augment: tuple[str, ...]) -> ImageDataset | ImageFolder:
    size, side = (settings.num_data if split == "train" else settings.test_size), settings.image_size
    if settings.data == "noise":  # synthetic, for tests
        generator = torch.Generator().manual_seed(len(split))
        pixels = torch.randint(256, (size, 3, side, side), generator=generator, dtype=torch.uint8)
        labels = torch.randint(settings.classes, (size,), generator=generator)
        return ImageDataset(pixels, labels, "cifar10", augment)
    if settings.data == "imagenet":
        if "LANGEVIN_DATA" not in os.environ:
            raise ValueError(
                "ImageNet is read from $LANGEVIN_DATA/imagenet/train/CLASS/*.JPEG and …/val/CLASS/*.JPEG; set "
                "LANGEVIN_DATA to the folder that contains imagenet/."
            )
        resize = round(side * 8 / 7)  # 256 for 224
        root = Path(os.environ["LANGEVIN_DATA"]) / "imagenet"
        return image_folder(root, split, image_size=side, resize=resize, augment=augment, size=size)
    if settings.data == "digits":
        small = digits(split)
        return ImageDataset(small.images[:size], small.labels[:size], "digits", augment, white=16)
    whole = {"cifar10": cifar10, "fashion-mnist": fashion_mnist}[settings.data](split, size=size)
    images = whole.images
    if images.shape[-1] != side:
        images = F.interpolate(images.float(), size=side, mode="area").round().to(torch.uint8)
    return ImageDataset(images, whole.labels, settings.data, augment)
