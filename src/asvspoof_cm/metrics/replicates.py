"""What a bootstrap repeats: drawing counts, and the Track 1 metrics of trials that carry counts.

The scores are sorted once. A replicate gives each of them a count, and the metrics are read off
running sums of the counts at the corners of the curve (see `asvspoof_cm.metrics.det`). One
replicate is in memory at a time, in arrays that all replicates share: a few times the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.metrics.costs import DetectionCosts, OperatingPoint
from asvspoof_cm.metrics.det import SortedScores, dcf, default_cost
from asvspoof_cm.metrics.summary import METRICS
from asvspoof_cm.metrics.track1 import eer_at, spoof_bits
from asvspoof_cm.utils.checks import FloatArray, IntArray

MetricLike: TypeAlias = "str | Callable[[FloatArray, FloatArray], float | OperatingPoint]"
# Half the memory traffic of 64 bits, and enough for two thousand million trials.
Counts: TypeAlias = NDArray[np.int32]

# Items that a draw counts together: a power of two, 64 KiB of counts.
BLOCK = 1 << 13


class SortedSystem:
    """One system's bonafide and spoof scores, sorted, ready for any number of replicates.

    `units` says which unit of the draw each trial belongs to; None if every trial is its own.
    """

    def __init__(
        self,
        scores: tuple[FloatArray, FloatArray],
        units: tuple[IntArray, IntArray] | None,
        metrics: tuple[MetricLike, ...],
        costs: DetectionCosts,
    ) -> None:
        self.metrics = metrics
        self.costs = costs
        own = (None, None) if units is None else units
        self.classes = _Class(scores[0], own[0]), _Class(scores[1], own[1])
        self.curve = SortedScores(self.classes[0].scores, self.classes[1].scores)
        self.at_threshold = [int(np.searchsorted(c.scores, costs.threshold)) for c in self.classes]
        self.bits = spoof_bits(-self.curve.bonafide), spoof_bits(self.curve.spoof)

    @property
    def n_trials(self) -> tuple[int, int]:
        """How many bonafide and spoofed trials there are."""
        return len(self.curve.bonafide), len(self.curve.spoof)

    def observed(self) -> FloatArray:
        """The metrics of the trials as they are: (n_metrics,)."""
        return self._evaluate([np.ones(len(c.scores), dtype=np.int32) for c in self.classes])

    def replicate(self, counts: tuple[Counts, Counts]) -> FloatArray:
        """The metrics where unit u of a class is drawn ``counts[class][u]`` times: (n_metrics,).

        NaN where nothing of a class is drawn.
        """
        return self._evaluate(
            [c.count(drawn) for c, drawn in zip(self.classes, counts, strict=True)]
        )

    def _evaluate(self, counts: list[Counts]) -> FloatArray:
        passed = [c.add_up(drawn) for c, drawn in zip(self.classes, counts, strict=True)]
        n_bonafide, n_spoof = (int(p[-1]) for p in passed)
        if n_bonafide == 0 or n_spoof == 0:
            return np.full(len(self.metrics), np.nan)
        at_bonafide, at_spoof = self.curve.corners
        corners = passed[0].take(at_bonafide), passed[1].take(at_spoof)
        values = np.empty(len(self.metrics))
        for index, metric in enumerate(self.metrics):
            if metric == "eer":
                values[index] = eer_at(corners)[0]
            elif metric == "min_dcf":
                values[index] = self._dcf_at(self._best_corner(corners), n_bonafide, n_spoof)
            elif metric == "act_dcf":
                missed, rejected = (
                    int(p[at]) for p, at in zip(passed, self.at_threshold, strict=True)
                )
                values[index] = self._dcf_at((missed, rejected), n_bonafide, n_spoof)
            elif metric == "cllr":
                miss, false_alarm = (
                    c.dot(drawn, bits)
                    for c, drawn, bits in zip(self.classes, counts, self.bits, strict=True)
                )
                values[index] = 0.5 * (miss / n_bonafide + false_alarm / n_spoof)
            else:
                bonafide, spoof = (
                    np.repeat(c.scores, drawn)
                    for c, drawn in zip(self.classes, counts, strict=True)
                )
                if isinstance(metric, str):
                    drawn_scores = SortedScores(bonafide, spoof)
                    values[index] = METRICS[metric].function(drawn_scores, self.costs, "official")
                else:
                    values[index] = float(metric(bonafide, spoof))
                if np.isnan(values[index]):
                    raise ValueError(
                        f"`metric` must return a number; {getattr(metric, '__name__', metric)} "
                        f"returned NaN for {n_bonafide} bonafide and {n_spoof} spoofed trials."
                    )
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


class _Class:
    """The sorted scores of one class, and memory that every replicate writes anew.

    Fresh arrays would cost more than the arithmetic: the system hands out large ones page by page.
    """

    def __init__(self, scores: FloatArray, units: IntArray | None) -> None:
        if units is None:
            self.scores, self.units = np.sort(scores), None
        else:
            order = np.argsort(scores, kind="stable")
            self.scores, self.units = scores[order], units[order]
        self._counts = np.empty(len(scores), dtype=np.int32)
        self._passed = np.zeros(len(scores) + 1, dtype=np.int32)
        self._weights = np.empty(len(scores))

    def count(self, drawn: Counts) -> Counts:
        """How often each sorted trial comes, given how often each unit was drawn."""
        if self.units is None:
            return drawn
        return np.take(drawn, self.units, out=self._counts, mode="clip")

    def add_up(self, counts: Counts) -> Counts:
        """Trials drawn among the lowest 0, 1, …, n scores: (n + 1,)."""
        np.cumsum(counts, out=self._passed[1:])
        return self._passed

    def dot(self, counts: Counts, values: FloatArray) -> float:
        """Sum of `values` over the trials drawn."""
        # Not np.dot: its threads wait for each other, for milliseconds where the cores are busy.
        np.multiply(counts, values, out=self._weights)
        return float(self._weights.sum())


def encode_clusters(bonafide: NDArray[Any], spoof: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Number the clusters of both classes together from 0 on."""
    _, codes = np.unique(np.concatenate([bonafide, spoof]), return_inverse=True)
    return codes[: len(bonafide)], codes[len(bonafide) :]


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
    n_blocks, n_rest = divmod(n, BLOCK)
    shares = np.full(n_blocks + 1, BLOCK / n)
    shares[-1] = n_rest / n
    n_drawn = rng.multinomial(n, shares).tolist()
    places = rng.bit_generator.random_raw(n // 4 + 1).view(np.uint16)
    places &= BLOCK - 1
    used = 0
    for start, n_here in zip(range(0, n_blocks * BLOCK, BLOCK), n_drawn, strict=False):
        here = places[used : used + n_here]
        counts[start : start + BLOCK] = np.bincount(here, minlength=BLOCK)
        used += n_here
    if n_rest:
        rest = rng.integers(0, n_rest, n_drawn[-1], dtype=np.uint16)
        counts[n_blocks * BLOCK :] = np.bincount(rest, minlength=n_rest)
    return counts
