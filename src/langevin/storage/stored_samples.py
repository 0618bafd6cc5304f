"""Stored samples as a sequence: read when they are needed, checked to be finite, with the recorded statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import overload

from torch import Tensor

from langevin.core.parameters import all_finite
from langevin.errors import NonFiniteSampleError
from langevin.storage.base import Record, SampleStore

Weights = dict[str, Tensor]
_CACHED = 1 << 22  # numbers in all samples together, up to which they are kept in memory
_STACKED = 1 << 24  # numbers in a stack of samples


class StoredSamples(Sequence[Weights]):
    """Some samples of a store, chain after chain; `samples[0]` maps names to tensors, a slice is of the same kind.

    A sample with a number that is not finite is found when it is read, and left out with a warning.
    """

    def __init__(
        self,
        store: SampleStore,
        records: Sequence[Record] | None = None,
        *,
        excluded: dict[tuple[int, int], str] | None = None,
    ) -> None:
        self.store = store
        self._all = list(store.records() if records is None else records)
        self._cache: tuple[int, list[Weights]] | None = None
        self._finite: set[tuple[int, int]] = set()  # (chain, step) of samples that were looked at
        self._excluded = {} if excluded is None else excluded  # (chain, step) of samples that are not finite, and why

    @property
    def records(self) -> list[Record]:
        """The samples that count."""
        return [r for r in self._all if (r.chain, r.step) not in self._excluded] if self._excluded else self._all

    @property
    def chains(self) -> list[int]:
        """The numbers of the chains that have samples."""
        return sorted({record.chain for record in self.records})

    @property
    def steps(self) -> list[int]:
        """The step at which each sample was taken."""
        return [record.step for record in self.records]

    @property
    def corrupted(self) -> dict[str, str]:
        """Files, and samples in them, that are not usable, and why."""
        found = {str(path): why for path, why in self.store.corrupted.items()}
        for record in self._all:
            if why := self._excluded.get((record.chain, record.step)):
                where = str(record.path or self.store.name)
                found[where] = f"{found[where]}; {why}" if where in found else why
        return found

    @property
    def traces(self) -> list[str]:
        """The names that `trace` knows."""
        return list(dict.fromkeys(name for record in self.records for name in record.stats))

    def trace(self, name: str) -> dict[int, list[float]]:
        """What was recorded with the samples of each chain; nan where nothing was."""
        records = self.records
        if records and not any(name in record.stats for record in records):
            raise ValueError(f"{name!r} was not recorded in this run; there are {self.traces}.")
        found: dict[int, list[float]] = {chain: [] for chain in self.chains}
        for record in records:
            found[record.chain].append(record.stats.get(name, math.nan))
        return found

    def of_chain(self, number: int) -> StoredSamples:
        """Those of one chain."""
        if number not in self.chains:
            raise IndexError(f"The run has the chains {self.chains}, not {number}.")
        return self._some([record for record in self.records if record.chain == number])

    def where(self, chosen: Callable[[Record], bool]) -> StoredSamples:
        """Those whose records are chosen."""
        return self._some([record for record in self.records if chosen(record)])

    def _some(self, records: list[Record]) -> StoredSamples:
        return StoredSamples(self.store, records, excluded=self._excluded)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Weights: ...

    @overload
    def __getitem__(self, index: slice) -> StoredSamples: ...

    def __getitem__(self, index: int | slice) -> Weights | StoredSamples:
        if isinstance(index, slice):
            return self._some(self.records[index])
        return self._read(self.records[index])

    def __iter__(self) -> Iterator[Weights]:
        for stack in self.stacks(64):
            for row in range(len(next(iter(stack.values())))):
                yield {name: tensor[row].clone() for name, tensor in stack.items()}

    def stacks(self, size: int) -> Iterator[Weights]:
        """All samples, up to `size` at a time, stacked along a first axis; faster than one by one.

        Few samples of a small network are read once and kept in memory; of a large one fewer are stacked.
        """
        numbers = max(1, sum(math.prod(spec["shape"]) for spec in self.store.manifest["tensors"].values()))
        size = max(1, min(size, _STACKED // numbers))
        if numbers * len(self) > _CACHED:
            yield from self._read_stacks(size)
            return
        cache = self._cache  # another thread may replace it
        if cache is None or cache[0] != size:
            cache = self._cache = size, list(self._read_stacks(size))
        yield from cache[1]

    def check(self) -> dict[str, str]:
        """Read every sample once, so that those with NaN or infinity are left out; what is corrupted."""
        for _ in self.stacks(4096):
            pass
        return self.corrupted

    def _read_stacks(self, size: int) -> Iterator[Weights]:
        records, start = self.records, 0
        while start < len(records):
            first, count = records[start], 1
            for record in islice(records, start + 1, start + size):
                same = record.path is first.path or record.path == first.path  # to compare paths takes longer
                if not same or record.chain != first.chain or record.row != first.row + count:
                    break
                count += 1
            some = records[start : start + count]
            start += count
            stack, places = self.store.read_rows(some), {(r.chain, r.step) for r in some}
            if places <= self._finite or all(map(all_finite, stack.values())):
                self._finite |= places
                yield stack
            else:
                yield from ({name: t[None] for name, t in s.items()} for s in self._each(some))

    def _each(self, records: list[Record]) -> Iterator[Weights]:
        for record in records:
            try:
                yield self._read(record)
            except NonFiniteSampleError as error:
                self._excluded[record.chain, record.step] = str(error)
                self._cache = None
                warnings.warn(f"{record.path or self.store.name}: {error}; it is left out.", stacklevel=2)

    def _read(self, record: Record) -> Weights:
        sample = self.store.read(record)
        for name, tensor in sample.items():
            if not all_finite(tensor):
                raise NonFiniteSampleError(
                    f"the sample of chain {record.chain} at step {record.step} has NaN or infinity in {name}"
                )
        return sample
