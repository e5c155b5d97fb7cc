"""Along time: windows, live streams, segments, and masks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._util import FloatArray, check_numbers, check_rate
from asvspoof_cm.audio import (
    BLOCK_SAMPLES,
    Array,
    InputSettings,
    OpenAudio,
    Resampler,
    Waveform,
    as_audio,
)
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.data.segments import Segment
from asvspoof_cm.labels import NO_SPEECH, SAMPLE_RATE

if TYPE_CHECKING:
    from asvspoof_cm.scorer.scorer import Scorer, WindowScore

Mask = NDArray[np.bool_]
SECOND_S = 1.0  # what "the worst second" and the windows of a model without a frame head are
CELL_S = 0.25  # from one of those windows to the next
N_FFT = 512  # of the spectrum that is masked


# Windows


Window: TypeAlias = tuple[int, int, Array]
"""Where a stretch of a recording begins and ends, in samples, and the samples."""


class Windows:
    """Cuts a stream of samples into windows, keeping no more than the next one needs.

    The stream comes at `native_rate`, None for the rate of the settings; windows have the latter.
    """

    def __init__(
        self,
        settings: InputSettings,
        window_s: float | None,
        hop_s: float,
        native_rate: int | None = None,
    ) -> None:
        window_s = settings.crop_s if window_s is None else window_s
        for name, value in (("window_s", window_s), ("hop_s", hop_s)):
            if not (math.isfinite(value) and round(value * settings.sample_rate) >= 1):
                raise ValueError(f"`{name}` must be a positive number of seconds; got {value}.")
        self.settings = replace(settings, crop_s=window_s, n_crops=1, one_crop="center")
        self.n_window = self.settings.n_samples
        self.n_hop = round(hop_s * settings.sample_rate)
        rate = settings.sample_rate
        self.resampler = Resampler(native_rate or rate, rate)
        self._buffer: Array = np.empty(0, np.float32)
        self._first = self._next = 0  # where the buffer begins, and the next window

    def push(self, samples: Array, *, is_last: bool = False) -> list[Window]:
        """Return the windows that no later sample can change.

        With the last samples that is what is left, if there is anything, and a new stream begins.
        """
        self._buffer = np.concatenate([self._buffer, samples])
        n_received = self._first + len(self._buffer)
        stop = self.resampler.n_known(n_received, is_all=is_last)
        windows = []
        while self._next + self.n_window <= stop:
            windows.append(self._cut(self._next, self._next + self.n_window, n_received))
            self._next += self.n_hop
        if is_last:
            n_covered = self._next - self.n_hop + self.n_window if self._next > 0 else 0
            if stop > max(n_covered, self._next):
                windows.append(self._cut(self._next, stop, n_received))
            self._buffer, self._first, self._next = self._buffer[:0].copy(), 0, 0
            return windows
        first = max(self._first, min(self.resampler.first_needed(self._next), n_received))
        # A copy: a view would keep the whole chunk.
        self._buffer, self._first = self._buffer[first - self._first :].copy(), first
        return windows

    def cut_all(self, source: OpenAudio) -> Iterator[Window]:
        """Yield the windows of a recording, which is read in blocks."""
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            is_last = first + BLOCK_SAMPLES >= source.n_samples
            yield from self.push(source.read(first, BLOCK_SAMPLES), is_last=is_last)

    def _cut(self, start: int, stop: int, n_received: int) -> Window:
        def read(first: int, last: int) -> Array:
            return self._buffer[first - self._first : last - self._first]

        return start, stop, self.resampler.part(read, start, stop, n_received)


class StreamingScorer:
    """Scores a live stream in windows: the numbers of `timeline`, as soon as they can be known.

    A window is scored by the call of `push` that brings its last sample. Where the stream is
    resampled, it takes up to 40 periods of the lower rate longer. Memory is bounded: one window and
    the newest chunk. An object holds one stream; use it from one thread.

    Args:
        scorer: The scorer, which several streams may share.
        sample_rate: The sampling rate of the chunks, in Hz.
        window_s: The length of a window; None is that of the scorer's crops.
        hop_s: From start to start.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> stream = StreamingScorer(Scorer(TFPARN(), device="cpu"), sample_rate=8000)
        >>> stream.push(np.zeros(32000))
        []
        >>> [(window.start_s, window.end_s) for window in stream.push(np.zeros(4000))]
        [(0.0, 4.0)]
        >>> [(window.start_s, window.end_s) for window in stream.flush()]
        [(1.0, 4.5)]
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        sample_rate: int = SAMPLE_RATE,
        window_s: float | None = None,
        hop_s: float = 1.0,
    ) -> None:
        self.scorer = scorer
        self._windows = Windows(scorer.input, window_s, hop_s, check_rate(sample_rate))

    def push(self, chunk: Waveform) -> list[WindowScore]:
        """Take the next chunk, a waveform of any size, and return the windows that it completes."""
        samples = as_audio(chunk, allow_empty=True, channel=self.scorer.one_channel()).waveform
        return self._scored(self._windows.push(samples))

    def flush(self) -> list[WindowScore]:
        """End the stream: return what is left of it, and be ready for another one."""
        return self._scored(self._windows.push(np.empty(0, np.float32), is_last=True))

    def _scored(self, windows: list[Window]) -> list[WindowScore]:
        return [*self.scorer.score_windows(windows, self._windows.settings)]


# Segments


@dataclass(frozen=True, kw_only=True)
class SegmentSettings:
    """How scores along time become segments; a checkpoint keeps them as ``meta["segments"]``.

    Attributes:
        scale: The factor that makes a frame's log-odds an LLR; without a frame head it is unused.
        offset: What is added to it.
        smooth_s: The length of the moving average over LLRs.
        enter: A synthetic segment begins where the average falls below this.
        leave: A synthetic segment ends where the average rises above this.
        shortest_s: Shorter segments are joined to those around them.
        warn_below: `Scorer.score` warns of a passage whose LLR is below this, …
        warn_gap: … and below the LLR of the whole recording by at least this.
    """

    scale: float = 1.0
    offset: float = 0.0
    smooth_s: float = 0.5
    enter: float = -2.0
    leave: float = 0.0
    shortest_s: float = 0.5
    warn_below: float = -2.0
    warn_gap: float = 3.0

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return those of a model, the default ones where it has none."""
        stored = check_numbers("segments", getattr(model, "meta", {}).get("segments"))
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})

    def moved(self, before: Calibration, after: Calibration) -> Self:
        """Return those for another calibration: frames move as far as an LLR of 0 does."""
        zero = -before.offset / before.scale
        return replace(self, offset=self.offset + float(after.apply(zero) - before.apply(zero)))


Cells: TypeAlias = tuple[FloatArray, Mask, float]
"""The LLRs (n_cells,) of equally long cells of time, whether they hold speech, and their length."""


def join_cells(parts: Iterable[tuple[float, float, FloatArray, Mask]], duration_s: float) -> Cells:
    """Return the mean over overlapping parts of the LLRs of cells that hold speech.

    A part is where it starts, the length of its cells, their LLRs and whether they hold speech.
    """
    total = n_heard = np.zeros(0)
    length_s = 0.0
    for start_s, length_s, llr, has_speech in parts:
        if not len(total):
            total, n_heard = np.zeros((2, math.ceil(duration_s / length_s)))
        first = round(start_s / length_s)
        place = slice(first, first + len(llr))
        n = len(total[place])
        total[place] += np.where(has_speech, llr, 0.0)[:n]
        n_heard[place] += has_speech[:n]
    with np.errstate(invalid="ignore"):
        return total / n_heard, n_heard > 0, length_s


def find_segments(cells: Cells, settings: SegmentSettings, duration_s: float) -> list[Segment]:
    """Return the segments that a recording's cells make up; see `Scorer.segments`."""
    llr, has_speech, length_s = cells
    n_least = max(1, round(settings.shortest_s / length_s))
    has_speech = without_short(has_speech.astype(int), n_least).astype(bool)
    smooth = moving_average(llr, has_speech, max(1, round(settings.smooth_s / length_s)))
    state = np.where(has_speech, hysteresis(smooth, settings.enter, settings.leave), NO_SPEECH)
    state = np.where(has_speech, without_short(state, n_least), NO_SPEECH)
    edges = np.flatnonzero(np.diff(state, prepend=-1, append=-1))
    found = []
    for start, stop in itertools.pairwise(edges.tolist()):
        label = int(state[start])
        mean = None if label == NO_SPEECH else float(np.nanmean(llr[start:stop]))
        end_s = duration_s if stop == len(state) else stop * length_s
        found.append(Segment(start * length_s, end_s, label, mean))
    return found


def moving_average(values: FloatArray, is_used: Mask, n: int) -> FloatArray:
    """Return the mean of the used values within `n` places around each; NaN where there is none."""
    window = np.ones(min(n, len(values)))
    total = np.convolve(np.where(is_used, values, 0.0), window, mode="same")
    count = np.convolve(is_used.astype(float), window, mode="same")
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0.5, total / count, np.nan))


def hysteresis(values: FloatArray, enter: float, leave: float) -> NDArray[np.int64]:
    """Return 0 from where values fall below `enter` to where they rise above `leave`, else 1."""
    state = np.where(values < enter, 0, np.where(values > leave, 1, -1))
    # Between the two thresholds the last clear state holds, or the first at the beginning.
    clear = np.maximum.accumulate(np.where(state >= 0, np.arange(len(state)), -1))
    return np.where(clear >= 0, state[np.maximum(clear, 0)], 1)


def without_short(state: NDArray[np.int64], n_least: int) -> NDArray[np.int64]:
    """Give runs of fewer than `n_least` to the run before them, the first to the one after."""
    state = state.copy()
    edges = [0, *(np.flatnonzero(np.diff(state)) + 1).tolist(), len(state)]
    for start, stop in itertools.pairwise(edges):
        if stop - start < n_least:
            state[start:stop] = state[start - 1] if start else state[min(stop, len(state) - 1)]
    return state


def worst_second(rows: Sequence[Mapping[str, Any]], settings: SegmentSettings) -> float | None:
    """Return the lowest LLR of a second of speech in crops; None where no frame says anything."""
    lowest = []
    for row in rows:
        if "frames" not in row:
            return None
        frames = np.asarray(row["frames"], dtype=np.float64)
        speech = np.asarray(row.get("frame_speech", np.zeros(len(frames))))
        average = moving_average(frames, speech >= 0, round(SECOND_S / row["hop_s"]))
        lowest += average[np.isfinite(average)].tolist()
    return settings.scale * min(lowest) + settings.offset if lowest else None


# What a score depends on


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Explanation:
    """How much higher the score is where a part of the audio is masked.

    Attributes:
        edges_s: Where the stretches of time begin, and the last one ends, shape (n_stretches + 1,).
        edges_hz: The same of the bands, shape (n_bands + 1,).
        of_time: The change for each stretch, shape (n_stretches,).
        of_band: The change for each band of each stretch, shape (n_bands, n_stretches).
        score: The score with nothing masked.
    """

    edges_s: FloatArray
    edges_hz: FloatArray
    of_time: FloatArray
    of_band: FloatArray
    score: float


def masked(samples: Array, rate: int, n_stretch: int, edges_hz: Iterable[float]) -> Iterator[Array]:
    """Yield a waveform (time,), then with each stretch of time, or band of it, 40 dB lower."""
    from scipy.signal import istft, stft

    yield samples
    grid: Any = {"nperseg": N_FFT, "noverlap": N_FFT * 3 // 4}
    _, _, cells = stft(samples, **grid)
    times = np.arange(cells.shape[1]) * N_FFT / 4
    hz = np.fft.rfftfreq(N_FFT, 1 / rate)
    for start in range(0, len(samples), n_stretch):
        is_inside = (times >= start) & (times < start + n_stretch)
        for low, high in ((0.0, np.inf), *itertools.pairwise(edges_hz)):
            part = cells.copy()
            part[np.ix_((hz >= low) & (hz <= high), is_inside)] *= 1e-2
            yield np.asarray(istft(part, **grid)[1][: len(samples)], dtype=np.float32)
