"""Diagnostics of a run: convergence, stationarity, temperature, curvature."""
