"""Scoring: a trained model as one dependable object for arrays, files, protocols and streams."""

from asvspoof_cm.scorer.files import (
    FileScore as FileScore,
    ScoreSummary as ScoreSummary,
    merge_scores as merge_scores,
)
from asvspoof_cm.scorer.scorer import (
    Scorer as Scorer,
    ScoreResult as ScoreResult,
    WindowScore as WindowScore,
)
from asvspoof_cm.scorer.timeline import (
    Explanation as Explanation,
    SegmentSettings as SegmentSettings,
    StreamingScorer as StreamingScorer,
)
