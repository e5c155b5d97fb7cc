"""From run folders to the paper's two tables and its figure, and the cost of a model.

Reading folders, tables and curves need no torch; `profile` does.
"""

from asvspoof_cm.profiling import Profile, profile
from asvspoof_cm.report.curves import Curve, SeedCurve, training_efficiency
from asvspoof_cm.report.runs import Run, read_run
from asvspoof_cm.report.tables import Column, MeanStd, Row, Summary, Table, summarize

__all__ = [
    "Run",
    "read_run",
    # tables
    "Column",
    "MeanStd",
    "Row",
    "Summary",
    "Table",
    "summarize",
    # curves
    "Curve",
    "SeedCurve",
    "training_efficiency",
    # cost
    "Profile",
    "profile",
]
