"""Scoring: a trained model as one dependable object for arrays, files, protocols and streams."""

from asvspoof_cm.scorer.bulk import merge_scores
from asvspoof_cm.scorer.results import FileScore, ScoreResult
from asvspoof_cm.scorer.scorer import Scorer
from asvspoof_cm.scorer.shards import ProtocolScores
from asvspoof_cm.scorer.timelines import Attention, Timeline, WindowScore

__all__ = [
    "Attention",
    "FileScore",
    "ProtocolScores",
    "ScoreResult",
    "Scorer",
    "Timeline",
    "WindowScore",
    "merge_scores",
]
