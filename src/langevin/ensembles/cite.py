"""What to cite."""

from __future__ import annotations

from langevin.approximations.base import Method
from langevin.ensembles.fit import METHODS as FITTED
from langevin.ensembles.run import Run
from langevin.samplers import METHODS, Sampler


def cite(what: Run | Sampler | type[Sampler] | Method | str) -> str:
    """The BibTeX entry of the method behind a run or a fit, a sampler, or a name such as "sgld" or "swag".

    >>> print(cite("sgld").splitlines()[0])
    @inproceedings{welling2011bayesian,
    """
    if isinstance(what, Sampler | Method) or (isinstance(what, type) and issubclass(what, Sampler | Method)):
        return what.citation
    if isinstance(what, Run):
        recipe = what.manifest.get("method") or what.manifest["sampler"]
        if recipe is None:
            raise ValueError(f"{what.path} was sampled with a sampler of its user's: langevin has no citation for it.")
        what = str(recipe["name"])
    entries = {name: method.sampler.citation for name, method in METHODS.items()}
    for name, method in FITTED.items():
        entries |= {name: method.citation, method.__name__.lower(): method.citation}
    if what.lower() not in entries:
        raise ValueError(f"{what!r} is no method of langevin; choose one of {', '.join(entries)}.")
    return entries[what.lower()]
