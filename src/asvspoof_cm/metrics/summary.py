"""The table of metrics, and all of them for one set of trials.

An entry of `METRICS` is everything that the library knows about a metric: breakdowns, intervals
and reports have one column or row for each entry. The paper's figure has its four, as has every
record of a training (`runs.RECORDED_METRICS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import ArrayLike

from asvspoof_cm.metrics.costs import ASVSPOOF5, DetectionCosts, OperatingPoint
from asvspoof_cm.metrics.det import TIES, SortedScores, Ties
from asvspoof_cm.metrics.track1 import (
    act_dcf_of,
    auc_of,
    cllr_of,
    eer_of,
    eer_warned,
    min_cllr_of,
    min_dcf_of,
)
from asvspoof_cm.utils.checks import Plain, check_choice, split_by_label
from asvspoof_cm.utils.tables import render


@dataclass(frozen=True)
class Metric:
    """One metric of Track 1: how it is computed, called and printed.

    Attributes:
        name: Its name in dictionaries, files and arguments.
        function: From sorted scores (`bonafide` and `spoof`), costs and the treatment of ties to
            the value.
        title: Its name in print.
        unit: The unit in print.
        scale: From the value to the printed unit.
        n_decimals: How many are printed.

    Example:
        >>> METRICS["eer"].label, METRICS["eer"].text(0.125)
        ('EER (%)', '12.500')
    """

    name: str
    function: Callable[[SortedScores, DetectionCosts, Ties], float]
    title: str
    unit: str = ""
    scale: float = 1.0
    n_decimals: int = 4

    @property
    def head(self) -> str:
        """The head of a column."""
        return f"{self.title} (%)" if self.unit == "%" else self.title

    @property
    def label(self) -> str:
        """The label of an axis."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def text(self, value: float) -> str:
        """Return a value in the printed unit."""
        return f"{self.scale * value:.{self.n_decimals}f}"


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("min_dcf", lambda s, costs, ties: min_dcf_of(s, costs, ties).value, "minDCF"),
        Metric("act_dcf", lambda s, costs, _: act_dcf_of(*s.classes, costs).value, "actDCF"),
        Metric("eer", lambda s, _, ties: eer_of(s, ties).value, "EER", "%", 100.0, 3),
        Metric("cllr", lambda s, *_: cllr_of(*s.classes), "Cllr", "bits"),
    )
}
"""The metrics of every table, by name."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Track1Result(Plain):
    """Everything that Track 1 reports about one set of trials; ``print`` shows a table.

    `eer` is a fraction; `cllr` and `min_cllr` are bits. `others` has the entries of `METRICS`
    beyond these.
    """

    n_bonafide: int
    n_spoof: int
    eer: OperatingPoint
    min_dcf: OperatingPoint
    act_dcf: OperatingPoint
    cllr: float
    min_cllr: float
    auc: float
    costs: DetectionCosts
    others: Mapping[str, float]

    def values(self) -> dict[str, float]:
        """Return the value of each entry of `METRICS`, by name and without its threshold.

        Example:
            >>> evaluate([2.0, 1.0, 0.0], [1, 0, 0]).values()["eer"]
            0.0
        """
        known = {**vars(self), **self.others}
        found = {name: known[name] for name in METRICS if name in known}
        return {k: v.value if isinstance(v, OperatingPoint) else v for k, v in found.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; a threshold that isn't finite, to reject all trials, is None."""
        content = super().as_dict()
        others: dict[str, Any] = content.pop("others")
        return content | others

    def __repr__(self) -> str:
        return (
            f"Track1Result({self.n_bonafide} bonafide, {self.n_spoof} spoof: "
            f"EER {100 * self.eer.value:.3f} %, minDCF {self.min_dcf.value:.4f})"
        )

    def __str__(self) -> str:
        rows = [("trials", f"{self.n_bonafide} bonafide, {self.n_spoof} spoof", "")]
        for point, metric in (
            (self.min_dcf, METRICS["min_dcf"]),
            (self.act_dcf, METRICS["act_dcf"]),
            (self.eer, METRICS["eer"]),
        ):
            value = f"{metric.text(point.value)} {metric.unit}".rstrip()
            rows.append((metric.title, value, f"{point.threshold:.4f}"))
        rows += [
            ("Cllr", f"{self.cllr:.4f} bits", ""),
            ("min Cllr", f"{self.min_cllr:.4f} bits", ""),
            ("ROC AUC", f"{self.auc:.4f}", ""),
        ]
        for name, number in self.others.items():
            metric = METRICS[name]
            rows.append((metric.title, f"{metric.text(number)} {metric.unit}".rstrip(), ""))
        return render(("metric", "value", "threshold"), rows, n_names=3)


def evaluate(
    scores: ArrayLike,
    labels: ArrayLike,
    costs: DetectionCosts = ASVSPOOF5,
    *,
    ties: Ties = "official",
) -> Track1Result:
    """Return all Track 1 metrics of one set of trials, sorting them once.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        costs: Costs and prior; those of ASVspoof 5 unless given.
        ties: As in `eer`.

    Example:
        >>> result = evaluate([2.0, 0.5, -1.0, 1.0], ["bonafide", "bonafide", "spoof", "spoof"])
        >>> print(result)
        metric    value                threshold
        trials    2 bonafide, 2 spoof
        minDCF    0.5000               -1.0000
        actDCF    0.5000               -0.6419
        EER       50.000 %             0.5000
        Cllr      0.8034 bits
        min Cllr  0.5000 bits
        ROC AUC   0.7500
    """
    check_choice("ties", ties, TIES)
    bonafide, spoof = split_by_label(scores, labels)
    bonafide.sort()
    spoof.sort()
    curve = SortedScores(bonafide, spoof)
    others = [
        metric for name, metric in METRICS.items() if name not in Track1Result.__annotations__
    ]
    return Track1Result(
        n_bonafide=len(bonafide),
        n_spoof=len(spoof),
        eer=eer_warned(curve, ties),
        min_dcf=min_dcf_of(curve, costs, ties),
        act_dcf=act_dcf_of(bonafide, spoof, costs),
        cllr=cllr_of(bonafide, spoof),
        min_cllr=min_cllr_of(curve),
        auc=auc_of(curve),
        costs=costs,
        others={metric.name: metric.function(curve, costs, ties) for metric in others},
    )
