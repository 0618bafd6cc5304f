"""Averages of iterates: of weights (SWA, SWAG) and of variational parameters (HWA)."""

from langevin.averaging.hwa import HWA
from langevin.averaging.moments import Moments
from langevin.averaging.swa import SWA
from langevin.averaging.swag import SWAG

__all__ = ["HWA", "SWA", "SWAG", "Moments"]
