"""Bootstrap intervals of the Track 1 metrics, and paired comparisons of two systems.

A replicate draws trials, or whole clusters of trials, with replacement. That gives each trial a
count and leaves the order of the scores as it was, so the scores are sorted once and a replicate
costs a few passes over the counts (see `asvspoof_cm.metrics.replicates`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts
from asvspoof_cm.metrics.replicates import MetricLike, SortedSystem, draws, encode_clusters
from asvspoof_cm.metrics.summary import METRICS, Metric
from asvspoof_cm.metrics.track1 import act_dcf, cllr, eer, min_dcf
from asvspoof_cm.utils.checks import (
    FloatArray,
    IntArray,
    Plain,
    as_column,
    as_labels,
    as_scores,
    as_trials,
    check_between,
    check_inside_unit,
    check_not_negative,
    split_by_label,
)
from asvspoof_cm.utils.progress import track

Metrics: TypeAlias = "tuple[str, ...] | list[str] | Mapping[str, Metric]"
Clusters: TypeAlias = tuple[ArrayLike, ArrayLike]

_NAMES: dict[MetricLike, str] = {
    min_dcf: "min_dcf",
    act_dcf: "act_dcf",
    eer: "eer",
    cllr: "cllr",
}


class TooFewClustersError(ValueError):
    """The clusters can't be resampled: there is one, or no draw holds both classes."""


class _Options(TypedDict, total=False):
    clusters: Any
    seed: int
    confidence: float
    costs: DetectionCosts
    progress: bool


@dataclass(frozen=True, kw_only=True)
class Interval(Plain):
    """A metric's value on all trials and its percentile interval over the replicates."""

    value: float
    low: float
    high: float
    confidence: float
    n_replicates: int

    @classmethod
    def of(cls, value: float, replicates: FloatArray, confidence: float) -> Interval:
        """Return the interval of replicates, shape (n,)."""
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(replicates, [tail, 1.0 - tail]).tolist()
        n = len(replicates)
        return cls(value=value, low=low, high=high, confidence=confidence, n_replicates=n)

    def text(self, metric: Metric) -> str:
        """Return the value and its interval as a table of that metric prints them."""
        return f"{metric.text(self.value)} [{metric.text(self.low)}, {metric.text(self.high)}]"

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@overload
def bootstrap(
    metric: MetricLike, bonafide: ArrayLike, spoof: ArrayLike, n: int = ..., **o: Unpack[_Options]
) -> Interval: ...
@overload
def bootstrap(
    metric: Metrics, bonafide: ArrayLike, spoof: ArrayLike, n: int = ..., **o: Unpack[_Options]
) -> dict[str, Interval]: ...
def bootstrap(
    metric: MetricLike | Metrics,
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
        metric: A name in `METRICS` or the function itself; several, or `METRICS` itself, give a
            dictionary by name. Any other function of (bonafide, spoof) works too, but is called
            once per replicate.
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        n: Number of replicates.
        clusters: The cluster of each bonafide trial, (n_bonafide,), and of each spoofed trial,
            (n_spoof,), at least two in all: speakers, say, or coded copies of one utterance (see
            `Protocol.clusters`). Whole clusters are then drawn, both classes together. Without it
            the trials of each class are drawn on their own, and an interval is too narrow if
            trials depend on each other.
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
    check_draws(n, confidence, seed)
    scores = as_scores("bonafide", bonafide), as_scores("spoof", spoof)
    units = None
    if clusters is not None:
        units = _encode(
            as_column("clusters[0]", clusters[0], len(scores[0])),
            as_column("clusters[1]", clusters[1], len(scores[1])),
        )
    systems = [SortedSystem(scores, units, _metric_names(metric), costs)]
    return _intervals(metric, systems, units, n, seed, confidence, progress)


@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: MetricLike = ...,
    n: int = ...,
    **o: Unpack[_Options],
) -> Interval: ...
@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: Metrics,
    n: int = ...,
    **o: Unpack[_Options],
) -> dict[str, Interval]: ...
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: MetricLike | Metrics = "min_dcf",
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
    check_draws(n, confidence, seed)
    pairs = [split_by_label(scores, labels) for scores in (a, b)]
    units = None
    if clusters is not None:
        is_bonafide = as_labels(labels)
        column = as_column("clusters", clusters, len(is_bonafide))
        units = _encode(column[is_bonafide], column[~is_bonafide])
    own_units = units or (np.arange(len(pairs[0][0])), np.arange(len(pairs[0][1])))
    names = _metric_names(metric)
    systems = [SortedSystem(pair, own_units, names, costs) for pair in pairs]
    return _intervals(metric, systems, units, n, seed, confidence, progress)


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


def check_draws(n: int, confidence: float, seed: int) -> None:
    """Refuse what can't be drawn."""
    check_between("n", n, 1)
    check_inside_unit(confidence=confidence)
    check_not_negative(seed=seed)


def _encode(bonafide: NDArray[Any], spoof: NDArray[Any]) -> tuple[IntArray, IntArray]:
    units = encode_clusters(bonafide, spoof)
    if not any(codes.any() for codes in units):
        raise TooFewClustersError(
            "`clusters` must name at least 2 clusters; all trials are in one, "
            f"{bonafide.tolist()[0]!r}. A single cluster can't be resampled: every draw is equal."
        )
    return units


def _metric_names(metric: MetricLike | Metrics) -> tuple[MetricLike, ...]:
    given = tuple(metric) if isinstance(metric, tuple | list | Mapping) else (metric,)
    metrics = tuple(_NAMES.get(item, item) for item in given)
    for item in metrics:
        if not callable(item) and item not in METRICS:
            raise ValueError(
                f"`metric` must be one of {', '.join(METRICS)} or a function of (bonafide, spoof); "
                f"got {item!r}."
            )
    titles = [_title(item) for item in given]
    if len(set(titles)) < len(titles):
        raise ValueError(f"`metric` must name each metric once; got {', '.join(titles)}.")
    return metrics


def _intervals(
    metric: MetricLike | Metrics,
    systems: Sequence[SortedSystem],
    units: tuple[IntArray, IntArray] | None,
    n: int,
    seed: int,
    confidence: float,
    progress: bool,
) -> Interval | dict[str, Interval]:
    """Return the intervals of the metrics of one system, or of the difference of two."""
    signs = np.array([1.0, -1.0])[: len(systems)]
    drawn = draws(systems[0].n_trials, units, n, seed)
    shown = track(drawn, total=n, description="bootstrap", unit="replicate", enabled=progress)
    replicates = np.array([signs @ [s.replicate(counts) for s in systems] for counts in shown])
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
    intervals = [Interval.of(value, column, confidence) for value, column in pairs]
    if isinstance(metric, tuple | list | Mapping):
        return dict(zip(map(_title, metric), intervals, strict=True))
    return intervals[0]


def _title(metric: MetricLike) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
