"""Intervals: bootstrap of the Track 1 metrics, paired comparisons of two systems, proportions.

A replicate draws trials, or whole clusters of trials, with replacement. That gives each trial a
count and leaves the order of the scores as it was: the scores are sorted once, and the metrics are
read off running sums of the counts at the corners of the curve (see `asvspoof_cm.metrics.track1`).
Intervals have 95 %, from the 2.5 % to the 97.5 % percentile of the replicates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    as_column,
    as_labels,
    as_scores,
    check_between,
    check_not_negative,
    split_by_label,
)
from asvspoof_cm.metrics.track1 import (
    ASVSPOOF5,
    METRICS,
    DetectionCosts,
    OperatingPoint,
    SortedScores,
    dcf,
    default_cost,
    eer_at,
    spoof_bits,
)

MetricLike: TypeAlias = "str | Callable[[FloatArray, FloatArray], float | OperatingPoint]"
Several: TypeAlias = "tuple[MetricLike, ...] | list[MetricLike] | Mapping[str, Any]"
# Half the memory traffic of 64 bits, and enough for two thousand million trials.
Counts: TypeAlias = NDArray[np.int32]

_TAIL = 0.025
# Items that a draw counts together: a power of two, 64 KiB of counts.
_BLOCK = 1 << 13


class TooFewClustersError(ValueError):
    """The clusters can't be resampled: there is one, or no draw holds both classes."""


@dataclass(frozen=True, kw_only=True)
class Interval(Plain):
    """A value on all trials and its 95 % interval; `n_replicates` is 0 where a formula gave it."""

    value: float
    low: float
    high: float
    n_replicates: int = 0

    @classmethod
    def of(cls, value: float, replicates: FloatArray) -> Interval:
        """Return the percentile interval of replicates, shape (n,); NaN ones are left out."""
        valid = replicates[~np.isnan(replicates)]
        low, high = np.quantile(valid, [_TAIL, 1.0 - _TAIL]).tolist()
        return cls(value=value, low=low, high=high, n_replicates=len(valid))

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@overload
def bootstrap(
    metric: MetricLike, bonafide: ArrayLike, spoof: ArrayLike, *n: Any, **options: Any
) -> Interval: ...
@overload
def bootstrap(
    metric: Several, bonafide: ArrayLike, spoof: ArrayLike, *n: Any, **options: Any
) -> dict[str, Interval]: ...
def bootstrap(
    metric: MetricLike | Several,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = 1000,
    *,
    clusters: tuple[ArrayLike, ArrayLike] | None = None,
    seed: int = 0,
    costs: DetectionCosts = ASVSPOOF5,
) -> Interval | dict[str, Interval]:
    """Return the percentile bootstrap interval of one metric, or of several at once.

    Args:
        metric: A name in `METRICS`; several, or `METRICS` itself, give a dictionary by name. Any
            function of (bonafide, spoof) works too, but is called once per replicate.
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        n: Number of replicates.
        clusters: The cluster of each bonafide trial, (n_bonafide,), and of each spoofed trial,
            (n_spoof,), at least two in all: speakers, say, or coded copies of one utterance (see
            `Protocol.clusters`). Whole clusters are then drawn, both classes together. Without it
            the trials of each class are drawn on their own, and an interval is too narrow if
            trials depend on each other.
        seed: Seed of the draws; the same seed gives the same interval.
        costs: Costs and prior of the detection costs.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> interval = bootstrap("eer", rng.normal(1, 1, 200), rng.normal(-1, 1, 900), n=100)
        >>> interval.low < interval.value < interval.high
        True
    """
    check_draws(n, seed)
    scores = as_scores("bonafide", bonafide), as_scores("spoof", spoof)
    units = None
    if clusters is not None:
        columns = [
            as_column(f"clusters[{k}]", clusters[k], len(scores[k])) for k in range(len(scores))
        ]
        codes = encode(np.concatenate(columns))
        units = codes[: len(scores[0])], codes[len(scores[0]) :]
    systems = [SortedSystem(scores, units, _metrics_of(metric), costs)]
    return _intervals(metric, systems, units, n, seed)


@overload
def compare(
    a: ArrayLike, b: ArrayLike, labels: ArrayLike, metric: MetricLike = ..., *n: Any, **options: Any
) -> Interval: ...
@overload
def compare(
    a: ArrayLike, b: ArrayLike, labels: ArrayLike, metric: Several, *n: Any, **options: Any
) -> dict[str, Interval]: ...
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: MetricLike | Several = "min_dcf",
    n: int = 1000,
    *,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    costs: DetectionCosts = ASVSPOOF5,
) -> Interval | dict[str, Interval]:
    """Return metric(a) − metric(b) with its interval, for two systems on the same trials.

    Every replicate draws the same trials for both, so what makes a trial hard for both cancels:
    an interval without zero says that the systems differ. `a` and `b` are the scores of the systems
    for the same trials in the same order; labels (0 or "spoof", 1 or "bonafide") and `clusters`
    have one entry per trial. The other arguments are those of `bootstrap`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(["bonafide", "spoof"], 300)
        >>> good = np.where(labels == "bonafide", 2, -2) + rng.normal(0, 1, 600)
        >>> poor = good + rng.normal(0, 2, 600)
        >>> compare(good, poor, labels, "eer", n=100).high < 0
        True
    """
    check_draws(n, seed)
    pairs = [split_by_label(scores, labels) for scores in (a, b)]
    units = None
    if clusters is not None:
        is_bonafide = as_labels(labels)
        codes = encode(as_column("clusters", clusters, len(is_bonafide)))
        units = codes[is_bonafide], codes[~is_bonafide]
    own_units = units or (np.arange(len(pairs[0][0])), np.arange(len(pairs[0][1])))
    systems = [SortedSystem(pair, own_units, _metrics_of(metric), costs) for pair in pairs]
    return _intervals(metric, systems, units, n, seed)


def wilson(n_of: int, n: int) -> Interval:
    """Return the share `n_of` / `n` of independent trials and its Wilson score interval.

    It is the range of probabilities p whose normal approximation reaches the share:
    |share − p| ≤ z √(p (1 − p) / n) with z = 1.96 (Wilson, 1927). Without an error among 299 trials
    it still ends above 1 %.

    Example:
        >>> print(wilson(0, 299))
        0.0000 [0.0000, 0.0127]
    """
    check_between("n_of", n_of, 0, n)
    if not n:
        return Interval(value=np.nan, low=np.nan, high=np.nan)
    share, z2 = n_of / n, float(ndtri(_TAIL)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low, high = max(0.0, float(centre - half)), min(1.0, float(centre + half))
    return Interval(value=share, low=min(low, share), high=max(high, share))


def check_draws(n: int, seed: int) -> None:
    """Refuse what can't be drawn."""
    check_between("n", n, 1)
    check_not_negative(seed=seed)


class SortedSystem:
    """One system's bonafide and spoof scores, sorted, ready for any number of replicates.

    `units` says which unit of the draw each trial belongs to; None if every trial is its own.
    """

    def __init__(
        self,
        scores: tuple[FloatArray, FloatArray],
        units: tuple[IntArray, IntArray] | None,
        metrics: Sequence[MetricLike],
        costs: DetectionCosts,
    ) -> None:
        orders = [np.argsort(of_class, kind="stable") for of_class in scores]
        self.units = units and [u[order] for u, order in zip(units, orders, strict=True)]
        self.curve = SortedScores(scores[0][orders[0]], scores[1][orders[1]])
        self.metrics, self.costs = metrics, costs
        self.at_threshold = [int(np.searchsorted(c, costs.threshold)) for c in self.curve.classes]
        self.bits = spoof_bits(-self.curve.bonafide), spoof_bits(self.curve.spoof)

    def observed(self) -> FloatArray:
        """The metrics of the trials as they are: (n_metrics,)."""
        return self._evaluate([np.ones(len(c), dtype=np.int32) for c in self.curve.classes])

    def replicate(self, counts: tuple[Counts, Counts]) -> FloatArray:
        """The metrics where unit u of a class is drawn ``counts[class][u]`` times: (n_metrics,).

        NaN where nothing of a class is drawn.
        """
        if self.units is None:
            return self._evaluate(counts)
        pairs = zip(counts, self.units, strict=True)
        return self._evaluate([np.take(drawn, units, mode="clip") for drawn, units in pairs])

    def _evaluate(self, counts: Sequence[Counts]) -> FloatArray:
        """The metrics where each sorted trial comes so often."""
        passed = [_running_sum(of_class) for of_class in counts]
        n_bonafide, n_spoof = (int(sums[-1]) for sums in passed)
        if n_bonafide == 0 or n_spoof == 0:
            return np.full(len(self.metrics), np.nan)
        at_bonafide, at_spoof = self.curve.corners
        missed, rejected = passed[0].take(at_bonafide), passed[1].take(at_spoof)

        def cost_at(point: tuple[int, int]) -> float:
            return float(dcf(*point, n_bonafide, n_spoof, self.costs)) / default_cost(self.costs)

        def value_of(metric: MetricLike) -> float:
            if metric == "eer":
                return eer_at((missed, rejected))[0]
            if metric == "min_dcf":
                # Up to a constant and a factor, which don't move the minimum.
                cost = (self.costs.beta / n_bonafide) * missed
                cost -= (1.0 / n_spoof) * rejected
                best = int(np.argmin(cost))
                return cost_at((int(missed[best]), int(rejected[best])))
            if metric == "act_dcf":
                at = self.at_threshold
                return cost_at((int(passed[0][at[0]]), int(passed[1][at[1]])))
            if metric == "cllr":
                # Not np.dot: its threads wait for each other, for milliseconds on busy cores.
                miss, false_alarm = (
                    float((n * bits).sum()) for n, bits in zip(counts, self.bits, strict=True)
                )
                return 0.5 * (miss / n_bonafide + false_alarm / n_spoof)
            function: Any = metric
            value = float(function(*map(np.repeat, self.curve.classes, counts)))
            if np.isnan(value):
                raise ValueError(
                    f"`metric` must return a number; {_title(metric)} returned NaN for "
                    f"{n_bonafide} bonafide and {n_spoof} spoofed trials."
                )
            return value

        return np.array([value_of(metric) for metric in self.metrics])


def _running_sum(counts: Counts) -> Counts:
    """Trials drawn among the lowest 0, 1, …, n scores: (n + 1,)."""
    passed = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=passed[1:])
    return passed


def encode(clusters: NDArray[Any]) -> IntArray:
    """Number the clusters from 0 on."""
    _, codes = np.unique(clusters, return_inverse=True)
    if not codes.any():
        raise TooFewClustersError(
            "`clusters` must name at least 2 clusters; all trials are in one, "
            f"{clusters.tolist()[0]!r}. A single cluster can't be resampled: every draw is equal."
        )
    return codes


def _metrics_of(metric: MetricLike | Several) -> tuple[MetricLike, ...]:
    metrics = tuple(metric) if isinstance(metric, tuple | list | Mapping) else (metric,)
    for item in metrics:
        if not callable(item) and item not in METRICS:
            raise ValueError(
                f"`metric` must be one of {', '.join(METRICS)} or a function of (bonafide, spoof); "
                f"got {item!r}."
            )
    titles = [*map(_title, metrics)]
    if len(set(titles)) < len(titles):
        raise ValueError(f"`metric` must name each metric once; got {', '.join(titles)}.")
    return metrics


def _title(metric: MetricLike) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))


def _intervals(
    metric: MetricLike | Several,
    systems: Sequence[SortedSystem],
    units: tuple[IntArray, IntArray] | None,
    n: int,
    seed: int,
) -> Interval | dict[str, Interval]:
    """Return the intervals of the metrics of one system, or of the difference of two."""
    signs = np.array([1.0, -1.0])[: len(systems)]
    bonafide, spoof = systems[0].curve.classes
    drawn = draws((len(bonafide), len(spoof)), units, n, seed)
    replicates = np.array([signs @ [s.replicate(counts) for s in systems] for counts in drawn])
    observed = signs @ [system.observed() for system in systems]
    valid = replicates[~np.isnan(replicates).any(axis=1)]
    if len(valid) == 0:
        raise TooFewClustersError(
            "`clusters` must spread both classes over several clusters; no replicate had both."
        )
    if len(valid) < len(replicates):
        warnings.warn(
            f"{len(replicates) - len(valid)} of {len(replicates)} replicates drew no trial of one "
            "class and were left out: too few `clusters` hold that class.",
            stacklevel=3,
        )
    pairs = zip(observed.tolist(), valid.T, strict=True)
    intervals = [Interval.of(value, column) for value, column in pairs]
    if isinstance(metric, tuple | list | Mapping):
        return dict(zip(map(_title, metric), intervals, strict=True))
    return intervals[0]


def draws(
    n_trials: tuple[int, int], units: tuple[IntArray, IntArray] | None, n: int, seed: int
) -> Iterator[tuple[Counts, Counts]]:
    """Yield how often each unit of each class is drawn, `n` times, in arrays that are reused.

    Without `units` the trials of each class are drawn on their own; with them, units of both
    classes together.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    if units is None:
        bonafide, spoof = (np.empty(size, dtype=np.int32) for size in n_trials)
        for _ in range(n):
            yield draw(rng, bonafide), draw(rng, spoof)
    else:
        counts = np.empty(1 + max(int(codes.max()) for codes in units), dtype=np.int32)
        for _ in range(n):
            draw(rng, counts)
            yield counts, counts


def draw(rng: np.random.Generator, counts: Counts) -> Counts:
    """Draw n of n items with replacement; fill `counts`, shape (n,), with how often each came.

    This is one multinomial draw in two exact stages: how many fall into each block, then the place
    of each within its block. Blocks fit into the processor's cache, and 13 random bits are a place
    in a full one.
    """
    n = len(counts)
    n_blocks, n_rest = divmod(n, _BLOCK)
    shares = np.full(n_blocks + 1, _BLOCK / n)
    shares[-1] = n_rest / n
    n_drawn = rng.multinomial(n, shares).tolist()
    places = rng.bit_generator.random_raw(n // 4 + 1).view(np.uint16)
    places &= _BLOCK - 1
    used = 0
    for start, n_here in zip(range(0, n_blocks * _BLOCK, _BLOCK), n_drawn, strict=False):
        here = places[used : used + n_here]
        counts[start : start + _BLOCK] = np.bincount(here, minlength=_BLOCK)
        used += n_here
    if n_rest:
        rest = rng.integers(0, n_rest, n_drawn[-1], dtype=np.uint16)
        counts[n_blocks * _BLOCK :] = np.bincount(rest, minlength=n_rest)
    return counts
