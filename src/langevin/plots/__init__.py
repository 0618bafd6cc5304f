"""Pictures: arrays in, figure out. matplotlib is imported when the first one is drawn."""

from langevin.plots.landscape import landscape

__all__ = ["landscape"]
