"""The paper's figure: each metric against the time that training took.

    python examples/paper/figure.py runs/[123]-* --out training_efficiency.pdf

The format is that of the suffix: PDF, PNG or SVG.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tables import Run, by_system, read_run

from asvspoof_cm.metrics import METRICS
from asvspoof_cm.plots import (
    FONT_SIZE,
    PAGE_WIDTH_IN,
    SYSTEM_COLORS,
    finish,
    new_figure,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = ("min_dcf", "eer", "cllr", "act_dcf")
SETS = {"train": "training set", "dev": "development set"}
N_POINTS = 30

_REPEAT_STYLES = ("-", "--", "-.")
_STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 6,
    "markeredgecolor": "black",
    "markeredgewidth": 0.4,
    "linestyle": "none",
}
Array = NDArray[np.float64]


class Curve(NamedTuple):
    """One metric of one system on one set.

    `seeds` has for each run with an epoch its times in seconds, its values and whether it is
    finished. `time_s`, `mean` and `std` are of the finished ones, without a point where they share
    no range of time.
    """

    time_s: Array
    mean: Array
    std: Array | None
    seeds: list[tuple[Array, Array, bool]]


def mean_curve(runs: Sequence[Run], part: str, metric: str) -> Curve:
    """Return the mean of a system's finished seeds over time.

    30 log-spaced points lie in the range that the seeds share, from the latest first epoch to the
    earliest last one; each seed is interpolated onto them, linearly in time. Nothing is
    extrapolated. One seed alone keeps its own points.
    """
    seeds = [
        (
            np.array([record["cumulative_s"] for record in run.history], dtype=float),
            np.array([record[part][metric] for record in run.history], dtype=float),
            run.is_finished,
        )
        for run in runs
        if run.history
    ]
    finished = [(time_s, values) for time_s, values, is_finished in seeds if is_finished]
    if len(finished) < 2:
        time_s, mean = finished[0] if finished else (np.empty(0), np.empty(0))
        return Curve(time_s, mean, None, seeds)
    first_s = max(time_s[0] for time_s, _ in finished)
    last_s = min(time_s[-1] for time_s, _ in finished)
    time_s = np.geomspace(first_s, last_s, N_POINTS) if first_s < last_s else np.empty(0)
    values = np.array([np.interp(time_s, *seed) for seed in finished])
    return Curve(time_s, values.mean(axis=0), values.std(axis=0, ddof=1), seeds)


def training_efficiency(runs: Iterable[Run]) -> NDArray[Any]:
    """Draw the paper's figure: each metric over training time, on the training and the Dev set.

    A thick line is the mean over the finished seeds of a system, in the range of time that they
    share, its band ± 1 standard deviation. Thin lines are the seeds' own records to the last epoch,
    dashed for a run that is unfinished. On the development set a star marks each finished seed's
    lowest record.

    Returns:
        The axes, shape (4, 2): minDCF, EER, Cllr, actDCF by training set, development set.
    """
    from matplotlib.lines import Line2D

    groups = by_system(runs)
    if not any(run.history for group in groups.values() for run in group):
        raise ValueError("`runs` must hold an epoch to draw; no run has finished its first one.")
    figure = new_figure(PAGE_WIDTH_IN, 7.6)
    panels: NDArray[Any] = figure.subplots(len(ROWS), len(SETS), sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for k, (name, group) in enumerate(groups.items()):
        repeat, index = divmod(k, len(SYSTEM_COLORS))
        style: Any = {"color": SYSTEM_COLORS[index], "linestyle": _REPEAT_STYLES[repeat % 3]}
        for (row, column), ax in np.ndenumerate(panels):
            part, metric = list(SETS)[column], ROWS[row]
            _draw_curve(ax, mean_curve(group, part, metric), METRICS[metric].scale, part, style)
        n_finished = sum(run.is_finished for run in group)
        of = "" if n_finished == len(group) else f"{n_finished} of "
        seeds = f"{of}{len(group)} seed{'s' if len(group) > 1 else ''}"
        handles[f"{name} ({seeds})"] = Line2D([], [], **style, linewidth=1.4)
    handles["one seed"] = Line2D([], [], color="0.4", linewidth=0.6, alpha=0.7)
    handles["± 1 std"] = Line2D([], [], color="0.4", linewidth=5, alpha=0.2)
    handles["lowest of a seed"] = Line2D([], [], color="0.4", **_STAR)
    for (row, column), ax in np.ndenumerate(panels):
        label = "" if column else METRICS[ROWS[row]].label
        finish(ax, "training time (min)" if row == len(panels) - 1 else "", label)
        if row == 0:
            ax.set_title([*SETS.values()][column], fontsize=FONT_SIZE)
        _log_minutes(ax)
    figure.align_ylabels(panels[:, 0])
    look: Any = {"fontsize": FONT_SIZE - 1, "frameon": False, "handlelength": 1.8, "ncols": 3}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", **look)
    return panels


def _draw_curve(ax: Axes, curve: Curve, scale: float, part: str, style: dict[str, Any]) -> None:
    color = style["color"]
    for time_s, values, is_finished in curve.seeds:
        look: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.45}
        if len(values) == 1:
            look = {"marker": "."}  # in full colour: a pale one is another system's
        line = "-" if is_finished else "--"
        ax.plot(time_s / 60, scale * values, color=color, linestyle=line, **look)
        if part == "dev" and is_finished:
            lowest = int(np.argmin(values))
            at = (time_s[lowest] / 60, scale * values[lowest])
            ax.plot(*at, color=color, zorder=4, **_STAR)
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
        subs = (1.0, 2.0, 5.0) if high / low < 5000 else (1.0,)
        ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="minor", width=0.4, length=1.5)


def write_figure(runs: Iterable[Run], path: Path) -> Path:
    """Draw the figure of some runs and write it."""
    save_figure(training_efficiency(runs)[0, 0], path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the figure of the folders that the command names."""
    parser = argparse.ArgumentParser(description="Draw the paper's figure of run folders.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a training")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="PDF, PNG or SVG")
    args = parser.parse_args(arguments)
    runs = [read_run(path) for path in args.runs if (path / "run.json").exists()]
    sys.stdout.write(f"{write_figure(runs, args.out)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
