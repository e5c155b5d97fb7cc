"""Decisions at a threshold, on all trials and per group: accept a score at or above it.

What a detector finds is spoofs. So a *refusal* is a bonafide trial below the threshold, a *pass* a
spoof at or above it, and precision, recall and F1 are those of the spoofs. With the outcomes

    TP = spoofs refused,  FN = spoofs passed,  FP = bonafide refused,  TN = bonafide accepted

the rates are those of scikit-learn with spoof as the positive class. A rate without a trial in its
denominator is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._tables import Quantity, Report, Table
from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    Plain,
    as_column,
    as_trials,
    check_between,
    check_not_negative,
)
from asvspoof_cm.metrics.costs import ASVSPOOF5
from asvspoof_cm.metrics.groups import Group, combinations
from asvspoof_cm.metrics.intervals import Interval, draws, encode, wilson, with_intervals

_TITLES = {
    "refusal_rate": "bonafide refused",
    "pass_rate": "spoof passed",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "precision": "precision",
    "recall": "recall",
}
RATES: Final[dict[str, Quantity]] = {
    **{name: Quantity(name, title, "%", 100.0, 2) for name, title in _TITLES.items()},
    "f1": Quantity("f1", "F1"),
    "f1_macro": Quantity("f1_macro", "F1, macro"),
}
"""The rates of `decisions`, by name, and how they are printed."""

_IN_GROUPS = ("refusal_rate", "pass_rate", "accuracy", "balanced_accuracy", "f1_macro")


@dataclass(frozen=True, kw_only=True)
class Gap(Plain):
    """Between which groups a rate differs most, and by how much."""

    highest: tuple[str, ...]
    lowest: tuple[str, ...]
    difference: Interval | float


@dataclass(frozen=True, kw_only=True)
class Decisions(Report):
    """What `decisions` returns; ``print`` shows a table.

    A share of trials has a Wilson interval, or with `clusters` a bootstrap one. The other rates
    have a bootstrap interval where one was asked for.
    """

    threshold: float
    columns: tuple[str, ...]
    rows: tuple[Group, ...]
    """One per group, and all trials together at the end."""
    gaps: Mapping[str, Gap]
    """The largest gap of each rate between two groups."""

    @property
    def rates(self) -> Mapping[str, Interval | float]:
        """The rates of all trials."""
        return self.rows[-1].values

    def table(self) -> Table:
        """Return the table that ``print`` shows: the rates of all trials, or some per group."""
        if not self.columns:
            rows: list[Sequence[Any]] = [(RATES[k], rate) for k, rate in self.rates.items()]
            return Table((f"at the threshold {self.threshold:.4f}", "value"), rows)
        rows = [
            (*row.group, row.n_bonafide, row.n_spoof, *map(row.values.__getitem__, _IN_GROUPS))
            for row in self.rows
        ]
        gaps = [self.gaps[k].difference if k in self.gaps else math.nan for k in _IN_GROUPS]
        rows.append(("largest gap", *[""] * (len(self.columns) - 1), None, None, *gaps))
        columns: list[str | Quantity] = [*self.columns, "bonafide", "spoof"]
        columns += map(RATES.__getitem__, _IN_GROUPS)
        return Table(columns, rows, n_names=len(self.columns), n_totals=2)


def decisions(
    scores: ArrayLike,
    labels: ArrayLike,
    threshold: float = ASVSPOOF5.threshold,
    *,
    groups: Mapping[str, ArrayLike] | None = None,
    n_bootstrap: int = 0,
    clusters: ArrayLike | None = None,
    seed: int = 0,
) -> Decisions:
    """Return error rates, accuracy, precision, recall and F1 at a threshold, with intervals.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        threshold: Accept scores at or above it. The default is the Bayes threshold of ASVspoof 5,
            for log-likelihood ratios.
        groups: Columns of shape (n_trials,) by name, such as ``{"gender": protocol.gender}``. Two
            or more are crossed. Each group is measured on its own trials of both classes.
        n_bootstrap: Replicates for intervals on what is no share of trials (balanced accuracy, F1),
            and with `clusters` on everything; 0 for none.
        clusters: The cluster of each trial, shape (n_trials,); see `bootstrap`.
        seed: Seed of the draws.

    Note:
        The interval of a gap is put together from those of its two groups, taken as independent
        (MOVER; Zou and Donner, 2008; Newcombe's for two shares).

    Example:
        >>> scores, labels = [2.0, 1.0, -1.0, 0.5, -2.0, -3.0], [1, 1, 1, 0, 0, 0]
        >>> gender = ["F", "F", "M", "M", "F", "M"]
        >>> found = decisions(scores, labels, 0.0, groups={"gender": gender})
        >>> print(found.rates["accuracy"])
        0.6667 [0.3000, 0.9032]
        >>> found.gaps["refusal_rate"].highest
        ('M',)
    """
    values, is_bonafide = as_trials(scores, labels)
    columns = {k: as_column(k, column, len(values)) for k, column in (groups or {}).items()}
    check_between("n_bootstrap", n_bootstrap, 0)
    check_not_negative(seed=seed)
    names, group_of = combinations(columns) if columns else ([], 0)
    # Outcomes in the order of `_rates`: spoof refused and passed, bonafide refused and accepted.
    code = 4 * group_of + 2 * is_bonafide + (values >= threshold)
    counts = np.bincount(code, minlength=4 * max(len(names), 1))
    drawn: FloatArray = np.empty((n_bootstrap, len(counts)))
    if clusters is not None:
        (units,) = encode(as_column("clusters", clusters, len(values)))
        for k, (of_unit,) in enumerate(draws([1 + int(units.max())], n_bootstrap, seed)):
            drawn[k] = np.bincount(code, of_unit[units], len(counts))
    elif n_bootstrap:
        first, totals = counts[::2], counts[::2] + counts[1::2]
        rng, shape = np.random.default_rng(seed), (n_bootstrap, len(totals))
        drawn[:, ::2] = rng.binomial(totals, first / np.maximum(totals, 1), shape)
        drawn[:, 1::2] = totals - drawn[:, ::2]  # the trials of each class are drawn on their own
    outcomes = counts.reshape(-1, 4)
    replicates = drawn.reshape(n_bootstrap, len(outcomes), 4)
    is_clustered = clusters is not None
    rows = [_row(k, outcomes[i], replicates[:, i], is_clustered) for i, k in enumerate(names)]
    together = "all", *[""] * (len(columns) - 1)
    total = _row(together, outcomes.sum(axis=0), replicates.sum(axis=1), is_clustered)
    return Decisions(
        threshold=float(threshold), columns=tuple(columns), rows=(*rows, total), gaps=_gaps(rows)
    )


def _shares(tp: Any, fn: Any, fp: Any, tn: Any) -> dict[str, tuple[Any, Any]]:
    """The rates that are shares of trials: how many, of how many."""
    return {
        "refusal_rate": (fp, fp + tn),
        "pass_rate": (fn, tp + fn),
        "accuracy": (tp + tn, tp + fn + fp + tn),
        "precision": (tp, tp + fp),
        "recall": (tp, tp + fn),
    }


def _rates(outcomes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The rates of outcomes (…, 4): spoofs refused and passed, bonafide refused and accepted."""
    tp, fn, fp, tn = np.moveaxis(outcomes.astype(np.float64), -1, 0)
    with np.errstate(invalid="ignore"):
        found = {name: of / whole for name, (of, whole) in _shares(tp, fn, fp, tn).items()}
        found["balanced_accuracy"] = 1 - (found["refusal_rate"] + found["pass_rate"]) / 2
        found["f1"] = 2 * tp / (2 * tp + fp + fn)
        found["f1_macro"] = (found["f1"] + 2 * tn / (2 * tn + fp + fn)) / 2
    return {name: found[name] for name in RATES}


def _row(
    group: tuple[str, ...], outcomes: IntArray, drawn: FloatArray, is_clustered: bool
) -> Group:
    observed = {name: float(rate) for name, rate in _rates(outcomes).items()}
    rates = with_intervals(observed, np.stack([*_rates(drawn).values()], axis=-1))
    tp, fn, fp, tn = outcomes.tolist()
    if not is_clustered:
        shares = _shares(tp, fn, fp, tn).items()
        rates |= {name: wilson(*share) for name, share in shares if share[1]}
    return Group(group=group, n_bonafide=fp + tn, n_spoof=tp + fn, values=rates)


def _gaps(rows: Sequence[Group]) -> dict[str, Gap]:
    gaps = {}
    for name in RATES:
        known = {row.group: rate for row in rows if not math.isnan(rate := row.values[name])}
        if len(known) < 2:
            continue
        highest, lowest = (choose(known, key=lambda k: float(known[k])) for choose in (max, min))
        high, low = known[highest], known[lowest]
        difference: Interval | float = float(high) - float(low)
        if isinstance(high, Interval) and isinstance(low, Interval):
            below = math.hypot(high.value - high.low, low.high - low.value)
            above = math.hypot(high.high - high.value, low.value - low.low)
            value = high.value - low.value
            difference = Interval(value=value, low=value - below, high=value + above)
        gaps[name] = Gap(highest=highest, lowest=lowest, difference=difference)
    return gaps
