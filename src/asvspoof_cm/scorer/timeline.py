"""Along time: windows, live streams, segments, attention, and what a score depends on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._util import check_between, check_rate
from asvspoof_cm.audio import (
    Array,
    InMemory,
    InputSettings,
    OpenAudio,
    Waveform,
    as_mono,
    crop_starts,
    cut,
    rate_ratio,
    resample,
    resampling_reach,
    set_level,
)
from asvspoof_cm.calibration import Verdict
from asvspoof_cm.labels import SAMPLE_RATE, Unit

if TYPE_CHECKING:
    from asvspoof_cm.scorer.scorer import Heard, Scorer, ScoreResult, Utterance

FloatArray = NDArray[np.float64]
BLOCK_SAMPLES = 1 << 18
SECOND_S = 1.0  # what "the worst second" and the windows of a model without a frame head are
CELL_S = 0.25  # from one of those windows to the next


# Windows


class WindowScore(NamedTuple):
    """The score of the audio from `start_s` to `end_s`, its unit, and what to know about it."""

    start_s: float
    end_s: float
    score: float
    unit: Unit
    warnings: tuple[str, ...] = ()
    has_speech: bool = True


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Timeline:
    """Scores along time.

    Attributes:
        start_s: Where each window starts, shape (n_windows,).
        end_s: Where its audio ends, shape (n_windows,).
        score: Its score, shape (n_windows,). Higher means bonafide.
        has_speech: Whether it holds speech to judge, shape (n_windows,): the score of one that
            doesn't means nothing.
        warnings: What to know about each; see `ScoreResult`.
        duration_s: How long the audio is.
        unit: What the scores are; see `ScoreResult`.
    """

    start_s: FloatArray
    end_s: FloatArray
    score: FloatArray
    has_speech: NDArray[np.bool_]
    warnings: tuple[tuple[str, ...], ...]
    duration_s: float
    unit: Unit = "log-odds"

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[WindowScore]:
        numbers = zip(self.start_s.tolist(), self.end_s.tolist(), self.score.tolist(), strict=True)
        notes = zip(self.warnings, self.has_speech.tolist(), strict=True)
        return (WindowScore(*n, self.unit, *m) for n, m in zip(numbers, notes, strict=True))

    def __repr__(self) -> str:
        low, high = self.score.min(), self.score.max()
        what = f"{len(self)} windows in {self.duration_s:g} s"
        return f"Timeline({what}, {self.unit} from {low:.2f} to {high:.2f})"


class Window(NamedTuple):
    """A stretch of a recording, in samples."""

    start: int
    stop: int
    samples: Array


class Windows:
    """Cuts a stream of samples into windows, keeping no more than the next one needs."""

    def __init__(self, settings: InputSettings, window_s: float | None, hop_s: float) -> None:
        window_s = settings.crop_s if window_s is None else window_s
        for name, value in (("window_s", window_s), ("hop_s", hop_s)):
            if not (math.isfinite(value) and round(value * settings.sample_rate) >= 1):
                raise ValueError(f"`{name}` must be a positive number of seconds; got {value}.")
        self.settings = replace(settings, crop_s=window_s, n_crops=1, one_crop="center")
        self.n_window = self.settings.n_samples
        self.n_hop = round(hop_s * settings.sample_rate)
        self._restart()

    def _restart(self) -> None:
        self._buffer: Array = np.empty(0, np.float32)
        self._first: int = 0  # the place of the buffer's first sample in the stream
        self._next: int = 0  # the start of the next window

    def push(self, samples: Array) -> list[Window]:
        """Return the windows that end within `samples`."""
        self._buffer = np.concatenate([self._buffer, samples])
        stop = self._first + len(self._buffer)
        windows = []
        while self._next + self.n_window <= stop:
            windows.append(self._cut(self._next + self.n_window))
            self._next += self.n_hop
        n_past = min(self._next, stop) - self._first
        self._first += n_past
        # A copy: a view would keep the whole chunk.
        self._buffer = self._buffer[n_past:].copy()
        return windows

    def flush(self) -> list[Window]:
        """Return the window of what no other window holds, if there is anything, and start anew."""
        stop = self._first + len(self._buffer)
        n_covered = self._next - self.n_hop + self.n_window if self._next > 0 else 0
        windows = [self._cut(stop)] if stop > max(n_covered, self._next) else []
        self._restart()
        return windows

    def cut_all(self, source: OpenAudio) -> Iterator[Window]:
        """Yield the windows of a recording, which is read in blocks."""
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            yield from self.push(source.read(first, BLOCK_SAMPLES))
        yield from self.flush()

    def _cut(self, stop: int) -> Window:
        return Window(self._next, stop, self._buffer[self._next - self._first : stop - self._first])


def score_windows(
    scorer: Scorer, windows: Iterable[Window], settings: InputSettings
) -> Iterator[tuple[WindowScore, ScoreResult]]:
    """Score windows in full batches, each as an utterance of its own with one crop."""
    rate = settings.sample_rate

    def prepared() -> Iterator[tuple[Window, Utterance]]:
        for window in windows:
            yield window, scorer.take_crops(InMemory(window.samples, rate), settings)

    for window, result in scorer.score_utterances(prepared()):
        start_s, end_s = window.start / rate, window.stop / rate
        if isinstance(result, str):
            raise ValueError(f"from {start_s} s to {end_s} s, {result}")
        about = (result.score, result.unit, result.warnings, result.has_speech)
        yield WindowScore(start_s, end_s, *about), result


def timeline(scorer: Scorer, source: OpenAudio, window_s: float | None, hop_s: float) -> Timeline:
    """Return the scores of windows; see `Scorer.timeline`."""
    cutter = Windows(scorer.input, window_s, hop_s)
    windows = [w for w, _ in score_windows(scorer, cutter.cut_all(source), cutter.settings)]
    start_s, end_s, score, _, warnings, has_speech = zip(*windows, strict=True)
    return Timeline(
        start_s=np.array(start_s),
        end_s=np.array(end_s),
        score=np.array(score),
        has_speech=np.array(has_speech),
        warnings=warnings,
        duration_s=source.n_samples / scorer.input.sample_rate,
        unit=scorer.unit,
    )


# Live streams


class StreamingScorer:
    """Scores a live stream in windows: the numbers of `timeline`, as soon as they can be known.

    A window is scored by the call of `push` that brings its last sample. Where the stream is
    resampled, it takes up to 40 periods of the lower rate longer: 5 ms at 8 kHz. Memory is bounded:
    one window and the newest chunk. An object holds one stream; use it from one thread.

    Args:
        scorer: The scorer, which several streams may share.
        sample_rate: The sampling rate of the chunks, in Hz.
        window_s: The length of a window; None is that of the scorer's crops.
        hop_s: From start to start.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> stream = StreamingScorer(Scorer(TFPARN(), device="cpu"), sample_rate=8000)
        >>> [stream.push(np.zeros(8000)) for _ in range(4)]
        [[], [], [], []]
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
        self._resampler = _StreamResampler(check_rate(sample_rate), scorer.input.sample_rate)
        self._windows = Windows(scorer.input, window_s, hop_s)

    def push(self, chunk: Waveform) -> list[WindowScore]:
        """Take the next chunk, of any size, and return the windows that it completes.

        Args:
            chunk: As in `Scorer.score`, at the sampling rate of the stream; may be empty.
        """
        samples = as_mono(chunk, allow_empty=True, channel=self.scorer.one_channel())
        return self._scored(self._windows.push(self._resampler.push(samples)))

    def flush(self) -> list[WindowScore]:
        """End the stream: return what is left of it, and be ready for another one."""
        return self._scored(self._windows.push(self._resampler.flush()) + self._windows.flush())

    def _scored(self, windows: list[Window]) -> list[WindowScore]:
        return [w for w, _ in score_windows(self.scorer, windows, self._windows.settings)]


class _StreamResampler:
    """Resamples a stream, chunk by chunk: the samples of the whole resampled at once."""

    def __init__(self, sample_rate: int, new_rate: int) -> None:
        self.sample_rate, self.new_rate = sample_rate, new_rate
        self._up, self._down = rate_ratio(sample_rate, new_rate)
        self._reach = resampling_reach(sample_rate, new_rate)
        self._restart()

    def _restart(self) -> None:
        self._buffer: Array = np.empty(0, np.float32)
        self._first: int = 0  # the place of the buffer's first sample in the stream
        self._n_emitted: int = 0

    def push(self, samples: Array) -> Array:
        """Return the new samples that no later chunk can change."""
        if self._up == self._down:
            return samples
        self._buffer = np.concatenate([self._buffer, samples])
        n_received = self._first + len(self._buffer)
        return self._emit(max(0, n_received - self._reach) * self._up // self._down)

    def flush(self) -> Array:
        """Return the rest of the stream, and start anew."""
        n_received = self._first + len(self._buffer)
        rest = self._emit(-(-n_received * self._up // self._down))
        self._restart()
        return rest

    def _emit(self, stop: int) -> Array:
        if stop <= self._n_emitted:
            return np.empty(0, np.float32)
        offset = self._first * self._up // self._down
        resampled = resample(self._buffer, self.sample_rate, self.new_rate)
        ready = resampled[self._n_emitted - offset : stop - offset].copy()
        self._n_emitted = stop
        # The buffer keeps the context of the next sample and starts on the polyphase grid.
        needed = max(0, stop * self._down // self._up - self._reach) // self._down * self._down
        self._buffer = self._buffer[needed - self._first :].copy()
        self._first = needed
        return ready


# Segments


@dataclass(frozen=True, kw_only=True)
class SegmentSettings:
    """How scores along time become segments; a checkpoint keeps them as ``meta["segments"]``.

    Attributes:
        scale: The factor that makes a frame's log-odds an LLR; without a frame head it is unused.
        offset: What is added to it.
        smooth_s: The length of the moving average over LLRs.
        enter: A synthetic segment begins where the average falls below this,
        leave: and ends where it rises above this.
        shortest_s: What is shorter belongs to what is around it.
        warn_below: `Scorer.score` warns where the worst passage is below this LLR, and
        warn_gap: by this much below that of the whole.
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
        stored = getattr(model, "meta", {}).get("segments", {})
        return cls(
            **{field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        )


class Segment(NamedTuple):
    """A stretch of a recording: its mean log-likelihood ratio, None without speech, and verdict."""

    start_s: float
    end_s: float
    llr: float | None
    verdict: Verdict


def segments(scorer: Scorer, source: OpenAudio) -> list[Segment]:
    """Return what follows what in a recording; see `Scorer.segments`."""
    if scorer.calibration is None:
        raise ValueError("segments need a calibrated score; see fit_calibration.")
    settings, duration_s = scorer.segment_settings, source.n_samples / scorer.input.sample_rate
    llr, has_speech, hop_s = cells(scorer, source)
    n_least = max(1, round(settings.shortest_s / hop_s))
    has_speech = without_short(has_speech.astype(int), n_least).astype(bool)
    smooth = moving_average(llr, has_speech, max(1, round(settings.smooth_s / hop_s)))
    state = np.where(has_speech, hysteresis(smooth, settings.enter, settings.leave), -1)
    state = np.where(has_speech, without_short(state, n_least), -1)
    edges = np.flatnonzero(np.diff(state, prepend=-2, append=-2))
    found = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        verdict = (Verdict.ABSTAIN, Verdict.SPOOF, Verdict.BONAFIDE)[state[start] + 1]
        mean = None if state[start] < 0 else float(np.nanmean(llr[start:stop]))
        end_s = duration_s if stop == len(state) else stop * hop_s
        found.append(Segment(start * hop_s, end_s, mean, verdict))
    return found


def cells(scorer: Scorer, source: OpenAudio) -> tuple[FloatArray, NDArray[np.bool_], float]:
    """Return the LLR of equally long cells of time, whether they hold speech, and their length."""
    rate, n_samples = scorer.input.sample_rate, source.n_samples
    crop_s = scorer.input.crop_s
    if not getattr(scorer.model, "frame_head", None):
        cutter = Windows(scorer.input, SECOND_S, CELL_S)
        total = _Mean(math.ceil(n_samples / rate / CELL_S))
        for scored, result in score_windows(scorer, cutter.cut_all(source), cutter.settings):
            if scored.has_speech:
                first, stop = round(scored.start_s / CELL_S), math.ceil(scored.end_s / CELL_S)
                total.add(first, np.full(stop - first, result.llr))
        return total.value, total.n > 0, CELL_S
    # Frames at the edge of a crop know less of their surroundings: the overlap is averaged.
    cutter = Windows(scorer.input, crop_s, max(crop_s / 2, crop_s - SECOND_S))
    settings = cutter.settings

    def crops() -> Iterator[tuple[Window, Array]]:
        for window in cutter.cut_all(source):
            peak = float(np.abs(window.samples).max())
            crop = cut(window.samples, 0, settings.n_samples)
            yield window, set_level(crop, settings.normalization, peak)[None]

    totals: list[_Mean] = []
    hop_s = 0.0
    for window, (heard,) in scorer.hear_rows(crops()):
        hop_s = heard.hop_s
        if not totals:
            totals = [_Mean(math.ceil(n_samples / rate / hop_s)) for _ in range(2)]
        first = round(window.start / rate / hop_s)
        n_frames = math.ceil((window.stop - window.start) / rate / hop_s)
        totals[0].add(first, np.asarray(heard.frames)[:n_frames])
        speech = np.zeros(n_frames) if heard.frame_speech is None else heard.frame_speech
        totals[1].add(first, np.asarray(speech)[:n_frames])
    kept = scorer.segment_settings
    return kept.scale * totals[0].value + kept.offset, totals[1].value >= 0, hop_s


class _Mean:
    """The mean of what windows that overlap say of each cell; NaN where none says anything."""

    def __init__(self, n_cells: int) -> None:
        self.total, self.n = np.zeros(n_cells), np.zeros(n_cells)

    def add(self, first: int, values: NDArray[Any]) -> None:
        values = values[: len(self.n) - first]
        self.total[first : first + len(values)] += values
        self.n[first : first + len(values)] += 1

    @property
    def value(self) -> FloatArray:
        with np.errstate(invalid="ignore"):
            return self.total / self.n


def moving_average(values: FloatArray, is_used: NDArray[np.bool_], n: int) -> FloatArray:
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


def lowest(scorer: Scorer, heard: Sequence[Heard]) -> float:
    """Return the LLR of the worst second of an utterance's crops, or of its worst crop."""
    kept = scorer.segment_settings
    found: list[float] = []
    for row in heard:
        if row.frames is None:
            continue
        frames = np.asarray(row.frames, dtype=np.float64)
        speech = np.ones(len(frames)) if row.frame_speech is None else np.asarray(row.frame_speech)
        average = moving_average(frames, speech >= 0, round(SECOND_S / row.hop_s))
        if np.isfinite(average).any():
            found.append(kept.scale * float(np.nanmin(average)) + kept.offset)
    if found:
        return min(found)
    logits = np.stack([np.asarray(row.logits) for row in heard])
    return float(scorer.scores(logits, "llr").min())


# Where a model looks, and what a score depends on


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Attention:
    """Where a model looks in a crop.

    Attributes:
        time_s: The place of each frame in the utterance, shape (n_frames,). A repeated utterance
            goes on past its end.
        weight: The pooling weight of each frame, shape (n_frames,); they add up to 1.
        features: What the model sees, shape (n_bands, n_frames): log-Mel for a TFPARN.
        score: The score of this crop.
    """

    time_s: FloatArray
    weight: Array
    features: Array
    score: float

    def __repr__(self) -> str:
        return f"Attention({len(self.weight)} frames, score {self.score:.2f})"


def attention(scorer: Scorer, source: InMemory, start_s: float | None) -> Attention:
    """Return the weights of the frames of one crop; see `Scorer.attention`."""
    if not hasattr(scorer.model, "attend"):
        raise ValueError(f"the model must be a Countermeasure; got {type(scorer.model).__name__}.")
    rate = scorer.input.sample_rate
    if start_s is None:
        utterance = scorer.take_crops(source, replace(scorer.input, n_crops=1))
        start, crop = utterance.starts[0], utterance.crops
    else:
        start = round(start_s * rate)
        if not 0 <= start < source.n_samples:
            raise ValueError(
                f"`start_s` must lie inside the utterance of {source.n_samples / rate:.3f} s; "
                f"got {start_s}."
            )
        peak = float(np.abs(source.waveform).max())
        crop = cut(source.waveform, start, scorer.input.n_samples)[None]
        crop = set_level(crop, scorer.input.normalization, peak)
    found = scorer.run(scorer.model.attend, crop)
    features = np.asarray(found.features[0])
    return Attention(
        time_s=(start + found.hop_length * np.arange(features.shape[-1])) / rate,
        weight=np.asarray(found.weights[0]),
        features=features,
        score=float(scorer.scores(np.asarray(found.logits[0], dtype=np.float64))),
    )


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


def explain(scorer: Scorer, source: OpenAudio, stretch_s: float, n_bands: int) -> Explanation:
    """Return what masking does to the score; see `Scorer.explain`."""
    from scipy.signal import istft, stft

    rate, n_fft = scorer.input.sample_rate, 512
    check_between("stretch_s", stretch_s, n_fft / rate)
    check_between("n_bands", n_bands, 0, 64)
    samples = source.read()
    mel = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), n_bands + 1 if n_bands else 2)
    edges_hz = 700 * (10 ** (mel / 2595) - 1)
    n_stretch = round(stretch_s * rate)
    starts = range(0, len(samples), n_stretch)
    hz = np.fft.rfftfreq(n_fft, 1 / rate)
    settings = scorer.input
    n_total, n_crop = len(samples), settings.n_samples
    n_crops = max(settings.n_crops, -(-n_total // n_crop))
    crop_at = crop_starts(n_total, n_crops, n_crop, one_crop=settings.one_crop)

    def masked(start: int, band: int | None) -> Array:
        _, _, cells = stft(samples, nperseg=n_fft, noverlap=n_fft * 3 // 4)
        times = np.arange(cells.shape[1]) * n_fft / 4
        inside = (times >= start) & (times < start + n_stretch)
        rows = slice(None) if band is None else (hz >= edges_hz[band]) & (hz <= edges_hz[band + 1])
        cells[np.ix_(np.arange(len(hz))[rows], np.flatnonzero(inside))] *= 1e-2
        return istft(cells, nperseg=n_fft, noverlap=n_fft * 3 // 4)[1][:n_total].astype(np.float32)

    def crops_of(waveform: Array) -> Array:
        peak = float(np.abs(waveform).max())
        crops = np.stack([cut(waveform, at, n_crop) for at in crop_at])
        return set_level(crops, settings.normalization, peak)

    def items() -> Iterator[tuple[None, Array]]:
        yield None, crops_of(samples)
        for start in starts:
            for band in (None, *range(n_bands)):
                yield None, crops_of(masked(start, band))

    logits = [
        np.stack([np.asarray(row.logits) for row in rows]).mean(axis=0)
        for _, rows in scorer.hear_rows(items())
    ]
    scores = scorer.scores(np.stack(logits).astype(np.float64))
    change = (scores[1:] - scores[0]).reshape(len(starts), 1 + n_bands)
    return Explanation(
        edges_s=np.array([*starts, len(samples)]) / rate,
        edges_hz=edges_hz,
        of_time=change[:, 0],
        of_band=change[:, 1:].T,
        score=float(scores[0]),
    )
