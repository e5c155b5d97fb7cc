"""Results per attack, codec, gender, speaker or any crossing of columns, and within sources."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    Quantity,
    Table,
    as_column,
    as_labels,
    as_trials,
    check_between,
)
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.metrics.intervals import (
    Interval,
    SortedSystem,
    TooFewClustersError,
    bootstrap,
    check_draws,
    draws,
)
from asvspoof_cm.metrics.track1 import (
    ASVSPOOF5,
    METRICS,
    DetectionCosts,
    SortedScores,
    act_dcf_of,
    cllr_of,
    eer,
    eer_of,
    min_dcf_of,
)

POOLED = "pooled"


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

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        rows = [(*r.group, r.n_bonafide, r.n_spoof, *r.values.values()) for r in self.rows]
        columns: list[str | Quantity] = [*self.columns, "bonafide", "spoof", *METRICS.values()]
        return Table(columns, rows, n_names=len(self.columns), n_totals=1)

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
            it each group stands against all bonafide trials.
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
    if isinstance(match, str):
        raise ValueError(f"`match` must be a list of names, such as [{match!r}]; got {match!r}.")
    unknown = [name for name in match if name not in groups]
    if unknown:
        raise ValueError(
            f"`match` must name columns of `groups` ({', '.join(groups)}); got {unknown[0]!r}."
        )
    values, is_bonafide = as_trials(scores, labels)
    columns = {name: as_column(name, column, len(values)) for name, column in groups.items()}
    cluster = None if clusters is None else as_column("clusters", clusters, len(values))
    bonafide = np.flatnonzero(is_bonafide)
    bonafide = bonafide[np.argsort(values[bonafide], kind="stable")]
    spoof = np.flatnonzero(~is_bonafide)
    names, group_of = combinations({name: column[spoof] for name, column in columns.items()})
    members = np.split(
        spoof[np.argsort(group_of, kind="stable")], np.cumsum(np.bincount(group_of))[:-1]
    )

    def row(group: tuple[str, ...], chosen: IntArray, against: IntArray, n: int) -> BreakdownRow:
        chosen = chosen[np.argsort(values[chosen], kind="stable")]
        curve = SortedScores(values[against], values[chosen])
        found: dict[str, Interval | float] = dict.fromkeys(METRICS, math.nan)
        if len(against):
            found = {
                "min_dcf": min_dcf_of(curve, costs).value,
                "act_dcf": act_dcf_of(*curve.classes, costs).value,
                "eer": eer_of(curve).value,
                "cllr": cllr_of(*curve.classes),
            }
        if n and len(against):
            drawn = None if cluster is None else (cluster[against], cluster[chosen])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* replicates drew no trial")
                options: Any = {"clusters": drawn, "seed": seed, "costs": costs}
                found |= bootstrap(METRICS, *curve.classes, n, **options)
        counts = {"n_bonafide": len(against), "n_spoof": len(chosen)}
        return BreakdownRow(group=group, **counts, values=found)

    # First, because it says whether the clusters can be drawn at all.
    pooled = row((POOLED, *[""] * (len(columns) - 1)), spoof, bonafide, n_bootstrap)
    rows = []
    for group, chosen in zip(names, members, strict=True):
        against = bonafide
        for name in match:
            column = columns[name]
            against = against[column[against] == column[chosen[0]]]
        try:
            rows.append(row(group, chosen, against, n_bootstrap))
        except TooFewClustersError:
            rows.append(row(group, chosen, against, 0))
    drawn = [getattr(row.values["eer"], "n_replicates", 0) for row in rows]
    n_thin = sum(n < n_bootstrap and r.n_bonafide > 0 for n, r in zip(drawn, rows, strict=True))
    if n_thin:
        warnings.warn(
            f"{n_thin} of {len(rows)} groups lie in so few `clusters` that replicates drew none of "
            "their trials, or none of one class: see n_replicates of their intervals. Groups that "
            "no replicate drew have none.",
            stacklevel=2,
        )
    return Breakdown(columns=tuple(columns), rows=(*rows, pooled))


def combinations(columns: Mapping[str, NDArray[Any]]) -> tuple[list[tuple[str, ...]], IntArray]:
    """Return the combinations of values that occur, sorted, and which of them each trial has."""
    codes = [np.unique(column, return_inverse=True)[1] for column in columns.values()]
    combined = np.ravel_multi_index(codes, [int(code.max()) + 1 for code in codes])
    _, first, group_of = np.unique(combined, return_index=True, return_inverse=True)
    names = [tuple(str(column[trial]) for column in columns.values()) for trial in first]
    return names, group_of


@dataclass(frozen=True, kw_only=True)
class SourceRow(Plain):
    """The EER of one source, its fakes against its own bonafide trials."""

    source: str
    n_bonafide: int
    n_spoof: int
    eer: float
    interval: Interval | None
    """Of the EER, where it was asked for."""


@dataclass(frozen=True, kw_only=True)
class WithinSources(Plain):
    """What `within_sources` returns; ``print`` shows a table, the worst source first."""

    rows: tuple[SourceRow, ...]
    """By falling EER."""
    mean_eer: float
    interval: Interval | None
    """Of the mean EER, where it was asked for."""
    pooled_eer: float
    """Of the same trials with one threshold for all sources."""
    n_left_out: int
    """Known sources that have one class only."""

    @property
    def worst(self) -> SourceRow:
        """The source with the highest EER."""
        return self.rows[0]

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        rows: list[Any] = [
            (r.source, r.n_bonafide, r.n_spoof, r.interval or r.eer) for r in self.rows
        ]
        counts = sum(row[1] for row in rows), sum(row[2] for row in rows)
        rows.append(("mean", *counts, self.interval or self.mean_eer))
        rows.append(("pooled, one threshold", *counts, self.pooled_eer))
        return Table(("source", "bonafide", "spoof", METRICS["eer"]), rows, n_totals=2)

    def __str__(self) -> str:
        left_out = f"\n({self.n_left_out} more have one class only)" if self.n_left_out else ""
        return f"{self.table()}{left_out}"


def has_sources(labels: ArrayLike, sources: ArrayLike) -> bool:
    """Return whether `within_sources` has a source to measure: a known one with both classes."""
    is_bonafide, of_trial = as_labels(labels), np.asarray(sources)
    known = of_trial != ABSENT
    return bool(np.isin(of_trial[known & is_bonafide], of_trial[known & ~is_bonafide]).any())


def within_sources(
    scores: ArrayLike,
    labels: ArrayLike,
    sources: ArrayLike,
    *,
    n_bootstrap: int = 0,
    seed: int = 0,
) -> WithinSources:
    """Return the EER within each source, their mean and their worst.

    A pooled EER also rewards a detector for knowing where a recording comes from: sources differ in
    channel, and often hold one class. Within a source that helps nobody. Sources weigh alike in the
    mean, whatever their size; those with one class are left out, and so are trials whose source is
    "-", not known.

    Scores, labels and sources, such as `Protocol.source`, have one entry per trial. `n_bootstrap`
    replicates give an interval on each source's EER and on their mean: a replicate draws trials of
    each class within each source and, for the mean, sources.

    Example:
        >>> scores = [2.0, 1.0, 0.0, 5.0, 4.0, 6.0]
        >>> labels = [1, 0, 0, 1, 0, 0]
        >>> print(within_sources(scores, labels, ["page", "page", "page", "call", "call", "call"]))
        source                 bonafide  spoof  EER (%)
        call                          1      2   25.000
        page                          1      2    0.000
        mean                          2      4   12.500
        pooled, one threshold         2      4   50.000
    """
    check_between("n_bootstrap", n_bootstrap, 0)
    check_draws(n_bootstrap or 1, seed)
    values, is_bonafide = as_trials(scores, labels)
    of_trial = as_column("sources", sources, len(values))
    known = of_trial != ABSENT
    values, is_bonafide = values[known], is_bonafide[known]
    names, codes = np.unique(of_trial[known], return_inverse=True)
    both = np.intersect1d(codes[is_bonafide], codes[~is_bonafide])
    if not len(both):
        raise ValueError(
            f"`sources` must have one with both classes; none of {len(names)} has, and "
            f"{int((~known).sum())} trials are of no known source ({ABSENT!r})."
        )
    rows, replicates = [], []
    for code in both.tolist():
        pair = values[is_bonafide & (codes == code)], values[~is_bonafide & (codes == code)]
        drawn, value = _replicates(pair, n_bootstrap, seed, code), eer(*pair).value
        interval = Interval.of(value, drawn) if n_bootstrap else None
        counts = {"n_bonafide": len(pair[0]), "n_spoof": len(pair[1])}
        rows.append(SourceRow(source=str(names[code]), **counts, eer=value, interval=interval))
        replicates.append(drawn)
    mean = float(np.mean([row.eer for row in rows]))
    interval = None
    if n_bootstrap:
        rng = np.random.default_rng(seed)
        chosen = rng.integers(len(rows), size=(n_bootstrap, len(rows)))
        means = np.take_along_axis(np.stack(replicates, axis=1), chosen, axis=1).mean(axis=1)
        interval = Interval.of(mean, means)
    kept = np.isin(codes, both)
    return WithinSources(
        rows=tuple(sorted(rows, key=lambda row: (-row.eer, row.source))),
        mean_eer=mean,
        interval=interval,
        pooled_eer=eer(values[kept & is_bonafide], values[kept & ~is_bonafide]).value,
        n_left_out=len(names) - len(both),
    )


def _replicates(pair: tuple[FloatArray, FloatArray], n: int, seed: int, code: int) -> FloatArray:
    if not n:
        return np.empty(0)
    system = SortedSystem(pair, None, ("eer",), ASVSPOOF5)
    own_seed = int(np.random.SeedSequence([seed, code]).generate_state(1)[0])
    drawn = draws((len(pair[0]), len(pair[1])), None, n, own_seed)
    return np.array([system.replicate(counts)[0] for counts in drawn])
