"""Opening a stored run or fit for prediction."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from langevin.core.likelihoods import LIKELIHOODS, Likelihood
from langevin.core.outputs import named_output
from langevin.core.pretrained import backbone_digest
from langevin.ensembles.fit import Fit
from langevin.ensembles.predictor import Predictor
from langevin.ensembles.run import Run
from langevin.errors import RunError
from langevin.storage.base import SampleStore
from langevin.storage.directory import DirectoryStore


def open_run(path: str | Path, model: nn.Module, likelihood: Likelihood | None = None) -> Run | Fit:
    """The run or fit in a directory; the model provides the architecture, its weights are ignored."""
    store = DirectoryStore.open(path)
    largest = 8 * sum(
        tensor.numel() for tensor in (*model.parameters(), *model.buffers())
    )  # bytes, in double precision
    fixed = store.fixed(largest=largest)
    model = named_output(model, store.manifest.get("output"))
    predictor = Predictor(model, known_likelihood(store) if likelihood is None else likelihood, fixed)
    stored = set(fixed) | _checked_backbone(store, predictor, set(fixed))
    if "method" in store.manifest:
        fit = Fit(store, predictor)
        predictor.check_weights(fit.distribution.mean, stored | set(store.manifest["buffers"]))
        return fit
    run = Run(store, predictor)
    if len(run):
        predictor.check_weights(run[-1], stored)
    return run


def _checked_backbone(store: SampleStore, predictor: Predictor, fixed: set[str]) -> set[str]:
    """The names of the frozen weights that a run with adapters does not store; raises unless they are the same."""
    expected = store.manifest.get("backbone")
    if not expected:
        return set()
    sampled = set(store.manifest.get("weights") or store.manifest["tensors"])
    own = {name: p for name, p in predictor.own_weights().items() if name not in sampled | fixed}
    own = {name: p for name, p in own.items() if not name.startswith("likelihood.")}
    if backbone_digest(own) != expected.get("digest"):
        raise RunError(
            f"{store.name} has samples of adapters, and the model given is not the base model that they were sampled "
            f"with: its frozen weights differ. Load the same pre-trained model, with the same LoraConfig."
        )
    return set(own)


def known_likelihood(store: SampleStore) -> Likelihood:
    """The likelihood in the manifest of a run, if it is registered."""
    saved = store.manifest.get("likelihood") or {}
    kind = LIKELIHOODS.exports().get(saved.get("name") or "")
    if kind is None:
        raise RunError(
            f"{store.name} was sampled with a custom likelihood; pass it: lv.load({store.name!r}, model, likelihood)."
        )
    try:
        return kind(**saved["options"])  # type: ignore[no-any-return]
    except (KeyError, TypeError) as error:
        raise RunError(f"The likelihood in the manifest of {store.name} can't be constructed: {error}.") from None
