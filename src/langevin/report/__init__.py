"""`evaluate`: diagnostics and scores of a run, in one report."""

from langevin.report.contents import Picture, Report, Table
from langevin.report.evaluate import evaluate
from langevin.report.verdicts import Verdict

__all__ = ["Picture", "Report", "Table", "Verdict", "evaluate"]
