"""Bootstrap intervals of the Track 1 metrics, and paired comparisons of two systems.

A replicate draws trials, or whole clusters of trials, with replacement. That gives each trial a
count and leaves the order of the scores as it was, so the scores are sorted once and a replicate
costs a few passes over the counts (see `asvspoof_cm.metrics.resampling`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypedDict, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack

from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts
from asvspoof_cm.metrics.resampling import MetricLike, System, draws, encode_clusters
from asvspoof_cm.metrics.summary import METRICS, Metric
from asvspoof_cm.metrics.track1 import act_dcf, cllr, eer, min_dcf
from asvspoof_cm.utils.checks import (
    FloatArray,
    IntArray,
    as_column,
    as_labels,
    as_scores,
    check_seed,
    finite_or_none,
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

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain numbers, ready for JSON; None for what isn't finite."""
        content: dict[str, Any] = finite_or_none(asdict(self))
        return content

    def text(self, metric: Metric) -> str:
        """Return the value and its interval as a table of that metric prints them."""
        return f"{metric.text(self.value)} [{metric.text(self.low)}, {metric.text(self.high)}]"

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@overload
def bootstrap(
    metric: MetricLike,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = ...,
    **options: Unpack[_Options],
) -> Interval: ...
@overload
def bootstrap(
    metric: Metrics,
    bonafide: ArrayLike,
    spoof: ArrayLike,
    n: int = ...,
    **options: Unpack[_Options],
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
    _check_options(n, confidence, seed)
    scores = as_scores("bonafide", bonafide), as_scores("spoof", spoof)
    units = None
    if clusters is not None:
        units = _encode(
            as_column("clusters[0]", clusters[0], len(scores[0])),
            as_column("clusters[1]", clusters[1], len(scores[1])),
        )
    names = _metric_names(metric)
    system = System(scores, units, names, costs)
    drawn = draws((len(scores[0]), len(scores[1])), units, n, seed)
    shown = track(drawn, total=n, description="bootstrap", unit="replicate", enabled=progress)
    replicates = np.array([system.replicate(counts) for counts in shown])
    return _summarise(metric, system.observed(), replicates, confidence)


@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: MetricLike = ...,
    n: int = ...,
    **options: Unpack[_Options],
) -> Interval: ...
@overload
def compare(
    a: ArrayLike,
    b: ArrayLike,
    labels: ArrayLike,
    metric: Metrics,
    n: int = ...,
    **options: Unpack[_Options],
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
    _check_options(n, confidence, seed)
    pairs = [split_by_label(scores, labels) for scores in (a, b)]
    n_trials = (len(pairs[0][0]), len(pairs[0][1]))
    units = None
    if clusters is not None:
        is_bonafide = as_labels(labels)
        column = as_column("clusters", clusters, len(is_bonafide))
        units = _encode(column[is_bonafide], column[~is_bonafide])
    names = _metric_names(metric)
    own_units = units or (np.arange(n_trials[0]), np.arange(n_trials[1]))
    systems = [System(pair, own_units, names, costs) for pair in pairs]
    drawn = draws(n_trials, units, n, seed)
    shown = track(drawn, total=n, description="compare", unit="replicate", enabled=progress)
    differences = np.array([np.subtract(*(s.replicate(c) for s in systems)) for c in shown])
    observed = np.subtract(*(system.observed() for system in systems))
    return _summarise(metric, observed, differences, confidence)


def _check_options(n: int, confidence: float, seed: int) -> None:
    if n < 1:
        raise ValueError(f"`n` must be at least 1 replicate; got {n}.")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must lie between 0 and 1, excluded; got {confidence}.")
    check_seed(seed)


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


def _summarise(
    metric: MetricLike | Metrics, observed: FloatArray, replicates: FloatArray, confidence: float
) -> Interval | dict[str, Interval]:
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
    if isinstance(metric, tuple | list | Mapping):
        return dict(zip(map(_title, metric), intervals, strict=True))
    return intervals[0]


def _title(metric: MetricLike) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
