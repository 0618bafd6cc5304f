"""BibTeX entries for the methods that a report used."""

from __future__ import annotations

from typing import Any

from langevin.ensembles.cite import cite
from langevin.ensembles.distill import CITATION, Distilled
from langevin.ensembles.fit import Fit
from langevin.ensembles.run import Run
from langevin.evaluation.attacks import FGSM, PGD, Attack
from langevin.report.findings import Findings

RHAT = """@article{vehtari2021rank,
  title = {Rank-Normalization, Folding, and Localization: An Improved {R̂} for Assessing Convergence of {MCMC}},
  author = {Vehtari, Aki and Gelman, Andrew and Simpson, Daniel and Carpenter, Bob and Bürkner, Paul-Christian},
  journal = {Bayesian Analysis},
  year = {2021}
}"""
ATTACKS = {
    FGSM: """@inproceedings{goodfellow2015explaining,
  title = {Explaining and Harnessing Adversarial Examples},
  author = {Goodfellow, Ian J. and Shlens, Jonathon and Szegedy, Christian},
  booktitle = {International Conference on Learning Representations},
  year = {2015}
}""",
    PGD: """@inproceedings{madry2018towards,
  title = {Towards Deep Learning Models Resistant to Adversarial Attacks},
  author = {Madry, Aleksander and Makelov, Aleksandar and Schmidt, Ludwig and Tsipras, Dimitris and Vladu, Adrian},
  booktitle = {International Conference on Learning Representations},
  year = {2018}
}""",
}


def citations(run: Any, findings: Findings, attack: Attack | None) -> list[str]:
    """BibTeX of the method, of the diagnostics and of the attack."""
    found = []
    if isinstance(run, Run | Fit) and (run.manifest.get("method") or run.manifest.get("sampler")):
        found.append(cite(run))
    elif isinstance(run, Distilled):
        found.append(CITATION)
    if findings.chains is not None:
        found.append(RHAT)
    if attack is not None and type(attack) in ATTACKS:
        found.append(ATTACKS[type(attack)])
    return [entry.strip() for entry in found]
