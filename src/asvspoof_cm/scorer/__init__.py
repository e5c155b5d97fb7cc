"""Scoring: a trained model as one dependable object for arrays, files, protocols and streams."""

from asvspoof_cm.scorer.bulk import merge_scores as merge_scores
from asvspoof_cm.scorer.results import (
    FileScore as FileScore,
    ProtocolScores as ProtocolScores,
    ScoreResult as ScoreResult,
)
from asvspoof_cm.scorer.scorer import Scorer as Scorer
from asvspoof_cm.scorer.timelines import (
    Attention as Attention,
    Timeline as Timeline,
    WindowScore as WindowScore,
)
