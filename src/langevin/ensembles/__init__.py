"""Weights that predict: runs, fits, distilled networks."""
