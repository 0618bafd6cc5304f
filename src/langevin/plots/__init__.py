"""Figures: arrays in, matplotlib axes out. matplotlib is imported by the first plot."""

from langevin.plots.chains import autocorrelation, temperature, temperature_sweep, traces
from langevin.plots.landscape import landscape
from langevin.plots.posterior import posterior_2d
from langevin.plots.predictive import coverage, histograms, intervals, ranked_images, reliability, risk_coverage
from langevin.plots.tuning import rate_search

__all__ = [
    "autocorrelation",
    "coverage",
    "histograms",
    "intervals",
    "landscape",
    "posterior_2d",
    "ranked_images",
    "rate_search",
    "reliability",
    "risk_coverage",
    "temperature",
    "temperature_sweep",
    "traces",
]
