"""Figures for papers: DET, histograms, calibration, groups, training, time and attention.

Every function draws into the `ax` that it is given, or into a new one of a column's width, and
returns it; `save_figure` writes it. matplotlib is the extra ``asvspoof-cm[plots]`` and
is imported when a figure is made. No function touches pyplot or the global style.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from asvspoof_cm.files import atomic_path
from asvspoof_cm.metrics import (
    ASVSPOOF5,
    METRICS,
    Breakdown,
    DetectionCosts,
    det_curve,
)
from asvspoof_cm.metrics.checks import FloatArray, IntArray, as_scores, check_choice
from asvspoof_cm.metrics.curves import SortedScores, dcf, default_cost
from asvspoof_cm.metrics.printing import TITLES, UNITS, metric_scale
from asvspoof_cm.metrics.track1 import eer_of, min_dcf_of
from asvspoof_cm.report.curves import Curve
from asvspoof_cm.report.runs import METRICS as RECORDED_METRICS
from asvspoof_cm.report.runs import SPLITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from asvspoof_cm.scorer import Attention, Timeline

__all__ = [
    "new_axes",
    "plot_attention",
    "plot_breakdown",
    "plot_calibration",
    "plot_det",
    "plot_scores",
    "plot_timeline",
    "save_figure",
    "training_efficiency",
]

COLUMN_WIDTH_IN = 3.5
PAGE_WIDTH_IN = 7.16
BONAFIDE_COLOR, SPOOF_COLOR = "#0072b2", "#d55e00"
_FONT_SIZE = 8
_DET_TICKS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99)
_MARKS = ("EER", "minDCF", "actDCF")
_METRIC_LABELS = {
    name: f"{title} ({UNITS[name]})" if name in UNITS else title for name, title in TITLES.items()
}
_SPLIT_LABELS = {"train": "training set", "dev": "development set"}
# Colours that the colour-blind can tell apart (Okabe and Ito).
_SYSTEM_COLORS = (BONAFIDE_COLOR, SPOOF_COLOR, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "black")
_REPEAT_STYLES = ("-", "--", "-.")
_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 6,
    "markeredgecolor": "black",
    "markeredgewidth": 0.4,
    "linestyle": "none",
}


def new_axes(width_in: float = COLUMN_WIDTH_IN, height_in: float = 2.6) -> Axes:
    """Return the axes of a new figure of the given size, without pyplot.

    Raises:
        ImportError: Without matplotlib.

    Example:
        >>> new_axes().figure.get_size_inches().tolist()
        [3.5, 2.6]
    """
    return _new_figure(width_in, height_in).add_subplot()


def save_figure(ax: Axes, path: str | os.PathLike[str], *, dpi: int = 200) -> None:
    """Write the figure of `ax`, whole or not at all, in the format of the path's suffix.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_figure(new_axes(), folder / "empty.pdf")
        >>> (folder / "empty.pdf").read_bytes()[:5]
        b'%PDF-'
    """
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("`ax` must belong to a figure; it was removed from its own.")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".") or "png", dpi=dpi)


def plot_det(
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
        costs: Costs and prior that minDCF and actDCF are marked for.
        limits: Lowest and highest error rate of both axes, as fractions.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ax = plot_det(rng.normal(1, 1, 100), rng.normal(-1, 1, 200), label="system")
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
    color = _SYSTEM_COLORS[n_drawn % len(_SYSTEM_COLORS)]
    title = f"{label}, {name}" if label else name
    ax.plot(x[keep], y[keep], color=color, linewidth=1.2, label=title)
    marked = (
        (eer_of(curve, "grouped").threshold, "o", "white"),
        (min_dcf_of(curve, costs, "grouped").threshold, "D", color),
        (costs.threshold, "s", "white"),
    )
    shown = set(ax.get_legend_handles_labels()[1])
    for title, (threshold, marker, face) in zip(_MARKS, marked, strict=True):
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
    return _finish(ax, "false alarms, spoof accepted (%)", "misses, bonafide rejected (%)")


def plot_scores(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    ax: Axes | None = None,
    *,
    n_bins: int = 60,
    costs: DetectionCosts = ASVSPOOF5,
) -> Axes:
    """Draw the score density of both classes and the Bayes threshold.

    Args:
        bonafide: Log-likelihood ratios of bonafide trials, shape (n_bonafide,).
        spoof: Log-likelihood ratios of spoofed trials, shape (n_spoof,).
        ax: Where to draw.
        n_bins: Number of bins over the range of all scores.
        costs: Costs and prior that give the threshold.

    Example:
        >>> plot_scores([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
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
    ax.axvline(
        costs.threshold,
        color="black",
        linewidth=0.9,
        linestyle="--",
        label=f"Bayes threshold {costs.threshold:.2f}".replace("-", "−"),
    )
    ax.set_ylim(0.0, 1.35 * highest)  # room for the legend
    return _finish(ax, "score (log-likelihood ratio)", "density")


def plot_calibration(
    bonafide: ArrayLike,
    spoof: ArrayLike,
    ax: Axes | None = None,
    *,
    costs: DetectionCosts = ASVSPOOF5,
    log_odds: tuple[float, float] = (-6.0, 6.0),
) -> Axes:
    """Draw the actual and the minimum detection cost over all priors, an APE-style plot.

    Well calibrated scores have the two curves on each other; the shaded gap is what calibration
    would gain, for every application at once and not only for the one of the challenge.

    Args:
        bonafide: Log-likelihood ratios of bonafide trials, shape (n_bonafide,).
        spoof: Log-likelihood ratios of spoofed trials, shape (n_spoof,).
        ax: Where to draw.
        costs: Costs and prior that are marked with a vertical line.
        log_odds: Range of ln β, the effective log-odds of bonafide.

    Example:
        >>> plot_calibration([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
        'normalised detection cost'
    """
    ax = new_axes() if ax is None else ax
    curve = SortedScores.of(bonafide, spoof)
    ln_beta = np.linspace(*log_odds, 121)
    actual, minimum = _cost_curves(curve, ln_beta)
    (line,) = ax.plot(ln_beta, actual, color=SPOOF_COLOR, linewidth=1.2, label="actual")
    ax.plot(ln_beta, minimum, color=BONAFIDE_COLOR, linewidth=1.2, label="minimum")
    ax.fill_between(ln_beta, minimum, actual, color=line.get_color(), alpha=0.15, linewidth=0)
    ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":", label="no system")
    ax.axvline(
        -costs.threshold,
        color="black",
        linewidth=0.9,
        linestyle="--",
        label=f"ln β = {-costs.threshold:.2f}".replace("-", "−"),
    )
    ax.set_xlim(*log_odds)
    ax.set_ylim(0.0, max(1.1, min(2.0, 1.05 * float(actual.max()))))
    return _finish(ax, "effective log-odds of bonafide, ln β", "normalised detection cost")


def plot_breakdown(breakdown: Breakdown, ax: Axes | None = None, *, metric: str = "eer") -> Axes:
    """Draw one bar per group, with its interval where there is one, and a line for all trials.

    Two crossed columns are a map of coloured cells with their values, as wide as a page; the
    intervals are not in it. A group without bonafide trials is marked with a dash.

    Args:
        breakdown: What `metrics.breakdown` returned.
        ax: Where to draw.
        metric: One of `metrics.METRICS`.

    Example:
        >>> from asvspoof_cm.metrics import breakdown
        >>> labels, attack = [1, 1, 0, 0], ["-", "-", "A09", "A10"]
        >>> ax = plot_breakdown(breakdown([1.0, 2.0, -1.0, 1.5], labels, {"attack": attack}))
        >>> [text.get_text() for text in ax.get_xticklabels()]
        ['A09', 'A10']
    """
    check_choice("metric", metric, METRICS)
    if len(breakdown.columns) == 2:
        return _plot_crossed(breakdown, ax, metric)
    *rows, pooled = breakdown.rows
    if ax is None:
        ax = new_axes(width_in=max(COLUMN_WIDTH_IN, 0.12 * len(rows)))
    scale = metric_scale(metric)
    heights = scale * np.array([getattr(row, metric) for row in rows])
    positions = np.arange(len(rows))
    ax.bar(positions, heights, width=0.7, color=BONAFIDE_COLOR, alpha=0.75, linewidth=0)
    for index in np.flatnonzero(np.isnan(heights)).tolist():
        ax.text(index, 0.0, "–", ha="center", va="bottom", fontsize=_FONT_SIZE)
    drawn = [index for index, row in enumerate(rows) if metric in row.intervals]
    if drawn:
        bounds = scale * np.array(
            [[rows[i].intervals[metric].low, rows[i].intervals[metric].high] for i in drawn]
        )
        # A percentile interval may lie on one side of the value: draw its ends, not distances.
        ax.vlines(positions[drawn], bounds[:, 0], bounds[:, 1], color="black", linewidth=0.9)
        for end in bounds.T:
            ax.plot(positions[drawn], end, "_", color="black", markersize=3, markeredgewidth=0.9)
    together = scale * float(getattr(pooled, metric))
    ax.axhline(
        together, color=SPOOF_COLOR, linewidth=0.9, linestyle="--", label=f"pooled {together:.3g}"
    )
    names = [" ".join(row.group) for row in rows]
    crowded = sum(map(len, names)) > 40
    ax.set_xticks(positions, names, rotation=90 if crowded else 0)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_ylim(bottom=0.0)
    return _finish(ax, " × ".join(breakdown.columns), _METRIC_LABELS[metric])


def plot_timeline(
    timeline: Timeline, ax: Axes | None = None, *, threshold: float | None = None
) -> Axes:
    """Draw the score along time: one step a window, at its centre.

    Args:
        timeline: What `Scorer.timeline` returned.
        ax: Where to draw.
        threshold: A line between spoof and bonafide; below it the area is shaded.

    Example:
        >>> from asvspoof_cm.scorer import Timeline
        >>> start_s = np.arange(3.0)
        >>> line = Timeline(start_s=start_s, end_s=start_s + 4, score=start_s - 1, duration_s=6.0)
        >>> plot_timeline(line, threshold=0.0).get_xlabel()
        'time (s)'
    """
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=1.8) if ax is None else ax
    centre = (timeline.start_s + timeline.end_s) / 2
    style = {"marker": "o", "markersize": 2.5} if len(timeline) <= 200 else {}
    ax.plot(centre, timeline.score, color=BONAFIDE_COLOR, linewidth=1.0, **style)  # type: ignore[arg-type]
    if threshold is not None:
        ax.axhline(threshold, color="black", linewidth=0.9, linestyle="--")
        ax.fill_between(
            centre,
            timeline.score,
            threshold,
            where=(timeline.score < threshold).tolist(),
            interpolate=True,
            color=SPOOF_COLOR,
            alpha=0.35,
            linewidth=0,
        )
    ax.set_xlim(0.0, timeline.duration_s)
    return _finish(ax, "time (s)", "score")


def plot_attention(attention: Attention, ax: Axes | None = None) -> Axes:
    """Draw the pooling weight of each frame over the log-Mel spectrogram that the model sees.

    Args:
        attention: What `Scorer.attention` returned.
        ax: Where to draw; the weights get an axis of their own on the right.

    Example:
        >>> from asvspoof_cm.scorer import Attention
        >>> time_s = np.arange(401) / 100
        >>> weight, log_mel = np.full(401, 1 / 401), np.zeros((160, 401))
        >>> found = Attention(time_s=time_s, weight=weight, log_mel=log_mel, score=0.0)
        >>> plot_attention(found).get_ylabel()
        'Mel band'
    """
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=2.2) if ax is None else ax
    time_s, weight, log_mel = attention.time_s, attention.weight, attention.log_mel
    half = (time_s[1] - time_s[0]) / 2
    extent = (float(time_s[0] - half), float(time_s[-1] + half), -0.5, len(log_mel) - 0.5)
    ax.imshow(log_mel, origin="lower", aspect="auto", extent=extent, cmap="gray_r")
    _finish(ax, "time (s)", "Mel band")
    ax.grid(visible=False)
    right = ax.twinx()
    # A frame that counts as much as all others has 1 here, whatever the number of frames.
    right.plot(time_s, weight * len(weight), color=SPOOF_COLOR, linewidth=0.9)
    right.axhline(1.0, color=SPOOF_COLOR, linewidth=0.6, linestyle=":")
    right.set_ylim(bottom=0.0)
    _finish(right, "", "pooling weight × frames")
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    right.spines["right"].set_linewidth(0.6)
    right.spines["left"].set_visible(False)
    return ax


def _plot_crossed(breakdown: Breakdown, ax: Axes | None, metric: str) -> Axes:
    """Draw a cell for each pair of values, the first column downwards."""
    *rows, pooled = breakdown.rows
    first, second = (sorted({row.group[k] for row in rows}) for k in (0, 1))
    values = np.full((len(first), len(second)), np.nan)
    scale = metric_scale(metric)
    for row in rows:
        at = first.index(row.group[0]), second.index(row.group[1])
        values[at] = scale * getattr(row, metric)
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
    together = scale * float(getattr(pooled, metric))
    ax.set_title(f"pooled {together:.3g}", fontsize=_FONT_SIZE)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(_METRIC_LABELS[metric], fontsize=_FONT_SIZE)
    bar.ax.tick_params(labelsize=_FONT_SIZE - 1, width=0.6, length=2.5)
    _finish(ax, breakdown.columns[1], breakdown.columns[0])
    ax.grid(visible=False)
    return ax


def training_efficiency(curves: Sequence[Curve], axes: NDArray[Any] | None = None) -> NDArray[Any]:
    """Draw the paper's figure: each metric over training time, on the training and the Dev set.

    A thick line is the mean over the finished seeds of a system, in the range of time that they
    share, its band ± 1 standard deviation. Thin lines are the seeds' own records to the last epoch,
    dashed for a run that is unfinished. On the development set a star marks each finished seed's
    lowest record.

    Args:
        curves: What `report.training_efficiency` returned.
        axes: Where to draw, shape (4, 2); None makes a figure as wide as two columns, the legend
            above the panels. In axes that are given it stands in the first one.

    Returns:
        The axes, shape (4, 2): minDCF, EER, Cllr, actDCF by training set, development set.

    Example:
        >>> from asvspoof_cm.report import SeedCurve
        >>> time_s, values = np.array([60.0, 120.0]), np.array([0.5, 0.25])
        >>> seed = SeedCurve(seed=42, time_s=time_s, values=values, is_finished=True)
        >>> curve = Curve(system="6", split="dev", metric="eer", n_runs=1, time_s=time_s,
        ...               mean=values, std=None, seeds=(seed,))
        >>> axes = training_efficiency([curve])
        >>> axes.shape, axes[1, 0].get_ylabel()
        ((4, 2), 'EER (%)')
    """
    systems = list(dict.fromkeys(curve.system for curve in curves))
    if not systems:
        raise ValueError("`curves` must hold at least one curve; got none.")
    panels = axes
    if panels is None:
        figure = _new_figure(PAGE_WIDTH_IN, 7.6)
        panels = figure.subplots(
            len(RECORDED_METRICS), len(SPLITS), sharex=True, sharey="row", squeeze=False
        )
    elif panels.shape != (len(RECORDED_METRICS), len(SPLITS)):
        raise ValueError(f"`axes` must have shape (4, 2); got {panels.shape}.")
    handles: dict[str, Any] = {}
    for curve in curves:
        ax = panels[RECORDED_METRICS.index(curve.metric), SPLITS.index(curve.split)]
        repeat, index = divmod(systems.index(curve.system), len(_SYSTEM_COLORS))
        style = {"color": _SYSTEM_COLORS[index], "linestyle": _REPEAT_STYLES[repeat % 3]}
        _draw_curve(ax, curve, style)
        of = "" if curve.n_finished == curve.n_runs else f"{curve.n_finished} of "
        seeds = f"{of}{curve.n_runs} seed{'s' if curve.n_runs > 1 else ''}"
        handles[f"{curve.system} ({seeds})"] = _proxy(**style, linewidth=1.4)
    handles["one seed"] = _proxy(color="0.4", linewidth=0.6, alpha=0.7)
    handles["± 1 std"] = _proxy(color="0.4", linewidth=5, alpha=0.2)
    handles["lowest of a seed"] = _proxy(color="0.4", **_STAR)
    for row, metric in enumerate(RECORDED_METRICS):
        for column, split in enumerate(SPLITS):
            ax = panels[row, column]
            last, first = row == len(RECORDED_METRICS) - 1, column == 0
            _finish(
                ax, "training time (min)" if last else "", _METRIC_LABELS[metric] if first else ""
            )
            if row == 0:
                ax.set_title(_SPLIT_LABELS[split], fontsize=_FONT_SIZE)
            _log_minutes(ax)
    legend: dict[str, Any] = {"fontsize": _FONT_SIZE - 1, "frameon": False, "handlelength": 1.8}
    if axes is None:
        figure.align_ylabels(panels[:, 0])
        legend |= {"loc": "outside upper center", "ncols": 3}
        figure.legend(list(handles.values()), list(handles), **legend)
    else:
        panels[0, 0].legend(list(handles.values()), list(handles), **legend)
    return panels


def _draw_curve(ax: Axes, curve: Curve, style: dict[str, Any]) -> None:
    color = style["color"]
    scale = metric_scale(curve.metric)
    for seed in curve.seeds:
        ax.plot(
            seed.time_s / 60,
            scale * seed.values,
            color=color,
            linewidth=0.5,
            alpha=0.45,
            linestyle="-" if seed.is_finished else "--",
            marker="." if len(seed.values) == 1 else "",
        )
        if curve.split == "dev" and seed.is_finished:
            time_s, value = seed.best
            ax.plot(time_s / 60, scale * value, color=color, zorder=4, **_STAR)
    minutes, mean = curve.time_s / 60, scale * curve.mean
    ax.plot(minutes, mean, **style, linewidth=1.4, zorder=3)
    if curve.std is not None:
        std = scale * curve.std
        ax.fill_between(minutes, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)


def _log_minutes(ax: Axes) -> None:
    """Give the x axis a logarithmic scale with numbers that can be read, however short it is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high / low < 8:
        ax.xaxis.set_major_locator(MaxNLocator(5))
    else:
        ax.xaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 5000 else (1.0,))
        )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="minor", width=0.4, length=1.5)


def _proxy(**style: Any) -> Any:
    """Return a line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def _new_figure(width_in: float, height_in: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "plots need matplotlib, an extra: pip install asvspoof-cm[plots]"
        ) from None
    return Figure(figsize=(width_in, height_in), layout="constrained")


def _finish(ax: Axes, x_label: str, y_label: str) -> Axes:
    """Give the axes their labels and the look that all figures share."""
    ax.set_xlabel(x_label, fontsize=_FONT_SIZE)
    ax.set_ylabel(y_label, fontsize=_FONT_SIZE)
    ax.tick_params(labelsize=_FONT_SIZE - 1, width=0.6, length=2.5)
    ax.grid(visible=True, color="0.9", linewidth=0.5)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.6)
    entries = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    names = sorted(entries, key=lambda name: name in _MARKS)  # the systems stand together
    if names:
        handles = [entries[name] for name in names]
        ax.legend(handles, names, fontsize=_FONT_SIZE - 1.5, frameon=False, handlelength=1.6)
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
