"""Ensembles of weights: runs, fits, distilled networks."""
