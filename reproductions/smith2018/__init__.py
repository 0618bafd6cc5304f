"""Smith, Duckworth, Le and Sohl-Dickstein (2018): stochastic natural gradient descent as a posterior sampler."""

import langevin as lv
from reproductions.harness import Paper
from reproductions.smith2018 import convolution, ellipses, implicit_prior, network, temperature, theorem

PAPER = Paper(
    title="Stochastic natural gradient descent draws posterior samples in function space (Smith et al. 2018)",
    citation=lv.SNGD.citation,
    experiments={
        "theorem": theorem.EXPERIMENT,
        "ellipses": ellipses.EXPERIMENT,
        "temperature": temperature.EXPERIMENT,
        "implicit_prior": implicit_prior.EXPERIMENT,
        "network": network.EXPERIMENT,
        "convolution": convolution.EXPERIMENT,
    },
)
