"""Figures of scores: DET, histograms, calibration and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from asvspoof_cm.metrics import ASVSPOOF5, METRICS, Breakdown, DetectionCosts, det_curve
from asvspoof_cm.metrics.track1 import SortedScores, dcf, default_cost, eer_of, min_dcf_of
from asvspoof_cm.plots.style import (
    BONAFIDE_COLOR,
    COLUMN_WIDTH_IN,
    FONT_SIZE,
    MARKS,
    PAGE_WIDTH_IN,
    SPOOF_COLOR,
    SYSTEM_COLORS,
    finish,
    new_axes,
)
from asvspoof_cm.utils.checks import FloatArray, IntArray, as_scores, check_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DET_TICKS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99)


def det(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    costs: DetectionCosts = ASVSPOOF5,
    limits: tuple[float, float] = (0.001, 0.6),
) -> Axes:
    """Draw a DET curve on normal-deviate axes and mark EER, minDCF and actDCF on it.

    Gaussian scores of equal spread give a straight line. Call it again with the same `ax` for
    another system. The deviates of 0 and 1 are infinite: a rate of zero is drawn at half a trial,
    one of 100 % at half a trial less.

    Args:
        bonafide: Scores of bonafide trials, shape (n_bonafide,). Higher means bonafide.
        spoof: Scores of spoofed trials, shape (n_spoof,).
        ax: Where to draw.
        label: The system's name in the legend; its EER is added.
        costs: Costs and prior of the marks.
        limits: Lowest and highest error rate of both axes, as fractions.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ax = det(rng.normal(1, 1, 100), rng.normal(-1, 1, 200), label="system")
        >>> ax.get_xlabel()
        'false alarms, spoof accepted (%)'
    """
    if not 0.0 < limits[0] < limits[1] < 1.0:
        raise ValueError(f"`limits` must be rates with 0 < low < high < 1; got {limits}.")
    ax = new_axes(height_in=3.2) if ax is None else ax
    curve = SortedScores.of(bonafide, spoof)
    p_miss, p_fa, _ = det_curve(curve.bonafide, curve.spoof)
    x, y = _deviates(p_fa, len(curve.spoof)), _deviates(p_miss, len(curve.bonafide))
    keep = _thin(x, y)
    name = f"EER {100 * eer_of(curve).value:.2f} %"
    n_drawn = sum(line.get_linestyle() == "-" for line in ax.lines)
    color = SYSTEM_COLORS[n_drawn % len(SYSTEM_COLORS)]
    title = f"{label}, {name}" if label else name
    ax.plot(x[keep], y[keep], color=color, linewidth=1.2, label=title)
    marked = (
        (eer_of(curve, "grouped").threshold, "o", "white"),
        (min_dcf_of(curve, costs, "grouped").threshold, "D", color),
        (costs.threshold, "s", "white"),
    )
    shown = set(ax.get_legend_handles_labels()[1])
    for title, (threshold, marker, face) in zip(MARKS, marked, strict=True):
        missed = np.searchsorted(curve.bonafide, [threshold]) / len(curve.bonafide)
        accepted = 1.0 - np.searchsorted(curve.spoof, [threshold]) / len(curve.spoof)
        ax.plot(
            _deviates(accepted, len(curve.spoof)),
            _deviates(missed, len(curve.bonafide)),
            marker=marker,
            color=color,
            markerfacecolor=face,
            markersize=4.5,
            linestyle="none",
            zorder=3,
            label="_" if title in shown else title,
        )
    if "EER" not in shown:
        ends = ndtri(np.array(limits))
        ax.plot(ends, ends, color="0.8", linewidth=0.6, linestyle="--", zorder=0, label="_")
    ticks = [tick for tick in _DET_TICKS if limits[0] <= tick <= limits[1]]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ndtri(ticks), [f"{100 * tick:g}" for tick in ticks])
    ax.set_xlim(*ndtri(limits))
    ax.set_ylim(*ndtri(limits))
    ax.set_aspect("equal")
    return finish(ax, "false alarms, spoof accepted (%)", "misses, bonafide rejected (%)")


def scores(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    ax: Axes | None = None,
    *,
    n_bins: int = 60,
    costs: DetectionCosts = ASVSPOOF5,
) -> Axes:
    """Draw the density of both classes' log-likelihood ratios, and the Bayes threshold of `costs`.

    Example:
        >>> scores([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
        'density'
    """
    ax = new_axes() if ax is None else ax
    classes = {
        "spoof": (as_scores("spoof", spoof), SPOOF_COLOR),
        "bonafide": (as_scores("bonafide", bonafide), BONAFIDE_COLOR),
    }
    edges = _bin_edges(np.concatenate([s for s, _ in classes.values()]), n_bins)
    highest = 0.0
    for name, (scores, color) in classes.items():
        density, _ = np.histogram(scores, bins=edges, density=True)
        highest = max(highest, float(density.max()))
        ax.stairs(density, edges, fill=True, color=color, alpha=0.35)
        ax.stairs(density, edges, color=color, linewidth=1.0, label=f"{name} ({len(scores):,})")
    name = f"Bayes threshold {costs.threshold:.2f}".replace("-", "−")
    ax.axvline(costs.threshold, color="black", linewidth=0.9, linestyle="--", label=name)
    ax.set_ylim(0.0, 1.35 * highest)  # room for the legend
    return finish(ax, "score (log-likelihood ratio)", "density")


def calibration(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    ax: Axes | None = None,
    *,
    costs: DetectionCosts = ASVSPOOF5,
    log_odds: tuple[float, float] = (-6.0, 6.0),
) -> Axes:
    """Draw the actual and the minimum detection cost over all priors, an APE-style plot.

    Well calibrated scores have the two curves on each other; the shaded gap is what calibration
    would gain, for every application at once and not only for the one of the challenge. A vertical
    line marks `costs`; `log_odds` is the range of ln β, the effective log-odds of bonafide.

    Example:
        >>> calibration([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
        'normalised detection cost'
    """
    ax = new_axes() if ax is None else ax
    curve = SortedScores.of(bonafide, spoof)
    ln_beta = np.linspace(*log_odds, 121)
    actual, minimum = _cost_curves(curve, ln_beta)
    ax.plot(ln_beta, actual, color=SPOOF_COLOR, linewidth=1.2, label="actual")
    ax.plot(ln_beta, minimum, color=BONAFIDE_COLOR, linewidth=1.2, label="minimum")
    ax.fill_between(ln_beta, minimum, actual, color=SPOOF_COLOR, alpha=0.15, linewidth=0)
    ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":", label="no system")
    name = f"ln β = {-costs.threshold:.2f}".replace("-", "−")
    ax.axvline(-costs.threshold, color="black", linewidth=0.9, linestyle="--", label=name)
    ax.set_xlim(*log_odds)
    ax.set_ylim(0.0, max(1.1, min(2.0, 1.05 * float(actual.max()))))
    return finish(ax, "effective log-odds of bonafide, ln β", "normalised detection cost")


def breakdown(breakdown: Breakdown, ax: Axes | None = None, *, metric: str = "eer") -> Axes:
    """Draw one bar per group, with its interval where there is one, and a line for all trials.

    Two crossed columns are a map of coloured cells with their values, as wide as a page; the
    intervals are not in it. A group without bonafide trials is marked with a dash. `metric` is one
    of `metrics.METRICS`.

    Example:
        >>> from asvspoof_cm import metrics, plots
        >>> labels, attack = [1, 1, 0, 0], ["-", "-", "A09", "A10"]
        >>> table = metrics.breakdown([1.0, 2.0, -1.0, 1.5], labels, {"attack": attack})
        >>> ax = plots.breakdown(table)
        >>> [text.get_text() for text in ax.get_xticklabels()]
        ['A09', 'A10']
    """
    check_choice("metric", metric, METRICS)
    if len(breakdown.columns) == 2:
        return _plot_crossed(breakdown, ax, metric)
    *rows, pooled = breakdown.rows
    if ax is None:
        ax = new_axes(width_in=max(COLUMN_WIDTH_IN, 0.12 * len(rows)))
    scale = METRICS[metric].scale
    heights = scale * np.array([row.values[metric] for row in rows])
    positions = np.arange(len(rows))
    ax.bar(positions, heights, width=0.7, color=BONAFIDE_COLOR, alpha=0.75, linewidth=0)
    for index in np.flatnonzero(np.isnan(heights)).tolist():
        ax.text(index, 0.0, "–", ha="center", va="bottom", fontsize=FONT_SIZE)
    drawn = [index for index, row in enumerate(rows) if metric in row.intervals]
    if drawn:
        bounds = scale * np.array(
            [[rows[i].intervals[metric].low, rows[i].intervals[metric].high] for i in drawn]
        )
        # A percentile interval may lie on one side of the value: draw its ends, not distances.
        ax.vlines(positions[drawn], bounds[:, 0], bounds[:, 1], color="black", linewidth=0.9)
        for end in bounds.T:
            ax.plot(positions[drawn], end, "_", color="black", markersize=3, markeredgewidth=0.9)
    together = scale * pooled.values[metric]
    name = f"pooled {together:.3g}"
    ax.axhline(together, color=SPOOF_COLOR, linewidth=0.9, linestyle="--", label=name)
    names = [" ".join(row.group) for row in rows]
    crowded = sum(map(len, names)) > 40
    ax.set_xticks(positions, names, rotation=90 if crowded else 0)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_ylim(bottom=0.0)
    return finish(ax, " × ".join(breakdown.columns), METRICS[metric].label)


def _plot_crossed(breakdown: Breakdown, ax: Axes | None, metric: str) -> Axes:
    """Draw a cell for each pair of values, the first column downwards."""
    *rows, pooled = breakdown.rows
    first, second = (sorted({row.group[k] for row in rows}) for k in (0, 1))
    values = np.full((len(first), len(second)), np.nan)
    scale = METRICS[metric].scale
    for row in rows:
        at = first.index(row.group[0]), second.index(row.group[1])
        values[at] = scale * row.values[metric]
    if ax is None:
        ax = new_axes(PAGE_WIDTH_IN, max(2.0, 0.9 + 0.19 * len(first)))
    highest = float(np.nanmax(values, initial=0.0)) or 1.0
    image = ax.imshow(values, cmap="Blues", vmin=0.0, vmax=highest, aspect="auto")
    n_decimals = 1 if scale > 1.0 else 2
    for (down, across), value in np.ndenumerate(values):
        text = "–" if np.isnan(value) else f"{value:.{n_decimals}f}"
        color = "white" if value > 0.6 * highest else "black"
        ax.text(across, down, text, ha="center", va="center", fontsize=5.5, color=color)
    ax.set_xticks(range(len(second)), second, rotation=90 if len(second) > 16 else 0)
    ax.set_yticks(range(len(first)), first)
    together = scale * pooled.values[metric]
    ax.set_title(f"pooled {together:.3g}", fontsize=FONT_SIZE)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(METRICS[metric].label, fontsize=FONT_SIZE)
    bar.ax.tick_params(labelsize=FONT_SIZE - 1, width=0.6, length=2.5)
    finish(ax, breakdown.columns[1], breakdown.columns[0])
    ax.grid(visible=False)
    return ax


def _bin_edges(scores: FloatArray, n_bins: int) -> FloatArray:
    """Edges of equal bins; where the scores are closer than float64 can divide, around them."""
    low, high = float(scores.min()), float(scores.max())
    if not np.isfinite(high - low):
        raise ValueError(f"the scores must span a finite range; got {low:g} to {high:g}.")
    finest = 2.0 * n_bins * float(np.spacing(max(abs(low), abs(high))))
    margin = max(finest, 1.0) if low == high else max(0.0, finest - (high - low))
    return np.linspace(low - margin / 2, high + margin / 2, n_bins + 1)


def _thin(x: FloatArray, y: FloatArray, step: float = 0.005) -> IntArray:
    """Indices of the points that differ visibly: at most a few thousand of any number."""
    cells = np.round(x / step).astype(np.int64) * (1 << 20) + np.round(y / step).astype(np.int64)
    return np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))


def _deviates(rates: FloatArray, n_trials: int) -> FloatArray:
    """Normal deviates of error rates; half a trial stands for the infinitely far 0 and 1."""
    return np.asarray(ndtri(np.clip(rates, 0.5 / n_trials, 1.0 - 0.5 / n_trials)))


def _cost_curves(curve: SortedScores, ln_beta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Actual and minimum normalised detection cost for each ln β: (n_points,) each."""
    n_bonafide, n_spoof = len(curve.bonafide), len(curve.spoof)
    missed = np.searchsorted(curve.bonafide, -ln_beta)
    rejected = np.searchsorted(curve.spoof, -ln_beta)
    actual, minimum = np.empty(len(ln_beta)), np.empty(len(ln_beta))
    for index, value in enumerate(ln_beta):
        costs = DetectionCosts(p_spoof=float(1.0 / (1.0 + np.exp(value))), c_miss=1.0, c_fa=1.0)
        cost = dcf(int(missed[index]), int(rejected[index]), n_bonafide, n_spoof, costs)
        actual[index] = float(cost) / default_cost(costs)
        minimum[index] = min_dcf_of(curve, costs, "official").value
    return actual, minimum
