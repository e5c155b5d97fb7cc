"""What every figure shares: sizes, colours, axes and files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from asvspoof_cm.utils.files import atomic_path
from asvspoof_cm.utils.lazy import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_WIDTH_IN = 3.5
PAGE_WIDTH_IN = 7.16
BONAFIDE_COLOR, SPOOF_COLOR = "#0072b2", "#d55e00"
# Colours that the colour-blind can tell apart (Okabe and Ito).
SYSTEM_COLORS = (BONAFIDE_COLOR, SPOOF_COLOR, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "black")
FONT_SIZE = 8
MARKS = ("EER", "minDCF", "actDCF")


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
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("`ax` must belong to a figure; it was removed from its own.")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".") or "png", dpi=dpi)


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return a figure without pyplot."""
    figure: Figure = import_extra("matplotlib.figure", "plots").Figure(
        figsize=(width_in, height_in), layout="constrained"
    )
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
    names = sorted(entries, key=lambda name: name in MARKS)  # the systems stand together
    if names:
        handles = [entries[name] for name in names]
        ax.legend(handles, names, fontsize=FONT_SIZE - 1.5, frameon=False, handlelength=1.6)
    return ax
