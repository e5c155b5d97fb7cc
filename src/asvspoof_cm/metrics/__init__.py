"""The ASVspoof metrics: the official numbers, with intervals and breakdowns. NumPy and SciPy only.

Scores are arrays of one class each, bonafide first; a higher score means bonafide. Rates are
fractions, Cllr is in bits. Results carry their threshold.
"""

from __future__ import annotations

from asvspoof_cm.metrics.breakdown import Breakdown, BreakdownRow, breakdown
from asvspoof_cm.metrics.costs import (
    ASVSPOOF5,
    ASVSPOOF5_ASV,
    ASVSPOOF5_SASV,
    AsvRates,
    DetectionCosts,
    OperatingPoint,
    SasvCosts,
)
from asvspoof_cm.metrics.curves import DetCurve, det_curve
from asvspoof_cm.metrics.intervals import METRICS, Interval, bootstrap, compare
from asvspoof_cm.metrics.scores import (
    Key,
    Scores,
    read_key,
    read_scores,
    write_scores,
    write_submission,
)
from asvspoof_cm.metrics.track1 import (
    Track1Result,
    act_dcf,
    auc,
    cllr,
    eer,
    evaluate,
    min_cllr,
    min_dcf,
)
from asvspoof_cm.metrics.track2 import TandemPoint, a_dcf, asv_rates, min_t_dcf, t_eer
from asvspoof_cm.metrics.within import SourceRow, WithinSources, within_sources

__all__ = [
    # Track 1
    "eer",
    "min_dcf",
    "act_dcf",
    "cllr",
    "min_cllr",
    "auc",
    "det_curve",
    "evaluate",
    "DetCurve",
    "OperatingPoint",
    "Track1Result",
    # Track 2
    "a_dcf",
    "asv_rates",
    "min_t_dcf",
    "t_eer",
    "TandemPoint",
    # costs
    "DetectionCosts",
    "SasvCosts",
    "AsvRates",
    "ASVSPOOF5",
    "ASVSPOOF5_SASV",
    "ASVSPOOF5_ASV",
    # intervals and breakdowns
    "METRICS",
    "Interval",
    "bootstrap",
    "compare",
    "Breakdown",
    "BreakdownRow",
    "breakdown",
    "SourceRow",
    "WithinSources",
    "within_sources",
    # files
    "Key",
    "Scores",
    "read_key",
    "read_scores",
    "write_scores",
    "write_submission",
]
