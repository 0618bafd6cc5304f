"""Palacci and Hess (2018): preconditioned Langevin dynamics against SGD, in practice."""

import langevin as lv
from reproductions.harness import Paper
from reproductions.palacci2018 import mnist, small

PAPER = Paper(
    title="Scalable natural gradient Langevin dynamics in practice (Palacci & Hess 2018)",
    citation=lv.KSGLD.citation,
    remarks=(
        "SGLD, pSGLD and KSGLD are the paper's equation 2 to the letter: noise of variance λ_t, that is T = ½, "
        "times the preconditioner itself, and a plain drift. Such noise depends on the units of the gradient, "
        "which are not stated; ours is that of the mean loss, where damping of 0.01 or less makes the noise of "
        "one step larger than the weights, so the grid has damping from 0.1 to 1. Beside them (dashed) are SGLD "
        "at T = 1 and pSGLD and KSGLD that precondition both drift and noise, frozen half-way, which have the "
        "posterior as their target. Each method has five runs with the first seed, of which the setting with the "
        "best validation accuracy is run again with the other seeds; SGD predicts with its last iterate, all others "
        "with samples of the second half of their run. Two things were set after a first look at a few runs: the "
        "limit below which traces count as not stationary (a tenth of the way from random walks to independent "
        "draws), and thirty epochs for small-MNIST, since the reduced network does not fit in the 98 steps of ten."
    ),
    experiments={"mnist": mnist.EXPERIMENT, "small": small.EXPERIMENT},
)
