"""Images: uint8 in, normalized floats out, one example or a batch; augmentation that warns about the likelihood."""

import pickle
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from langevin.data import ImageDataset, images


@pytest.fixture(autouse=True)
def _seeded():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images._warn_of_augmentation.cache_clear()


def random_images(n=6, channels=3, size=10):
    # The pixels of a channel are distinct and not 0, so that a shift or a flip can be recognized.
    pixels = torch.stack([torch.randperm(255)[: size * size] + 1 for _ in range(n * channels)])
    return pixels.view(n, channels, size, size).to(torch.uint8), torch.arange(n)


def test_pixels_are_normalized_per_channel_when_read():
    x, y = random_images()
    mean, std = (0.1, 0.2, 0.3), (0.5, 2.0, 1.0)
    data = ImageDataset(x, y, (mean, std), white=16)
    image, label = data[4]
    for channel in range(3):
        expected = (x[4, channel].double() / 16 - mean[channel]) / std[channel]
        torch.testing.assert_close(image[channel].double(), expected, rtol=1e-5, atol=1e-5)
    assert image.dtype == torch.float32
    assert label == 4
    assert data.images.dtype == torch.uint8
    assert data.images.data_ptr() == x.data_ptr()


def test_unit_normalization_is_zero_to_one():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    torch.testing.assert_close(ImageDataset(x, torch.zeros(1))[0][0].flatten(), torch.tensor([0.0, 0.2, 1.0]))


def test_all_ways_of_reading_agree():
    x, y = random_images()
    data = ImageDataset(x, y)
    everything, labels = data.tensors
    rows = [5, 0, 3]
    for index in (rows, torch.tensor(rows)):
        batch, batch_labels = data[index]
        assert torch.equal(batch, everything[rows])
        assert torch.equal(batch_labels, labels[rows])
    assert torch.equal(data[2:4][0], everything[2:4])
    assert torch.equal(data[-1][0], everything[-1])
    for (image, label), row in zip(data.__getitems__(rows), rows, strict=True):
        assert torch.equal(image, everything[row])
        assert label == row
    loaded = [torch.cat(parts) for parts in zip(*DataLoader(data, batch_size=4), strict=True)]
    assert torch.equal(loaded[0], everything)
    assert torch.equal(loaded[1], labels)
    assert len(data) == 6
    assert torch.equal(pickle.loads(pickle.dumps(data)).tensors[0], everything)


def variants(image, crop, flip):
    """All possible augmentations of an image, (number, channels, height, width)."""
    size = image.shape[-1]
    padded = torch.zeros(image.shape[0], size + 8, size + 8, dtype=torch.uint8)
    padded[:, 4:-4, 4:-4] = image
    shifts = range(9) if crop else [4]
    made = [padded[:, i : i + size, j : j + size] for i in shifts for j in shifts]
    return torch.stack(made + [m.flip(-1) for m in made] if flip else made)


@pytest.mark.parametrize("augment", [("crop",), ("flip",), ("crop", "flip")])
def test_augmentation_is_uniform_over_the_variants(augment):
    x, y = random_images(n=3)
    with pytest.warns(UserWarning, match="not independent"):
        data = ImageDataset(x, y, augment=augment)
    for row in range(3):
        allowed = variants(x[row], "crop" in augment, "flip" in augment).flatten(1)
        n = 20 * len(allowed)
        batch, labels = data[torch.full((n,), row)]
        assert (labels == row).all()
        read = (batch * 255).round().to(torch.uint8).flatten(1)
        matches = (read.unsqueeze(1) == allowed).all(2)
        assert (matches.sum(1) == 1).all()
        counts = matches.sum(0).float()
        chi2 = ((counts - 20) ** 2 / 20).sum()
        k = len(allowed) - 1
        assert chi2 < k + 5 * (2 * k) ** 0.5 + 5


def test_augmentation_draws_from_the_global_generator_of_torch_only():
    x, y = random_images()
    with pytest.warns(UserWarning, match="not independent"):
        data = ImageDataset(x, y, augment=("crop", "flip"))
    torch.manual_seed(3)
    first = data[[0, 1, 2]][0]
    again = data[[0, 1, 2]][0]
    torch.manual_seed(3)
    assert torch.equal(data[[0, 1, 2]][0], first)
    assert not torch.equal(first, again)
    torch.manual_seed(4)
    one = data[0][0]
    torch.manual_seed(4)
    assert torch.equal(one, data[[0]][0][0])
    assert one.shape == (3, 10, 10)


def test_augmentation_warns_once_and_does_not_change_the_number_of_data():
    x, y = random_images()
    with pytest.warns(UserWarning, match=r"num_data=len\(data\)") as caught:
        data = [ImageDataset(x, y, augment=("flip",)) for _ in range(2)]
    assert len(caught) == 1
    assert len(data[0]) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageDataset(x, y)


def test_augmented_data_have_no_tensors():
    x, y = random_images()
    with pytest.warns(UserWarning, match="not independent"):
        data = ImageDataset(x, y, augment=("flip",))
    assert not hasattr(data, "tensors")
    with pytest.raises(AttributeError, match=r"augment=\(\)"):
        data.tensors  # noqa: B018


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"normalize": "svhn"}, "expected one of unit, digits, mnist"),
        ({"normalize": ((0.5, 0.5), (1.0, 1.0))}, "each of 3 channels"),
        ({"normalize": ((0.5,), (0.0,))}, "std positive"),
        ({"normalize": 0.5}, r"pair \(mean, std\)"),
        ({"augment": "crop"}, r'augment=\("crop", "flip"\)'),
        ({"augment": ("rotate",)}, r'augment=\("crop", "flip"\)'),
    ],
)
def test_bad_options_are_refused_with_the_corrected_call(options, advice):
    with pytest.raises(ValueError, match=advice):
        ImageDataset(*random_images(), **options)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.zeros(3, 1, 8, 8), torch.zeros(3)),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3)),
        (torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(4)),
    ],
)
def test_tensors_that_are_not_images_are_refused(x, y):
    with pytest.raises(ValueError, match="expected uint8 images"):
        ImageDataset(x, y)
