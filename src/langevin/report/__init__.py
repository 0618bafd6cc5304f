"""`evaluate`: diagnostics and scores of a run, in one report."""

from langevin.diagnostics.verdict import Finding
from langevin.report.contents import Picture, Report, Table
from langevin.report.evaluate import evaluate

__all__ = ["Finding", "Picture", "Report", "Table", "evaluate"]
