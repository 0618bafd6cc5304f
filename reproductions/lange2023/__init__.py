"""Lange, Deng, Ye and Lin (2023): batch-normalization preconditioning for SGLD."""

import langevin as lv
from reproductions.harness import Paper
from reproductions.lange2023 import bandit, condition, residual, simulation

PAPER = Paper(
    title="Batch normalization preconditioning for stochastic gradient Langevin dynamics (Lange et al. 2023)",
    citation=lv.BNPSGLD.citation,
    remarks=(
        "Only the paper's abstract and introduction were at hand, so its experiments are rebuilt from their names and "
        'the settings under "in the paper" are our guess at a full-size run. The grids of rates, and the rounds and '
        "the noise of the bandit, were chosen after trial runs; every method is shown at the rate of its grid that "
        "does best in what is shown."
    ),
    settings_known=False,
    experiments={
        "simulation": simulation.EXPERIMENT,
        "condition": condition.EXPERIMENT,
        "bandit": bandit.EXPERIMENT,
        "residual": residual.EXPERIMENT,
    },
)
