"""Preconditioners: A·g, A^{1/2}·η and the correction Γ for a metric that depends on θ. Importing one registers it."""

from langevin.preconditioners.base import PRECONDITIONERS, Identity, NoiseOnly, Preconditioner, made_from
from langevin.preconditioners.bnp import BNP
from langevin.preconditioners.fisher import Fisher
from langevin.preconditioners.kfac import KFAC
from langevin.preconditioners.rmsprop import RMSprop

__all__ = [
    "BNP",
    "KFAC",
    "PRECONDITIONERS",
    "Fisher",
    "Identity",
    "NoiseOnly",
    "Preconditioner",
    "RMSprop",
    "made_from",
]
