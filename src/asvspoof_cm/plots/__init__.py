"""Figures for papers: DET, histograms, calibration, groups, training, time and attention.

Every function draws into the `ax` that it is given, or into a new one of a column's width, and
returns it; `save_figure` writes it. matplotlib is the extra ``asvspoof-cm[plots]`` and
is imported when a figure is made. No function touches pyplot or the global style.
"""

from asvspoof_cm.plots.evaluation import breakdown, calibration, det, scores
from asvspoof_cm.plots.figures import (
    BONAFIDE_COLOR,
    COLUMN_WIDTH_IN,
    PAGE_WIDTH_IN,
    SPOOF_COLOR,
    new_axes,
    save_figure,
)
from asvspoof_cm.plots.scoring import attention, timeline
from asvspoof_cm.plots.training import training_efficiency

__all__ = [
    "BONAFIDE_COLOR",
    "COLUMN_WIDTH_IN",
    "PAGE_WIDTH_IN",
    "SPOOF_COLOR",
    "attention",
    "breakdown",
    "calibration",
    "det",
    "new_axes",
    "save_figure",
    "scores",
    "timeline",
    "training_efficiency",
]
