"""Track 1, the countermeasure alone: EER, minDCF, actDCF, Cllr, and all of them by `evaluate`.

Every function takes two arrays, bonafide first, so the orientation can't be wrong: the scores of
bonafide trials, shape (n_bonafide,), and of spoofed trials, shape (n_spoof,). A higher score means
bonafide. Values and thresholds are those of the organisers' package to 1e-9.

There are two kinds of threshold. The Bayes threshold of `act_dcf`, and every threshold with
``ties="grouped"``, belongs to the accepted side: accept s ≥ τ, reject s < τ. The official threshold
of `eer` and `min_dcf` is the highest *rejected* score: accept s > τ, reject s ≤ τ.

The official error curve walks through all trials in order of score and stops after each of them. On
equal scores it passes the bonafide trials first, one at a time. After B bonafide and S spoof trials

    P_miss = B / n_bonafide,    P_fa = (n_spoof − S) / n_spoof.

Only the points before a bonafide trial that follows a spoof can minimise a cost: everywhere else
one more step lowers it. These are the *corners*, at most min(n_bonafide, n_spoof) + 2 of them;
between two corners the path is one run of bonafide trials, then one run of spoof trials. The same
corners serve a bootstrap, where trials carry counts: their order never changes.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    Quantity,
    Table,
    as_scores,
    check_choice,
    check_inside_unit,
    check_positive_finite,
    split_by_label,
)

Integers: TypeAlias = NDArray[np.integer[Any]]
Ties: TypeAlias = Literal["official", "grouped"]
TIES = ("official", "grouped")

# The organisers put the first point of their curve this far below the lowest score.
BELOW_LOWEST = 0.001
# A difference of the official and the tie-honest EER that is worth a warning.
_TIES_MATTER = 0.001
# Scores that Cllr handles at a time: a few arrays of 128 KiB.
_SOFTPLUS_CHUNK = 1 << 14

_AUC = Quantity("auc", "ROC AUC")
_THRESHOLD = Quantity("threshold", "threshold")


@dataclass(frozen=True)
class OperatingPoint(Plain):
    """A metric's value and the threshold at which it is reached."""

    value: float
    threshold: float

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class DetectionCosts(Plain):
    """Costs of the two errors of a countermeasure and the prior of spoofing.

    The detection cost function is β·P_miss + P_fa over its value for the cheaper trivial decision,
    min(β, 1), with β = c_miss (1 − p_spoof) / (c_fa p_spoof).

    Example:
        >>> round(DetectionCosts().beta, 6), round(DetectionCosts().threshold, 4)
        (1.9, -0.6419)
    """

    p_spoof: float = 0.05
    c_miss: float = 1.0
    c_fa: float = 10.0

    def __post_init__(self) -> None:
        check_inside_unit(p_spoof=self.p_spoof)
        check_positive_finite(c_miss=self.c_miss, c_fa=self.c_fa)

    @property
    def beta(self) -> float:
        """Weight of a miss against a false alarm, priors included."""
        return self.c_miss * (1.0 - self.p_spoof) / (self.c_fa * self.p_spoof)

    @property
    def threshold(self) -> float:
        """The Bayes threshold −ln β: accept a log-likelihood ratio at or above it."""
        return -math.log(self.beta)


ASVSPOOF5: Final = DetectionCosts()
"""Track 1 of ASVspoof 5."""


def eer(bonafide: ArrayLike, spoof: ArrayLike, *, ties: Ties = "official") -> OperatingPoint:
    """Return the equal error rate, as a fraction, and its threshold.

    It is the mean of P_miss and P_fa at the point of the curve where they are closest.

    Args:
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        ties: "official" passes equal scores one at a time, bonafide first, as the organisers do;
            the threshold is the highest rejected score. "grouped" passes equal scores of the two
            classes together, as one straight step of the curve, and interpolates on that step; the
            threshold is the lowest score accepted after it. Without scores that occur in both
            classes the two values are equal.

    Warns:
        UserWarning: Where ties change the official value by more than 0.1 % absolute, and where
            the value is above 50 %: then the sign of the scores is probably flipped.

    Note:
        The official convention gives a constant scorer an EER of 100 %; "grouped" gives 50 %.

    Example:
        >>> eer([2.0, 0.5, 1.5, 3.0], [-1.0, 1.0, 0.0, -2.0])
        OperatingPoint(value=0.25, threshold=0.5)
        >>> eer([0.0] * 10, [0.0] * 30, ties="grouped").value
        0.5
    """
    check_choice("ties", ties, TIES)
    return _eer_warned(SortedScores.of(bonafide, spoof), ties)


def min_dcf(
    bonafide: ArrayLike, spoof: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> OperatingPoint:
    """Return the minimum of the normalised detection cost over all thresholds, and its threshold.

    The arguments are those of `eer`, and the costs. The minimum never lies between equal scores.

    Example:
        >>> min_dcf([2.0, 0.5], [-1.0, 1.0, 0.5]).threshold
        -1.0
    """
    return min_dcf_of(SortedScores.of(bonafide, spoof), costs)


def act_dcf(
    bonafide: ArrayLike, spoof: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> OperatingPoint:
    """Return the normalised detection cost at the Bayes threshold −ln β, and that threshold.

    It is only meaningful for scores that are log-likelihood ratios: see `asvspoof_cm.calibration`.

    Example:
        >>> round(act_dcf([2.0, 0.5], [-1.0, 1.0, 0.5]).value, 6)
        0.666667
    """
    return act_dcf_of(as_scores("bonafide", bonafide), as_scores("spoof", spoof), costs)


def cllr(bonafide: ArrayLike, spoof: ArrayLike) -> float:
    """Return the log-likelihood-ratio cost in bits: 0 is perfect, 1 says nothing.

    Cllr = ½ [mean log₂(1 + e^(−s)) over bonafide + mean log₂(1 + e^s) over spoof] (Brümmer and
    du Preez, 2006). The scores must be log-likelihood ratios.

    Note:
        Finite where the organisers' package overflows, at −800, and far beyond: only a sum over
        trials above 1.8e308 is infinite.

    Example:
        >>> cllr([0.0], [0.0])
        1.0
    """
    return cllr_of(as_scores("bonafide", bonafide), as_scores("spoof", spoof))


def min_cllr(bonafide: ArrayLike, spoof: ArrayLike) -> float:
    """Return the lowest Cllr that any non-decreasing map of the scores can reach, by PAV.

    Example:
        >>> min_cllr([1.0, 2.0], [-1.0, 0.0])
        0.0
    """
    return min_cllr_of(SortedScores.of(bonafide, spoof))


def auc(bonafide: ArrayLike, spoof: ArrayLike) -> float:
    """Return the area under the ROC curve: P(bonafide > spoof) + ½ P(equal).

    Example:
        >>> auc([1.0, 0.0], [0.0])
        0.75
    """
    return auc_of(SortedScores.of(bonafide, spoof))


class DetCurve(NamedTuple):
    """Error rates for every threshold, each of shape (n_points,), from "accept all" on."""

    p_miss: FloatArray
    p_fa: FloatArray
    thresholds: FloatArray


def det_curve(bonafide: ArrayLike, spoof: ArrayLike) -> DetCurve:
    """Return the miss rate, the false-alarm rate and the threshold at every point of the curve.

    The first point accepts every trial and the last rejects every trial. There is a point after
    each trial, bonafide first among equal scores. Its threshold is the highest rejected score, at
    the first point 0.001 below the lowest score, as in the organisers' package.

    Example:
        >>> curve = det_curve([2.0, 0.5], [-1.0, 1.0, 0.0])
        >>> curve.p_miss
        array([0. , 0. , 0. , 0.5, 0.5, 1. ])
        >>> curve.thresholds
        array([-1.001, -1.   ,  0.   ,  0.5  ,  1.   ,  2.   ])
    """
    curve = SortedScores.of(bonafide, spoof)
    n_bonafide, n_spoof = len(curve.bonafide), len(curve.spoof)
    is_bonafide = np.zeros(n_bonafide + n_spoof, dtype=bool)
    is_bonafide[np.arange(n_bonafide) + curve.n_spoof_below] = True
    scores = np.empty(len(is_bonafide))
    scores[is_bonafide], scores[~is_bonafide] = curve.classes
    missed = np.append(0, np.cumsum(is_bonafide))
    rejected = np.arange(len(missed)) - missed
    thresholds = np.append(scores[0] - BELOW_LOWEST, scores)
    return DetCurve(missed / n_bonafide, (n_spoof - rejected) / n_spoof, thresholds)


METRICS: Final[dict[str, Quantity]] = {
    quantity.name: quantity
    for quantity in (
        Quantity("min_dcf", "minDCF"),
        Quantity("act_dcf", "actDCF"),
        Quantity("eer", "EER", "%", 100.0, 3),
        Quantity("cllr", "Cllr", "bits"),
    )
}
"""The metrics of every table and interval, by name, and how they are printed."""


@dataclass(frozen=True, kw_only=True)
class Track1Result(Plain):
    """Everything that Track 1 reports about one set of trials; ``print`` shows a table.

    `eer` is a fraction; `cllr` and `min_cllr` are bits.
    """

    n_bonafide: int
    n_spoof: int
    min_dcf: OperatingPoint
    act_dcf: OperatingPoint
    eer: OperatingPoint
    cllr: float
    min_cllr: float
    auc: float
    costs: DetectionCosts

    def values(self) -> dict[str, float]:
        """Return the value of each entry of `METRICS`, by name and without its threshold.

        Example:
            >>> evaluate([2.0, 1.0, 0.0], [1, 0, 0]).values()["eer"]
            0.0
        """
        return {name: float(getattr(self, name)) for name in METRICS}

    def table(self, intervals: Mapping[str, Any] | None = None) -> Table:
        """Return the table that ``print`` shows; `intervals` stand in the place of their values."""
        quantities = (*METRICS.values(), Quantity("min_cllr", "min Cllr", "bits"), _AUC)
        rows: list[Sequence[Any]] = [
            ("bonafide", self.n_bonafide, None),
            ("spoof", self.n_spoof, None),
        ]
        for quantity in quantities:
            found = getattr(self, quantity.name)
            threshold = found.threshold if isinstance(found, OperatingPoint) else None
            value = (intervals or {}).get(quantity.name, float(found))
            rows.append((quantity, value, threshold))
        return Table(("metric", "value", _THRESHOLD), rows)

    def __str__(self) -> str:
        return str(self.table())


def evaluate(
    scores: ArrayLike, labels: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> Track1Result:
    """Return all Track 1 metrics of one set of trials, sorting them once.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        costs: Costs and prior; those of ASVspoof 5 unless given.

    Example:
        >>> print(evaluate([2.0, 0.5, -1.0, 1.0], ["bonafide", "bonafide", "spoof", "spoof"]))
        metric            value  threshold
        bonafide              2
        spoof                 2
        minDCF           0.5000    -1.0000
        actDCF           0.5000    -0.6419
        EER (%)          50.000     0.5000
        Cllr (bits)      0.8034
        min Cllr (bits)  0.5000
        ROC AUC          0.7500
    """
    bonafide, spoof = split_by_label(scores, labels)
    bonafide.sort()
    spoof.sort()
    curve = SortedScores(bonafide, spoof)
    return Track1Result(
        n_bonafide=len(curve.bonafide),
        n_spoof=len(curve.spoof),
        min_dcf=min_dcf_of(curve, costs),
        act_dcf=act_dcf_of(*curve.classes, costs),
        eer=_eer_warned(curve),
        cllr=cllr_of(*curve.classes),
        min_cllr=min_cllr_of(curve),
        auc=auc_of(curve),
        costs=costs,
    )


# The mathematics on scores that are already checked, and sorted where it matters.


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


def eer_at(corners: tuple[Integers, Integers]) -> tuple[float, tuple[int, int]]:
    """Return the official EER and the trials passed where it lies."""
    n_bonafide, n_spoof = int(corners[0][-1]), int(corners[1][-1])
    found = []
    for counts in reversed(eer_counts(*corners)):
        p_miss, p_fa = counts[0] / n_bonafide, (n_spoof - counts[1]) / n_spoof
        found.append((abs(p_miss - p_fa), (p_miss + p_fa) / 2.0, counts))
    _, value, counts = min(found, key=lambda point: point[0])  # the point before, if equally close
    return value, counts


def eer_of(curve: SortedScores, ties: Ties = "official") -> OperatingPoint:
    """The EER of sorted scores, without warnings."""
    value, counts = eer_at(curve.corners)
    if ties == "official":
        return OperatingPoint(value, curve.last_rejected(*counts))
    crossing = curve.last_rejected(*eer_counts(*curve.corners)[0])
    lowest = [int(np.searchsorted(x, crossing)) for x in (curve.bonafide, curve.spoof)]
    highest = [int(np.searchsorted(x, crossing, "right")) for x in (curve.bonafide, curve.spoof)]
    if lowest[0] == highest[0] or lowest[1] == highest[1]:
        return OperatingPoint(value, curve.first_accepted(*counts))
    n_bonafide, n_spoof = len(curve.bonafide), len(curve.spoof)
    p_miss, p_miss_after = lowest[0] / n_bonafide, highest[0] / n_bonafide
    p_fa, p_fa_after = 1.0 - lowest[1] / n_spoof, 1.0 - highest[1] / n_spoof
    part = (p_fa - p_miss) / (p_fa - p_fa_after + p_miss_after - p_miss)
    return OperatingPoint(
        p_miss + part * (p_miss_after - p_miss), curve.first_accepted(highest[0], highest[1])
    )


def min_dcf_of(curve: SortedScores, costs: DetectionCosts) -> OperatingPoint:
    """The minDCF of sorted scores."""
    missed, rejected = curve.corners
    values = dcf(missed, rejected, len(curve.bonafide), len(curve.spoof), costs)
    best = int(np.argmin(values))
    threshold = curve.last_rejected(int(missed[best]), int(rejected[best]))
    return OperatingPoint(float(values[best]) / default_cost(costs), threshold)


def act_dcf_of(bonafide: FloatArray, spoof: FloatArray, costs: DetectionCosts) -> OperatingPoint:
    """The actDCF of checked scores in any order."""
    missed, rejected = (int(np.count_nonzero(x < costs.threshold)) for x in (bonafide, spoof))
    cost = float(dcf(missed, rejected, len(bonafide), len(spoof), costs))
    return OperatingPoint(cost / default_cost(costs), costs.threshold)


def cllr_of(bonafide: FloatArray, spoof: FloatArray) -> float:
    """The Cllr of checked scores in any order."""
    miss = _sum_softplus(bonafide, negate=True) / len(bonafide)
    false_alarm = _sum_softplus(spoof) / len(spoof)
    return 0.5 * (miss + false_alarm) / math.log(2.0)


def auc_of(curve: SortedScores) -> float:
    """The area under the ROC curve of sorted scores."""
    n_won = 2 * int(curve.n_spoof_below.sum()) + int(curve.n_spoof_tied.sum())
    return n_won / (2 * len(curve.bonafide) * len(curve.spoof))


def min_cllr_of(curve: SortedScores) -> float:
    """The Cllr of sorted scores after PAV."""
    counts = (np.diff(passed, prepend=0) for passed in curve.corners)
    n_bonafide, n_spoof, _ = pool_adjacent_violators(*counts)
    with np.errstate(divide="ignore"):
        llr = np.log(n_bonafide / n_bonafide.sum()) - np.log(n_spoof / n_spoof.sum())
    # A block of one class has an infinite ratio of the right sign and costs nothing.
    has_bonafide, has_spoof = n_bonafide > 0, n_spoof > 0
    miss = np.dot(n_bonafide[has_bonafide], spoof_bits(-llr[has_bonafide])) / n_bonafide.sum()
    false_alarm = np.dot(n_spoof[has_spoof], spoof_bits(llr[has_spoof])) / n_spoof.sum()
    return 0.5 * float(miss + false_alarm)


def pool_adjacent_violators(
    n_bonafide: IntArray, n_spoof: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Merge neighbouring blocks until the share of bonafide trials rises from block to block.

    Given the trials of each class in each block of scores, lowest first, (n_blocks,) each, return
    for each merged block the two counts and the block that it starts with, (n_merged,) each.
    """
    from scipy.optimize import isotonic_regression

    n_trials = n_bonafide + n_spoof
    filled = np.flatnonzero(n_trials)
    share = n_bonafide[filled] / n_trials[filled]
    starts = filled[isotonic_regression(share, weights=n_trials[filled]).blocks[:-1]]
    return np.add.reduceat(n_bonafide, starts), np.add.reduceat(n_spoof, starts), starts


def spoof_bits(llr: FloatArray) -> FloatArray:
    """Cost in bits of each spoof LLR, log₂(1 + e^llr); that of a bonafide one is of −llr."""
    bits: FloatArray = np.logaddexp(0.0, llr)
    bits /= math.log(2.0)
    return bits


def _sum_softplus(scores: FloatArray, *, negate: bool = False) -> float:
    """Sum of log(1 + e^x) = max(x, 0) + log(1 + e^(−|x|)) over x = s, or −s; 32 factors per log.

    Chunks stay in the cache. Each halving multiplies pairs, (1 + a)(1 + b) = 1 + (a + b + ab), and
    keeps only what exceeds one, so tiny terms lose no digits; 2³² bounds the product.
    """
    total = 0.0
    for start in range(0, len(scores), _SOFTPLUS_CHUNK):
        chunk = scores[start : start + _SOFTPLUS_CHUNK]
        positive = -np.minimum(chunk, 0.0).sum() if negate else np.maximum(chunk, 0.0).sum()
        excess = np.zeros(-(-len(chunk) // 32) * 32)
        filled = excess[: len(chunk)]
        np.exp(np.copysign(chunk, -1.0, out=filled), out=filled)
        for _ in range(5):
            left, right = excess[: len(excess) // 2], excess[len(excess) // 2 :]
            excess = left * right
            excess += left
            excess += right
        total += float(positive) + float(np.log1p(excess).sum())
    return total


def _eer_warned(curve: SortedScores, ties: Ties = "official") -> OperatingPoint:
    official, grouped = eer_of(curve), eer_of(curve, "grouped")
    if ties == "official" and abs(official.value - grouped.value) > _TIES_MATTER:
        warnings.warn(
            f"tied scores change the EER: {100 * official.value:.3f} % by the official convention, "
            f'{100 * grouped.value:.3f} % with ties="grouped". Score with more digits.',
            stacklevel=3,
        )
    if grouped.value > 0.5:
        warnings.warn(
            f"the EER is {100 * grouped.value:.2f} %, above 50 %: the sign of the scores is "
            "probably flipped. A higher score must mean bonafide.",
            stacklevel=3,
        )
    return official if ties == "official" else grouped
