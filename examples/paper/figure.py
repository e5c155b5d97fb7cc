"""The paper's figure: each metric against the time that training took.

    python examples/paper/figure.py runs/[123]-* --out training_efficiency.pdf

The folders are those that training wrote; the format is that of the suffix.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm import report
from asvspoof_cm.metrics import METRICS
from asvspoof_cm.plots import (
    FONT_SIZE,
    PAGE_WIDTH_IN,
    SYSTEM_COLORS,
    finish,
    new_figure,
    save_figure,
)
from asvspoof_cm.runs import RECORDED_METRICS, SPLITS, Run, read_run

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


def training_efficiency(runs: Iterable[Run]) -> NDArray[Any]:
    """Draw the paper's figure: each metric over training time, on the training and the Dev set.

    A thick line is the mean over the finished seeds of a system, in the range of time that they
    share, its band ± 1 standard deviation. Thin lines are the seeds' own records to the last epoch,
    dashed for a run that is unfinished. On the development set a star marks each finished seed's
    lowest record.

    Args:
        runs: What `read_run` returned, seeds and systems mixed.

    Returns:
        The axes, shape (4, 2): minDCF, EER, Cllr, actDCF by training set, development set.

    Example:
        >>> from pathlib import Path
        >>> values = dict.fromkeys(("min_dcf", "eer", "cllr", "act_dcf"), 0.5)
        >>> record = {"train": values, "dev": values, "cumulative_s": 60.0}
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=1, data={},
        ...           history=(record,), final={})
        >>> axes = training_efficiency([run])
        >>> axes.shape, axes[1, 0].get_ylabel()
        ((4, 2), 'EER (%)')
    """
    curves = report.training_curves(runs)
    systems = list(dict.fromkeys(curve.system for curve in curves))
    figure = new_figure(PAGE_WIDTH_IN, 7.6)
    shape = len(RECORDED_METRICS), len(SPLITS)
    panels: NDArray[Any] = figure.subplots(*shape, sharex=True, sharey="row")
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for curve in curves:
        ax = panels[RECORDED_METRICS.index(curve.metric), SPLITS.index(curve.split)]
        repeat, index = divmod(systems.index(curve.system), len(SYSTEM_COLORS))
        style: Any = {"color": SYSTEM_COLORS[index], "linestyle": _REPEAT_STYLES[repeat % 3]}
        _draw_curve(ax, curve, style)
        n_finished = sum(seed.is_finished for seed in curve.seeds)
        of = "" if n_finished == curve.n_runs else f"{n_finished} of "
        seeds = f"{of}{curve.n_runs} seed{'s' if curve.n_runs > 1 else ''}"
        handles[f"{curve.system} ({seeds})"] = Line2D([], [], **style, linewidth=1.4)
    handles["one seed"] = Line2D([], [], color="0.4", linewidth=0.6, alpha=0.7)
    handles["± 1 std"] = Line2D([], [], color="0.4", linewidth=5, alpha=0.2)
    handles["lowest of a seed"] = Line2D([], [], color="0.4", **_STAR)
    for (row, column), ax in np.ndenumerate(panels):
        label = "" if column else METRICS[RECORDED_METRICS[row]].label
        finish(ax, "training time (min)" if row == len(panels) - 1 else "", label)
        if row == 0:
            ax.set_title(_SPLIT_LABELS[SPLITS[column]], fontsize=FONT_SIZE)
        _log_minutes(ax)
    figure.align_ylabels(panels[:, 0])
    look: Any = {"fontsize": FONT_SIZE - 1, "frameon": False, "handlelength": 1.8, "ncols": 3}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", **look)
    return panels


def _draw_curve(ax: Axes, curve: report.Curve, style: dict[str, Any]) -> None:
    color, scale = style["color"], METRICS[curve.metric].scale
    for seed in curve.seeds:
        look: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.45}
        if len(seed.values) == 1:
            look = {"marker": "."}  # in full colour: a pale one is another system's
        line = "-" if seed.is_finished else "--"
        ax.plot(seed.time_s / 60, scale * seed.values, color=color, linestyle=line, **look)
        if curve.split == "dev" and seed.is_finished:
            time_s, value = seed.best
            ax.plot(time_s / 60, scale * value, color=color, zorder=4, **_STAR)
    minutes, mean = curve.time_s / 60, scale * curve.mean
    ax.plot(minutes, mean, **style, linewidth=1.4, zorder=3)
    if curve.std is not None:
        std = scale * curve.std
        low = np.maximum(mean - std, 0.0)  # where no metric can be
        ax.fill_between(minutes, low, mean + std, color=color, alpha=0.2, linewidth=0)


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


def main() -> None:
    """Draw the figure of the folders that the command names."""
    parser = argparse.ArgumentParser(description="Draw the paper's figure of run folders.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a training")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="PDF, PNG or SVG")
    args = parser.parse_args()
    save_figure(training_efficiency(map(read_run, args.runs))[0, 0], args.out)


if __name__ == "__main__":
    main()
