"""How the metrics are called and scaled in tables and figures."""

from __future__ import annotations

from typing import Final

from asvspoof_cm.metrics.intervals import METRICS, Interval

__all__ = ["LATEX_SPECIALS", "TITLES", "UNITS", "format_metric", "metric_scale", "metric_title"]

TITLES: Final = dict(zip(METRICS, ("minDCF", "actDCF", "EER", "Cllr"), strict=True))
"""The name of each metric in print, without its unit."""

UNITS: Final = {"eer": "%", "cllr": "bits"}
"""The unit in which a metric is printed, of those that have one."""

LATEX_SPECIALS: Final = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "–": "--",
    }
)
"""For ``str.translate``: what LaTeX would take for a command."""


def metric_scale(name: str) -> float:
    """Return the factor from a metric's value to its printed unit: per cent for the EER.

    Example:
        >>> metric_scale("eer")
        100.0
    """
    return 100.0 if UNITS.get(name) == "%" else 1.0


def metric_title(name: str) -> str:
    """Return the head of a metric's column, with the unit of `metric_scale`.

    Example:
        >>> metric_title("eer"), metric_title("min_dcf")
        ('EER %', 'minDCF')
    """
    return f"{TITLES[name]} %" if metric_scale(name) > 1.0 else TITLES[name]


def format_metric(name: str, value: float, interval: Interval | None = None) -> str:
    """Return a metric's value as it is printed, in the unit of `metric_scale`.

    Example:
        >>> format_metric("eer", 0.125), format_metric("cllr", 0.125)
        ('12.500', '0.1250')
        >>> interval = Interval(value=0.1, low=0.0, high=0.2, confidence=0.95, n_replicates=9)
        >>> format_metric("eer", 0.1, interval)
        '10.000 [0.000, 20.000]'
    """
    scale = metric_scale(name)
    n_decimals = 3 if scale > 1.0 else 4
    text = f"{scale * value:.{n_decimals}f}"
    if interval is None:
        return text
    return f"{text} [{scale * interval.low:.{n_decimals}f}, {scale * interval.high:.{n_decimals}f}]"
