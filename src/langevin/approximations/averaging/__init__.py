"""Averages of iterates: of weights (SWA, SWAG) and of variational parameters (HWA)."""

from langevin.approximations.averaging.hwa import HWA
from langevin.approximations.averaging.moments import Moments
from langevin.approximations.averaging.swa import SWA
from langevin.approximations.averaging.swag import SWAG

__all__ = ["HWA", "SWA", "SWAG", "Moments"]
