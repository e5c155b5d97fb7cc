"""The paper's figure: each metric against the time that training took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from asvspoof_cm.metrics import METRICS
from asvspoof_cm.plots.figures import (
    FONT_SIZE,
    PAGE_WIDTH_IN,
    SYSTEM_COLORS,
    finish,
    new_figure,
    proxy,
)
from asvspoof_cm.report import Curve
from asvspoof_cm.runs import RECORDED_METRICS, SPLITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPLIT_LABELS = {"train": "training set", "dev": "development set"}
_REPEAT_STYLES = ("-", "--", "-.")
_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 6,
    "markeredgecolor": "black",
    "markeredgewidth": 0.4,
    "linestyle": "none",
}


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
        >>> import numpy as np
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
        figure = new_figure(PAGE_WIDTH_IN, 7.6)
        panels = figure.subplots(
            len(RECORDED_METRICS), len(SPLITS), sharex=True, sharey="row", squeeze=False
        )
    elif panels.shape != (len(RECORDED_METRICS), len(SPLITS)):
        raise ValueError(f"`axes` must have shape (4, 2); got {panels.shape}.")
    handles: dict[str, Any] = {}
    for curve in curves:
        ax = panels[RECORDED_METRICS.index(curve.metric), SPLITS.index(curve.split)]
        repeat, index = divmod(systems.index(curve.system), len(SYSTEM_COLORS))
        style = {"color": SYSTEM_COLORS[index], "linestyle": _REPEAT_STYLES[repeat % 3]}
        _draw_curve(ax, curve, style)
        of = "" if curve.n_finished == curve.n_runs else f"{curve.n_finished} of "
        seeds = f"{of}{curve.n_runs} seed{'s' if curve.n_runs > 1 else ''}"
        handles[f"{curve.system} ({seeds})"] = proxy(**style, linewidth=1.4)
    handles["one seed"] = proxy(color="0.4", linewidth=0.6, alpha=0.7)
    handles["± 1 std"] = proxy(color="0.4", linewidth=5, alpha=0.2)
    handles["lowest of a seed"] = proxy(color="0.4", **_STAR)
    for row, metric in enumerate(RECORDED_METRICS):
        for column, split in enumerate(SPLITS):
            ax = panels[row, column]
            last, first = row == len(RECORDED_METRICS) - 1, column == 0
            finish(
                ax, "training time (min)" if last else "", METRICS[metric].label if first else ""
            )
            if row == 0:
                ax.set_title(_SPLIT_LABELS[split], fontsize=FONT_SIZE)
            _log_minutes(ax)
    legend: dict[str, Any] = {"fontsize": FONT_SIZE - 1, "frameon": False, "handlelength": 1.8}
    if axes is None:
        figure.align_ylabels(panels[:, 0])
        legend |= {"loc": "outside upper center", "ncols": 3}
        figure.legend(list(handles.values()), list(handles), **legend)
    else:
        panels[0, 0].legend(list(handles.values()), list(handles), **legend)
    return panels


def _draw_curve(ax: Axes, curve: Curve, style: dict[str, Any]) -> None:
    color = style["color"]
    scale = METRICS[curve.metric].scale
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
