"""What to cite."""

from __future__ import annotations

from langevin.run import Run
from langevin.samplers import METHODS, Sampler


def cite(what: Run | Sampler | type[Sampler] | str) -> str:
    """The BibTeX entry of the method behind a run, a sampler, or a name such as "sgld".

    >>> print(cite("sgld").splitlines()[0])
    @inproceedings{welling2011bayesian,
    """
    if isinstance(what, Sampler) or (isinstance(what, type) and issubclass(what, Sampler)):
        return what.citation
    if isinstance(what, Run):
        recipe = what.manifest["sampler"]
        if recipe is None:
            raise ValueError(f"{what.path} was sampled with a sampler of its user's: langevin has no citation for it.")
        what = str(recipe["name"])
    if what.lower() not in METHODS:
        raise ValueError(f"{what!r} is no method of langevin; choose one of {', '.join(METHODS)}.")
    return METHODS[what.lower()].sampler.citation
