"""A run: the sequence of samples that is on the disk, and what can be asked of it."""

from __future__ import annotations

import copy
import shutil
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, overload

from torch import Tensor, nn

from langevin.diagnostics.temperature import Estimate, mean_and_error
from langevin.likelihoods import BUILT_IN, Likelihood
from langevin.posterior import load_tensors
from langevin.predictive import Prediction, Predictor
from langevin.store import RunError, Store

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


class Run(Sequence[Sample]):
    """Samples of the weights, read from the disk as they are asked for; `run[0]` maps names to tensors.

    The samples of all chains follow one another; `run.chain(c)` has those of one.
    """

    def __init__(
        self,
        store: Store,
        predictor: Predictor,
        *,
        chain: int | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self._store = store
        self._predictor = predictor
        self._chain = chain
        self._scratch = scratch
        self._records = store.records(chain)

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return self._store.path

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
        """Files of the run that could not be read, and why; their samples are left out."""
        return dict(self._store.damaged)

    def chain(self, number: int) -> Run:
        """The samples of one chain."""
        if number not in self.chains:
            raise IndexError(f"The run has the chains {self.chains}, not {number}.")
        return Run(self._store, self._predictor, chain=number, scratch=self._scratch)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self._store.read(record) for record in self._records[index]]
        return self._store.read(self._records[index])

    def __iter__(self) -> Iterator[Sample]:
        return (self._store.read(record) for record in self._records)

    def predict(self, x: Any, *, batch_size: int = 1024, samples: bool = False) -> Prediction:
        """The predictive distribution at the inputs x, over all samples of the run.

        Classification gives `.probs`, `.entropy`, `.aleatoric`, `.mutual_information`, regression `.mean`,
        `.variance`, `.aleatoric`, `.epistemic`; with `samples=True` what each sample says is in `.samples`.
        """
        return self._predictor.predict(self, x, batch_size=batch_size, samples=samples)

    def trace(self, name: str) -> dict[int, list[float]]:
        """What was noted with the samples of each chain: "loss", "lr" or "temperature".

        Loss and temperature are means over the steps since the sample before.
        """
        return {c: [r.notes[name] for r in self._records if r.chain == c] for c in self.chains}

    def temperature(self) -> Estimate:
        """The configurational temperature over all chains, to be compared with the T that was asked.

        Its error knows of the autocorrelation inside a chain; with few samples it is unknown (nan).
        """
        estimates = [mean_and_error(values) for values in self.trace("temperature").values()]
        n = max(len(estimates), 1)
        return Estimate(sum(e.mean for e in estimates) / n, sum(e.error**2 for e in estimates) ** 0.5 / n)

    def __repr__(self) -> str:
        return f"<Run of {len(self)} samples from {len(self.chains)} chains in {self.path}>"


def load(path: str | Path, model: nn.Module, likelihood: Likelihood | None = None) -> Run:
    """Open a run for prediction.

    The model gives the architecture; its weights do not matter and are not changed. The likelihood is needed only if
    it was not one of the library's.
    """
    store = Store.open(path)
    if likelihood is None:
        saved = store.manifest.get("likelihood") or {}
        made = next((kind for name, kind in BUILT_IN.items() if name == saved.get("name")), None)
        if made is None:
            raise RunError(
                f"{path} was sampled with a likelihood that is not the library's own; give it: "
                f"lv.load({str(path)!r}, model, likelihood)."
            )
        try:
            likelihood = made(**saved["options"])
        except (KeyError, TypeError) as error:
            raise RunError(f"The likelihood in the manifest of {path} can't be made: {error}.") from None
    return Run(store, fitted_predictor(store, model, likelihood), scratch=Scratch.of(path))


def fitted_predictor(store: Store, model: nn.Module, likelihood: Likelihood) -> Predictor:
    """A copy of the model that has the run's fixed tensors, checked to be of the run's shape."""
    predictor = Predictor(copy.deepcopy(model), copy.deepcopy(likelihood))
    load_tensors(predictor, store.fixed())
    if records := store.records():
        load_tensors(predictor, store.read(records[-1]))
    return predictor
