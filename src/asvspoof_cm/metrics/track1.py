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
corners serve a bootstrap, where trials come any number of times: their order never changes. So a
metric is one function of a `Curve`, and a line of `METRICS` brings it into every table.
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

from asvspoof_cm._tables import Quantity, Table
from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    as_scores,
    check_choice,
    check_inside_unit,
    check_positive_finite,
    split_by_label,
)

Integers: TypeAlias = NDArray[np.integer[Any]]
# Half the memory traffic of 64 bits, and enough for two thousand million trials.
Counts: TypeAlias = NDArray[np.int32]
Ties: TypeAlias = Literal["official", "grouped"]
TIES = ("official", "grouped")

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
    curve = Curve.of(bonafide, spoof)
    _warn_of_eer(curve, ties)
    return eer_of(curve, ties)


def min_dcf(
    bonafide: ArrayLike, spoof: ArrayLike, costs: DetectionCosts = ASVSPOOF5
) -> OperatingPoint:
    """Return the minimum of the normalised detection cost over all thresholds, and its threshold.

    The arguments are those of `eer`, and the costs. The minimum never lies between equal scores.

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


def auc(bonafide: ArrayLike, spoof: ArrayLike) -> float:
    """Return the area under the ROC curve: P(bonafide > spoof) + ½ P(equal).

    Example:
        >>> auc([1.0, 0.0], [0.0])
        0.75
    """
    return _auc_of(Curve.of(bonafide, spoof))


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
    curve = Curve.of(bonafide, spoof)
    is_bonafide = np.zeros(len(curve.bonafide) + len(curve.spoof), dtype=bool)
    is_bonafide[np.arange(len(curve.bonafide)) + curve.n_spoof_below] = True
    scores = np.empty(len(is_bonafide))
    scores[is_bonafide], scores[~is_bonafide] = curve.classes
    missed = np.append(0, np.cumsum(is_bonafide))
    rates = curve.rates(missed, np.arange(len(missed)) - missed)
    return DetCurve(*rates, np.append(scores[0] - BELOW_LOWEST, scores))


@dataclass(frozen=True, kw_only=True)
class Track1Result(Plain):
    """Everything that Track 1 reports about one set of trials; ``print`` shows a table.

    Each entry of `METRICS` is an attribute too: ``result.eer.value``, a fraction;
    ``result.cllr`` and `min_cllr`, bits.
    """

    n_bonafide: int
    n_spoof: int
    metrics: Mapping[str, OperatingPoint | float]
    min_cllr: float
    auc: float
    costs: DetectionCosts

    def __getattr__(self, name: str) -> Any:
        if name in METRICS:
            return self.metrics[name]
        raise AttributeError(f"a Track1Result has no {name!r}.")

    def values(self) -> dict[str, float]:
        """Return the value of each entry of `METRICS`, by name and without its threshold.

        Example:
            >>> evaluate([2.0, 1.0, 0.0], [1, 0, 0]).values()["eer"]
            0.0
        """
        return {name: float(found) for name, found in self.metrics.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, ready for JSON."""
        fields = super().as_dict()
        counts = {name: fields.pop(name) for name in ("n_bonafide", "n_spoof")}
        return {**counts, **fields.pop("metrics"), **fields}

    def table(self, intervals: Mapping[str, Any] | None = None) -> Table:
        """Return the table that ``print`` shows; `intervals` stand in the place of their values."""
        rows: list[Sequence[Any]] = [
            ("bonafide", self.n_bonafide, None),
            ("spoof", self.n_spoof, None),
        ]
        for name, found in self.metrics.items():
            threshold = found.threshold if isinstance(found, OperatingPoint) else None
            rows.append((METRICS[name], (intervals or {}).get(name, float(found)), threshold))
        rows.append((Quantity("min_cllr", "min Cllr", "bits"), self.min_cllr, None))
        rows.append((Quantity("auc", "ROC AUC"), self.auc, None))
        return Table(("metric", "value", Quantity("threshold", "threshold")), rows)

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
    curve = Curve(bonafide, spoof)
    _warn_of_eer(curve)
    return Track1Result(
        n_bonafide=len(bonafide),
        n_spoof=len(spoof),
        metrics={name: metric.function(curve, costs) for name, metric in METRICS.items()},
        min_cllr=_min_cllr_of(curve),
        auc=_auc_of(curve),
        costs=costs,
    )


@dataclass(frozen=True, eq=False)
class Curve:
    """The sorted scores of both classes, how they interleave, and how often each trial comes."""

    bonafide: FloatArray
    spoof: FloatArray
    times: tuple[Counts, Counts] | None = None
    """How often each trial of either class was drawn; None: once."""

    @classmethod
    def of(cls, bonafide: ArrayLike, spoof: ArrayLike) -> Curve:
        """Check and sort the scores of both classes."""
        return cls(np.sort(as_scores("bonafide", bonafide)), np.sort(as_scores("spoof", spoof)))

    def drawn(self, times: tuple[Counts, Counts]) -> Curve:
        """Return the curve where each trial comes so often."""
        curve = replace(self, times=times)
        for name in ("n_spoof_below", "corner_trials", "surprise"):
            vars(curve)[name] = getattr(self, name)
        return curve

    @property
    def classes(self) -> tuple[FloatArray, FloatArray]:
        """The sorted bonafide and spoof scores, each once."""
        return self.bonafide, self.spoof

    def trials(self) -> tuple[FloatArray, FloatArray]:
        """The bonafide and spoof scores, each as often as it comes."""
        if self.times is None:
            return self.classes
        return np.repeat(self.bonafide, self.times[0]), np.repeat(self.spoof, self.times[1])

    @cached_property
    def n_spoof_below(self) -> IntArray:
        """For each bonafide score, how many spoof scores are strictly lower: (n_bonafide,)."""
        return np.searchsorted(self.spoof, self.bonafide)

    @cached_property
    def corner_trials(self) -> tuple[IntArray, IntArray]:
        """Where the corners lie among the scores of each class: (n_corners,) each."""
        below = self.n_spoof_below
        at = np.append(np.flatnonzero(np.diff(below, prepend=-1)), len(below))
        return at, np.append(below[at[:-1]], len(self.spoof))

    @cached_property
    def surprise(self) -> tuple[FloatArray, FloatArray]:
        """What each trial costs in Cllr, in nats."""
        return _softplus(-self.bonafide), _softplus(self.spoof)

    @cached_property
    def _passed(self) -> list[Counts]:
        """Trials drawn among the lowest 0, 1, …, n scores of each class: (n + 1,)."""
        passed = [np.zeros(len(scores) + 1, dtype=np.int32) for scores in self.classes]
        for sums, times in zip(passed, self.times or (), strict=False):
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
        return self._n_passed(self.corner_trials)

    @property
    def n_trials(self) -> tuple[int, int]:
        """How many bonafide and spoof trials there are."""
        return int(self.corners[0][-1]), int(self.corners[1][-1])

    def below(self, score: float, side: Literal["left", "right"] = "left") -> tuple[int, int]:
        """How many bonafide and spoof trials are below a score, with "right" also at it."""
        places = (int(np.searchsorted(scores, score, side)) for scores in self.classes)
        n_bonafide, n_spoof = self._n_passed((*places,))  # type: ignore[arg-type]
        return int(n_bonafide), int(n_spoof)

    def rates(self, missed: Any, rejected: Any) -> tuple[Any, Any]:
        """P_miss and P_fa where so many bonafide and spoof trials have been passed."""
        n_bonafide, n_spoof = self.n_trials
        return missed / n_bonafide, (n_spoof - rejected) / n_spoof

    def _beside(self, counts: tuple[int, int], side: Literal["left", "right"]) -> list[float]:
        """The scores of each class just before ("left") or after where so many were passed."""
        found: list[float] = []
        for k, n in enumerate(counts):
            place = n - (side == "left")
            if self.times is not None:
                place = int(np.searchsorted(self._passed[k], n, side)) - 1
            found += self.classes[k][max(place, 0) : place + 1].tolist()
        return found

    def last_rejected(self, counts: tuple[int, int]) -> float:
        """The official threshold of the point where so many trials have been passed."""
        lowest = float(min(self.bonafide[0], self.spoof[0])) - BELOW_LOWEST
        return max(self._beside(counts, "left"), default=lowest)

    def first_accepted(self, counts: tuple[int, int]) -> float:
        """The lowest accepted score at that point, infinite where all are rejected."""
        return min(self._beside(counts, "right"), default=math.inf)


# The mathematics of a curve


def _dcf(curve: Curve, missed: Any, rejected: Any, costs: DetectionCosts) -> Any:
    """Detection cost, not normalised, where so many trials have been passed."""
    # The organisers compute 1 − (1 − p_spoof) and multiply from the left. Doing the same, rounding
    # included, makes equal costs fall alike, so that the first minimum has their threshold.
    p_bonafide = 1.0 - costs.p_spoof
    p_miss, p_fa = curve.rates(missed, rejected)
    p_miss *= costs.c_miss
    p_miss *= p_bonafide
    p_fa *= costs.c_fa
    p_fa *= 1.0 - p_bonafide
    p_miss += p_fa
    return p_miss


def _default_cost(costs: DetectionCosts) -> float:
    """The cost of the cheaper trivial decision, accept all or reject all."""
    p_bonafide = 1.0 - costs.p_spoof
    return min(costs.c_miss * p_bonafide, costs.c_fa * (1.0 - p_bonafide))


def min_dcf_of(curve: Curve, costs: DetectionCosts) -> OperatingPoint:
    """The minDCF of a curve."""
    values = _dcf(curve, *curve.corners, costs)
    best = int(np.argmin(values))
    counts = int(curve.corners[0][best]), int(curve.corners[1][best])
    return OperatingPoint(float(values[best]) / _default_cost(costs), curve.last_rejected(counts))


def _act_dcf_of(curve: Curve, costs: DetectionCosts) -> OperatingPoint:
    cost = _dcf(curve, *curve.below(costs.threshold), costs)
    return OperatingPoint(cost / _default_cost(costs), costs.threshold)


def _crossing(corners: tuple[Integers, Integers]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the point where P_miss first reaches P_fa, and the point before it.

    A point is the number of bonafide and of spoof trials passed; the last corner has passed all.
    P_miss − P_fa never falls along the path, so bisection finds the corner, and a division the
    point between two corners. Whole numbers keep it exact.
    """
    n_bonafide, n_spoof = (int(passed[-1]) for passed in corners)
    goal = n_bonafide * n_spoof  # P_miss ≥ P_fa  ⇔  B·n_spoof + S·n_bonafide ≥ n_bonafide·n_spoof

    def reached(corner: int) -> int:
        return int(corners[0][corner]) * n_spoof + int(corners[1][corner]) * n_bonafide

    corner = bisect_left(range(len(corners[0])), goal, key=reached)
    end = int(corners[0][corner])
    bonafide, spoof, before = 0, 0, 0
    if corner > 0:
        bonafide, spoof = int(corners[0][corner - 1]), int(corners[1][corner - 1])
        before = reached(corner - 1)
    n_steps = -((before - goal) // n_spoof)
    if bonafide + n_steps <= end:
        return (bonafide + n_steps, spoof), (bonafide + n_steps - 1, spoof)
    before += (end - bonafide) * n_spoof
    n_steps = -((before - goal) // n_bonafide)
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
    if lowest[0] == highest[0] or lowest[1] == highest[1]:
        return OperatingPoint(value, curve.first_accepted(counts))
    (p_miss, p_fa), (p_miss_after, p_fa_after) = curve.rates(*lowest), curve.rates(*highest)
    part = (p_fa - p_miss) / (p_fa - p_fa_after + p_miss_after - p_miss)
    return OperatingPoint(p_miss + part * (p_miss_after - p_miss), curve.first_accepted(highest))


def _cllr_of(curve: Curve) -> float:
    nats = 0.0
    for k, n in enumerate(curve.n_trials):
        costs = curve.surprise[k]
        # Not np.dot: its threads wait for each other, for milliseconds on busy cores.
        nats += float((costs if curve.times is None else costs * curve.times[k]).sum()) / n
    return 0.5 * nats / math.log(2.0)


def _auc_of(curve: Curve) -> float:
    below, above = curve.n_spoof_below, curve.n_spoof_below.copy()
    next_spoof = curve.spoof[np.minimum(below, len(curve.spoof) - 1)]
    tied = np.flatnonzero(next_spoof == curve.bonafide)
    above[tied] = np.searchsorted(curve.spoof, curve.bonafide[tied], side="right")
    n_won = curve._n_passed((0, below))[1] + curve._n_passed((0, above))[1]
    if curve.times is not None:
        n_won = n_won * curve.times[0].astype(np.int64)
    return int(n_won.sum()) / (2 * math.prod(curve.n_trials))


def _min_cllr_of(curve: Curve) -> float:
    from scipy.optimize import isotonic_regression

    counts = np.stack([np.diff(passed, prepend=0) for passed in curve.corners])
    counts = counts[:, counts.any(axis=0)]
    n_trials = counts.sum(axis=0)
    # PAV merges neighbouring blocks until the share of bonafide trials rises from block to block.
    starts = isotonic_regression(counts[0] / n_trials, weights=n_trials).blocks[:-1]
    n_bonafide, n_spoof = np.add.reduceat(counts, starts, axis=1)
    with np.errstate(divide="ignore"):
        llr = np.log(n_bonafide / n_bonafide.sum()) - np.log(n_spoof / n_spoof.sum())
    # A block of one class has an infinite ratio of the right sign and costs nothing.
    has_bonafide, has_spoof = n_bonafide > 0, n_spoof > 0
    miss = np.dot(n_bonafide[has_bonafide], _softplus(-llr[has_bonafide])) / n_bonafide.sum()
    false_alarm = np.dot(n_spoof[has_spoof], _softplus(llr[has_spoof])) / n_spoof.sum()
    return 0.5 * float(miss + false_alarm) / math.log(2.0)


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

    A function of two arrays serves as well, but is slower in a bootstrap: ``function=lambda curve,
    costs: auc(*curve.trials())``.
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
