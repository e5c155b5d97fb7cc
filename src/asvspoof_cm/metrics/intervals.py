"""Bootstrap intervals of the Track 1 metrics, and paired comparisons of two systems.

A replicate draws trials, or whole clusters of trials, with replacement. That gives each trial a
count and leaves the order of the scores as it was, so the scores are sorted once and a replicate
costs a few passes over the counts. Only one replicate is in memory at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.metrics.checks import (
    FloatArray,
    IntArray,
    as_column,
    as_labels,
    as_scores,
    split_by_label,
)
from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts, OperatingPoint
from asvspoof_cm.metrics.curves import SortedScores, dcf, default_cost
from asvspoof_cm.metrics.track1 import (
    act_dcf,
    bonafide_bits,
    cllr,
    eer,
    eer_at,
    min_dcf,
    spoof_bits,
)
from asvspoof_cm.progress import track

__all__ = ["Interval", "METRICS", "bootstrap", "compare"]

MetricFunction: TypeAlias = Callable[[FloatArray, FloatArray], "float | OperatingPoint"]
Metric: TypeAlias = "str | MetricFunction"
Metrics: TypeAlias = "tuple[str, ...] | list[str]"
Clusters: TypeAlias = tuple[ArrayLike, ArrayLike]
# Half the memory traffic of 64 bits, and enough for two thousand million trials.
Counts: TypeAlias = NDArray[np.int32]

METRICS = ("min_dcf", "act_dcf", "eer", "cllr")
"""The Track 1 metrics with a fast bootstrap, by name."""

# Items that one stretch of a draw counts together, a power of two up to 2^16: 64 KiB of counts.
LARGEST_BLOCK = 1 << 13

_NAMES: dict[Metric, Metric] = {min_dcf: "min_dcf", act_dcf: "act_dcf", eer: "eer", cllr: "cllr"}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A metric's value on all trials and its percentile interval over the replicates.

    Example:
        >>> print(Interval(value=0.1, low=0.08, high=0.13, confidence=0.95, n_replicates=1000))
        0.1000 [0.0800, 0.1300]
    """

    value: float
    low: float
    high: float
    confidence: float
    n_replicates: int

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain numbers, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@overload
def bootstrap(
    metric: Metric,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = ...,
    *,
    clusters: Clusters | None = ...,
    seed: int = ...,
    confidence: float = ...,
    costs: DetectionCosts = ...,
    progress: bool = ...,
) -> Interval: ...
@overload
def bootstrap(
    metric: Metrics,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = ...,
    *,
    clusters: Clusters | None = ...,
    seed: int = ...,
    confidence: float = ...,
    costs: DetectionCosts = ...,
    progress: bool = ...,
) -> dict[str, Interval]: ...
def bootstrap(
    metric: Metric | Metrics,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = 1000,
    *,
    clusters: Clusters | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    costs: DetectionCosts = ASVSPOOF5,
    progress: bool = True,
) -> Interval | dict[str, Interval]:
    """Return the percentile bootstrap interval of one metric, or of several at once.

    Args:
        metric: A name in `METRICS` or the function itself; several names give a dictionary. Any
            other function of (bonafide, spoof) works too, but is called once per replicate.
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        n: Number of replicates.
        clusters: The cluster of each bonafide trial, (n_bonafide,), and of each spoofed trial,
            (n_spoof,): speakers or codec seeds, say. Whole clusters are then drawn, both classes
            together. Without it the trials of each class are drawn on their own, and an interval
            is too narrow if trials depend on each other.
        seed: Seed of the draws; the same seed gives the same interval.
        confidence: Mass of the interval, 0.95 for the 2.5 % and 97.5 % percentiles.
        costs: Costs and prior of the detection costs.
        progress: Show how far it is.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> interval = bootstrap("eer", rng.normal(1, 1, 200), rng.normal(-1, 1, 900), n=100)
        >>> interval.low < interval.value < interval.high
        True
    """
    scores = as_scores("bonafide", bonafide), as_scores("spoof", spoof)
    units = None
    if clusters is not None:
        units = _encode(
            as_column("clusters[0]", clusters[0], len(scores[0])),
            as_column("clusters[1]", clusters[1], len(scores[1])),
        )
    names = _metric_names(metric)
    system = _System.of(scores, units, names, costs)
    draws = _draws((len(scores[0]), len(scores[1])), units, n, seed)
    replicates = np.array(
        [
            system.replicate(counts)
            for counts in track(
                draws, total=n, description="bootstrap", unit="replicate", enabled=progress
            )
        ]
    )
    return _summarise(metric, system.observed(), replicates, confidence)


@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: Metric = ...,
    n: int = ...,
    *,
    clusters: ArrayLike | None = ...,
    seed: int = ...,
    confidence: float = ...,
    costs: DetectionCosts = ...,
    progress: bool = ...,
) -> Interval: ...
@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: Metrics,
    n: int = ...,
    *,
    clusters: ArrayLike | None = ...,
    seed: int = ...,
    confidence: float = ...,
    costs: DetectionCosts = ...,
    progress: bool = ...,
) -> dict[str, Interval]: ...
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: Metric | Metrics = "min_dcf",
    n: int = 1000,
    *,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    costs: DetectionCosts = ASVSPOOF5,
    progress: bool = True,
) -> Interval | dict[str, Interval]:
    """Return metric(a) − metric(b) with its interval, for two systems on the same trials.

    Every replicate draws the same trials for both, so what makes a trial hard for both cancels:
    an interval without zero says that the systems differ.

    Args:
        a: Scores of the first system, shape (n_trials,).
        b: Scores of the second system for the same trials in the same order, shape (n_trials,).
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        metric: As in `bootstrap`.
        n: Number of replicates.
        clusters: The cluster of each trial, shape (n_trials,); see `bootstrap`.
        seed: Seed of the draws.
        confidence: Mass of the interval.
        costs: Costs and prior of the detection costs.
        progress: Show how far it is.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(["bonafide", "spoof"], 300)
        >>> good = np.where(labels == "bonafide", 2, -2) + rng.normal(0, 1, 600)
        >>> poor = good + rng.normal(0, 2, 600)
        >>> compare(good, poor, labels, "eer", n=100).high < 0
        True
    """
    pairs = [split_by_label(scores, labels) for scores in (a, b)]
    n_trials = (len(pairs[0][0]), len(pairs[0][1]))
    units = None
    if clusters is not None:
        is_bonafide = as_labels(labels)
        column = as_column("clusters", clusters, len(is_bonafide))
        units = _encode(column[is_bonafide], column[~is_bonafide])
    names = _metric_names(metric)
    own_units = units or (np.arange(n_trials[0]), np.arange(n_trials[1]))
    systems = [_System.of(pair, own_units, names, costs) for pair in pairs]
    differences = np.array(
        [
            systems[0].replicate(counts) - systems[1].replicate(counts)
            for counts in track(
                _draws(n_trials, units, n, seed),
                total=n,
                description="compare",
                unit="replicate",
                enabled=progress,
            )
        ]
    )
    observed = systems[0].observed() - systems[1].observed()
    return _summarise(metric, observed, differences, confidence)


@dataclass(frozen=True)
class _System:
    """One system's sorted scores, and which unit of the draw each of them belongs to."""

    curve: SortedScores
    units: tuple[IntArray, IntArray] | None
    metrics: tuple[Metric, ...]
    costs: DetectionCosts
    at_threshold: tuple[int, int]
    bits: tuple[FloatArray, FloatArray]

    @classmethod
    def of(
        cls,
        scores: tuple[FloatArray, FloatArray],
        units: tuple[IntArray, IntArray] | None,
        metrics: tuple[Metric, ...],
        costs: DetectionCosts,
    ) -> _System:
        if units is None:
            curve = SortedScores(np.sort(scores[0]), np.sort(scores[1]))
        else:
            orders = np.argsort(scores[0], kind="stable"), np.argsort(scores[1], kind="stable")
            curve = SortedScores(scores[0][orders[0]], scores[1][orders[1]])
            units = units[0][orders[0]], units[1][orders[1]]
        at_threshold = (
            int(np.searchsorted(curve.bonafide, costs.threshold)),
            int(np.searchsorted(curve.spoof, costs.threshold)),
        )
        bits = bonafide_bits(curve.bonafide), spoof_bits(curve.spoof)
        return cls(curve, units, metrics, costs, at_threshold, bits)

    def observed(self) -> FloatArray:
        """The metrics of the trials as they are: (n_metrics,)."""
        return self._evaluate(
            np.ones(len(self.curve.bonafide), dtype=np.int32),
            np.ones(len(self.curve.spoof), dtype=np.int32),
        )

    def replicate(self, counts: tuple[Counts, Counts]) -> FloatArray:
        """The metrics where unit u of a class is drawn ``counts[class][u]`` times."""
        if self.units is None:
            return self._evaluate(*counts)
        return self._evaluate(counts[0][self.units[0]], counts[1][self.units[1]])

    def _evaluate(self, bonafide: Counts, spoof: Counts) -> FloatArray:
        passed_bonafide, passed_spoof = _running_sum(bonafide), _running_sum(spoof)
        n_bonafide, n_spoof = int(passed_bonafide[-1]), int(passed_spoof[-1])
        if n_bonafide == 0 or n_spoof == 0:
            return np.full(len(self.metrics), np.nan)
        at_bonafide, at_spoof = self.curve.corners
        corners = passed_bonafide[at_bonafide], passed_spoof[at_spoof]
        values = np.empty(len(self.metrics))
        for index, metric in enumerate(self.metrics):
            if metric == "eer":
                values[index] = eer_at(corners)[0]
            elif metric == "min_dcf":
                values[index] = self._dcf_at(self._best_corner(corners), n_bonafide, n_spoof)
            elif metric == "act_dcf":
                missed = int(passed_bonafide[self.at_threshold[0]])
                rejected = int(passed_spoof[self.at_threshold[1]])
                values[index] = self._dcf_at((missed, rejected), n_bonafide, n_spoof)
            elif metric == "cllr":
                miss = np.dot(bonafide.astype(np.float64), self.bits[0]) / n_bonafide
                values[index] = 0.5 * (
                    miss + np.dot(spoof.astype(np.float64), self.bits[1]) / n_spoof
                )
            elif callable(metric):
                drawn = np.repeat(self.curve.bonafide, bonafide)
                values[index] = float(metric(drawn, np.repeat(self.curve.spoof, spoof)))
        return values

    def _best_corner(self, corners: tuple[Counts, Counts]) -> tuple[int, int]:
        """Where the detection cost is lowest, up to a constant and a factor that don't matter."""
        missed, rejected = corners
        cost = (self.costs.beta / missed[-1]) * missed
        cost -= (1.0 / rejected[-1]) * rejected
        best = int(np.argmin(cost))
        return int(missed[best]), int(rejected[best])

    def _dcf_at(self, point: tuple[int, int], n_bonafide: int, n_spoof: int) -> float:
        cost = dcf(*point, n_bonafide, n_spoof, self.costs)
        return float(cost) / default_cost(self.costs)


def _running_sum(counts: Counts) -> Counts:
    passed = np.empty(len(counts) + 1, dtype=np.int32)
    passed[0] = 0
    np.cumsum(counts, out=passed[1:])
    return passed


def _encode(bonafide: NDArray[Any], spoof: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Number the clusters of both classes from 0 on."""
    _, codes = np.unique(np.concatenate([bonafide, spoof]), return_inverse=True)
    return codes[: len(bonafide)], codes[len(bonafide) :]


def _draws(
    n_trials: tuple[int, int], units: tuple[IntArray, IntArray] | None, n: int, seed: int
) -> Iterator[tuple[Counts, Counts]]:
    """Yield the counts of the units of each class, `n` times."""
    if n < 1:
        raise ValueError(f"`n` must be at least 1 replicate; got {n}.")
    rng = np.random.Generator(np.random.SFC64(seed))
    for _ in range(n):
        if units is None:
            yield _draw(n_trials[0], rng), _draw(n_trials[1], rng)
        else:
            counts = _draw(1 + max(int(codes.max()) for codes in units), rng)
            yield counts, counts


def _draw(n: int, rng: np.random.Generator) -> Counts:
    """Draw `n` of `n` items with replacement and return how often each came: (n,).

    This is one multinomial draw in two exact stages: how many fall into each block, then the place
    of each within its block. Blocks have 2^k items, so k random bits are a place without rejection,
    and they fit into the processor's cache.
    """
    n_full, rest = divmod(n, LARGEST_BLOCK)
    sizes = [LARGEST_BLOCK] * n_full
    sizes += [1 << k for k in reversed(range(rest.bit_length())) if rest >> k & 1]
    n_drawn = rng.multinomial(n, np.array(sizes) / n)
    places = rng.bit_generator.random_raw(n // 4 + 1).view(np.uint16)
    counts = np.empty(n, dtype=np.int32)
    start = used = 0
    for size, n_here in zip(sizes, n_drawn.tolist(), strict=True):
        here = places[used : used + n_here] & (size - 1)
        counts[start : start + size] = np.bincount(here.astype(np.int64), minlength=size)
        start, used = start + size, used + n_here
    return counts


def _metric_names(metric: Metric | Metrics) -> tuple[Metric, ...]:
    given = tuple(metric) if isinstance(metric, tuple | list) else (metric,)
    metrics = tuple(_NAMES.get(item, item) for item in given)
    for item in metrics:
        if not callable(item) and item not in METRICS:
            raise ValueError(
                f"`metric` must be one of {', '.join(METRICS)} or a function of (bonafide, spoof); "
                f"got {item!r}."
            )
    return metrics


def _summarise(
    metric: Metric | Metrics, observed: FloatArray, replicates: FloatArray, confidence: float
) -> Interval | dict[str, Interval]:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must lie between 0 and 1, excluded; got {confidence}.")
    valid = replicates[~np.isnan(replicates).any(axis=1)]
    if len(valid) == 0:
        raise ValueError(
            "`clusters` must spread both classes over several clusters; no replicate had both."
        )
    if len(valid) < len(replicates):
        warnings.warn(
            f"{len(replicates) - len(valid)} of {len(replicates)} replicates drew no trial of one "
            "class and were left out: too few `clusters` hold that class.",
            stacklevel=3,
        )
    tail = (1.0 - confidence) / 2.0
    bounds = np.quantile(valid, [tail, 1.0 - tail], axis=0)
    intervals = [
        Interval(
            value=float(observed[index]),
            low=float(bounds[0, index]),
            high=float(bounds[1, index]),
            confidence=confidence,
            n_replicates=len(valid),
        )
        for index in range(len(observed))
    ]
    if isinstance(metric, tuple | list):
        return dict(zip(metric, intervals, strict=True))
    return intervals[0]
