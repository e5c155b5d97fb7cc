"""Scores of a live stream, as soon as they can be known."""

from __future__ import annotations

import numpy as np

from asvspoof_cm.audio import Array, Waveform, as_mono, rate_ratio, resample, resampling_reach
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.scorer import Scorer, WindowScore
from asvspoof_cm.scorer.timelines import Windows, score_windows
from asvspoof_cm.utils.checks import check_rate

__all__ = ["StreamingScorer"]


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
        >>> import numpy as np
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
        samples = self._resampler.push(as_mono(chunk, allow_empty=True))
        return list(score_windows(self.scorer, self._windows.push(samples)))

    def flush(self) -> list[WindowScore]:
        """End the stream: return what is left of it, and be ready for another one."""
        windows = self._windows.push(self._resampler.flush()) + self._windows.flush()
        return list(score_windows(self.scorer, windows))


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
