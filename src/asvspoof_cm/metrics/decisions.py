"""Decisions at a threshold: accept a score at or above it."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy.special import bdtr

from asvspoof_cm.metrics.track1 import ASVSPOOF5, DetectionCosts
from asvspoof_cm.utils.checks import Plain, as_trials


@dataclass(frozen=True, kw_only=True)
class McNemar(Plain):
    """On how many trials one of two systems alone decides rightly.

    `p_value` is the two-sided probability of counts at least as unequal if both systems were right
    equally often.
    """

    only_a: int
    only_b: int
    p_value: float
    threshold: float

    def __str__(self) -> str:
        return (
            f"trials decided rightly at the threshold {self.threshold:.4f} by A alone: "
            f"{self.only_a}, by B alone: {self.only_b} "
            f"(McNemar's exact test: p = {self.p_value:.3g})"
        )


def mcnemar(
    a: ArrayLike, b: ArrayLike, labels: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> McNemar:
    """Test whether two systems decide equally well at the Bayes threshold, on the same trials.

    Trials that both decide rightly, or both wrongly, say nothing about a difference. Among the
    others either system would be right half of the time if they were equal: the exact test is
    binomial (McNemar, 1947). Both errors count alike, and trials must be independent. `a`, `b` and
    `labels` are those of `compare`; the scores must be log-likelihood ratios.

    Example:
        >>> mcnemar([2.0, 1.0, -3.0, 4.0], [2.0, -1.0, -3.0, -4.0], [1, 1, 0, 0]).p_value
        1.0
    """
    trials = [as_trials(scores, labels) for scores in (a, b)]
    right = [(values >= costs.threshold) == is_bonafide for values, is_bonafide in trials]
    only_a, only_b = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    p_value = 2.0 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5))
    return McNemar(
        only_a=only_a, only_b=only_b, p_value=min(1.0, p_value), threshold=costs.threshold
    )
