"""Track 1, the countermeasure alone: EER, minDCF, actDCF, Cllr.

Every function takes two arrays, bonafide first, so the orientation can't be wrong: the scores of
bonafide trials, shape (n_bonafide,), and of spoofed trials, shape (n_spoof,). A higher score means
bonafide. Values and thresholds are those of the organisers' package to 1e-9.

There are two kinds of threshold. The Bayes threshold of `act_dcf`, and every threshold with
``ties="grouped"``, belongs to the accepted side: accept s ≥ τ, reject s < τ. The official threshold
of `eer` and `min_dcf` is the highest *rejected* score: accept s > τ, reject s ≤ τ.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts, OperatingPoint
from asvspoof_cm.metrics.det import (
    TIES,
    Integers,
    SortedScores,
    Ties,
    dcf,
    default_cost,
    eer_counts,
)
from asvspoof_cm.utils.checks import FloatArray, IntArray, as_scores, check_choice

# A difference of the official and the tie-honest EER that is worth a warning.
TIES_MATTER = 0.001

# Scores that Cllr handles at a time: a few arrays of 128 KiB.
SOFTPLUS_CHUNK = 1 << 14


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
    return eer_warned(SortedScores.of(bonafide, spoof), ties)


def min_dcf(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    costs: DetectionCosts = ASVSPOOF5,
    *,
    ties: Ties = "official",
) -> OperatingPoint:
    """Return the minimum of the normalised detection cost over all thresholds, and its threshold.

    The arguments are those of `eer`, and the costs. Ties change the threshold only, because the
    minimum never lies between equal scores: "official" gives the highest rejected score, "grouped"
    the lowest accepted one.

    Example:
        >>> min_dcf([2.0, 0.5], [-1.0, 1.0, 0.5]).threshold
        -1.0
    """
    check_choice("ties", ties, TIES)
    return min_dcf_of(SortedScores.of(bonafide, spoof), costs, ties)


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


# The mathematics on scores that are already checked, and sorted where it matters.


def eer_rate(counts: tuple[int, int], n_bonafide: int, n_spoof: int) -> tuple[float, float]:
    """Return |P_miss − P_fa| and their mean where `counts` trials have been passed."""
    p_miss, p_fa = counts[0] / n_bonafide, (n_spoof - counts[1]) / n_spoof
    return abs(p_miss - p_fa), (p_miss + p_fa) / 2.0


def eer_at(corners: tuple[Integers, Integers]) -> tuple[float, tuple[int, int]]:
    """Return the official EER and the trials passed where it lies."""
    n_bonafide, n_spoof = int(corners[0][-1]), int(corners[1][-1])
    reached, before = eer_counts(*corners)
    gap, value = eer_rate(reached, n_bonafide, n_spoof)
    gap_before, value_before = eer_rate(before, n_bonafide, n_spoof)
    return (value_before, before) if gap_before <= gap else (value, reached)


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


def min_dcf_of(curve: SortedScores, costs: DetectionCosts, ties: Ties) -> OperatingPoint:
    """The minDCF of sorted scores."""
    missed, rejected = curve.corners
    values = dcf(missed, rejected, len(curve.bonafide), len(curve.spoof), costs)
    best = int(np.argmin(values))
    counts = int(missed[best]), int(rejected[best])
    threshold = curve.last_rejected if ties == "official" else curve.first_accepted
    return OperatingPoint(float(values[best]) / default_cost(costs), threshold(*counts))


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
    for start in range(0, len(scores), SOFTPLUS_CHUNK):
        chunk = scores[start : start + SOFTPLUS_CHUNK]
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


def eer_warned(curve: SortedScores, ties: Ties) -> OperatingPoint:
    """The EER of sorted scores, with the warnings of `eer`."""
    official, grouped = eer_of(curve), eer_of(curve, "grouped")
    if ties == "official" and abs(official.value - grouped.value) > TIES_MATTER:
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
