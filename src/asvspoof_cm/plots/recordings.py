"""Figures of one recording: its score along time, and where the model attends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asvspoof_cm.plots.style import (
    BONAFIDE_COLOR,
    COLUMN_WIDTH_IN,
    FONT_SIZE,
    SPOOF_COLOR,
    finish,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from asvspoof_cm.scorer import Attention, Timeline


def timeline(
    timeline: Timeline,
    ax: Axes | None = None,
    *,
    threshold: float | None = None,
    parts: Sequence[tuple[float, float, str]] = (),
) -> Axes:
    """Draw the score along time: one step per window, at its centre.

    Args:
        timeline: What `Scorer.timeline` returned.
        ax: Where to draw.
        threshold: A line between spoof and bonafide; below it the area is shaded.
        parts: What is known of the recording: start and end in seconds and a name each, which
            stand above the curve.

    Example:
        >>> import numpy as np
        >>> from asvspoof_cm.scorer import Timeline
        >>> start_s = np.arange(3.0)
        >>> line = Timeline(start_s=start_s, end_s=start_s + 4, score=start_s - 1, duration_s=6.0)
        >>> ax = timeline(line, threshold=0.0, parts=[(0, 4, "human"), (4, 6, "synthetic")])
        >>> [text.get_text() for text in ax.texts]
        ['human', 'synthetic']
    """
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=1.8) if ax is None else ax
    centre = (timeline.start_s + timeline.end_s) / 2
    style: Any = {"marker": "o", "markersize": 2.5} if len(timeline) <= 200 else {}
    ax.plot(centre, timeline.score, color=BONAFIDE_COLOR, linewidth=1.0, **style)
    if threshold is not None:
        label = f"threshold {threshold + 0.0:.3g}".replace("-", "−")  # not −0
        ax.axhline(threshold, color="black", linewidth=0.9, linestyle="--", label=label)
        ax.fill_between(
            centre,
            timeline.score,
            threshold,
            where=(timeline.score < threshold).tolist(),
            interpolate=True,
            color=SPOOF_COLOR,
            alpha=0.35,
            linewidth=0,
            label="taken for spoof",
        )
    above = ax.get_xaxis_transform()
    for index, (start_s, end_s, name) in enumerate(parts):
        ax.axvspan(start_s, end_s, color="0.94" if index % 2 else "white", linewidth=0, zorder=0)
        ax.text(
            (start_s + end_s) / 2, 1.02, name, ha="center", transform=above, fontsize=FONT_SIZE - 1
        )
        if start_s > 0:
            ax.axvline(start_s, color="0.5", linewidth=0.6, zorder=1)
    ax.set_xlim(0.0, timeline.duration_s)
    return finish(ax, "time (s)", f"{timeline.unit} (high: bonafide)")


def attention(attention: Attention, ax: Axes | None = None) -> Axes:
    """Draw the pooling weight of each frame over the log-Mel spectrogram that the model sees.

    Args:
        attention: What `Scorer.attention` returned.
        ax: Where to draw; the weights get an axis of their own on the right.

    Example:
        >>> import numpy as np
        >>> from asvspoof_cm.scorer import Attention
        >>> time_s = np.arange(401) / 100
        >>> weight, log_mel = np.full(401, 1 / 401), np.zeros((160, 401))
        >>> found = Attention(time_s=time_s, weight=weight, features=log_mel, score=0.0)
        >>> attention(found).get_ylabel()
        'Mel band'
    """
    ax = new_axes(width_in=2 * COLUMN_WIDTH_IN, height_in=2.2) if ax is None else ax
    time_s, weight, log_mel = attention.time_s, attention.weight, attention.features
    half = (time_s[1] - time_s[0]) / 2
    extent = (float(time_s[0] - half), float(time_s[-1] + half), -0.5, len(log_mel) - 0.5)
    ax.imshow(log_mel, origin="lower", aspect="auto", extent=extent, cmap="gray_r")
    finish(ax, "time (s)", "Mel band")
    ax.grid(visible=False)
    right = ax.twinx()
    # A frame that counts as much as all others has 1 here, whatever the number of frames.
    right.plot(time_s, weight * len(weight), color=SPOOF_COLOR, linewidth=0.9)
    right.axhline(1.0, color=SPOOF_COLOR, linewidth=0.6, linestyle=":")
    right.set_ylim(bottom=0.0)
    finish(right, "", "pooling weight × frames")
    right.yaxis.label.set_color(SPOOF_COLOR)
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    right.spines["right"].set_linewidth(0.6)
    right.spines["left"].set_visible(False)
    return ax
