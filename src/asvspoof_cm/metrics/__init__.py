"""The ASVspoof metrics: the official numbers, with intervals and breakdowns. NumPy and SciPy only.

Scores are arrays of one class each, bonafide first; a higher score means bonafide. Rates are
fractions, Cllr is in bits. Results carry their threshold.
"""

from asvspoof_cm.metrics.costs import (
    ASVSPOOF5 as ASVSPOOF5,
    ASVSPOOF5_SASV as ASVSPOOF5_SASV,
    DetectionCosts as DetectionCosts,
    SasvCosts as SasvCosts,
)
from asvspoof_cm.metrics.decisions import (
    RATES as RATES,
    Decisions as Decisions,
    decisions as decisions,
)
from asvspoof_cm.metrics.files import (
    Key as Key,
    Scores as Scores,
    read_frame_scores as read_frame_scores,
    read_key as read_key,
    read_scores as read_scores,
    write_scores as write_scores,
)
from asvspoof_cm.metrics.groups import (
    Breakdown as Breakdown,
    breakdown as breakdown,
    within_sources as within_sources,
)
from asvspoof_cm.metrics.intervals import (
    Interval as Interval,
    bootstrap as bootstrap,
    compare as compare,
    wilson as wilson,
)
from asvspoof_cm.metrics.segments import (
    SegmentResult as SegmentResult,
    boundary_errors as boundary_errors,
    evaluate_segments as evaluate_segments,
    range_eer as range_eer,
    segment_eer as segment_eer,
    segment_rates as segment_rates,
    segments_below as segments_below,
)
from asvspoof_cm.metrics.track1 import (
    METRICS as METRICS,
    Curve as Curve,
    Metric as Metric,
    OperatingPoint as OperatingPoint,
    Track1Result as Track1Result,
    act_dcf as act_dcf,
    cllr as cllr,
    det_curve as det_curve,
    eer as eer,
    evaluate as evaluate,
    min_cllr as min_cllr,
    min_dcf as min_dcf,
)
from asvspoof_cm.metrics.track2 import (
    AsvRates as AsvRates,
    a_dcf as a_dcf,
    asv_rates as asv_rates,
    min_t_dcf as min_t_dcf,
    t_eer as t_eer,
)
