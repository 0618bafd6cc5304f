"""The contract of `SampleStore`, as stated in the docstring of `langevin.storage.base`, for every kind."""

import math

import pytest
import torch

import langevin as lv
from langevin.storage.base import Checkpoint
from langevin.storage.directory import DirectoryStore
from langevin.storage.memory import MemoryStore, copy_store

TENSORS = {
    "w": {"shape": [3], "dtype": "float64"},
    "b": {"shape": [], "dtype": "float32"},
    "count": {"shape": [2], "dtype": "int64"},
}
KINDS = ["memory", "directory"]


@pytest.fixture
def make(tmp_path):
    """A factory of empty stores."""
    numbers = iter(range(100))

    def made(kind, **manifest):
        entries = {"tensors": TENSORS, **manifest}
        if kind == "memory":
            return MemoryStore(entries)
        return DirectoryStore.create(tmp_path / str(next(numbers)), entries)

    return made


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def store(make, kind):
    return make(kind)


def sample(value):
    return {
        "w": torch.full((3,), value, dtype=torch.float64),
        "b": torch.tensor(value),
        "count": torch.tensor([7, 2**40]),
    }


def values_in(store, chain=None):
    """(chain, step, first weight) of every sample."""
    return [(r.chain, r.step, float(store.read(r)["w"][0])) for r in store.records(chain)]


def checkpoint(step, value=None, **values):
    return Checkpoint(step, {"weights/w": torch.full((3,), float(step if value is None else value))}, values)


# samples


def test_read_returns_what_was_added(store):
    given = {
        "w": torch.tensor([1 / 3, -0.0, 1e-300], dtype=torch.float64),
        "b": torch.tensor(0.1),
        "count": torch.tensor([3, 2**60]),
    }
    store.add(2, 5, given, {"loss": 0.25, "temperature": math.nan})
    store.flush()
    (record,) = store.records()
    assert (record.chain, record.step) == (2, 5)
    assert record.stats.keys() == {"loss", "temperature"}
    assert record.stats["loss"] == 0.25
    assert math.isnan(record.stats["temperature"])
    found = store.read(record)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_after_flush_every_added_sample_has_a_record(store):
    for step in range(1, 6):
        store.add(0, step, sample(step), {})
    store.flush()
    assert [record.step for record in store.records()] == [1, 2, 3, 4, 5]
    assert store.saved() == 5
    assert store.buffered() == 0


def test_records_are_sorted_by_chain_and_step(store):
    for chain, step in ((1, 4), (0, 2), (1, 8), (0, 1), (3, 1), (0, 9)):
        store.add(chain, step, sample(10.0 * chain + step), {})
        if step == 8:
            store.flush()
    store.flush()
    assert values_in(store) == [(0, 1, 1), (0, 2, 2), (0, 9, 9), (1, 4, 14), (1, 8, 18), (3, 1, 31)]
    assert values_in(store, 1) == [(1, 4, 14), (1, 8, 18)]
    assert store.records(2) == []


@pytest.mark.parametrize("flushed", [True, False], ids=["saved", "buffered"])
def test_an_existing_step_is_not_overwritten(store, flushed):
    for step in (1, 2):
        store.add(0, step, sample(1.0), {"loss": 1.0})
    if flushed:
        store.flush()
    for step in (1, 2, 3):
        store.add(0, step, sample(2.0), {"loss": 2.0})
    store.flush()
    assert values_in(store) == [(0, 1, 1), (0, 2, 1), (0, 3, 2)]
    assert [record.stats["loss"] for record in store.records()] == [1.0, 1.0, 2.0]
    assert store.saved() == 3


@pytest.mark.parametrize("every", [1, 2, 10], ids=lambda n: f"flushed every {n}")
def test_keep_last_keeps_the_last_samples_of_each_chain(make, kind, every):
    store = make(kind, keep_last=3)
    for step in range(1, 11):
        for chain in (0, 1):
            store.add(chain, step, sample(step), {})
        if step % every == 0:
            store.flush()
    assert values_in(store) == [(chain, step, step) for chain in (0, 1) for step in (8, 9, 10)]
    store.add(0, 4, sample(99.0), {})  # a chain that repeats steps after resuming from an earlier checkpoint
    store.add(0, 9, sample(99.0), {})
    store.flush()
    assert values_in(store, 0) == [(0, 8, 8), (0, 9, 9), (0, 10, 10)]


def test_reading_a_sample_that_keep_last_removed_is_refused(make, kind):
    store = make(kind, keep_last=1)
    store.add(0, 1, sample(1.0), {})
    store.flush()
    (old,) = store.records()
    store.add(0, 2, sample(2.0), {})
    store.flush()
    with pytest.raises(lv.RunError, match=r"replaced by newer samples \(keep_last\)"):
        store.read(old)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(store, bad):
    store.add(0, 1, sample(1.0), {})
    for chain in (0, 1):
        with pytest.raises(FloatingPointError, match="b has a value that is not finite"):
            store.add(chain, 2, {**sample(2.0), "b": torch.tensor(bad)}, {})
    store.flush()
    assert values_in(store) == [(0, 1, 1)]


def test_samples_are_stored_in_sample_dtype(make, kind):
    full, half = make(kind), make(kind, sample_dtype="float16")
    third = sample(1 / 3)
    for store in (full, half):
        store.add(0, 1, third, {})
        store.flush()
    (record,) = half.records()
    found = half.read(record)
    assert found["w"].dtype == torch.float64
    assert torch.equal(found["w"], third["w"].half().double())
    assert torch.equal(found["count"], third["count"])  # integers are not converted
    assert (full.bytes_per_sample(), half.bytes_per_sample()) == (3 * 8 + 4 + 2 * 8, 3 * 2 + 2 + 2 * 8)
    with pytest.raises(lv.RunError, match="w has values beyond the range of float16; leave out sample_dtype"):
        half.add(0, 2, sample(1e5), {})


def test_stored_and_returned_tensors_are_copies(store):
    live = sample(0.0)
    for step in (1, 2):
        live["w"] += 1
        store.add(0, step, live, {})
    live["w"] += 1
    store.flush()
    store.read(store.records()[0])["w"].fill_(9.0)
    store.read_rows(store.records())["w"].fill_(9.0)
    assert values_in(store) == [(0, 1, 1), (0, 2, 2)]


def test_consecutive_records_are_read_as_a_stack(store):
    for step in range(1, 6):
        store.add(0, step, sample(step), {})
    store.flush()
    rows = store.read_rows(store.records()[1:4])
    assert rows["w"][:, 0].tolist() == [2, 3, 4]
    assert rows["w"].dtype == torch.float64
    assert rows["count"].shape == (3, 2)


# checkpoints


def test_a_checkpoint_replaces_the_previous_one(store):
    store.write_checkpoint({0: checkpoint(5, a=1), 1: checkpoint(5)})
    store.write_checkpoint({1: checkpoint(9, a=[1, {"b": None}])})
    store.write_checkpoint({0: checkpoint(7)})
    assert store.checkpoint_steps() == {0: 7, 1: 9}
    second, first = store.checkpoints([1, 0])
    assert (first.step, second.step) == (7, 9)
    assert first.values == {}
    assert second.values == {"a": [1, {"b": None}]}
    assert second.tensors.keys() == {"weights/w"}
    assert torch.equal(second.tensors["weights/w"], torch.full((3,), 9.0))


def test_a_checkpoint_flushes_samples_first(store):
    store.add(0, 1, sample(1.0), {})
    store.write_checkpoint({0: checkpoint(1)})
    assert store.saved() == 1
    assert store.buffered() == 0


def test_checkpoints_are_copies(store):
    live, values = checkpoint(5), {"groups": [{"lr": 0.1}]}
    store.write_checkpoint({0: Checkpoint(5, live.tensors, values)})
    live.tensors["weights/w"].fill_(1.0)
    values["groups"][0]["lr"] = 0.2
    (read,) = store.checkpoints([0])
    read.tensors["weights/w"].fill_(2.0)
    read.values["groups"][0]["lr"] = 0.3
    (again,) = store.checkpoints([0])
    assert torch.equal(again.tensors["weights/w"], torch.full((3,), 5.0))
    assert again.values == {"groups": [{"lr": 0.1}]}


def test_dropping_a_checkpoint_keeps_the_others(store):
    store.write_checkpoint({0: checkpoint(5), 1: checkpoint(5), 2: checkpoint(5, 50)})
    store.write_checkpoint({0: checkpoint(9)})
    store.drop_checkpoints([1])
    assert store.checkpoint_steps() == {0: 9, 2: 5}
    assert [float(c.tensors["weights/w"][0]) for c in store.checkpoints([0, 2])] == [9, 50]
    store.write_checkpoint({1: checkpoint(0, 10)})
    assert [float(c.tensors["weights/w"][0]) for c in store.checkpoints([0, 1, 2])] == [9, 10, 50]
    store.drop_checkpoints([0, 1, 2])
    assert store.checkpoint_steps() == {}


# other tensors, locks, copies


def test_fixed_tensors_are_stored_by_name(store):
    live = torch.arange(4)
    store.write_fixed({"mask": live})
    store.write_fixed({"mean": torch.zeros(2)}, "statistics")
    live += 1
    assert torch.equal(store.fixed()["mask"], torch.arange(4))
    assert store.fixed("statistics").keys() == {"mean"}
    with pytest.raises(lv.RunError, match="other"):
        store.fixed("other")


def test_a_store_can_be_written_while_it_is_locked(store):
    with store.writing([0]):
        store.add(0, 1, sample(1.0), {})
        store.heartbeat([0], 1)
        store.flush()
        store.write_manifest()
    store.refresh()
    assert values_in(store) == [(0, 1, 1)]
    assert store.corrupted == {}
    assert store.missing == []
    assert store.free_bytes() > 0
    assert (store.path is None) == isinstance(store, MemoryStore)
    assert store.name


@pytest.mark.parametrize("target", KINDS)
def test_a_copy_of_a_store_is_complete(make, kind, target):
    entries = {"keep_last": 4, "sample_dtype": "bfloat16", "tags": {"a": [1]}}
    source, copied = make(kind, **entries), make(target, **entries)
    for chain in (0, 2):
        for step in range(1, 8):
            source.add(chain, step, sample(step / 3), {"loss": float(step)})
    source.write_fixed({"mask": torch.arange(4)})
    source.write_fixed({"mean": torch.zeros(2)}, "statistics")
    source.write_checkpoint({0: checkpoint(7, a=1), 2: checkpoint(7, a=2)})
    source.write_checkpoint({0: checkpoint(8, a=3)})
    copy_store(source, copied)
    assert values_in(copied) == values_in(source)
    assert len(values_in(copied)) == 8
    assert [r.stats for r in copied.records()] == [r.stats for r in source.records()]
    assert torch.equal(copied.fixed()["mask"], torch.arange(4))
    assert copied.fixed("statistics").keys() == {"mean"}
    assert copied.checkpoint_steps() == {0: 8, 2: 7}
    assert [c.values["a"] for c in copied.checkpoints([0, 2])] == [3, 2]
