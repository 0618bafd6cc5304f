"""The data sets, read from synthetic files and, if LANGEVIN_DATA has them, from the published ones."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import langevin.data as data
from langevin.data import files
from langevin.data.mnist import read_idx

REAL = os.environ.get("LANGEVIN_DATA", "")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data directory; `put` writes a file there and registers its digest."""
    registry = dict(files._registry())

    def put(path: str, content: bytes) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
        registry[path] = (f"sha256:{hashlib.sha256(content).hexdigest()}",)

    monkeypatch.setattr(files, "_registry", lambda: registry)
    monkeypatch.setattr(files, "SOURCES", dict.fromkeys(files.SOURCES, ("http://127.0.0.1:9/",)))
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    monkeypatch.setenv("LANGEVIN_CACHE", str(tmp_path / "cache"))
    return put


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def put_mnist(folder, name="mnist", n=12):
    rng = np.random.default_rng(0)
    made = {}
    for prefix, size in (("train", n), ("t10k", n // 2)):
        images, labels = rng.integers(0, 256, (size, 28, 28)), rng.integers(0, 10, size)
        folder(f"{name}/{prefix}-images-idx3-ubyte.gz", idx(images))
        folder(f"{name}/{prefix}-labels-idx1-ubyte.gz", idx(labels))
        made["train" if prefix == "train" else "test"] = images, labels
    return made


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "notmnist"])
def test_the_mnist_family_is_read_from_idx_files(folder, name):
    made = put_mnist(folder, name)
    for split in ("train", "test") if name != "notmnist" else ("test",):
        images, labels = made[split]
        x, y = data.load(name, split, normalize="unit").tensors
        torch.testing.assert_close(x, torch.from_numpy(images / 255).float().unsqueeze(1))
        assert y.tolist() == labels.tolist()
        assert y.dtype == torch.int64
        assert len(data.load(name, split, size=5)) == 5
    own = data.load(name, "test").normalization
    assert own == (((0.2860,), (0.3530,)) if name == "fashion-mnist" else ((0.1307,), (0.3081,)))


def test_an_invalid_idx_file_is_refused(tmp_path):
    for content in (b"", b"\0\0\x0d\x01\0\0\0\x01\0", b"\0\0\x08\x01\0\0\0\x05abc"):
        (tmp_path / "file.gz").write_bytes(gzip.compress(content))
        with pytest.raises(ValueError, match="not an idx file"):
            read_idx(tmp_path / "file.gz")


def test_small_mnist_is_the_first_5000_to_train_on_and_all_to_test_on(folder):
    images, labels = put_mnist(folder, n=5_100)["train"]
    train = data.load("mnist-small")
    assert len(train) == 5_000
    assert torch.equal(train.images[:, 0], torch.from_numpy(images[:5_000]).to(torch.uint8))
    assert train.labels.tolist() == labels[:5_000].tolist()
    assert len(data.load("mnist-small", "test")) == 2_550


def test_projected_mnist_is_pixels_times_one_normal_matrix(folder):
    made = put_mnist(folder, n=2_000)
    train, test = (data.load("mnist-projected", split) for split in ("train", "test"))
    assert [len(train), len(test)] == [1_024, 1_000]
    pixels = [torch.from_numpy(made[s][0] / 255).flatten(1) for s in ("train", "test")]
    # 1,024 + 1,000 examples determine the 784 × 10 matrix: one standard normal matrix for both splits.
    both = torch.cat([pixels[0][:1_024], pixels[1]])
    outputs = torch.cat([train.tensors[0], test.tensors[0]]).double()
    matrix = torch.linalg.lstsq(both, outputs).solution
    torch.testing.assert_close(both @ matrix, outputs, rtol=1e-3, atol=1e-3)
    assert matrix.shape == (784, 10)
    assert abs(matrix.mean()) < 0.05
    assert abs(matrix.std() - 1) < 0.05
    assert train.tensors[1].tolist() == made["train"][1][:1_024].tolist()
    other = data.load("mnist-projected", size=7, features=3, seed=1).tensors[0]
    assert other.shape == (7, 3)
    assert not torch.allclose(other, train.tensors[0][:7, :3])


def cifar_files():
    rng = np.random.default_rng(0)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    return {name: rng.integers(0, 10, (3, 3073)).astype(np.uint8) for name in names}


@pytest.mark.parametrize("form", ["files", "archive"])
def test_cifar10_is_read_from_its_files_or_its_archive(folder, form):
    records = cifar_files()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, record in records.items():
            content = record.tobytes()
            folder(f"cifar10/cifar-10-batches-bin/{name}", content)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    if form == "archive":
        folder("cifar10/cifar-10-binary.tar.gz", stream.getvalue())
        for file in Path(os.environ["LANGEVIN_DATA"]).glob("cifar10/cifar-10-batches-bin/*"):
            file.unlink()
    for split in ("train", "test"):
        names = ["test_batch.bin"] if split == "test" else list(records)[:5]
        expected = np.concatenate([records[name] for name in names])
        read = data.load("cifar10", split)
        assert read.labels.tolist() == expected[:, 0].tolist()
        # A record is label, 1,024 red, 1,024 green, 1,024 blue, each row by row.
        assert read.images[2, 1, 3, 4] == expected[2, 1 + 1024 + 3 * 32 + 4]
        assert torch.equal(read.images.flatten(1), torch.from_numpy(expected[:, 1:]))
    assert len(data.load("cifar10", "train", size=4)) == 4


def test_a_changed_file_in_the_cifar_archive_is_refused(folder):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = 3073
        tar.addfile(member, io.BytesIO(bytes(3073)))
    folder("cifar10/cifar-10-binary.tar.gz", stream.getvalue())
    with pytest.raises(ValueError, match=r"test_batch\.bin in .* is not the published file"):
        data.load("cifar10", "test")


def test_mushroom_has_one_feature_for_each_category(folder):
    folder("mushroom/agaricus-lepiota.data", b"p,x,?\ne,y,b\ne,x,c\n")
    every = data.load("mushroom", "all")
    # Columns: x, y | ?, b, c.
    assert every.tensors[0].tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]
    assert every.tensors[1].tolist() == [1, 0, 0]


def test_mushroom_train_and_test_partition_the_rows(folder):
    folder("mushroom/agaricus-lepiota.data", "\n".join(f"p,{i // 91},{i % 91}" for i in range(8_124)).encode())
    parts = [data.load("mushroom", split).tensors[0] for split in ("train", "test")]
    assert [len(part) for part in parts] == [6_499, 1_625]
    assert len(torch.cat(parts).unique(dim=0)) == 8_124


@pytest.fixture
def yacht(folder):
    rng = np.random.default_rng(0)
    table = rng.normal(3, 2, (20, 4))
    table[:, 1] = 7.0  # a constant feature
    rows = {"train": [3, 1, 4, 15, 9, 2, 6], "test": [5, 8, 0]}
    text = "\n".join(" \t".join(map(repr, map(float, row))) + " " for row in table)
    folder("uci/yacht/data.txt", text.encode())
    folder("uci/yacht/index_features.txt", b"0\n1\n3\n")
    folder("uci/yacht/index_target.txt", b"2\n")
    for split, chosen in rows.items():
        folder(f"uci/yacht/index_{split}_7.txt", "\n".join(map(str, chosen)).encode())
    return table, rows


def test_uci_takes_rows_and_columns_from_the_index_files(yacht):
    table, rows = yacht
    for split in ("train", "test"):
        x, y = data.load("yacht", split, fold=7, standardize=False).tensors
        np.testing.assert_allclose(x, table[rows[split]][:, [0, 1, 3]], rtol=1e-6)
        np.testing.assert_allclose(y, table[rows[split]][:, [2]], rtol=1e-6)


def test_uci_is_standardized_by_the_training_part_and_can_be_undone(yacht):
    table, rows = yacht
    train, test = (data.load("yacht", split, fold=7) for split in ("train", "test"))
    torch.testing.assert_close(train.tensors[0].mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.tensors[0].std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(train.tensors[1].std(correction=0), torch.tensor(1.0))
    y = table[rows["train"]][:, 2]
    np.testing.assert_allclose(test.tensors[1][:, 0], (table[rows["test"]][:, 2] - y.mean()) / y.std(), rtol=1e-5)
    back = test.tensors[1] * test.target_std + test.target_mean
    np.testing.assert_allclose(back, table[rows["test"]][:, [2]], rtol=1e-5)
    back = test.tensors[0] * test.feature_std + test.feature_mean
    np.testing.assert_allclose(back, table[rows["test"]][:, [0, 1, 3]], rtol=1e-5)


def test_binary_logistic_labels_follow_omega_true():
    made = data.load("binary-logistic", size=20_000, omega_true=(2.0, -1.0, 0.0))
    x, y = made.tensors
    assert made.omega_true.tolist() == [2.0, -1.0, 0.0]
    assert set(y.tolist()) == {0, 1}
    # The score Σ (y − σ(ω·x)) x is zero on average at the true ω, with variance Σ σ(1 − σ) x².
    p = torch.sigmoid(x @ made.omega_true)
    score = ((y - p).unsqueeze(1) * x).sum(0) / ((p * (1 - p)).unsqueeze(1) * x**2).sum(0).sqrt()
    assert score.abs().max() < 4
    torch.testing.assert_close(torch.cov(x.T), torch.eye(3), atol=0.05, rtol=0)


def test_binary_logistic_is_reproducible_and_its_splits_differ():
    paper = data.load("binary-logistic", features=64)
    assert paper.tensors[0].shape == (1_000, 64)
    assert paper.omega_true.tolist() == [16.0] + [0.0] * 63
    assert torch.equal(paper.tensors[0], data.load("binary-logistic", features=64).tensors[0])
    for other in ({"split": "test"}, {"seed": 1}):
        assert not torch.equal(paper.tensors[0], data.load("binary-logistic", features=64, **other).tensors[0])
    state = torch.random.get_rng_state()
    data.load("binary-logistic")
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_split_of_digits_is_fixed_and_stratified():
    train, test = data.load("digits", "train"), data.load("digits", "test")
    assert [len(train), len(test)] == [1_437, 360]
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    every = sorted(
        (row.tobytes(), label) for row, label in zip(bunch.images.astype(np.uint8), bunch.target, strict=True)
    )
    parts = [
        (i.numpy().tobytes(), int(label)) for d in (train, test) for i, label in zip(d.images, d.labels, strict=True)
    ]
    assert sorted(parts) == every
    assert torch.bincount(test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    x = train.tensors[0]
    assert abs(x.mean()) < 1e-3
    assert abs(x.std() - 1) < 1e-3
    assert data.load("digits", normalize="unit").tensors[0].max() == 1
    # The split must never change unnoticed.
    assert hashlib.sha256(test.images.numpy().tobytes()).hexdigest()[:16] == "3cc232bd25364446"


@pytest.mark.parametrize(
    ("name", "options", "advice"),
    [
        ("minst", {}, "mnist"),
        ("mnist", {"split": "valid"}, 'split="train" or split="test"'),
        ("mnist", {"fold": 3}, "normalize"),
        ("mnist", {"size": 13}, "1 to 12"),
        ("mnist", {"size": 0}, "size=None"),
        ("mnist", {"normalize": "cifar10"}, "1 channels"),
        ("mnist-projected", {"features": 0}, "features=10"),
        ("notmnist", {}, 'split="test"'),
        ("digits", {"split": "all"}, 'split="test"'),
        ("cifar10", {"split": "all"}, 'split="test"'),
        ("mushroom", {"split": "valid"}, 'split="all"'),
        ("yacht", {"fold": 20}, "0 to 19"),
        ("yacht", {"split": "all"}, 'split="test"'),
        ("binary-logistic", {"features": 1}, "omega_true="),
        ("binary-logistic", {"size": 0}, "positive size"),
    ],
)
def test_bad_options_are_refused_with_the_corrected_call(folder, name, options, advice):
    put_mnist(folder)
    with pytest.raises(ValueError, match=advice):
        data.load(name, **options)


def test_an_unknown_uci_data_set_is_refused():
    with pytest.raises(ValueError, match='uci\\("yacht"\\)'):
        data.uci("boston")


def test_missing_data_raise_with_instructions(folder):
    for name in ("mnist", "cifar10", "mushroom", "yacht"):
        with pytest.raises(FileNotFoundError, match="set LANGEVIN_DATA=DIR"):
            data.load(name)


def test_importing_models_and_data_imports_nothing_heavy():
    script = "import sys, langevin.models, langevin.data; print([m for m in HEAVY if m in sys.modules])"
    script = f"HEAVY = ('sklearn', 'pooch', 'requests', 'matplotlib', 'scipy', 'PIL')\n{script}"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# Numbers of rows, shape of an input, number of classes or None, as published.
PUBLISHED = {
    "mnist": ((60_000, 10_000), (1, 28, 28), 10),
    "fashion-mnist": ((60_000, 10_000), (1, 28, 28), 10),
    "notmnist": ((None, 10_000), (1, 28, 28), 10),
    "cifar10": ((50_000, 10_000), (3, 32, 32), 10),
    "mushroom": ((6_499, 1_625), (117,), 2),
    "concrete": ((927, 103), (8,), None),
    "energy": ((691, 77), (8,), None),
    "power-plant": ((8_611, 957), (4,), None),
    "wine-quality-red": ((1_439, 160), (11,), None),
    "yacht": ((277, 31), (6,), None),
}
FIRST_FILE = {
    "cifar10": "cifar10/cifar-10-batches-bin/test_batch.bin",
    "mushroom": "mushroom/agaricus-lepiota.data",
    **{name: f"{name}/t10k-labels-idx1-ubyte.gz" for name in ("mnist", "fashion-mnist", "notmnist")},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_data_are_as_published(name):
    if not (Path(REAL) / FIRST_FILE.get(name, f"uci/{name}/data.txt")).exists() or not REAL:
        pytest.skip("LANGEVIN_DATA does not have it")
    sizes, shape, classes = PUBLISHED[name]
    for split, size in zip(("train", "test"), sizes, strict=True):
        if size is None:
            continue
        read = data.load(name, split)
        x, y = read.tensors if isinstance(read, TensorDataset) else (read[:100][0], read.labels)
        assert len(read) == size
        assert x.shape[1:] == shape
        assert x.dtype == torch.float32
        if classes:
            assert y.dtype == torch.int64
            assert y.unique().tolist() == list(range(classes))
        else:
            assert y.shape == (size, 1)
        if split == "train" and len(shape) == 3:
            mean, std = read.normalization
            pixels = read.images.double() / 255
            torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(mean).double(), atol=5e-5, rtol=0)
            torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(std).double(), atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name, (_, shape, _) in PUBLISHED.items() if len(shape) == 1][1:])
def test_the_published_splits_partition_the_rows(name):
    if not (Path(REAL) / f"uci/{name}/data.txt").exists() or not REAL:
        pytest.skip("LANGEVIN_DATA does not have it")
    rows = sum(len(data.load(name, split)) for split in ("train", "test"))
    for fold in (0, 19):
        parts = [np.loadtxt(files.fetch(f"uci/{name}/index_{s}_{fold}.txt")) for s in ("train", "test")]
        assert sorted(np.concatenate(parts).astype(int).tolist()) == list(range(rows))
