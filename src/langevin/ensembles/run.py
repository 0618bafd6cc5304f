"""A run: the sequence of samples that is on the disk, and what can be asked of it."""

from __future__ import annotations

import copy
import math
import shutil
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, overload

from torch import Tensor, nn

from langevin.core.likelihoods import BUILT_IN, Likelihood
from langevin.core.parameters import load_tensors
from langevin.ensembles.diagnosed import Diagnosed
from langevin.ensembles.export import Ensemble, example_inputs
from langevin.ensembles.export import export as write_module
from langevin.ensembles.predict import Prediction, Predictor
from langevin.errors import NonFiniteSampleError, RunError
from langevin.storage.directory import DirectoryStore, Record

Sample = dict[str, Tensor]


class Scratch:
    """A directory that is deleted when no run refers to it any more."""

    _alive: ClassVar[weakref.WeakValueDictionary[Path, Scratch]] = weakref.WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        Scratch._alive[path.resolve()] = self

    @classmethod
    def of(cls, path: str | Path) -> Scratch | None:
        """The scratch directory at this path, if it is one, so that another run can refer to it too."""
        return cls._alive.get(Path(path).resolve())


_KEPT = 1 << 22  # numbers in all samples together, up to which they are kept in memory


class Run(Diagnosed, Sequence[Sample]):
    """Samples of the weights, read from the disk as they are asked for; `run[0]` maps names to tensors.

    The samples of all chains follow one another; `run.chain(c)` has those of one.
    """

    def __init__(
        self,
        store: DirectoryStore,
        predictor: Predictor,
        *,
        chain: int | None = None,
        scratch: Scratch | None = None,
        excluded: dict[tuple[int, int], str] | None = None,
    ) -> None:
        self._store = store
        self._predictor = predictor
        self._chain = chain
        self._scratch = scratch
        self._stored = store.records(chain)
        self._stacked: tuple[int, list[Sample]] | None = None
        self._finite_ones: set[tuple[int, int]] = set()  # (chain, step) of samples that were looked at
        self._excluded = {} if excluded is None else excluded  # (chain, step) of samples that are not finite, and why

    @property
    def _records(self) -> list[Record]:
        return [r for r in self._stored if (r.chain, r.step) not in self._excluded] if self._excluded else self._stored

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return self._store.path

    @property
    def is_scratch(self) -> bool:
        """Whether that directory goes with the run (none was asked for)."""
        return self._scratch is not None

    @property
    def manifest(self) -> dict[str, Any]:
        """Configuration, versions, seed, names and shapes."""
        return self._store.manifest

    @property
    def chains(self) -> list[int]:
        """The numbers of the chains that have samples."""
        return sorted({record.chain for record in self._records})

    @property
    def steps(self) -> list[int]:
        """The step at which each sample was taken."""
        return [record.step for record in self._records]

    @property
    def damaged(self) -> dict[Path, str]:
        """Files of the run that are not, or not wholly, usable, and why; damaged samples are left out.

        A sample with a number that is not finite is found when it is read (`check` reads all).
        """
        found = dict(self._store.damaged)
        for record in self._stored:
            if why := self._excluded.get((record.chain, record.step)):
                found[record.path] = f"{found[record.path]}; {why}" if record.path in found else why
        return found

    def check(self) -> dict[Path, str]:
        """Read every sample once, so that those with NaN or infinity are left out, with a warning; what is damaged."""
        for _ in self:
            pass
        return self.damaged

    def chain(self, number: int) -> Run:
        """The samples of one chain."""
        if number not in self.chains:
            raise IndexError(f"The run has the chains {self.chains}, not {number}.")
        return Run(self._store, self._predictor, chain=number, scratch=self._scratch, excluded=self._excluded)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self._read(record) for record in self._records[index]]
        return self._read(self._records[index])

    def __iter__(self) -> Iterator[Sample]:
        return self._finite(self._records)

    def stacks(self, size: int) -> Iterator[Sample]:
        """All samples, up to `size` at a time, stacked along a first axis; quicker than one by one.

        Few samples of a small network are read once and kept in memory.
        """
        if sum(math.prod(spec["shape"]) for spec in self.manifest["tensors"].values()) * len(self) > _KEPT:
            yield from self._read_stacks(size)
            return
        if self._stacked is None or self._stacked[0] != size:
            self._stacked = size, list(self._read_stacks(size))
        yield from self._stacked[1]

    def _read_stacks(self, size: int) -> Iterator[Sample]:
        records = self._records
        while records:
            count = 1
            while (
                count < min(size, len(records))
                and records[count].path == records[0].path
                and records[count].row == records[count - 1].row + 1
            ):
                count += 1
            stack, places = self._store.read_rows(records[:count]), {(r.chain, r.step) for r in records[:count]}
            if places <= self._finite_ones or all(
                bool(t.isfinite().all()) for t in stack.values() if t.is_floating_point()
            ):
                self._finite_ones |= places
                yield stack
            else:
                yield from ({name: t[None] for name, t in s.items()} for s in self._finite(records[:count]))
            records = records[count:]

    def _finite(self, records: list[Record]) -> Iterator[Sample]:
        for record in records:
            try:
                yield self._read(record)
            except NonFiniteSampleError as error:
                self._excluded[record.chain, record.step] = str(error)
                warnings.warn(f"{record.path}: {error}; it is left out.", stacklevel=2)

    def _read(self, record: Record) -> Sample:
        sample = self._store.read(record)
        for name, tensor in sample.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NonFiniteSampleError(
                    f"the sample of chain {record.chain} at step {record.step} has NaN or infinity in {name}"
                )
        return sample

    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The predictive distribution at the inputs x, over all samples of the run.

        Classification gives `.probs`, `.entropy`, `.aleatoric`, `.mutual_information`, regression `.mean`,
        `.variance`, `.aleatoric`, `.epistemic`; with `samples=True` what each sample says is in `.samples`.
        """
        return self._predictor.predict(self, x, batch_size=batch_size, samples=samples)

    def export(self, path: str | Path, *, inputs: Any = None, samples: int | None = None) -> Ensemble:
        """Write one module that answers with mean and uncertainty, and return it.

        Args:
            path: ends in .pt2 (`torch.export.load(path).module()` reads it, without langevin) or in .onnx.
            inputs: a few inputs, for their type and shape; by default those that the run was sampled with.
            samples: use so many samples, evenly spread; by default all. The file holds every one of them.
        """
        if inputs is None:
            if "inputs" not in self.manifest:
                raise RunError(
                    f"{self.path} does not know what its inputs look like; give some: run.export(…, inputs=x)."
                )
            inputs = example_inputs(self.manifest["inputs"])
        if samples is not None and not 1 <= samples <= len(self):
            raise ValueError(f"samples={samples}: the run has {len(self)}; give 1 to {len(self)}.")
        chosen = [i * len(self) // (samples or len(self)) for i in range(samples or len(self))]
        ensemble = Ensemble(self._predictor, [self[i] for i in chosen])
        write_module(ensemble, path, inputs)
        return ensemble

    @property
    def traces(self) -> list[str]:
        """What `trace` knows of: "loss", "lr", "temperature", "temperature/NAME" of each tensor, and of samplers with
        momentum "kinetic" and "thermostat".
        """
        return list(dict.fromkeys(name for record in self._records for name in record.notes))

    def trace(self, name: str) -> dict[int, list[float]]:
        """What was noted with the samples of each chain: "loss", "lr", "temperature" or another of `traces`.

        All but lr are means since the sample before; nan where nothing was noted.
        """
        if self._records and name not in self.traces:
            raise ValueError(f"{name!r} was not noted in this run; there are {self.traces}.")
        return {c: [r.notes.get(name, math.nan) for r in self._records if r.chain == c] for c in self.chains}

    def log_probs(self, x: Any, y: Any) -> Iterator[Tensor]:
        """log p(y|x,θ) of each sample in turn, (n,), through which a gradient can be taken with respect to x."""
        return self._predictor.log_probs(self, x, y)

    def __repr__(self) -> str:
        return f"<Run of {len(self)} samples from {len(self.chains)} chains in {self.path}>"


def load(path: str | Path, model: nn.Module, likelihood: Likelihood | None = None) -> Run:
    """Open a run for prediction.

    The model gives the architecture; its weights do not matter and are not changed. The likelihood is needed only if
    it was not one of the library's.
    """
    store = DirectoryStore.open(path)
    likelihood = known_likelihood(store) if likelihood is None else likelihood
    return Run(store, fitted_predictor(store, model, likelihood), scratch=Scratch.of(path))


def known_likelihood(store: DirectoryStore) -> Likelihood:
    """The likelihood that the run was made with, if it is one of the library's."""
    saved = store.manifest.get("likelihood") or {}
    made = next((kind for name, kind in BUILT_IN.items() if name == saved.get("name")), None)
    if made is None:
        raise RunError(
            f"{store.path} was sampled with a likelihood that is not the library's own; give it: "
            f"lv.load({str(store.path)!r}, model, likelihood)."
        )
    try:
        return made(**saved["options"])
    except (KeyError, TypeError) as error:
        raise RunError(f"The likelihood in the manifest of {store.path} can't be made: {error}.") from None


def fitted_predictor(store: DirectoryStore, model: nn.Module, likelihood: Likelihood) -> Predictor:
    """A copy of the model that has the run's fixed tensors, checked to be of the run's shape."""
    predictor = Predictor(copy.deepcopy(model), copy.deepcopy(likelihood))
    load_tensors(predictor, store.fixed())
    if records := store.records():
        load_tensors(predictor, store.read(records[-1]))
    return predictor
