"""Scores sorted once: the error curve, its corners, and the points that the metrics read off it.

The official curve walks through all trials in order of score and stops after each of them. On equal
scores it passes the bonafide trials first, one at a time. After B bonafide and S spoof trials

    P_miss = B / n_bonafide,    P_fa = (n_spoof − S) / n_spoof.

Only the points before a bonafide trial that follows a spoof can minimise a cost: everywhere else
one more step lowers it. These are the *corners*, at most min(n_bonafide, n_spoof) + 2 of them;
between two corners the path is one run of bonafide trials, then one run of spoof trials. The same
corners serve a bootstrap, where trials carry counts: their order never changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.metrics.costs import DetectionCosts
from asvspoof_cm.utils.checks import FloatArray, IntArray, as_scores, check_choice

Integers: TypeAlias = NDArray[np.integer[Any]]
Ties: TypeAlias = Literal["official", "grouped"]
TIES = ("official", "grouped")

# The organisers put the first point of their curve this far below the lowest score.
BELOW_LOWEST = 0.001


class DetCurve(NamedTuple):
    """Error rates for every threshold, each of shape (n_points,), from "accept all" on."""

    p_miss: FloatArray
    p_fa: FloatArray
    thresholds: FloatArray


@dataclass(frozen=True)
class SortedScores:
    """The two classes, sorted, and how they interleave."""

    bonafide: FloatArray
    spoof: FloatArray

    @classmethod
    def of(cls, bonafide: ArrayLike, spoof: ArrayLike) -> SortedScores:
        """Check and sort the scores of both classes."""
        return cls(np.sort(as_scores("bonafide", bonafide)), np.sort(as_scores("spoof", spoof)))

    @property
    def classes(self) -> tuple[FloatArray, FloatArray]:
        """The bonafide and the spoof scores."""
        return self.bonafide, self.spoof

    @cached_property
    def n_spoof_below(self) -> IntArray:
        """For each bonafide score, how many spoof scores are strictly lower: (n_bonafide,)."""
        return np.searchsorted(self.spoof, self.bonafide)

    @cached_property
    def corners(self) -> tuple[IntArray, IntArray]:
        """Trials passed at each corner of the curve: bonafide and spoof, (n_corners,) each."""
        below = self.n_spoof_below
        n_bonafide = np.append(np.flatnonzero(np.diff(below, prepend=-1)), len(below))
        return n_bonafide, np.append(below[n_bonafide[:-1]], len(self.spoof))

    @cached_property
    def n_spoof_tied(self) -> IntArray:
        """For each bonafide score, how many spoof scores equal it: (n_bonafide,)."""
        below = self.n_spoof_below
        tied = np.zeros_like(below)
        candidates = np.flatnonzero(
            self.spoof[np.minimum(below, len(self.spoof) - 1)] == self.bonafide
        )
        if candidates.size:
            above = np.searchsorted(self.spoof, self.bonafide[candidates], side="right")
            tied[candidates] = above - below[candidates]
        return tied

    def last_rejected(self, n_bonafide: int, n_spoof: int) -> float:
        """The official threshold of the point where so many trials have been passed."""
        if n_bonafide == 0 and n_spoof == 0:
            return float(min(self.bonafide[0], self.spoof[0])) - BELOW_LOWEST
        rejected = (self.bonafide[n_bonafide - 1 : n_bonafide], self.spoof[n_spoof - 1 : n_spoof])
        return max(float(scores[0]) for scores in rejected if scores.size)

    def first_accepted(self, n_bonafide: int, n_spoof: int) -> float:
        """The lowest accepted score at that point, infinite where all are rejected."""
        accepted = (self.bonafide[n_bonafide : n_bonafide + 1], self.spoof[n_spoof : n_spoof + 1])
        return min((float(scores[0]) for scores in accepted if scores.size), default=math.inf)


def det_curve(bonafide: ArrayLike, spoof: ArrayLike, *, ties: Ties = "official") -> DetCurve:
    """Return the miss rate, the false-alarm rate and the threshold at every point of the curve.

    The first point accepts every trial and the last rejects every trial.

    With "official" `ties` there is a point after each trial, bonafide first among equal scores, and
    its threshold is the highest rejected score (0.001 below the lowest score at the first point),
    as in the organisers' package. "grouped" has a point per distinct score, and its threshold is
    the lowest accepted score: reject s < τ, accept s ≥ τ.

    Example:
        >>> curve = det_curve([2.0, 0.5], [-1.0, 1.0, 0.5], ties="grouped")
        >>> curve.p_miss
        array([0. , 0. , 0.5, 0.5, 1. ])
        >>> curve.thresholds
        array([-1. , 0.5, 1. , 2. , inf])
    """
    check_choice("ties", ties, TIES)
    curve = SortedScores.of(bonafide, spoof)
    n_bonafide, n_spoof = len(curve.bonafide), len(curve.spoof)
    n_trials = n_bonafide + n_spoof
    is_bonafide = np.zeros(n_trials, dtype=bool)
    is_bonafide[np.arange(n_bonafide) + curve.n_spoof_below] = True
    scores = np.empty(n_trials)
    scores[is_bonafide] = curve.bonafide
    scores[~is_bonafide] = curve.spoof
    missed = np.concatenate([[0], np.cumsum(is_bonafide)])
    rejected = np.arange(n_trials + 1) - missed
    if ties == "official":
        thresholds = np.concatenate([[scores[0] - BELOW_LOWEST], scores])
    else:
        points = np.append(np.flatnonzero(np.diff(scores, prepend=-np.inf)), n_trials)
        thresholds = np.append(scores[points[:-1]], np.inf)
        missed, rejected = missed[points], rejected[points]
    return DetCurve(missed / n_bonafide, (n_spoof - rejected) / n_spoof, thresholds)


def dcf(
    missed: Integers | int,
    rejected: Integers | int,
    n_bonafide: int,
    n_spoof: int,
    costs: DetectionCosts,
) -> FloatArray:
    """Detection cost, not normalised, where `missed` bonafide and `rejected` spoofs lie below."""
    # The organisers compute 1 − (1 − p_spoof) and multiply from the left. Doing the same, rounding
    # included, makes equal costs fall alike, so that the first minimum has their threshold.
    p_bonafide = 1.0 - costs.p_spoof
    p_miss = np.asarray(missed) / n_bonafide
    p_fa = (n_spoof - np.asarray(rejected)) / n_spoof
    cost: FloatArray = costs.c_miss * p_miss * p_bonafide + costs.c_fa * p_fa * (1.0 - p_bonafide)
    return cost


def default_cost(costs: DetectionCosts) -> float:
    """The cost of the cheaper trivial decision, accept all or reject all."""
    p_bonafide = 1.0 - costs.p_spoof
    return min(costs.c_miss * p_bonafide, costs.c_fa * (1.0 - p_bonafide))


def eer_counts(
    corners_bonafide: Integers, corners_spoof: Integers
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the point where P_miss first reaches P_fa, and the point before it.

    A point is the number of bonafide and of spoof trials passed; the last corner has passed all.
    P_miss − P_fa never falls along the path, so bisection finds the corner, and a division the
    point between two corners. Whole numbers keep it exact.
    """
    n_bonafide, n_spoof = int(corners_bonafide[-1]), int(corners_spoof[-1])
    goal = n_bonafide * n_spoof  # P_miss ≥ P_fa  ⇔  B·n_spoof + S·n_bonafide ≥ n_bonafide·n_spoof

    def reached(corner: int) -> int:
        passed_bonafide, passed_spoof = corners_bonafide[corner], corners_spoof[corner]
        return int(passed_bonafide) * n_spoof + int(passed_spoof) * n_bonafide

    corner = bisect_left(range(len(corners_bonafide)), goal, key=reached)
    end = int(corners_bonafide[corner])
    bonafide, spoof, before = 0, 0, 0
    if corner > 0:
        bonafide, spoof = int(corners_bonafide[corner - 1]), int(corners_spoof[corner - 1])
        before = reached(corner - 1)
    n_steps = -((before - goal) // n_spoof)
    if bonafide + n_steps <= end:
        return (bonafide + n_steps, spoof), (bonafide + n_steps - 1, spoof)
    before += (end - bonafide) * n_spoof
    n_steps = -((before - goal) // n_bonafide)
    return (end, spoof + n_steps), (end, spoof + n_steps - 1)
