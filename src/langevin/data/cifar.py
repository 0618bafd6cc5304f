"""CIFAR-10, from its binary version."""

import hashlib
import tarfile
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from langevin.core.arguments import validated
from langevin.data.checks import check_size, check_split
from langevin.data.files import digests, fetch, find
from langevin.data.images import ImageDataset, Normalization

FOLDER = "cifar10/cifar-10-batches-bin/"
ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


@validated()
def cifar10(
    split: str = "train",
    normalize: str | Normalization = "cifar10",
    augment: Sequence[str] = (),
    size: int | None = None,
) -> ImageDataset:
    """Return CIFAR-10: 50,000 images to train on or 10,000 to test on, (3, 32, 32), 10 classes.

    Krizhevsky (2009), "Learning multiple layers of features from tiny images". `size` selects the first images.
    `normalize` and `augment` are those of `ImageDataset`; `augment=("crop", "flip")` is the usual choice.
    """
    check_split(split)
    records = np.concatenate([np.frombuffer(b, np.uint8).reshape(-1, 1 + 3 * 32 * 32) for b in _batches(FILES[split])])
    check_size(size, len(records))
    table = torch.from_numpy(records[:size])  # one record: the label, then the red, green and blue planes
    return ImageDataset(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long(), normalize, augment)


def _batches(names: list[str]) -> Iterator[bytes]:
    """Yield the contents of these files, extracted or from the archive."""
    files = [find(FOLDER + name) for name in names]
    found = [file for file in files if file is not None]
    if len(found) == len(names):
        yield from (file.read_bytes() for file in found)
        return
    archive = fetch(ARCHIVE)
    with tarfile.open(archive) as tar:
        for name in names:
            member = tar.extractfile(f"cifar-10-batches-bin/{name}")
            content = member.read() if member else b""
            if f"sha256:{hashlib.sha256(content).hexdigest()}" not in digests(FOLDER + name):
                raise ValueError(f"{name} in {archive} is not the published file; delete {archive} to fetch it again")
            yield content
