"""Image folders: pixels, crops, and augmentation as a function of (seed, chain, step)."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import langevin as lv
from langevin.core.batches import as_batches
from langevin.data import folder, image_folder, images


@pytest.fixture(autouse=True)
def _no_warning_of_augmentation():
    images._warn_of_augmentation.cache_clear()
    images.warnings.filterwarnings("ignore", message="augmented images")
    yield
    images._warn_of_augmentation.cache_clear()


def photograph(width, height, seed):
    """A smooth image, so that JPEG hardly changes it, with different channels."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(rng.uniform(2, 5) * (a * across / width + b * down / height) + rng.uniform(0, 6))
             for a, b in ((1, 0), (0, 1), (1, 1))]  # fmt: skip
    return np.stack(waves, -1).round().astype(np.uint8)


@pytest.fixture
def root(tmp_path):
    """Three classes of JPEG and PNG images of several shapes, one grey; a test part without the second class."""
    shapes = [(40, 30), (30, 40), (32, 32), (50, 34)]
    for part, classes in (("train", "abc"), ("val", "ac")):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            for i, shape in enumerate(shapes):
                suffix = "JPEG" if i % 2 else "png"
                image = Image.fromarray(photograph(*shape, seed=ord(name) + i))
                image.save(tmp_path / part / name / f"{i}.{suffix}", **({"quality": 98} if i % 2 else {}))
            (tmp_path / part / name / "notes.txt").write_text("not an image")
    grey = Image.fromarray(photograph(32, 32, seed=1)[..., 0])
    grey.save(tmp_path / "train" / "b" / "2.png")
    return tmp_path


small = {"image_size": 16, "resize": 20}


def test_files_classes_and_labels(root):
    train, test = image_folder(root), image_folder(root, "test")
    assert train.classes == test.classes == ["a", "b", "c"]
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [0] * 4 + [2] * 4  # the label of "c" does not depend on the test part
    assert [file.name for file in train.files[:4]] == ["0.png", "1.JPEG", "2.png", "3.JPEG"]
    assert len(image_folder(root, size=3)) == 3
    assert image_folder(root, size=3).labels.tolist() == [0, 1, 2]
    assert repr(train) == "ImageFolder(12 images of 3×224×224, 3 classes)"
    image, label = train[5]
    assert image.shape == (3, 224, 224)
    assert image.dtype == torch.float32
    assert label == 1
    (root / "val").rename(root / "test")
    assert len(image_folder(root, "test")) == 8


def test_the_center_crop_is_that_of_resizing_first(root):
    data = image_folder(root, normalize="unit", **small)
    for index, file in enumerate(data.files):
        image = Image.open(file).convert("RGB")
        scale = 20 / min(image.size)
        resized = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (resized.width - 16) / 2, (resized.height - 16) / 2
        expected = np.asarray(resized)[round(top) : round(top) + 16, round(left) : round(left) + 16] / 255
        difference = data[index][0] - torch.from_numpy(expected).permute(2, 0, 1).float()
        assert difference.abs().mean() < 0.03  # resizing first rounds sizes and positions to whole pixels
        assert difference.abs().max() < 0.12


def test_pixels_are_exact_without_resizing_and_normalized_per_channel(root):
    pixels = photograph(32, 32, seed=ord("a") + 2)
    data = image_folder(root, image_size=32, resize=32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (torch.from_numpy(pixels / 255).float() - mean) / std
    torch.testing.assert_close(data[2][0], expected.permute(2, 0, 1), rtol=1e-5, atol=1e-5)


def test_grey_images_have_three_equal_channels(root):
    image, _ = image_folder(root, normalize="unit", **small)[6]
    assert torch.equal(image[0], image[1])
    assert torch.equal(image[0], image[2])


def test_all_ways_of_reading_agree(root):
    data = image_folder(root, **small)
    x, y = data.read_batch(torch.tensor([7, 0, 3]))
    for place, index in enumerate([7, 0, 3]):
        assert torch.equal(data[index][0], x[place])
        assert data[index][1] == y[place]
    assert torch.equal(data[-1][0], data[11][0])
    with pytest.raises(IndexError):
        data[12]
    loaded = [torch.cat(parts) for parts in zip(*DataLoader(data, batch_size=5), strict=True)]
    assert torch.equal(loaded[0], data.read_batch(torch.arange(12))[0])


def test_augmented_batches_depend_on_seed_chain_and_step_and_not_on_threads(root):
    cpu = torch.device("cpu")
    one = as_batches(image_folder(root, augment=("crop", "flip"), threads=1, **small), 6, 0, cpu)
    many = as_batches(image_folder(root, augment=("crop", "flip"), threads=4, **small), 6, 0, cpu)
    first = one.fetch(chain=1, step=5)
    for chain, step, same in ((1, 5, True), (1, 6, False), (0, 5, False)):
        torch.rand(3)  # other draws from the generator do not matter
        assert torch.equal(many.fetch(chain, step)[0], first[0]) is same
    take = many.take(torch.tensor([0]))[0]
    assert not torch.equal(take, many.take(torch.tensor([0]))[0])


def test_flips_have_probability_one_half(root):
    data = image_folder(root, augment=("flip",), **small)
    plain = image_folder(root, **small)[0][0]
    read = data.read_batch(torch.zeros(400, dtype=torch.long))[0]
    flipped = (read == plain.flip(-1)).flatten(1).all(1)
    assert (flipped | (read == plain).flatten(1).all(1)).all()
    assert abs(int(flipped.sum()) - 200) < 5 * math.sqrt(100)


def test_random_boxes_are_inside_with_the_specified_area_and_aspect():
    torch.manual_seed(0)
    chances = torch.rand(20_000, 4).tolist()
    boxes = torch.tensor([folder.random_box(400, 300, *chance) for chance in chances])
    left, top, right, bottom = boxes.T
    assert ((left >= 0) & (top >= 0) & (right <= 400 + 1e-3) & (bottom <= 300 + 1e-3)).all()
    wide, tall = right - left, bottom - top
    whole = (wide < 400 - 1e-3) & (tall < 300 - 1e-3)  # not cut to the image
    area, ratio = (wide * tall / 120_000)[whole], (wide / tall)[whole]
    assert 0.08 - 1e-4 <= area.min() < 0.085
    assert 0.75 - 1e-4 <= ratio.min() < 0.76
    assert 4 / 3 - 0.01 < ratio.max() <= 4 / 3 + 1e-4
    small_ones = torch.tensor([c[0] < 0.5 for c in chances])  # up to 54 % of the area: none of them is cut
    assert whole[small_ones].all()
    drawn = (wide * tall / 120_000)[small_ones]
    assert abs(drawn.mean() - 0.31) < 5 * (0.46 / math.sqrt(12)) / math.sqrt(len(drawn))  # uniform from 0.08 to 0.54
    across, down = (left / (400 - wide))[whole], (top / (300 - tall))[whole]
    for place in (across, down):
        assert abs(place.mean() - 0.5) < 5 / math.sqrt(12 * len(place))
    assert abs(torch.corrcoef(torch.stack([across, down]))[0, 1]) < 5 / math.sqrt(len(across))
    side = math.sqrt(400 * 300)  # of a square with the image's area, which is too tall and is cut
    left = 0.3 * (400 - side)
    assert folder.random_box(400, 300, 1.0, 0.5, 0.3, 0.7) == pytest.approx((left, 0, left + side, 300))


def test_a_crop_contains_the_pixels_of_its_box(root):
    """A crop of the upper left quarter."""
    data = image_folder(root, augment=("crop",), normalize="unit", image_size=16, resize=16)
    area = (0.25 - folder.SMALLEST_AREA) / (1 - folder.SMALLEST_AREA)
    read = data._read(data.files[2], [area, 0.5, 0.0, 0.0, 0.9])
    expected = torch.from_numpy(photograph(32, 32, seed=ord("a") + 2)[:16, :16]).permute(2, 0, 1)
    assert torch.equal(read, expected)


def test_sampling_with_an_image_folder(root):
    data = image_folder(root, augment=("crop", "flip"), **small)
    model = lv.models.CifarResNetPP(8, 2, num_classes=3)
    posterior = lv.Posterior(model, lv.likelihoods.Categorical(), lv.priors.resnetpp(), num_data=len(data))
    options = {"steps": 3, "burn_in": 0, "thin": 1, "batch_size": 4, "progress": False}
    runs = [lv.sample(posterior, data, partial(lv.ATMC, lr=1e-3), **options) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][-1].values(), runs[1][-1].values(), strict=True))


def test_bad_input(root, tmp_path):
    for options, words in (
        ({"split": "val"}, 'expected split="train" or split="test"'),
        ({"size": 13}, "1 to 12"),
        ({"image_size": 30, "resize": 20}, "no larger than resize"),
        ({"threads": 0}, "threads=8"),
        ({"augment": "crop"}, "augment must be a sequence of strings; given augment='crop'"),
        ({"normalize": "grey"}, "expected one of unit"),
    ):
        with pytest.raises(ValueError, match=words):
            image_folder(root, **options)
    with pytest.raises(ValueError, match="has no folder train"):
        image_folder(root / "train")
    (root / "val" / "d").mkdir()
    with pytest.raises(ValueError, match="classes that .* does not have: d"):
        image_folder(root, "test")
    (root / "train" / "a" / "0.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match="0.png can't be read as an image"):
        image_folder(root)[0]
    (tmp_path / "empty" / "train" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no image"):
        image_folder(tmp_path / "empty")
