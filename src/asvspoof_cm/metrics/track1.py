"""Track 1, the countermeasure alone: EER, minDCF, actDCF, Cllr, and all of them by `evaluate`.

The Bayes threshold of `act_dcf`, and every threshold with ``ties="grouped"``, is accepted: accept
s ≥ τ. The official threshold of `eer` and `min_dcf` is the highest *rejected* score: accept s > τ.

The official error curve walks through all trials in order of score and stops after each of them. On
equal scores it passes the bonafide trials first, one at a time. After B bonafide and S spoof trials

    P_miss = B / n_bonafide,    P_fa = (n_spoof − S) / n_spoof.

Only the points before a bonafide trial that follows a spoof can minimise a cost: everywhere else
one more step lowers it. These are the *corners*; between two of them the path is one run of
bonafide trials, then one run of spoof trials. The same corners serve a bootstrap, where trials come
any number of times: their order never changes. So a metric is one function of a `Curve`.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._tables import Quantity, Report, Table
from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    as_scores,
    check_choice,
    split_by_label,
)
from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts

Integers: TypeAlias = NDArray[np.integer[Any]]
# Half the memory traffic of 64 bits, and enough for two thousand million trials.
Counts: TypeAlias = NDArray[np.int32]
Ties: TypeAlias = Literal["official", "grouped"]

# The organisers put the first point of their curve this far below the lowest score.
BELOW_LOWEST = 0.001
# A difference of the official and the tie-honest EER that is worth a warning.
_TIES_MATTER = 0.001


@dataclass(frozen=True)
class OperatingPoint(Plain):
    """A metric's value and the threshold at which it is reached."""

    value: float
    threshold: float

    def __float__(self) -> float:
        return self.value


def eer(bonafide: ArrayLike, spoof: ArrayLike, *, ties: Ties = "official") -> OperatingPoint:
    """Return the equal error rate, as a fraction, and its threshold.

    It is the mean of P_miss and P_fa at the point of the curve where they are closest.

    Args:
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        ties: "official" passes equal scores one at a time, bonafide first, as the organisers do.
            "grouped" passes equal scores of the two classes together, as one straight step of the
            curve, and interpolates on it; its threshold is the lowest score accepted after it.

    Warns:
        UserWarning: Where ties change the official value by more than 0.1 % absolute, and above
            50 %, where the sign of the scores is probably flipped.

    Note:
        The official convention gives a constant scorer an EER of 100 %; "grouped" gives 50 %.

    Example:
        >>> eer([2.0, 0.5, 1.5, 3.0], [-1.0, 1.0, 0.0, -2.0])
        OperatingPoint(value=0.25, threshold=0.5)
        >>> eer([0.0] * 10, [0.0] * 30, ties="grouped").value
        0.5
    """
    check_choice("ties", ties, ("official", "grouped"))
    curve = Curve.of(bonafide, spoof)
    _warn_of_eer(curve, ties)
    return eer_of(curve, ties)


def min_dcf(
    bonafide: ArrayLike, spoof: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> OperatingPoint:
    """Return the minimum of the normalised detection cost over all thresholds, and its threshold.

    Example:
        >>> min_dcf([2.0, 0.5], [-1.0, 1.0, 0.5]).threshold
        -1.0
    """
    return min_dcf_of(Curve.of(bonafide, spoof), costs)


def act_dcf(
    bonafide: ArrayLike, spoof: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> OperatingPoint:
    """Return the normalised detection cost at the Bayes threshold −ln β, and that threshold.

    It is only meaningful for scores that are log-likelihood ratios: see `asvspoof_cm.calibration`.

    Example:
        >>> round(act_dcf([2.0, 0.5], [-1.0, 1.0, 0.5]).value, 6)
        0.666667
    """
    return _act_dcf_of(Curve.of(bonafide, spoof), costs)


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
    return _cllr_of(Curve.of(bonafide, spoof))


def min_cllr(bonafide: ArrayLike, spoof: ArrayLike) -> float:
    """Return the lowest Cllr that any non-decreasing map of the scores can reach, by PAV.

    Example:
        >>> min_cllr([1.0, 2.0], [-1.0, 0.0])
        0.0
    """
    return _min_cllr_of(Curve.of(bonafide, spoof))


class DetCurve(NamedTuple):
    """Error rates for every threshold, each of shape (n_points,), from "accept all" on."""

    p_miss: FloatArray
    p_fa: FloatArray
    thresholds: FloatArray


def det_curve(bonafide: ArrayLike, spoof: ArrayLike) -> DetCurve:
    """Return the miss rate, the false-alarm rate and the threshold at every point of the curve.

    There is a point before the first trial and after each. Its threshold is the highest rejected
    score, at the first point 0.001 below the lowest score, as in the organisers' package.

    Example:
        >>> curve = det_curve([2.0, 0.5], [-1.0, 1.0, 0.0])
        >>> curve.p_miss
        array([0. , 0. , 0. , 0.5, 0.5, 1. ])
        >>> curve.thresholds
        array([-1.001, -1.   ,  0.   ,  0.5  ,  1.   ,  2.   ])
    """
    curve = Curve.of(bonafide, spoof)
    passed, thresholds = walk(*curve.classes)
    return DetCurve(*curve.rates(*passed), thresholds)


def walk(*classes: FloatArray) -> tuple[list[IntArray], FloatArray]:
    """How many of each sorted class were passed after 0, 1, … trials, and the thresholds."""
    scores = np.concatenate(classes)
    order = np.argsort(scores, kind="stable")
    of_class = np.repeat(np.arange(len(classes)), [len(own) for own in classes])[order]
    passed = [np.append(0, np.cumsum(of_class == k)) for k in range(len(classes))]
    return passed, np.append(scores[order[0]] - BELOW_LOWEST, scores[order])


@dataclass(frozen=True, kw_only=True)
class Track1Result(Report):
    """What `evaluate` returns; entries of `METRICS` are attributes too: ``result.eer.value``."""

    n_bonafide: int
    n_spoof: int
    metrics: Mapping[str, OperatingPoint | float]
    min_cllr: float
    costs: DetectionCosts

    def __getattr__(self, name: str) -> Any:
        if name in METRICS:
            return self.metrics[name]
        raise AttributeError(f"a Track1Result has no {name!r}.")

    def values(self) -> dict[str, float]:
        """Return the value of each entry of `METRICS`, by name and without its threshold."""
        return {name: float(found) for name, found in self.metrics.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, ready for JSON."""
        fields = super().as_dict()
        return {**fields.pop("metrics"), **fields}

    def table(self, intervals: Mapping[str, Any] | None = None) -> Table:
        """Return the table that ``print`` shows; `intervals` stand in the place of their values."""
        rows: list[Sequence[Any]] = [
            ("bonafide", self.n_bonafide, None),
            ("spoof", self.n_spoof, None),
        ]
        for name, found in self.metrics.items():
            value = (intervals or {}).get(name, float(found))
            rows.append((METRICS[name], value, getattr(found, "threshold", None)))
        rows.append((Quantity("min_cllr", "min Cllr", "bits"), self.min_cllr, None))
        return Table(("metric", "value", Quantity("threshold", "threshold")), rows)


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
    """
    classes = split_by_label(scores, labels)
    for own in classes:
        own.sort()
    curve = Curve(classes)
    _warn_of_eer(curve)
    return Track1Result(
        n_bonafide=len(classes[0]),
        n_spoof=len(classes[1]),
        metrics={name: metric.function(curve, costs) for name, metric in METRICS.items()},
        min_cllr=_min_cllr_of(curve),
        costs=costs,
    )


@dataclass(frozen=True, eq=False)
class Curve:
    """The sorted scores of both classes, bonafide first, and how often each was drawn: None, once.

    A curve of draws has no thresholds.
    """

    classes: tuple[FloatArray, FloatArray]
    times: tuple[Counts, Counts] | None = None

    @classmethod
    def of(cls, bonafide: ArrayLike, spoof: ArrayLike) -> Curve:
        """Check and sort the scores of both classes."""
        return cls((np.sort(as_scores("bonafide", bonafide)), np.sort(as_scores("spoof", spoof))))

    def drawn(self, times: tuple[Counts, Counts]) -> Curve:
        """Return the curve where each trial comes so often."""
        curve = replace(self, times=times)
        vars(curve).update(_corner_trials=self._corner_trials, _surprise=self._surprise)
        return curve

    def trials(self) -> tuple[FloatArray, FloatArray]:
        """The bonafide and spoof scores, each as often as it comes."""
        if self.times is None:
            return self.classes
        return np.repeat(self.classes[0], self.times[0]), np.repeat(self.classes[1], self.times[1])

    @cached_property
    def _corner_trials(self) -> tuple[IntArray, IntArray]:
        """Where the corners lie among the scores of each class: (n_corners,) each."""
        below = np.searchsorted(self.classes[1], self.classes[0])
        at = np.append(np.flatnonzero(np.diff(below, prepend=-1)), len(below))
        return at, np.append(below[at[:-1]], len(self.classes[1]))

    @cached_property
    def _surprise(self) -> tuple[FloatArray, FloatArray]:
        """What each trial costs in Cllr, in nats."""
        return _softplus(-self.classes[0]), _softplus(self.classes[1])

    @cached_property
    def _passed(self) -> list[Counts]:
        """Trials drawn among the lowest 0, 1, …, n scores of each class: (n + 1,)."""
        passed = [np.zeros(len(times) + 1, dtype=np.int32) for times in self.times or ()]
        for sums, times in zip(passed, self.times or (), strict=True):
            np.cumsum(times, out=sums[1:])
        return passed

    def _n_passed(self, trials: tuple[Any, Any]) -> tuple[Any, Any]:
        """How many trials the lowest scores of each class are, given how many scores."""
        if self.times is None:
            return trials
        return self._passed[0].take(trials[0]), self._passed[1].take(trials[1])

    @cached_property
    def corners(self) -> tuple[Integers, Integers]:
        """Trials passed at each corner: bonafide and spoof, (n_corners,) each; at the end all."""
        return self._n_passed(self._corner_trials)

    @property
    def n_trials(self) -> tuple[int, int]:
        """How many bonafide and spoof trials there are."""
        return int(self.corners[0][-1]), int(self.corners[1][-1])

    def below(self, score: float, side: Literal["left", "right"] = "left") -> tuple[int, int]:
        """How many bonafide and spoof trials are below a score, with "right" also at it."""
        bonafide, spoof = (np.searchsorted(scores, score, side) for scores in self.classes)
        n_bonafide, n_spoof = self._n_passed((bonafide, spoof))
        return int(n_bonafide), int(n_spoof)

    def rates(self, missed: Any, rejected: Any) -> tuple[Any, Any]:
        """P_miss and P_fa where so many bonafide and spoof trials have been passed."""
        n_bonafide, n_spoof = self.n_trials
        return missed / n_bonafide, (n_spoof - rejected) / n_spoof

    def last_rejected(self, counts: tuple[int, int]) -> float:
        """The official threshold of the point where so many trials have been passed."""
        if self.times is not None:
            return math.nan  # of no use in a bootstrap
        lowest = min(float(scores[0]) for scores in self.classes) - BELOW_LOWEST
        ends = zip(self.classes, counts, strict=True)
        return max((float(scores[n - 1]) for scores, n in ends if n), default=lowest)


# The mathematics of a curve


def _dcf(curve: Curve, counts: tuple[Any, Any], costs: DetectionCosts) -> tuple[Any, float]:
    """Detection cost where so many trials were passed; that of the cheaper trivial decision."""
    # The organisers compute 1 − (1 − p_spoof) and multiply from the left. Doing the same, rounding
    # included, makes equal costs fall alike, so that the first minimum has their threshold.
    p_bonafide = 1.0 - costs.p_spoof
    p_miss, p_fa = curve.rates(*counts)
    p_miss *= costs.c_miss
    p_miss *= p_bonafide
    p_fa *= costs.c_fa
    p_fa *= 1.0 - p_bonafide
    p_miss += p_fa
    return p_miss, min(costs.c_miss * p_bonafide, costs.c_fa * (1.0 - p_bonafide))


def min_dcf_of(curve: Curve, costs: DetectionCosts) -> OperatingPoint:
    """The minDCF of a curve."""
    values, unit = _dcf(curve, curve.corners, costs)
    best = int(np.argmin(values))
    counts = int(curve.corners[0][best]), int(curve.corners[1][best])
    return OperatingPoint(float(values[best]) / unit, curve.last_rejected(counts))


def _act_dcf_of(curve: Curve, costs: DetectionCosts) -> OperatingPoint:
    value, unit = _dcf(curve, curve.below(costs.threshold), costs)
    return OperatingPoint(value / unit, costs.threshold)


def _crossing(corners: tuple[Integers, Integers]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the point where P_miss first reaches P_fa, and the one before, as trials passed.

    P_miss − P_fa never falls along the path, so bisection finds the corner, and a division the
    point between two corners. Whole numbers keep it exact.
    """
    n_bonafide, n_spoof = (int(passed[-1]) for passed in corners)
    goal = n_bonafide * n_spoof  # P_miss ≥ P_fa  ⇔  B·n_spoof + S·n_bonafide ≥ n_bonafide·n_spoof

    def at(corner: int) -> tuple[int, int]:
        return (int(corners[0][corner]), int(corners[1][corner])) if corner >= 0 else (0, 0)

    def reached(corner: int) -> int:
        bonafide, spoof = at(corner)
        return bonafide * n_spoof + spoof * n_bonafide

    corner = bisect_left(range(len(corners[0])), goal, key=reached)
    (bonafide, spoof), (end, _) = at(corner - 1), at(corner)
    missing = goal - reached(corner - 1)
    n_steps = -(-missing // n_spoof)
    if bonafide + n_steps <= end:
        return (bonafide + n_steps, spoof), (bonafide + n_steps - 1, spoof)
    n_steps = -((-missing + (end - bonafide) * n_spoof) // n_bonafide)
    return (end, spoof + n_steps), (end, spoof + n_steps - 1)


def eer_of(curve: Curve, ties: Ties = "official") -> OperatingPoint:
    """The EER of a curve, without warnings."""
    reached, before = _crossing(curve.corners)
    gaps = [abs(p_miss - p_fa) for p_miss, p_fa in (curve.rates(*before), curve.rates(*reached))]
    counts = before if gaps[0] <= gaps[1] else reached
    value = sum(curve.rates(*counts)) / 2.0
    if ties == "official":
        return OperatingPoint(value, curve.last_rejected(counts))
    score = curve.last_rejected(reached)
    lowest, highest = curve.below(score), curve.below(score, "right")
    if lowest[0] < highest[0] and lowest[1] < highest[1]:
        (p_miss, p_fa), (p_miss_after, p_fa_after) = curve.rates(*lowest), curve.rates(*highest)
        part = (p_fa - p_miss) / (p_fa - p_fa_after + p_miss_after - p_miss)
        value, counts = p_miss + part * (p_miss_after - p_miss), highest
    ends = zip(curve.classes, counts, strict=True)
    accepted = (float(scores[n]) for scores, n in ends if n < len(scores))
    return OperatingPoint(value, min(accepted, default=math.inf))


def _cllr_of(curve: Curve) -> float:
    nats = 0.0
    for k, n in enumerate(curve.n_trials):
        costs = curve._surprise[k]
        # Not np.dot: its threads wait for each other, for milliseconds on busy cores.
        nats += float((costs if curve.times is None else costs * curve.times[k]).sum()) / n
    return 0.5 * nats / math.log(2.0)


def _min_cllr_of(curve: Curve) -> float:
    from scipy.optimize import isotonic_regression

    counts = np.stack([np.diff(passed, prepend=0) for passed in curve.corners])
    counts = counts[:, counts.any(axis=0)]
    n_trials = counts.sum(axis=0)
    # PAV merges neighbouring blocks until the share of bonafide trials rises from block to block.
    starts = isotonic_regression(counts[0] / n_trials, weights=n_trials).blocks[:-1]
    blocks = np.add.reduceat(counts, starts, axis=1)
    totals = blocks.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        llr = np.subtract(*np.log(blocks / totals))
    # A block of one class has an infinite ratio of the right sign and costs nothing.
    nats = sum(
        np.dot(n[n > 0], _softplus(sign * llr[n > 0])) / n.sum()
        for n, sign in zip(blocks, (-1.0, 1.0), strict=True)
    )
    return 0.5 * float(nats) / math.log(2.0)


def _softplus(x: FloatArray) -> FloatArray:
    """log(1 + e^x), finite for every x."""
    values: FloatArray = np.copysign(x, -1.0)
    np.exp(values, out=values)
    np.log1p(values, out=values)
    np.add(values, x, out=values, where=x > 0)
    return values


def _warn_of_eer(curve: Curve, ties: Ties = "official") -> None:
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


@dataclass(frozen=True, kw_only=True)
class Metric(Quantity):
    """A metric: its name, how it is printed, and a function of a `Curve` and of the costs.

    A function of two arrays serves as well: ``lambda curve, costs: mine(*curve.trials())``.
    """

    function: Callable[[Curve, DetectionCosts], OperatingPoint | float]


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("min_dcf", "minDCF", function=min_dcf_of),
        Metric("act_dcf", "actDCF", function=_act_dcf_of),
        Metric("eer", "EER", "%", 100.0, 3, function=lambda curve, _: eer_of(curve)),
        Metric("cllr", "Cllr", "bits", function=lambda curve, _: _cllr_of(curve)),
    )
}
"""The metrics of every table, interval and history of training: a line here adds one to all."""
