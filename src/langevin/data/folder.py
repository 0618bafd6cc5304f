"""Image folders with one folder per class, the standard layout of ImageNet. Images are decoded when read."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from langevin.core.arguments import validated, validated_init
from langevin.data.checks import check_size, check_split
from langevin.data.images import Normalization, augmentations, normalization

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
SMALLEST_AREA = 0.08
ASPECTS = (3 / 4, 4 / 3)  # width over height of a random crop

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge of a crop, in pixels of the image."""


@validated_init()
class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images in files; `data[i]` is (image, label), `read_batch` a whole batch.

    An image is read as RGB. Without "crop" it is center-cropped: as if resized to a shorter side of `resize` pixels,
    then cropped to `image_size`. With "crop" it is a crop of random area (8 to 100 % of the image), aspect (3:4 to
    4:3, log-uniform; a side longer than the image's is cut) and position, after Szegedy et al. (2015), "Going deeper
    with convolutions". "flip" is a horizontal flip with probability ½. Both draw five numbers per image from torch's
    global generator before any file is opened, so the result depends on the generator's seed (`langevin.sample` sets it
    from seed, chain and step) and not on `threads`.

    `files`: the paths. `labels`: int64, (N,). `classes`: class names, by label.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        classes: Sequence[str],
        *,
        image_size: int = 224,
        resize: int = 256,
        normalize: str | Normalization = "imagenet",
        augment: Sequence[str] = (),
        threads: int = 8,
    ) -> None:
        if not 1 <= image_size <= resize or threads < 1:
            raise ValueError(
                f"image_size={image_size}, resize={resize}, threads={threads}: expected positive numbers and an image "
                "no larger than resize, for example image_size=224, resize=256, threads=8"
            )
        self.files, self.labels, self.classes = list(files), labels, list(classes)
        self.image_size, self.resize, self.threads = image_size, resize, threads
        self.augment = augmentations(augment)
        mean, std = (torch.tensor(v, device="cpu").view(-1, 1, 1) for v in normalization(normalize, channels=3))
        self._scale, self._shift = 1.0 / (255 * std), -mean / std

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self.read_batch(torch.tensor([range(len(self))[index]], device="cpu"))
        return images[0], labels[0]

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch, decoded by several threads; called by `langevin.sample`."""
        chances = torch.rand(len(indices), 5, device="cpu").tolist() if self.augment else [None] * len(indices)
        files = [self.files[i] for i in indices.tolist()]
        with ThreadPoolExecutor(self.threads) as pool:
            images = torch.stack(list(pool.map(self._read, files, chances)))
        return images * self._scale + self._shift, self.labels[indices]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the examples of a list of indices, read at once; called by DataLoader."""
        images, labels = self.read_batch(torch.as_tensor(indices, device="cpu"))
        return list(zip(images, labels, strict=True))

    def __repr__(self) -> str:
        augmented = f", augmented by {' and '.join(self.augment)}" if self.augment else ""
        side = self.image_size
        return f"ImageFolder({len(self)} images of 3×{side}×{side}, {len(self.classes)} classes{augmented})"

    def _read(self, file: Path, chances: list[float] | None) -> Tensor:
        """The uint8 pixels of an image, (3, image_size, image_size)."""
        import numpy as np
        from PIL import Image, UnidentifiedImageError

        side = self.image_size
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"{file} can't be read as an image: {error}. Delete it or get it again") from None
        crops = chances is not None and "crop" in self.augment
        box = random_box(*image.size, *chances[:4]) if crops else centre_box(*image.size, side / self.resize)  # type: ignore[index]
        pixels = torch.from_numpy(np.array(image.resize((side, side), Image.Resampling.BILINEAR, box=box)))
        pixels = pixels.permute(2, 0, 1)
        flips = chances is not None and "flip" in self.augment and chances[4] < 0.5
        return pixels.flip(-1) if flips else pixels


def centre_box(width: int, height: int, share: float) -> Box:
    """The center square, with a side of this share of the image's shorter side."""
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, area: float, aspect: float, across: float, down: float) -> Box:
    """A rectangle of random area, aspect ratio and position, from four uniform numbers."""
    pixels = (SMALLEST_AREA + (1 - SMALLEST_AREA) * area) * width * height
    low, high = map(math.log, ASPECTS)
    ratio = math.exp(low + (high - low) * aspect)
    wide, tall = min(width, math.sqrt(pixels * ratio)), min(height, math.sqrt(pixels / ratio))
    left, top = across * (width - wide), down * (height - tall)
    return left, top, left + wide, top + tall


@validated()
def image_folder(
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    image_size: int = 224,
    resize: int = 256,
    normalize: str | Normalization = "imagenet",
    augment: Sequence[str] = (),
    threads: int = 8,
    size: int | None = None,
) -> ImageFolder:
    """Return the images of `path/train/CLASS/*` or, to test on, of `path/val/CLASS/*` (or `path/test/CLASS/*`).

    This is the common layout of ImageNet (ILSVRC2012). Labels number the class folders of the training part in
    alphabetical order, for both parts. `size` selects a number of images, evenly spaced. The other options are those
    of `ImageFolder`; `augment=("crop", "flip")` is the usual choice for training.
    """
    check_split(split)
    root = Path(path)
    train = root / "train"
    choices = [train] if split == "train" else [root / "val", root / "test"]
    part = next((choice for choice in choices if choice.is_dir()), None)
    if part is None:
        raise ValueError(
            f"{root} has no folder {' or '.join(choice.name for choice in choices)}: expected one folder per class in "
            f"{root / 'train'} and {root / 'val'}, for example {root / 'train' / 'n01440764' / 'n01440764_18.JPEG'}"
        )
    own = _class_names(part)
    classes = _class_names(train) if train.is_dir() else own
    if unknown := sorted(set(own) - set(classes)):
        raise ValueError(
            f"{part} has classes that {train} does not have: {', '.join(unknown[:5])}; expected the same folders"
        )
    label_of = {name: label for label, name in enumerate(classes)}
    found = [
        (file, label_of[name])
        for name in own
        for file in sorted((part / name).iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise ValueError(f"{part} has no image ({', '.join(SUFFIXES)}) in the folders of its {len(own)} classes")
    check_size(size, len(found))
    selected = found if size is None else [found[i * len(found) // size] for i in range(size)]
    return ImageFolder(
        [file for file, _ in selected],
        torch.tensor([label for _, label in selected], device="cpu"),
        classes,
        image_size=image_size,
        resize=resize,
        normalize=normalize,
        augment=augment,
        threads=threads,
    )


def _class_names(part: Path) -> list[str]:
    return sorted(entry.name for entry in part.iterdir() if entry.is_dir())
