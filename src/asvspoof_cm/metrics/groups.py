"""Results per attack, codec, gender, speaker or any crossing of columns, and within sources."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._tables import Quantity, Table
from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    as_column,
    as_trials,
    check_between,
)
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.metrics.intervals import Interval, TooFewClustersError, encode, resample
from asvspoof_cm.metrics.track1 import ASVSPOOF5, METRICS, DetectionCosts

POOLED, MEAN = "pooled", "mean"


@dataclass(frozen=True, kw_only=True)
class BreakdownRow(Plain):
    """The metrics of one group of spoofs against its bonafide trials.

    `values` has one entry per metric of `METRICS`, with an interval where it was asked for, NaN
    where the group has no bonafide trial to stand against.
    """

    group: tuple[str, ...]
    n_bonafide: int
    n_spoof: int
    values: Mapping[str, Interval | float]


@dataclass(frozen=True, kw_only=True)
class Breakdown(Plain):
    """One row per group, in the order of the groups' names, and all trials together at the end."""

    columns: tuple[str, ...]
    rows: tuple[BreakdownRow, ...]
    mean: BreakdownRow | None
    """The mean over the groups, each of one weight, where no two of them share a trial."""

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        *groups, pooled = self.rows
        totals = [row for row in (self.mean, pooled) if row is not None]
        rows = [(*r.group, r.n_bonafide, r.n_spoof, *r.values.values()) for r in (*groups, *totals)]
        columns: list[str | Quantity] = [*self.columns, "bonafide", "spoof", *METRICS.values()]
        return Table(columns, rows, n_names=len(self.columns), n_totals=len(totals))

    def __str__(self) -> str:
        return str(self.table())


def breakdown(
    scores: ArrayLike,
    labels: ArrayLike,
    groups: Mapping[str, ArrayLike],
    *,
    match: Sequence[str] = (),
    n_bootstrap: int = 0,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    costs: DetectionCosts = ASVSPOOF5,
) -> Breakdown:
    """Return the Track 1 metrics for each group of spoofs.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        groups: Columns of shape (n_trials,) by name, such as ``{"attack": protocol.attack}``. Two
            or more columns are crossed: a row for each combination that occurs among the spoofs.
        match: Names of columns in which a group's bonafide trials must agree with it: with
            ``("codec",)``, spoofs of a codec stand against bonafide speech of that codec. Without
            it each group stands against all bonafide trials. With all columns of `groups`, groups
            share no trials: then their mean is reported too, and its interval draws groups as well
            as trials.
        n_bootstrap: Replicates for an interval on every figure; 0 for none.
        clusters: The cluster of each trial, shape (n_trials,); see `bootstrap`. A group whose
            trials are too few clusters for a draw has no interval, which a warning says.
        seed: As in `bootstrap`, and so are the rest.
        costs: Of the detection costs.

    Example:
        >>> labels = ["bonafide", "bonafide", "spoof", "spoof", "spoof"]
        >>> attack = ["-", "-", "A09", "A09", "A10"]
        >>> print(breakdown([1.0, 2.0, -1.0, 1.5, -3.0], labels, {"attack": attack}))
        attack  bonafide  spoof  minDCF  actDCF  EER (%)  Cllr (bits)
        A09            2      2  0.5000  0.5000   50.000       0.8854
        A10            2      1  0.0000  0.0000    0.000       0.1938
        pooled         2      3  0.3333  0.3333   41.667       0.6549
    """
    if not groups:
        raise ValueError("`groups` must hold at least one column, such as {'attack': …}; got none.")
    if isinstance(match, str) or not set(match) <= set(groups):
        raise ValueError(
            f"`match` must be a list of columns of `groups` ({', '.join(groups)}); got {match!r}."
        )
    check_between("n_bootstrap", n_bootstrap, 0)
    values, is_bonafide = as_trials(scores, labels)
    columns = {name: as_column(name, column, len(values)) for name, column in groups.items()}
    cluster = None if clusters is None else as_column("clusters", clusters, len(values))
    bonafide, spoof = np.flatnonzero(is_bonafide), np.flatnonzero(~is_bonafide)
    names, group_of = combinations({name: column[spoof] for name, column in columns.items()})
    is_apart = set(match) == set(groups)

    def row(
        group: tuple[str, ...], chosen: IntArray, against: IntArray, n: int, seed: Any
    ) -> tuple[BreakdownRow, FloatArray]:
        metrics, drawn = [*METRICS.values()], np.full((n, len(METRICS)), np.nan)
        observed = np.full(len(METRICS), np.nan)
        if len(against):
            units = None if cluster is None or not n else encode(cluster[against], cluster[chosen])
            pairs = [(values[against], values[chosen])]
            observed, drawn = resample(metrics, pairs, units, n, seed, costs)
        counts = {"n_bonafide": len(against), "n_spoof": len(chosen)}
        return BreakdownRow(group=group, **counts, values=_values(observed, drawn)), drawn

    # First, because it says whether the clusters can be drawn at all.
    padding = [""] * (len(columns) - 1)
    pooled, _ = row((POOLED, *padding), spoof, bonafide, n_bootstrap, seed)
    rows, replicates = [], []
    for k, group in enumerate(names):
        chosen, against = spoof[group_of == k], bonafide
        for name in match:
            against = against[columns[name][against] == columns[name][chosen[0]]]
        try:
            of_group = row(group, chosen, against, n_bootstrap, [seed, k] if is_apart else seed)
        except TooFewClustersError:
            of_group = row(group, chosen, against, 0, seed)
        rows.append(of_group[0])
        replicates.append(of_group[1])
    drawn = [getattr(row.values["eer"], "n_replicates", 0) for row in rows if row.n_bonafide]
    n_thin = sum(n < n_bootstrap for n in drawn)
    if n_thin:
        warnings.warn(
            f"{n_thin} of {len(rows)} groups lie in so few `clusters` that replicates drew none of "
            "their trials, or none of one class: see n_replicates of their intervals. Groups that "
            "no replicate drew have none.",
            stacklevel=2,
        )
    mean = None
    if is_apart:
        whole = [(r, drawn) for r, drawn in zip(rows, replicates, strict=True) if r.n_bonafide]
        mean = BreakdownRow(
            group=(MEAN, *padding),
            n_bonafide=sum(r.n_bonafide for r, _ in whole),
            n_spoof=sum(r.n_spoof for r, _ in whole),
            values=_mean(whole, n_bootstrap, seed),
        )
    return Breakdown(columns=tuple(columns), rows=(*rows, pooled), mean=mean)


def _values(observed: FloatArray, drawn: FloatArray) -> dict[str, Interval | float]:
    """Return the value of each metric, with an interval where a replicate has one."""
    found: dict[str, Interval | float] = dict(zip(METRICS, observed.tolist(), strict=True))
    if not np.isnan(drawn).all():
        pairs = zip(found.items(), drawn.T, strict=True)
        found = {name: Interval.of(float(value), column) for (name, value), column in pairs}
    return found


def _mean(
    groups: Sequence[tuple[BreakdownRow, FloatArray]], n: int, seed: int
) -> dict[str, Interval | float]:
    """Return the mean of each metric over groups; a replicate draws groups, and trials in each."""
    if not groups:
        return dict.fromkeys(METRICS, math.nan)
    observed = np.mean([[float(v) for v in row.values.values()] for row, _ in groups], axis=0)
    drawn = np.stack([d if len(d) == n else np.full((n, len(METRICS)), np.nan) for _, d in groups])
    chosen = np.random.default_rng(seed).integers(len(groups), size=(len(groups), n))
    return _values(observed, drawn[chosen, np.arange(n)].mean(axis=0))


def combinations(columns: Mapping[str, NDArray[Any]]) -> tuple[list[tuple[str, ...]], IntArray]:
    """Return the combinations of values that occur, sorted, and which of them each trial has."""
    codes = [np.unique(column, return_inverse=True)[1] for column in columns.values()]
    combined = np.ravel_multi_index(codes, [int(code.max()) + 1 for code in codes])
    _, first, group_of = np.unique(combined, return_index=True, return_inverse=True)
    names = [tuple(str(column[trial]) for column in columns.values()) for trial in first]
    return names, group_of


def within_sources(
    scores: ArrayLike, labels: ArrayLike, sources: ArrayLike, **options: Any
) -> Breakdown | None:
    """Return the `breakdown` into sources, each against its own bonafide trials, and their mean.

    A pooled EER also rewards a detector for knowing where a recording comes from: sources differ in
    channel, and often hold one class. Within a source that helps nobody. Sources of one class are
    left out, and so are trials whose source is "-", not known; where none is left, so is the
    result. Scores, labels and sources, such as `Protocol.source`, have one entry per trial;
    `options` are those of `breakdown`.

    Example:
        >>> scores = [2.0, 1.0, 0.0, 5.0, 4.0, 6.0]
        >>> labels = [1, 0, 0, 1, 0, 0]
        >>> print(within_sources(scores, labels, ["page", "page", "page", "call", "call", "call"]))
        source  bonafide  spoof  minDCF  actDCF  EER (%)  Cllr (bits)
        call           1      2  0.5000  1.0000   25.000       3.6190
        page           1      2  0.0000  1.0000    0.000       0.8152
        mean           2      4  0.2500  1.0000   12.500       2.2171
        pooled         2      4  0.5000  1.0000   50.000       2.2171
    """
    values, is_bonafide = as_trials(scores, labels)
    of_trial = as_column("sources", sources, len(values))
    both = np.intersect1d(of_trial[is_bonafide], of_trial[~is_bonafide])
    kept = np.isin(of_trial, both[both != ABSENT])
    if not kept.any():
        return None
    groups = {"source": of_trial[kept]}
    return breakdown(values[kept], is_bonafide[kept], groups, match=["source"], **options)
