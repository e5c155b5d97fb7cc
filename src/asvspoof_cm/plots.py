"""Figures for papers: DET, histograms, calibration, groups, time.

Every function draws into the `ax` that it is given, or into a new one of a column's width, and
returns it; `save_figure` writes it. matplotlib is the extra ``asvspoof-cm[plots]`` and
is imported when a figure is made. No function touches pyplot or the global style.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from asvspoof_cm._tables import Quantity
from asvspoof_cm._util import FloatArray, as_scores, atomic_path, check_choice, import_extra
from asvspoof_cm.data.segments import SEGMENT_NAMES
from asvspoof_cm.labels import LABEL_NAMES, SPOOF
from asvspoof_cm.metrics import ASVSPOOF5, METRICS, Breakdown, Interval, det_curve
from asvspoof_cm.metrics.track1 import Curve, eer_of, min_dcf_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from asvspoof_cm.scorer import Explanation, WindowScore

__all__ = [
    "BONAFIDE_COLOR",
    "PAGE_WIDTH_IN",
    "SPOOF_COLOR",
    "breakdown",
    "calibration",
    "det",
    "explanation",
    "new_axes",
    "save_figure",
    "scores",
    "timeline",
]

COLUMN_WIDTH_IN = 3.5
PAGE_WIDTH_IN = 7.16
BONAFIDE_COLOR, SPOOF_COLOR = "#0072b2", "#d55e00"
# Colours that the colour-blind can tell apart (Okabe and Ito).
SYSTEM_COLORS = (BONAFIDE_COLOR, SPOOF_COLOR, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "black")
FONT_SIZE = 8
MARKS = ("EER", "minDCF", "actDCF")
_CLASS_COLORS = dict(zip(LABEL_NAMES, (SPOOF_COLOR, BONAFIDE_COLOR), strict=True))
_DET_TICKS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6)
_LN_BETA = (-6.0, 6.0)
_VISIBLE = 0.005  # in deviates


def new_axes(width_in: float = COLUMN_WIDTH_IN, height_in: float = 2.6) -> Axes:
    """Return the axes of a new figure of the given size, without pyplot.

    Example:
        >>> new_axes().figure.get_size_inches().tolist()
        [3.5, 2.6]
    """
    return new_figure(width_in, height_in).add_subplot()


def save_figure(ax: Axes, path: str | os.PathLike[str], *, dpi: int = 200) -> None:
    """Write the figure of `ax`, whole or not at all, in the format of the path's suffix.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_figure(new_axes(), folder / "empty.pdf")
        >>> (folder / "empty.pdf").read_bytes()[:5]
        b'%PDF-'
    """
    figure: Any = ax.get_figure(root=True)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".") or "png", dpi=dpi)


def picture_path(folder: Path, name: str, taken: set[Path]) -> Path:
    """Return where the picture of a recording goes, and add it to what is `taken`.

    Folders become part of the file's name; of two equal names, on any system, one has a number.
    """
    stem = re.sub(r"[^\w.+-]+", "_", name).strip("._") or "picture"
    path, n = folder / f"{stem}.png", 1
    while Path(str(path).casefold()) in taken:
        n += 1
        path = folder / f"{stem}_{n}.png"
    taken.add(Path(str(path).casefold()))
    return path


def det(
    bonafide: ArrayLike, spoof: ArrayLike, ax: Axes | None = None, *, label: str | None = None
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

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ax = det(rng.normal(1, 1, 100), rng.normal(-1, 1, 200), label="system")
        >>> ax.get_xlabel()
        'false alarms, spoof accepted (%)'
    """
    ax = new_axes(height_in=3.2) if ax is None else ax
    curve = Curve.of(bonafide, spoof)
    n_bonafide, n_spoof = curve.n_trials

    def place(p_miss: Any, p_fa: Any) -> FloatArray:
        least = np.array([[0.5 / n_spoof], [0.5 / n_bonafide]])
        found: FloatArray = ndtri(np.clip([p_fa, p_miss], least, 1.0 - least))
        return found

    points = place(*det_curve(*curve.classes)[:2])
    cells = np.round(points / _VISIBLE)  # a few thousand points, of any number
    points = points[:, np.diff(cells, prepend=np.nan).any(axis=0)]
    name = f"EER {100 * eer_of(curve).value:.2f} %"
    n_drawn = sum(line.get_linestyle() == "-" for line in ax.lines)
    color = SYSTEM_COLORS[n_drawn % len(SYSTEM_COLORS)]
    ax.plot(*points, color=color, linewidth=1.2, label=f"{label}, {name}" if label else name)
    accepted_from = np.nextafter(min_dcf_of(curve, ASVSPOOF5).threshold, np.inf)
    marked = (
        (eer_of(curve, "grouped").threshold, "o", "white"),
        (accepted_from, "D", color),
        (ASVSPOOF5.threshold, "s", "white"),
    )
    ends = ndtri([_DET_TICKS[0], _DET_TICKS[-1]])
    shown = set(ax.get_legend_handles_labels()[1])
    for title, (threshold, marker, face) in zip(MARKS, marked, strict=True):
        p_miss, p_fa = curve.rates(*curve.below(threshold))
        style: Any = {"marker": marker, "markerfacecolor": face, "markersize": 4.5, "zorder": 3}
        title = "_" if title in shown else title
        ax.plot(*place([p_miss], [p_fa]), color=color, linestyle="none", label=title, **style)
    if "EER" not in shown:
        ax.plot(ends, ends, color="0.8", linewidth=0.6, linestyle="--", zorder=0, label="_")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ndtri(_DET_TICKS), [f"{100 * tick:g}" for tick in _DET_TICKS])
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    return finish(ax, "false alarms, spoof accepted (%)", "misses, bonafide rejected (%)")


def scores(
    bonafide: ArrayLike, spoof: ArrayLike, ax: Axes | None = None, *, n_bins: int = 60
) -> Axes:
    """Draw the density of both classes' log-likelihood ratios, and the Bayes threshold.

    Example:
        >>> scores([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
        'density'
    """
    ax = new_axes() if ax is None else ax
    classes = as_scores("spoof", spoof), as_scores("bonafide", bonafide)
    edges = np.histogram_bin_edges(np.concatenate(classes), n_bins)
    highest = 0.0
    for own, name in zip(classes, LABEL_NAMES, strict=True):
        density, _ = np.histogram(own, bins=edges, density=True)
        highest = max(highest, float(density.max()))
        color = _CLASS_COLORS[name]
        ax.stairs(density, edges, fill=True, color=color, alpha=0.35)
        ax.stairs(density, edges, color=color, linewidth=1.0, label=f"{name} ({len(own):,})")
    _line(ax.axvline, ASVSPOOF5.threshold, f"Bayes threshold {ASVSPOOF5.threshold:.2f}")
    ax.set_ylim(0.0, 1.35 * highest)  # room for the legend
    return finish(ax, "score (log-likelihood ratio)", "density")


def calibration(bonafide: ArrayLike, spoof: ArrayLike, ax: Axes | None = None) -> Axes:
    """Draw the actual and the minimum detection cost over all priors, an APE-style plot.

    Well calibrated scores have the two curves on each other; the shaded gap is what calibration
    would gain, for every application at once and not only for the one of the challenge, which a
    vertical line marks; ln β is the effective log-odds of bonafide.

    Example:
        >>> calibration([1.0, 2.0], [-1.0, 0.5]).get_ylabel()
        'normalised detection cost'
    """
    ax = new_axes() if ax is None else ax
    curve = Curve.of(bonafide, spoof)
    ln_beta = np.linspace(*_LN_BETA, 121)
    beta = np.exp(ln_beta)
    miss, fa = curve.rates(*(np.searchsorted(scores, -ln_beta) for scores in curve.classes))
    p_miss, p_fa = curve.rates(*curve.corners)
    actual = (beta * miss + fa) / np.minimum(beta, 1)
    minimum = np.array([(weight * p_miss + p_fa).min() for weight in beta]) / np.minimum(beta, 1)
    ax.plot(ln_beta, actual, color=SPOOF_COLOR, linewidth=1.2, label="actual")
    ax.plot(ln_beta, minimum, color=BONAFIDE_COLOR, linewidth=1.2, label="minimum")
    ax.fill_between(ln_beta, minimum, actual, color=SPOOF_COLOR, alpha=0.15, linewidth=0)
    ax.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":", label="no system")
    _line(ax.axvline, -ASVSPOOF5.threshold, f"ln β = {-ASVSPOOF5.threshold:.2f}")
    ax.set(xlim=_LN_BETA, ylim=(0.0, max(1.1, min(2.0, 1.05 * float(actual.max())))))
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
    quantity = METRICS[metric]
    *rows, pooled = breakdown.rows
    values = [row.values[metric] for row in rows]
    heights = quantity.scale * np.array([float(value) for value in values])
    together = quantity.scale * float(pooled.values[metric])
    if len(breakdown.columns) == 2:
        return _plot_crossed(breakdown, heights, quantity, ax)
    if ax is None:
        ax = new_axes(width_in=max(COLUMN_WIDTH_IN, 0.12 * len(rows)))
    ax.bar(range(len(rows)), heights, width=0.7, color=BONAFIDE_COLOR, alpha=0.75, linewidth=0)
    for index, value in enumerate(values):
        if np.isnan(heights[index]):
            ax.text(index, 0.0, "–", ha="center", va="bottom", fontsize=FONT_SIZE)
        elif isinstance(value, Interval):
            # A percentile interval may lie on one side of the value: draw its ends, not distances.
            ends = [quantity.scale * value.low, quantity.scale * value.high]
            style: Any = {"marker": "_", "markersize": 3, "markeredgewidth": 0.9, "linewidth": 0.9}
            ax.plot([index, index], ends, color="black", **style)
    label = f"pooled {together:.3g}"
    ax.axhline(together, color=SPOOF_COLOR, linewidth=0.9, linestyle="--", label=label)
    names = [" ".join(row.group) for row in rows]
    ax.set_xticks(range(len(rows)), names, rotation=90 if sum(map(len, names)) > 40 else 0)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.set_ylim(bottom=0.0)
    return finish(ax, " × ".join(breakdown.columns), quantity.label)


def _plot_crossed(
    breakdown: Breakdown, heights: FloatArray, quantity: Quantity, ax: Axes | None
) -> Axes:
    """Draw a cell for each pair of values, the first column downwards."""
    places = [row.group for row in breakdown.rows[:-1]]
    (first, down), (second, across) = (
        np.unique([place[k] for place in places], return_inverse=True) for k in (0, 1)
    )
    cells = np.full((len(first), len(second)), np.nan)
    cells[down, across] = heights
    if ax is None:
        ax = new_axes(PAGE_WIDTH_IN, max(2.0, 0.9 + 0.19 * len(first)))
    highest = float(np.nanmax(cells, initial=0.0)) or 1.0
    ax.imshow(cells, cmap="Blues", vmin=0.0, vmax=highest, aspect="auto")
    n_decimals = 1 if quantity.scale > 1.0 else 2
    for (row, column), value in np.ndenumerate(cells):
        text = "–" if np.isnan(value) else f"{value:.{n_decimals}f}"
        color = "white" if value > 0.6 * highest else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=5.5, color=color)
    ax.set_xticks(range(len(second)), second.tolist(), rotation=90 if len(second) > 16 else 0)
    ax.set_yticks(range(len(first)), first.tolist())
    pooled = quantity.scale * float(breakdown.rows[-1].values[quantity.name])
    ax.set_title(f"{quantity.label}, pooled {pooled:.3g}", fontsize=FONT_SIZE)
    finish(ax, breakdown.columns[1], breakdown.columns[0]).grid(visible=False)
    return ax


def timeline(
    scores: Iterable[WindowScore] | ArrayLike,
    ax: Axes | None = None,
    *,
    threshold: float | None = None,
    truth: Sequence[tuple[Any, ...]] = (),
    found: Sequence[tuple[Any, ...]] = (),
) -> Axes:
    """Draw the score along time, one step per window or frame, with true and found segments.

    Args:
        scores: What `Scorer.timeline` returned, whose curve has a gap where there is no speech; or
            rows (start_s, end_s, score), shape (n_frames, 3).
        ax: Where to draw.
        threshold: Drawn as a line; below it the area is filled.
        truth: Segments that are known, `Segment` or (start_s, end_s, name), in a band above the
            curve. A label or name of spoof or bonafide has the colour of the class.
        found: What a detector found, such as `Scorer.segments`, or (start_s, end_s, label): those
            that are synthetic are shaded.

    Example:
        >>> line = [(0, 1, 2.0), (1, 2, -1.5), (2, 3, 1.0)]
        >>> ax = timeline(line, threshold=0.0, truth=[(0, 1.2, "human"), (1.2, 2, "spoof")])
        >>> [text.get_text() for text in ax.texts]
        ['human', 'spoof']
    """
    given: list[Any] = [*scores]  # type: ignore[misc]
    unit = getattr(given[0], "unit", "score") if given else "score"
    if given and hasattr(given[0], "has_speech"):
        given = [(w.start_s, w.end_s, w.score if w.has_speech else np.nan) for w in given]
    rows = np.asarray(given, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(
            "`scores` must hold a row (start_s, end_s, score) for each of one or more windows; got "
            f"shape {rows.shape}."
        )
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=1.8) if ax is None else ax
    centre, values = rows[:, :2].mean(axis=1), rows[:, 2]
    marker = "o" if len(rows) <= 200 else None
    ax.plot(centre, values, color=BONAFIDE_COLOR, linewidth=1.0, marker=marker, markersize=2.5)
    if threshold is not None:
        _line(ax.axhline, threshold, f"threshold {threshold + 0.0:.3g}")  # not −0
        is_below: Any = values < threshold
        fill: Any = {"interpolate": True, "color": SPOOF_COLOR, "alpha": 0.35, "linewidth": 0}
        ax.fill_between(centre, values, threshold, where=is_below, label="taken for spoof", **fill)
    above = ax.get_xaxis_transform()
    for start_s, stop_s, name, *_ in truth:
        word = name if isinstance(name, str) else SEGMENT_NAMES[name]
        color = _CLASS_COLORS.get(word, "0.75")
        band = ax.broken_barh([(start_s, stop_s - start_s)], (1.02, 0.05), color=color)
        band.set(transform=above, clip_on=False, linewidth=0)
        style: Any = {"ha": "center", "transform": above, "fontsize": FONT_SIZE - 1}
        ax.text((start_s + stop_s) / 2, 1.09, word, **style)
        if start_s > 0:
            ax.axvline(start_s, color="0.5", linewidth=0.6, zorder=1)
    for start_s, stop_s, label, *_ in found:
        if label in (SPOOF, "spoof"):
            shade: Any = {"color": SPOOF_COLOR, "alpha": 0.12, "linewidth": 0, "zorder": 0}
            ax.axvspan(start_s, stop_s, label="found", **shade)
    ax.set_xlim(0.0, float(rows[:, 1].max()))
    return finish(ax, "time (s)", f"{unit} (high: bonafide)")


def explanation(explanation: Explanation, ax: Axes | None = None) -> Axes:
    """Draw how much the score rises where stretches of time, and bands of them, are masked.

    What is red made the recording look synthetic. The curve on the right is that of whole
    stretches. `explanation` is what `Scorer.explain` returned.

    Example:
        >>> from asvspoof_cm.scorer import Explanation
        >>> changes = {"of_time": np.ones(2), "of_band": np.eye(2), "score": 0.0}
        >>> edges_s, edges_hz = np.arange(3.0), np.array([0.0, 1000.0, 8000.0])
        >>> ax = explanation(Explanation(edges_s=edges_s, edges_hz=edges_hz, **changes))
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['0', '1000', '8000']
    """
    edges_s, edges_hz, of_band = explanation.edges_s, explanation.edges_hz, explanation.of_band
    cells = of_band if len(of_band) else explanation.of_time[None]
    most = float(np.abs(cells).max()) or 1.0
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=2.2) if ax is None else ax
    extent = (edges_s[0], edges_s[-1], 0.0, float(len(cells)))
    options: Any = {"origin": "lower", "aspect": "auto", "extent": extent, "cmap": "coolwarm"}
    ax.imshow(cells, vmin=-most, vmax=most, **options)
    finish(ax, "time (s)", "band from (Hz)").grid(visible=False)
    ax.set_yticks(range(len(edges_hz)), [f"{hz:.0f}" for hz in edges_hz])
    right = ax.twinx()
    centre = (edges_s[:-1] + edges_s[1:]) / 2
    right.plot(centre, explanation.of_time, color=SPOOF_COLOR, linewidth=0.9)
    finish(right, "", "change of the score").grid(visible=False)
    right.yaxis.label.set_color(SPOOF_COLOR)
    right.spines["right"].set(visible=True, linewidth=0.6)
    right.spines["left"].set_visible(False)
    return ax


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a figure without pyplot."""
    matplotlib = import_extra("matplotlib.figure", "plots")
    figure: Figure = matplotlib.Figure(figsize=(width_in, height_in), layout="constrained")
    return figure


def finish(ax: Axes, x_label: str, y_label: str) -> Axes:
    """Give the axes their labels and the look that all figures share."""
    ax.set_xlabel(x_label, fontsize=FONT_SIZE)
    ax.set_ylabel(y_label, fontsize=FONT_SIZE)
    ax.tick_params(labelsize=FONT_SIZE - 1, width=0.6, length=2.5)
    ax.grid(visible=True, color="0.9", linewidth=0.5)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.6)
    entries = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if entries:
        names = sorted(entries, key=lambda name: name in MARKS)  # the systems stand together
        style: Any = {"fontsize": FONT_SIZE - 1.5, "frameon": False, "handlelength": 1.6}
        ax.legend([entries[name] for name in names], names, **style)
    return ax


def _line(draw: Callable[..., Any], at: float, label: str) -> None:
    draw(at, color="black", linewidth=0.9, linestyle="--", label=label.replace("-", "−"))
