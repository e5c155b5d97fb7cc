"""Errors within sources: how well humans and fakes are told apart where all else is equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asvspoof_cm.labels import ABSENT, BONAFIDE, SPOOF
from asvspoof_cm.metrics.bootstrap import Interval, check_draws
from asvspoof_cm.metrics.costs import ASVSPOOF5
from asvspoof_cm.metrics.replicates import SortedSystem, draws
from asvspoof_cm.metrics.summary import METRICS
from asvspoof_cm.metrics.track1 import auc, eer
from asvspoof_cm.utils.checks import FloatArray, Plain, as_column, as_trials
from asvspoof_cm.utils.progress import track
from asvspoof_cm.utils.tables import render


@dataclass(frozen=True, kw_only=True)
class SourceRow(Plain):
    """The errors of one source, its fakes against its own bonafide trials."""

    source: str
    n_bonafide: int
    n_spoof: int
    eer: float
    auc: float
    interval: Interval | None
    """Of the EER, where it was asked for."""


@dataclass(frozen=True, kw_only=True, repr=False)
class WithinSources(Plain):
    """What `within_sources` returns; ``print`` shows a table, the worst source first."""

    rows: tuple[SourceRow, ...]
    """By falling EER."""
    mean_eer: float
    mean_auc: float
    interval: Interval | None
    """Of the mean EER, where it was asked for."""
    pooled_eer: float
    """Of the same trials with one threshold for all sources."""
    pooled_auc: float
    n_left_out: int
    """Known sources that have one class only."""

    @property
    def worst(self) -> SourceRow:
        """The source with the highest EER."""
        return self.rows[0]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, with the name of the worst source."""
        return {**super().as_dict(), "worst": self.worst.source}

    def __repr__(self) -> str:
        mean, worst, pooled = (
            f"{100 * value:.3f} %" for value in (self.mean_eer, self.worst.eer, self.pooled_eer)
        )
        return (
            f"WithinSources({len(self.rows)} sources: mean EER {mean}, worst {worst} in "
            f"{self.worst.source}, pooled {pooled})"
        )

    def __str__(self) -> str:
        rows: list[Any] = [
            (r.source, r.n_bonafide, r.n_spoof, r.eer, r.interval, r.auc) for r in self.rows
        ]
        counts = sum(row[1] for row in rows), sum(row[2] for row in rows)
        rows.append(("mean", *counts, self.mean_eer, self.interval, self.mean_auc))
        rows.append(("pooled, one threshold", *counts, self.pooled_eer, None, self.pooled_auc))
        metric = METRICS["eer"]
        cells = [
            (*names, interval.text(metric) if interval else metric.text(error), f"{100 * area:.1f}")
            for *names, error, interval, area in rows
        ]
        text = render(("source", "bonafide", "spoof", "EER %", "AUC %"), cells)
        return text + f"\n({self.n_left_out} more have one class only)" * (self.n_left_out > 0)


def has_sources(labels: ArrayLike, sources: ArrayLike) -> bool:
    """Return whether `within_sources` has a source to measure: a known one with both classes."""
    of_row, label = np.asarray(sources), np.asarray(labels)
    known = of_row != ABSENT
    return bool(
        {*of_row[known & (label == BONAFIDE)].tolist()}
        & {*of_row[known & (label == SPOOF)].tolist()}
    )


def within_sources(
    scores: ArrayLike,
    labels: ArrayLike,
    sources: ArrayLike,
    *,
    n_bootstrap: int = 0,
    seed: int = 0,
    confidence: float = 0.95,
    progress: bool = True,
) -> WithinSources:
    """Return the EER within each source, their mean and their worst.

    A pooled EER also rewards a detector for knowing where a recording comes from: sources differ in
    channel, and often hold one class. Within a source that helps nobody. Sources weigh alike in the
    mean, whatever their size; those with one class are left out, and so are trials whose source is
    "-", not known.

    Scores, labels and sources, such as `Protocol.source`, have one entry per trial. `n_bootstrap`
    replicates give an interval on each source's EER and on their mean: a replicate draws trials of
    each class within each source and, for the mean, sources. The other arguments are those of
    `bootstrap`.

    Example:
        >>> scores = [2.0, 1.0, 0.0, 5.0, 4.0, 6.0]
        >>> labels = [1, 0, 0, 1, 0, 0]
        >>> print(within_sources(scores, labels, ["page", "page", "page", "call", "call", "call"]))
        source                 bonafide  spoof   EER %  AUC %
        call                          1      2  25.000   50.0
        page                          1      2   0.000  100.0
        mean                          2      4  12.500   75.0
        pooled, one threshold         2      4  50.000   62.5
    """
    if n_bootstrap < 0:
        raise ValueError(f"`n_bootstrap` must be at least 0; got {n_bootstrap}.")
    check_draws(n_bootstrap or 1, confidence, seed)
    values, is_bonafide = as_trials(scores, labels)
    of_trial = as_column("sources", sources, len(values))
    known = of_trial != ABSENT
    values, is_bonafide = values[known], is_bonafide[known]
    names, codes = np.unique(of_trial[known], return_inverse=True)
    counts = [
        np.bincount(codes[chosen], minlength=len(names)) for chosen in (is_bonafide, ~is_bonafide)
    ]
    both = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
    if not len(both):
        raise ValueError(
            f"`sources` must have one with both classes; none of {len(names)} has, and "
            f"{int((~known).sum())} trials are of no known source ({ABSENT!r})."
        )
    rows, replicates = [], []
    for code in track(both, description="sources", unit="source", enabled=progress):
        pair = values[is_bonafide & (codes == code)], values[~is_bonafide & (codes == code)]
        drawn = _replicates(pair, n_bootstrap, seed, int(code))
        value = eer(*pair).value
        replicates.append(drawn)
        rows.append(
            SourceRow(
                source=str(names[code]),
                n_bonafide=len(pair[0]),
                n_spoof=len(pair[1]),
                eer=value,
                auc=auc(*pair),
                interval=Interval.of(value, drawn, confidence) if n_bootstrap else None,
            )
        )
    mean = float(np.mean([row.eer for row in rows]))
    interval = None
    if n_bootstrap:
        rng = np.random.default_rng(seed)
        chosen = rng.integers(len(rows), size=(n_bootstrap, len(rows)))
        means = np.take_along_axis(np.stack(replicates, axis=1), chosen, axis=1).mean(axis=1)
        interval = Interval.of(mean, means, confidence)
    kept = np.isin(codes, both)
    pooled = values[kept & is_bonafide], values[kept & ~is_bonafide]
    return WithinSources(
        rows=tuple(sorted(rows, key=lambda row: (-row.eer, row.source))),
        mean_eer=mean,
        mean_auc=float(np.mean([row.auc for row in rows])),
        interval=interval,
        pooled_eer=eer(*pooled).value,
        pooled_auc=auc(*pooled),
        n_left_out=len(names) - len(both),
    )


def _replicates(pair: Sequence[FloatArray], n: int, seed: int, code: int) -> FloatArray:
    if not n:
        return np.empty(0)
    system = SortedSystem((pair[0], pair[1]), None, ("eer",), ASVSPOOF5)
    own_seed = int(np.random.SeedSequence([seed, code]).generate_state(1)[0])
    drawn = draws((len(pair[0]), len(pair[1])), None, n, own_seed)
    return np.array([system.replicate(counts)[0] for counts in drawn])
