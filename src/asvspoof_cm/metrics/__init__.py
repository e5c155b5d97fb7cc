"""The ASVspoof metrics: the official numbers, with intervals and breakdowns. NumPy and SciPy only.

Scores are arrays of one class each, bonafide first; a higher score means bonafide. Rates are
fractions, Cllr is in bits. Results carry their threshold.
"""

from asvspoof_cm.metrics.bootstrap import (
    Interval as Interval,
    bootstrap as bootstrap,
    compare as compare,
    mcnemar as mcnemar,
)
from asvspoof_cm.metrics.breakdown import (
    Breakdown as Breakdown,
    breakdown as breakdown,
)
from asvspoof_cm.metrics.costs import (
    ASVSPOOF5 as ASVSPOOF5,
    ASVSPOOF5_SASV as ASVSPOOF5_SASV,
    AsvRates as AsvRates,
    DetectionCosts as DetectionCosts,
    OperatingPoint as OperatingPoint,
    SasvCosts as SasvCosts,
)
from asvspoof_cm.metrics.det import det_curve as det_curve
from asvspoof_cm.metrics.score_files import (
    read_key as read_key,
    read_scores as read_scores,
    write_scores as write_scores,
    write_submission as write_submission,
)
from asvspoof_cm.metrics.summary import (
    METRICS as METRICS,
    Metric as Metric,
    Track1Result as Track1Result,
    evaluate as evaluate,
)
from asvspoof_cm.metrics.track1 import (
    act_dcf as act_dcf,
    auc as auc,
    cllr as cllr,
    eer as eer,
    min_cllr as min_cllr,
    min_dcf as min_dcf,
)
from asvspoof_cm.metrics.track2 import (
    a_dcf as a_dcf,
    asv_rates as asv_rates,
    min_t_dcf as min_t_dcf,
    t_eer as t_eer,
)
from asvspoof_cm.metrics.trials import Key as Key, Scores as Scores
from asvspoof_cm.metrics.within import (
    WithinSources as WithinSources,
    within_sources as within_sources,
)
