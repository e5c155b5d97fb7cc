"""Scores along time for audio of any length, and where in time a model looks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asvspoof_cm.audio import (
    AudioFile,
    InMemory,
    InputSettings,
    OpenAudio,
    Waveform,
    as_waveform,
    cut,
    fix_length,
    set_level,
)
from asvspoof_cm.labels import SAMPLE_RATE, Unit
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.scorer.inference import Inference, map_packed
from asvspoof_cm.scorer.utterances import BLOCK_SAMPLES


class WindowScore(NamedTuple):
    """The score of the audio from `start_s` to `end_s`, and its unit."""

    start_s: float
    end_s: float
    score: float
    unit: Unit


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Timeline:
    """Scores along time.

    Attributes:
        start_s: Where each window starts, shape (n_windows,).
        end_s: Where its audio ends, shape (n_windows,).
        score: Its score, shape (n_windows,). Higher means bonafide.
        duration_s: How long the audio is.
        unit: What the scores are; see `ScoreResult`.
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    score: NDArray[np.float64]
    duration_s: float
    unit: Unit = "log-odds"

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[WindowScore]:
        columns = (self.start_s.tolist(), self.end_s.tolist(), self.score.tolist())
        return (WindowScore(*row, self.unit) for row in zip(*columns, strict=True))

    def __repr__(self) -> str:
        low, high = self.score.min(), self.score.max()
        what = f"{len(self)} windows in {self.duration_s:g} s"
        return f"Timeline({what}, {self.unit} from {low:.2f} to {high:.2f})"


def timeline(
    scorer: Inference,
    audio: Waveform | OpenAudio | str | os.PathLike[str],
    sample_rate: int = SAMPLE_RATE,
    *,
    window_s: float | None = None,
    hop_s: float = 1.0,
) -> Timeline:
    """Return the scores of audio of any length in windows along time.

    Windows start every `hop_s`. Each is scored as an utterance of its own with one crop: divided by
    its own peak, unless the model takes audio as it is, so that a loud passage doesn't hide a quiet
    one, and so that a live stream gets the same numbers. Where the last whole window ends before
    the audio does, one more window holds what is left from the next start on, repeated to full
    length (section III-B.1 of the TFPARN paper). A file is read in blocks: three hours need no more
    memory than a minute.

    Args:
        scorer: The scorer; the number of its crops plays no part here.
        audio: A file, an `AudioFile` opened at the model's rate, or a waveform as in
            `Scorer.score`.
        sample_rate: The sampling rate of a waveform; a file knows its own.
        window_s: The length of a window; None is that of the scorer's crops.
        hop_s: From start to start.

    Raises:
        ValueError: The audio can't be read or scored; the message says where.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> line = Scorer(TFPARN(), device="cpu").timeline(np.zeros(16000 * 6 + 8000))
        >>> line.start_s.tolist(), line.end_s.tolist()
        ([0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 6.5])
    """
    windows = Windows(scorer.input, window_s, hop_s)
    rate = scorer.input.sample_rate
    if isinstance(audio, (str, os.PathLike)):
        with AudioFile(audio, sample_rate=rate) as file:
            return _timeline(scorer, file, windows)
    if not isinstance(audio, OpenAudio):
        audio = InMemory(as_waveform(audio, sample_rate, rate), sample_rate)
    return _timeline(scorer, audio, windows)


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

    time_s: NDArray[np.float64]
    weight: NDArray[np.float32]
    features: NDArray[np.float32]
    score: float

    def __repr__(self) -> str:
        return f"Attention({len(self.weight)} frames, score {self.score:.2f})"


def attention(
    scorer: Inference,
    waveform: Waveform,
    sample_rate: int = SAMPLE_RATE,
    *,
    start_s: float | None = None,
) -> Attention:
    """Return the pooling weight that the model gives each frame of one crop.

    Args:
        scorer: A scorer of a model that pools with weights, such as a TFPARN.
        waveform: As in `Scorer.score`.
        sample_rate: Its sampling rate, in Hz.
        start_s: Where the crop starts; None is the centre crop, or the start of a short utterance.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> found = Scorer(TFPARN(), device="cpu").attention(torch.randn(96000))
        >>> found.weight.shape, found.features.shape, found.time_s[[0, -1]].tolist()
        ((401,), (160, 401), [1.0, 5.0])
    """
    model = scorer.model
    if not isinstance(model, Countermeasure):
        raise ValueError(f"the model must be a Countermeasure; got {type(model).__name__}.")
    rate, n_samples = scorer.input.sample_rate, scorer.input.n_samples
    samples = as_waveform(waveform, sample_rate, rate)
    if start_s is None:
        start = max(0, len(samples) - n_samples) // 2
    else:
        start = round(start_s * rate)
        if not 0 <= start < len(samples):
            raise ValueError(
                f"`start_s` must lie inside the utterance of {len(samples) / rate:.3f} s; "
                f"got {start_s}."
            )
    peak = float(np.abs(samples).max())
    crop = set_level(cut(samples, start, n_samples), scorer.input.normalization, peak)
    found = scorer.run(model.attend, torch.from_numpy(crop)[None])
    return Attention(
        time_s=(start + found.hop_length * np.arange(found.features.shape[-1])) / rate,
        weight=found.weights[0].numpy(),
        features=found.features[0].numpy(),
        score=float(scorer.scores(found.logits[0].double().numpy())),
    )


class Window(NamedTuple):
    """A stretch of a recording, repeated to full length where the recording ends."""

    start: int
    stop: int
    samples: NDArray[np.float32]


class Windows:
    """Cuts a stream of samples into windows, keeping no more than the next one needs."""

    def __init__(self, settings: InputSettings, window_s: float | None, hop_s: float) -> None:
        window_s = settings.crop_s if window_s is None else window_s
        for name, value in (("window_s", window_s), ("hop_s", hop_s)):
            if not (math.isfinite(value) and round(value * settings.sample_rate) >= 1):
                raise ValueError(f"`{name}` must be a positive number of seconds; got {value}.")
        self.n_window = round(window_s * settings.sample_rate)
        self.n_hop = round(hop_s * settings.sample_rate)
        self._restart()

    def _restart(self) -> None:
        self._buffer: NDArray[np.float32] = np.empty(0, np.float32)
        self._first: int = 0  # the place of the buffer's first sample in the stream
        self._next: int = 0  # the start of the next window

    def push(self, samples: NDArray[np.float32]) -> list[Window]:
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

    def _cut(self, stop: int) -> Window:
        samples = self._buffer[self._next - self._first : stop - self._first]
        return Window(self._next, stop, fix_length(samples, self.n_window))


def _timeline(scorer: Inference, source: OpenAudio, windows: Windows) -> Timeline:
    def cut_windows() -> Iterator[Window]:
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            yield from windows.push(source.read(first, BLOCK_SAMPLES))
        yield from windows.flush()

    scored = np.array([window[:3] for window in score_windows(scorer, cut_windows())])
    return Timeline(
        start_s=scored[:, 0],
        end_s=scored[:, 1],
        score=scored[:, 2],
        duration_s=source.n_samples / scorer.input.sample_rate,
        unit=scorer.unit,
    )


def score_windows(scorer: Inference, windows: Iterable[Window]) -> Iterator[WindowScore]:
    """Score windows in full batches, each as an utterance of its own."""
    settings = scorer.input

    # Of the utterance's peak a stream knows nothing: the window is the utterance.
    def levelled(window: Window) -> Tensor:
        peak = float(np.abs(window.samples).max())
        return torch.from_numpy(set_level(window.samples, settings.normalization, peak))[None]

    items = ((window, levelled(window)) for window in windows)
    for window, (logits,) in map_packed(items, scorer.logits, scorer.batch_size):
        start_s, end_s = window.start / settings.sample_rate, window.stop / settings.sample_rate
        if not logits.isfinite().all():
            raise ValueError(f"the model's logits from {start_s} s to {end_s} s are not finite.")
        score = float(scorer.scores(logits.double().numpy()))
        yield WindowScore(start_s, end_s, score, scorer.unit)
