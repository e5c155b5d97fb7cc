"""Track 2, spoofing-robust speaker verification: a-DCF, minimum t-DCF and t-EER.

Three classes: target (the claimed speaker, bonafide), nontarget (another speaker, bonafide) and
spoof. A higher score always speaks for acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    as_scores,
    check_between,
)
from asvspoof_cm.metrics.costs import ASVSPOOF5_SASV, SasvCosts
from asvspoof_cm.metrics.track1 import Curve, OperatingPoint, det_curve, eer_of, walk

AsvScores: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike]

# The organisers put the first threshold of the a-DCF this far below the lowest score.
A_DCF_BELOW_LOWEST = 1e-8


@dataclass(frozen=True, kw_only=True)
class AsvRates:
    """Error rates of the speaker verification that stands beside a countermeasure in t-DCF."""

    p_miss: float
    p_fa: float
    p_fa_spoof: float

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            check_between(name, rate, 0, 1)


ASVSPOOF5_ASV: Final = AsvRates(
    p_miss=0.01880141010575793, p_fa=0.01881016557566423, p_fa_spoof=0.4607082907604729
)
"""The organisers' speaker verification, pooled over the conditions of ASVspoof 5."""


@dataclass(frozen=True)
class TandemPoint:
    """The concurrent t-EER, as a fraction, and the two thresholds that reach it."""

    value: float
    asv_threshold: float
    cm_threshold: float


def a_dcf(
    target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> OperatingPoint:
    """Return the minimum of the normalised architecture-agnostic detection cost.

    a-DCF(τ) = C_miss π_tar P_miss + C_fa,non π_non P_fa,non + C_fa,spf π_spf P_fa,spf over its
    value for the cheaper trivial decision (Shim et al., 2024).

    Args:
        target: SASV scores of target trials, shape (n_target,).
        nontarget: Those of nontarget trials, shape (n_nontarget,).
        spoof: Those of spoofed trials, shape (n_spoof,).
        costs: Costs and priors; those of ASVspoof 5 unless given.

    Returns:
        The value, and the highest rejected score there: accept what lies above it.

    Example:
        >>> a_dcf([2.0, 3.0], [-1.0], [0.0, 1.0])
        OperatingPoint(value=0.0, threshold=1.0)
    """
    named = {"target": target, "nontarget": nontarget, "spoof": spoof}
    classes = [np.sort(as_scores(name, scores)) for name, scores in named.items()]
    # Only the points just before a target, and the last one, can be minima; equal scores leave
    # the target first, so a point "before" it has passed the strictly lower trials.
    n_targets = len(classes[0])
    passed: list[IntArray] = [np.arange(n_targets + 1)]
    cost = costs.c_miss * costs.p_target * (passed[0] / n_targets)
    weights = (costs.c_fa_nontarget * costs.p_nontarget, costs.c_fa_spoof * costs.p_spoof)
    for weight, scores in zip(weights, classes[1:], strict=True):
        passed.append(np.append(np.searchsorted(scores, classes[0]), len(scores)))
        cost += weight * ((len(scores) - passed[-1]) / len(scores))
    cost /= min(costs.c_miss * costs.p_target, sum(weights))
    best = int(np.argmin(cost))
    rejected = [
        float(scores[n[best] - 1]) for scores, n in zip(classes, passed, strict=True) if n[best]
    ]
    lowest = min(float(scores[0]) for scores in classes) - A_DCF_BELOW_LOWEST
    return OperatingPoint(float(cost[best]), max(rejected, default=lowest))


def asv_rates(target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike) -> AsvRates:
    """Return the error rates of a speaker verification at its own EER threshold.

    Note:
        The threshold is the official one of `eer`, the highest rejected score, and yet a trial at
        it counts as accepted (s ≥ τ), as in the organisers' package.

    Example:
        >>> asv_rates([2.0, 3.0], [-1.0, 2.5], [0.0, 4.0])
        AsvRates(p_miss=0.0, p_fa=0.5, p_fa_spoof=0.5)
    """
    threshold = eer_of(Curve.of(target, nontarget)).threshold
    return AsvRates(
        p_miss=float(np.mean(np.asarray(target) < threshold)),
        p_fa=float(np.mean(np.asarray(nontarget) >= threshold)),
        p_fa_spoof=float(np.mean(as_scores("spoof", spoof) >= threshold)),
    )


def min_t_dcf(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    *,
    asv: AsvRates | AsvScores = ASVSPOOF5_ASV,
    costs: SasvCosts = ASVSPOOF5_SASV,
) -> OperatingPoint:
    """Return the minimum of the normalised, ASV-constrained tandem detection cost.

    t-DCF(τ) = (C0 + C1 P_miss + C2 P_fa) / (C0 + min(C1, C2)) over the thresholds of the
    countermeasure, beside a fixed speaker verification (Kinnunen et al., 2020).

    Args:
        bonafide: Countermeasure scores of target and nontarget trials, shape (n_bonafide,).
        spoof: Countermeasure scores of spoofed trials, shape (n_spoof,).
        asv: Error rates of the speaker verification, the organisers' unless given; or its scores
            of target, nontarget and spoofed trials, which are taken at their EER threshold.
        costs: Costs and priors; those of ASVspoof 5 unless given.

    Note:
        With supplied ASV scores the published package reads the spoofs' *miss* rate where their
        false-accept rate belongs.

    Example:
        >>> min_t_dcf([1.0, 2.0], [-1.0, 0.0]).threshold
        0.0
    """
    rates = asv if isinstance(asv, AsvRates) else asv_rates(*asv)
    c0 = costs.p_target * costs.c_miss * rates.p_miss
    c0 += costs.p_nontarget * costs.c_fa_nontarget * rates.p_fa
    c1 = costs.p_target * costs.c_miss - c0
    c2 = costs.p_spoof * costs.c_fa_spoof * rates.p_fa_spoof
    if c1 < 0.0 or min(c1, c2) + c0 <= 0.0:
        raise ValueError(
            f"`asv` must cost less than rejecting everyone and let some error through; {rates} "
            f"gives C0 = {c0:.4g}, C1 = {c1:.4g}, C2 = {c2:.4g}."
        )
    curve = Curve.of(bonafide, spoof)
    missed, rejected = curve.corners
    p_miss, p_fa = curve.rates(missed, rejected)
    cost = c0 + c1 * p_miss + c2 * p_fa
    cost /= c0 + min(c1, c2)
    best = int(np.argmin(cost))
    # Where spoofs cost nothing, the cost is flat up to the first miss: its first point accepts all.
    passed = (0, 0) if c2 == 0.0 else (int(missed[best]), int(rejected[best]))
    return OperatingPoint(float(cost[best]), curve.last_rejected(passed))


def t_eer(asv: AsvScores, cm: tuple[ArrayLike, ArrayLike]) -> TandemPoint:
    """Return the concurrent tandem equal error rate, exactly.

    A trial is accepted where both the speaker verification and the countermeasure accept it:

        P_miss = P_miss,cm + (1 − P_miss,cm) P_miss,asv,
        P_fa,non = (1 − P_miss,cm) P_fa,non,asv,    P_fa,spf = P_fa,cm P_fa,spf,asv.

    The concurrent t-EER is where all three are equal, whatever the share of spoofs (Kinnunen et
    al., 2023), as in the organisers' table of all pairs of thresholds.

    Args:
        asv: ASV scores of target, nontarget and spoofed trials.
        cm: Countermeasure scores of bonafide (target and nontarget) and spoofed trials.

    Raises:
        ValueError: Also where no pair of thresholds balances the errors.

    Example:
        >>> t_eer(([2.0, 3.0], [-1.0, 0.0], [1.0, 2.5]), ([1.0, 2.0], [-1.0, 0.0])).value
        0.0
    """
    names = ("asv target", "asv nontarget", "asv spoof")
    classes = [np.sort(as_scores(name, own)) for name, own in zip(names, asv, strict=True)]
    passed, asv_thresholds = walk(*classes)
    rejected = [n / len(own) for n, own in zip(passed, classes, strict=True)]
    asv_miss, asv_fa, asv_fa_spoof = rejected[0], 1.0 - rejected[1], 1.0 - rejected[2]
    cm_curve = det_curve(*cm)

    def difference(cm_point: IntArray) -> FloatArray:
        p_miss = cm_curve.p_miss[cm_point]
        p_fa = 0.5 * (1.0 - p_miss) * asv_fa + 0.5 * cm_curve.p_fa[cm_point] * asv_fa_spoof
        gap: FloatArray = p_miss + (1.0 - p_miss) * asv_miss - p_fa
        return gap

    # For each ASV threshold, the countermeasure's where P_miss is closest to the mean of the false
    # alarms, by bisection; of these pairs the one where the two false-alarm rates are closest.
    low = np.zeros(len(asv_thresholds), dtype=np.int64)
    high = np.full(len(asv_thresholds), len(cm_curve.p_miss) - 1)
    while np.any(low < high):
        middle = (low + high) // 2
        reached = difference(middle) >= 0.0
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    before = np.maximum(low - 1, 0)
    closer = np.abs(difference(before)) <= np.abs(difference(low))
    cm_point = np.where(closer, before, low)
    with np.errstate(divide="ignore", invalid="ignore"):
        asv_ratio = asv_fa / asv_fa_spoof
        cm_ratio = cm_curve.p_fa[cm_point] / (1.0 - cm_curve.p_miss[cm_point])
        gap = np.abs(asv_ratio - cm_ratio)
    # Where the ASV alone already misses more than it lets through, no countermeasure balances it.
    possible = (asv_miss < 0.5 * asv_fa + 0.5 * asv_fa_spoof) & np.isfinite(gap)
    if not possible.any():
        raise ValueError(
            "`asv` and `cm` must have thresholds where P_miss, P_fa,non and P_fa,spf balance; no "
            "pair does. Check the order of the classes (target, nontarget, spoof; bonafide, spoof) "
            "and that a higher score means acceptance."
        )
    best = int(np.argmin(np.where(possible, gap, np.inf)))
    value = asv_fa_spoof[best] * cm_curve.p_fa[cm_point[best]]
    return TandemPoint(
        float(value), float(asv_thresholds[best]), float(cm_curve.thresholds[cm_point[best]])
    )
