"""Results per attack, codec, gender, speaker or any crossing of columns, and within sources."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._tables import Quantity, Report, Table
from asvspoof_cm._util import FloatArray, IntArray, Plain, as_column, as_trials, check_between
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.metrics.intervals import Interval, encode, resample, with_intervals
from asvspoof_cm.metrics.track1 import METRICS

POOLED, MEAN = "pooled", "mean"


@dataclass(frozen=True, kw_only=True)
class Group(Plain):
    """The figures of one group of trials by name, with an interval where it was asked for.

    A figure is NaN where the group lacks the trials that it is made of.
    """

    group: tuple[str, ...]
    n_bonafide: int
    n_spoof: int
    values: Mapping[str, Interval | float]


@dataclass(frozen=True, kw_only=True)
class Breakdown(Report):
    """One row per group, in the order of the groups' names, and all trials together at the end."""

    columns: tuple[str, ...]
    rows: tuple[Group, ...]
    mean: Group | None
    """The mean over the groups, each of one weight, where no two of them share a trial."""

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        *groups, pooled = self.rows
        totals = [pooled] if self.mean is None else [self.mean, pooled]
        rows = [(*r.group, r.n_bonafide, r.n_spoof, *r.values.values()) for r in groups + totals]
        columns: list[str | Quantity] = [*self.columns, "bonafide", "spoof", *METRICS.values()]
        return Table(columns, rows, n_names=len(self.columns), n_totals=len(totals))


def breakdown(
    scores: ArrayLike,
    labels: ArrayLike,
    groups: Mapping[str, ArrayLike],
    *,
    match: Sequence[str] = (),
    n_bootstrap: int = 0,
    clusters: ArrayLike | None = None,
    seed: int = 0,
) -> Breakdown:
    """Return the Track 1 metrics for each group of spoofs.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        groups: Columns of shape (n_trials,) by name, such as ``{"attack": protocol.attack}``. Two
            or more columns are crossed: a row for each combination that occurs among the spoofs.
        match: Names of columns in which a group's bonafide trials must agree with it: with
            ``("codec",)``, spoofs of a codec stand against bonafide speech of that codec. With all
            columns of `groups`, groups share no trials: then their mean is reported too, and its
            interval draws groups as well as trials.
        n_bootstrap: Replicates for an interval on every figure; 0 for none.
        clusters: The cluster of each trial, shape (n_trials,); see `bootstrap`. A group whose
            trials are too few clusters for a draw has no interval, which a warning says.
        seed: Seed of the draws.

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
    if cluster is not None and n_bootstrap:
        encode(cluster)  # refuses a single cluster
    bonafide, spoof = np.flatnonzero(is_bonafide), np.flatnonzero(~is_bonafide)
    names, group_of = combinations({name: column[spoof] for name, column in columns.items()})
    is_apart = set(match) == set(groups)
    padding = [""] * (len(columns) - 1)

    def row(group: tuple[str, ...], against: IntArray, chosen: IntArray, seed: Any) -> Group:
        observed = np.full(len(METRICS), math.nan)
        drawn = np.full((n_bootstrap, len(METRICS)), math.nan)
        if len(against):
            parts = [cluster[against], cluster[chosen]] if cluster is not None else None
            is_one = parts is not None and len(np.unique(np.concatenate(parts))) == 1
            units = None if parts is None or is_one or not n_bootstrap else encode(*parts)
            pairs, n = [(values[against], values[chosen])], 0 if is_one else n_bootstrap
            observed, drawn[:n] = resample([*METRICS.values()], pairs, units, n, seed)
        replicates.append(drawn)
        found = with_intervals(dict(zip(METRICS, observed.tolist(), strict=True)), drawn)
        return Group(group=group, n_bonafide=len(against), n_spoof=len(chosen), values=found)

    rows, replicates = [], list[FloatArray]()
    for k, group in enumerate(names):
        chosen, against = spoof[group_of == k], bonafide
        for name in match:
            against = against[columns[name][against] == columns[name][chosen[0]]]
        rows.append(row(group, against, chosen, [seed, k] if is_apart else seed))
    n_thin = sum(
        bool(own.n_bonafide) and np.isnan(drawn).any()
        for own, drawn in zip(rows, replicates, strict=True)
    )
    if n_thin:
        warnings.warn(
            f"{n_thin} of {len(rows)} groups lie in so few `clusters` that replicates drew none of "
            "their trials, or none of one class: see n_replicates of their intervals. Groups that "
            "no replicate drew have none.",
            stacklevel=2,
        )
    mean = None
    if is_apart:
        whole = [k for k, own in enumerate(rows) if own.n_bonafide]
        mean = Group(
            group=(MEAN, *padding),
            n_bonafide=sum(rows[k].n_bonafide for k in whole),
            n_spoof=sum(rows[k].n_spoof for k in whole),
            values=_mean([rows[k] for k in whole], [replicates[k] for k in whole], seed),
        )
    pooled = row((POOLED, *padding), bonafide, spoof, seed)
    return Breakdown(columns=tuple(columns), rows=(*rows, pooled), mean=mean)


def _mean(
    groups: Sequence[Group], replicates: Sequence[FloatArray], seed: int
) -> dict[str, Interval | float]:
    """Return the mean of each metric over groups; a replicate draws groups, and trials in each."""
    if not groups:
        return dict.fromkeys(METRICS, math.nan)
    observed = {
        name: float(np.mean([float(row.values[name]) for row in groups])) for name in METRICS
    }
    n = len(replicates[0])
    chosen = np.random.default_rng(seed).integers(len(groups), size=(len(groups), n))
    return with_intervals(observed, np.stack(replicates)[chosen, np.arange(n)].mean(axis=0))


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

    Scores, labels and sources, such as `Protocol.source`, have one entry per trial; `options` are
    those of `breakdown`. Sources of one class are left out, and so are trials whose source is "-",
    not known; where none is left, so is the result.

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
