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
from typing import Any, TypeAlias

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
from asvspoof_cm.metrics.costs import ASVSPOOF5
from asvspoof_cm.metrics.track1 import METRICS, Counts, Curve, Metric, OperatingPoint

MetricLike: TypeAlias = "str | Callable[[FloatArray, FloatArray], float | OperatingPoint]"
Pair: TypeAlias = tuple[FloatArray, FloatArray]

_TAIL = 0.025
# Items that a draw counts together: a power of two, 64 KiB of counts.
_BLOCK = 1 << 13


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


def with_intervals(
    values: Mapping[str, float], replicates: FloatArray
) -> dict[str, Interval | float]:
    """Return values with the intervals of their replicates, (n, n_values), where there are any."""
    found: dict[str, Interval | float] = dict(values)
    for (name, value), drawn in zip(values.items(), replicates.T, strict=True):
        if not np.isnan(value) and not np.isnan(drawn).all():
            found[name] = Interval.of(value, drawn)
    return found


def bootstrap(
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, Any],
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = 1000,
    *,
    clusters: tuple[ArrayLike, ArrayLike] | None = None,
    seed: int = 0,
) -> Any:
    """Return the percentile bootstrap `Interval` of one metric, or of several at once.

    Args:
        metric: A name in `METRICS`; several, or `METRICS` itself, give a dictionary by name. Any
            function of (bonafide, spoof) works too, but is called once per replicate.
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        n: Number of replicates.
        clusters: The cluster of each bonafide trial, (n_bonafide,), and of each spoofed trial,
            (n_spoof,), such as speakers; see `Protocol.clusters`. Whole clusters are then drawn,
            both classes together. Without it the trials of each class are drawn on their own.
        seed: Seed of the draws; the same seed gives the same interval.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> interval = bootstrap("eer", rng.normal(1, 1, 200), rng.normal(-1, 1, 900), n=100)
        >>> interval.low < interval.value < interval.high
        True
    """
    pair = as_scores("bonafide", bonafide), as_scores("spoof", spoof)
    units = None
    if clusters is not None:
        units = encode(*(as_column(f"clusters[{k}]", clusters[k], len(pair[k])) for k in (0, 1)))
    return _intervals(metric, [pair], units, n, seed)


def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, Any] = "min_dcf",
    n: int = 1000,
    *,
    clusters: ArrayLike | None = None,
    seed: int = 0,
) -> Any:
    """Return metric(a) − metric(b) with its `Interval`, for two systems on the same trials.

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
    pairs = [split_by_label(scores, labels) for scores in (a, b)]
    units = None
    if clusters is not None:
        is_bonafide = as_labels(labels)
        column = as_column("clusters", clusters, len(is_bonafide))
        units = encode(column[is_bonafide], column[~is_bonafide])
    return _intervals(metric, pairs, units, n, seed)


def wilson(n_of: int, n: int) -> Interval:
    """Return the share `n_of` / `n` of independent trials and its Wilson score interval.

    It is the range of probabilities p whose normal approximation reaches the share:
    |share − p| ≤ z √(p (1 − p) / n) with z = 1.96 (Wilson, 1927).

    Example:
        >>> print(wilson(0, 299))
        0.0000 [0.0000, 0.0127]
    """
    check_between("n_of", n_of, 0, n)
    if not n:
        return Interval(value=np.nan, low=np.nan, high=np.nan)
    share, z2 = n_of / n, float(ndtri(_TAIL)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = float(np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n)))) / (1 + z2 / n)
    # An end at 0 or 1 is exact: rounding must not leave the share outside.
    low, high = max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))
    return Interval(value=share, low=low, high=high)


def encode(*clusters: NDArray[Any]) -> list[IntArray]:
    """Number the clusters from 0 on, over all the columns that are given, and return those."""
    _, codes = np.unique(np.concatenate(clusters), return_inverse=True)
    if not codes.any():
        raise ValueError(
            "`clusters` must name at least 2 clusters; all trials are in one, "
            f"{clusters[0].tolist()[0]!r}. A single cluster can't be resampled: every draw is "
            "equal."
        )
    return np.split(codes, np.cumsum([len(column) for column in clusters])[:-1])


def resample(
    metrics: Sequence[Metric],
    pairs: Sequence[Pair],
    units: Sequence[IntArray] | None,
    n: int,
    seed: Any,
) -> tuple[FloatArray, FloatArray]:
    """Return the metrics of all trials, (n_metrics,), and those of n draws, (n, n_metrics).

    Of two pairs of scores it is the difference. A draw without a trial of one class gives NaN.
    `units` says which unit of the draw each trial belongs to; without it the classes are drawn
    apart.
    """
    orders = [[np.argsort(scores, kind="stable") for scores in pair] for pair in pairs]
    curves = [Curve((p[0][o[0]], p[1][o[1]])) for p, o in zip(pairs, orders, strict=True)]
    sizes, places = [len(scores) for scores in pairs[0]], orders
    if units is not None:
        sizes = [1 + max(int(codes.max()) for codes in units)]
        places = [[units[k][order] for k, order in enumerate(pair)] for pair in orders]

    def values(curves: Sequence[Curve]) -> FloatArray:
        if not all(curves[0].n_trials):
            return np.full(len(metrics), np.nan)
        found = np.array([[float(m.function(c, ASVSPOOF5)) for m in metrics] for c in curves])
        return np.asarray(found[0] - found[1:].sum(axis=0))

    replicates = np.empty((n, len(metrics)))
    for k, counts in enumerate(draws(sizes, n, seed)):
        times = [(counts[0], counts[-1])] * len(pairs)
        # The trials of a single system may be drawn in the order of their scores.
        if units is not None or len(pairs) > 1:
            times = [
                (counts[0].take(bonafide, mode="clip"), counts[-1].take(spoof, mode="clip"))
                for bonafide, spoof in places
            ]
        replicates[k] = values([c.drawn(own) for c, own in zip(curves, times, strict=True)])
    return values(curves), replicates


def _intervals(
    metric: Any, pairs: Sequence[Pair], units: Sequence[IntArray] | None, n: int, seed: int
) -> Any:
    several = isinstance(metric, Sequence | Mapping) and not isinstance(metric, str)
    metrics = [_metric_of(item) for item in (metric if several else (metric,))]
    names = [item.name for item in metrics]
    if len(set(names)) < len(names):
        raise ValueError(f"`metric` must name each metric once; got {', '.join(names)}.")
    check_between("n", n, 1)
    observed, replicates = resample(metrics, pairs, units, n, seed)
    n_valid = int((~np.isnan(replicates[:, 0])).sum())
    if not n_valid:
        raise ValueError(
            "`clusters` must spread both classes over several clusters; no replicate had both."
        )
    if n_valid < n:
        warnings.warn(
            f"{n - n_valid} of {n} replicates drew no trial of one class and were left out: too "
            "few `clusters` hold that class.",
            stacklevel=3,
        )
    found = list(map(Interval.of, observed.tolist(), replicates.T))
    return dict(zip(names, found, strict=True)) if several else found[0]


def _metric_of(item: Any) -> Metric:
    """Return the metric that a name or a function of two arrays stands for."""
    if not callable(item):
        if item not in METRICS:
            raise ValueError(
                f"`metric` must be one of {', '.join(METRICS)} or a function of (bonafide, spoof); "
                f"got {item!r}."
            )
        return METRICS[item]
    name = getattr(item, "__name__", repr(item))

    def value(curve: Curve, _: Any) -> float:
        found = float(item(*curve.trials()))
        if np.isnan(found):
            raise ValueError(
                f"`metric` must return a number; {name} returned NaN for {curve.n_trials[0]} "
                f"bonafide and {curve.n_trials[1]} spoofed trials."
            )
        return found

    return Metric(name, name, function=value)


def draws(sizes: Sequence[int], n: int, seed: Any) -> Iterator[list[Counts]]:
    """Yield `n` times how often each of so many items is drawn, in arrays that are reused."""
    if isinstance(seed, int):
        check_not_negative(seed=seed)
    rng = np.random.Generator(np.random.SFC64(seed))
    counts = [np.empty(size, dtype=np.int32) for size in sizes]
    for _ in range(n):
        yield [draw(rng, of_class) for of_class in counts]


def draw(rng: np.random.Generator, counts: Counts) -> Counts:
    """Draw n of n items with replacement; fill `counts`, shape (n,), with how often each came.

    This is one multinomial draw in two exact stages: how many fall into each block, then the place
    of each in its block. Blocks fit into the processor's cache; 13 random bits are a place.
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
