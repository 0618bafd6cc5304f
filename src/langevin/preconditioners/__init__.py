"""Preconditioners: A·g, A^{1/2}·η and the drift that goes with a metric that moves."""

from langevin.preconditioners.base import PRECONDITION, NoiseOnly, Preconditioner
from langevin.preconditioners.bnp import BNP
from langevin.preconditioners.fisher import Fisher
from langevin.preconditioners.kfac import KFAC
from langevin.preconditioners.rmsprop import RMSprop

__all__ = ["BNP", "KFAC", "PRECONDITION", "Fisher", "NoiseOnly", "Preconditioner", "RMSprop"]
