"""The errors that langevin raises beside Python's own."""

from __future__ import annotations


class RunError(ValueError):
    """Something about a run's directory that the user has to decide or repair."""


class CorruptedFileError(ValueError):
    """A file is not what was written: what is wrong with it, in a few words."""


class NonFiniteSampleError(RunError):
    """A stored sample contains NaN or infinity."""


class ConvergenceWarning(UserWarning):
    """The verdict on a run is bad: its samples should not be used."""


class DivergenceError(FloatingPointError):
    """The loss or a weight is not finite any more."""
