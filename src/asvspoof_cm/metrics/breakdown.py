"""Results per attack, codec, gender, speaker, or any crossing of such columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.metrics.bootstrap import Interval, TooFewClustersError, bootstrap
from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts
from asvspoof_cm.metrics.det import TIES, SortedScores, Ties
from asvspoof_cm.metrics.summary import METRICS, Metric
from asvspoof_cm.utils.checks import IntArray, Plain, as_column, as_trials, check_choice
from asvspoof_cm.utils.progress import track
from asvspoof_cm.utils.tables import Tabular

POOLED = "pooled"


@dataclass(frozen=True, kw_only=True)
class BreakdownRow(Plain):
    """The metrics of one group of spoofs against its bonafide trials.

    `values` has one entry per metric of `METRICS`, NaN where the group has no bonafide trial to
    stand against. `intervals` is empty unless it was asked for.
    """

    group: tuple[str, ...]
    n_bonafide: int
    n_spoof: int
    values: Mapping[str, float]
    intervals: Mapping[str, Interval]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; a metric that doesn't exist is None."""
        content = super().as_dict()
        values: dict[str, Any] = content.pop("values")
        return content | values

    def cell(self, metric: Metric) -> str:
        """Return a metric and its interval, if it has one, as a table prints them."""
        if metric.name in self.intervals:
            return self.intervals[metric.name].text(metric)
        value = self.values[metric.name]
        return "–" if math.isnan(value) else metric.text(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Breakdown(Tabular, Plain):
    """One row per group, in the order of the groups' names, and all trials together at the end."""

    columns: tuple[str, ...]
    rows: tuple[BreakdownRow, ...]

    def __repr__(self) -> str:
        pooled = self.rows[-1]
        return (
            f"Breakdown({' × '.join(self.columns)}: {len(self.rows) - 1} groups, "
            f"{pooled.n_bonafide} bonafide, {pooled.n_spoof} spoof)"
        )

    def _cells(self) -> Any:
        header = [*self.columns, "bonafide", "spoof", *(m.head for m in METRICS.values())]
        rows = [
            [*row.group, row.n_bonafide, row.n_spoof, *map(row.cell, METRICS.values())]
            for row in self.rows
        ]
        return header, rows, {"n_names": len(self.columns), "n_totals": 1}

    def _numbers(self) -> Any:
        # Intervals, if any, are two more columns per metric: ``eer_low``, ``eer_high``.
        ends = [(name, end) for name in METRICS for end in ("low", "high")]
        ends = ends if any(row.intervals for row in self.rows) else []
        header = [*self.columns, "n_bonafide", "n_spoof", *METRICS, *map("_".join, ends)]
        rows = []
        for row in self.rows:
            bounds = [getattr(row.intervals[k], e) if row.intervals else math.nan for k, e in ends]
            numbers = ["" if math.isnan(v) else v for v in (*row.values.values(), *bounds)]
            rows.append([*row.group, row.n_bonafide, row.n_spoof, *numbers])
        return header, rows


def breakdown(
    scores: ArrayLike,
    labels: ArrayLike,
    groups: Mapping[str, ArrayLike],
    *,
    match: Sequence[str] = (),
    ties: Ties = "official",
    n_bootstrap: int = 0,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    costs: DetectionCosts = ASVSPOOF5,
    progress: bool = True,
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
        ties: As in `eer`; "grouped" has no intervals.
        n_bootstrap: Replicates for an interval on every figure; 0 for none.
        clusters: The cluster of each trial, shape (n_trials,); see `bootstrap`. A group whose
            trials are too few clusters for a draw has no interval, which a warning says.
        seed: As in `bootstrap`, and so are the rest.
        confidence: Mass of the intervals.
        costs: Of the detection costs.
        progress: Show how far it is.

    Example:
        >>> labels = ["bonafide", "bonafide", "spoof", "spoof", "spoof"]
        >>> attack = ["-", "-", "A09", "A09", "A10"]
        >>> print(breakdown([1.0, 2.0, -1.0, 1.5, -3.0], labels, {"attack": attack}))
        attack  bonafide  spoof  minDCF  actDCF  EER (%)    Cllr
        A09            2      2  0.5000  0.5000   50.000  0.8854
        A10            2      1  0.0000  0.0000    0.000  0.1938
        pooled         2      3  0.3333  0.3333   41.667  0.6549
    """
    if not groups:
        raise ValueError("`groups` must hold at least one column, such as {'attack': …}; got none.")
    check_choice("ties", ties, TIES)
    if ties != "official" and n_bootstrap:
        raise ValueError(
            f'`ties` must be "official" with `n_bootstrap`, whose intervals are; got {ties!r}.'
        )
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
    names, group_of = _combinations({name: column[spoof] for name, column in columns.items()})
    members = np.split(
        spoof[np.argsort(group_of, kind="stable")], np.cumsum(np.bincount(group_of))[:-1]
    )

    def row(group: tuple[str, ...], chosen: IntArray, against: IntArray, n: int) -> BreakdownRow:
        chosen = chosen[np.argsort(values[chosen], kind="stable")]
        curve = SortedScores(values[against], values[chosen])
        found, intervals = dict.fromkeys(METRICS, math.nan), dict[str, Interval]()
        if len(against):
            found = {name: metric.function(curve, costs, ties) for name, metric in METRICS.items()}
        if n and len(against):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* replicates drew no trial")
                intervals = bootstrap(
                    METRICS,
                    *curve.classes,
                    n,
                    clusters=None if cluster is None else (cluster[against], cluster[chosen]),
                    seed=seed,
                    confidence=confidence,
                    costs=costs,
                    progress=False,
                )
        return BreakdownRow(
            group=group,
            n_bonafide=len(against),
            n_spoof=len(chosen),
            values=found,
            intervals=intervals,
        )

    # First, because it says whether the clusters can be drawn at all.
    pooled = row((POOLED, *[""] * (len(columns) - 1)), spoof, bonafide, n_bootstrap)
    rows = []
    for group, chosen in track(
        list(zip(names, members, strict=True)),
        description="breakdown",
        unit="group",
        enabled=progress,
    ):
        against = bonafide
        for name in match:
            column = columns[name]
            against = against[column[against] == column[chosen[0]]]
        try:
            rows.append(row(group, chosen, against, n_bootstrap))
        except TooFewClustersError:
            rows.append(row(group, chosen, against, 0))
    if n_bootstrap:
        _warn_of_thin_groups(rows, n_bootstrap)
    return Breakdown(columns=tuple(columns), rows=(*rows, pooled))


def _warn_of_thin_groups(rows: Sequence[BreakdownRow], n_bootstrap: int) -> None:
    drawn = [min((i.n_replicates for i in row.intervals.values()), default=0) for row in rows]
    n_none = sum(n == 0 and row.n_bonafide > 0 for n, row in zip(drawn, rows, strict=True))
    n_some = sum(0 < n < n_bootstrap for n in drawn)
    if n_none:
        warnings.warn(
            f"{n_none} of {len(rows)} groups have no interval: their trials lie in so few "
            "`clusters` that no replicate drew both classes.",
            stacklevel=3,
        )
    if n_some:
        warnings.warn(
            f"{n_some} of {len(rows)} groups lie in so few `clusters` that some replicates drew "
            "none of their trials; see n_replicates of their intervals.",
            stacklevel=3,
        )


def _combinations(columns: Mapping[str, NDArray[Any]]) -> tuple[list[tuple[str, ...]], IntArray]:
    """Return the combinations of values that occur, sorted, and which of them each trial has."""
    uniques, codes, combined = [], [], np.zeros(1, dtype=np.int64)
    for column in columns.values():
        unique, code = np.unique(column, return_inverse=True)
        uniques.append(unique)
        codes.append(code)
        combined = combined * len(unique) + code
    _, first, group_of = np.unique(combined, return_index=True, return_inverse=True)
    names = [
        tuple(str(unique[code[trial]]) for unique, code in zip(uniques, codes, strict=True))
        for trial in first
    ]
    return names, group_of
