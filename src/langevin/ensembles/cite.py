"""Citations of methods."""

from __future__ import annotations

from typing import Any

from langevin.approximations import APPROXIMATIONS, Approximation
from langevin.core.arguments import validated
from langevin.ensembles.fit import Fit
from langevin.ensembles.run import Run
from langevin.samplers import SAMPLERS, Sampler


@validated()
def cite(what: Run | Fit | Sampler | type[Sampler] | Approximation | str) -> str:
    """The BibTeX entry of the method behind a run or a fit, a sampler, or a name such as "sgld" or "swag".

    >>> print(cite("sgld").splitlines()[0])
    @inproceedings{welling2011bayesian,
    """
    if isinstance(what, Sampler | Approximation) or (
        isinstance(what, type) and issubclass(what, Sampler | Approximation)
    ):
        return what.citation
    if isinstance(what, Run | Fit):
        recipe = what.manifest.get("method") or what.manifest["sampler"]
        if recipe is None:
            raise ValueError(f"{what!r} was sampled with a custom sampler: langevin has no citation for it.")
        what = str(recipe["name"])
    known: dict[str, Any] = {**SAMPLERS, **APPROXIMATIONS}
    if not isinstance(what, str) or what.lower() not in known:
        raise ValueError(f"{what!r} is not a method of langevin; choose one of {', '.join(known)}.")
    citation: str = known[what.lower()].citation
    return citation
