"""Figures for papers: DET, histograms, calibration, groups, training, time and attention.

Every function draws into the `ax` that it is given, or into a new one of a column's width, and
returns it; `save_figure` writes it. matplotlib is the extra ``asvspoof-cm[plots]`` and
is imported when a figure is made. No function touches pyplot or the global style.
"""

from asvspoof_cm.plots.detection import (
    breakdown as breakdown,
    calibration as calibration,
    det as det,
    scores as scores,
)
from asvspoof_cm.plots.efficiency import training_efficiency as training_efficiency
from asvspoof_cm.plots.recordings import attention as attention, timeline as timeline
from asvspoof_cm.plots.style import (
    BONAFIDE_COLOR as BONAFIDE_COLOR,
    PAGE_WIDTH_IN as PAGE_WIDTH_IN,
    SPOOF_COLOR as SPOOF_COLOR,
    new_axes as new_axes,
    save_figure as save_figure,
)
