"""The rule that makes a clip of a recording, the same for every source and both classes."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import soundfile
from scipy.ndimage import uniform_filter1d

from asvspoof_cm.labels import SAMPLE_RATE
from manyvoices.table import md5

LONGEST: Final = 6 * SAMPLE_RATE
SHORTEST_S: Final = 0.8
_LONGEST_READ_S: Final = 20
_SHORTEST_READ_S: Final = 0.6
_LOWEST_RATE: Final = 8000
_QUIETEST_PEAK: Final = 1e-4
_WINDOW: Final = SAMPLE_RATE // 40
_MARGIN: Final = SAMPLE_RATE // 10
_RANGE: Final = 10 ** (-38 / 10)
_PEAK: Final = 0.9

Samples = np.ndarray[Any, np.dtype[Any]]


def trimmed(waveform: Samples) -> Samples:
    """Cut the silence at the ends to 0.1 s: what is 38 dB below the loudest 25 ms."""
    square = np.square(waveform, dtype=np.float64)
    power = uniform_filter1d(square, _WINDOW, mode="constant")  # a running sum
    loud = np.flatnonzero(power > power.max() * _RANGE)
    return waveform[max(0, loud[0] - _MARGIN) : loud[-1] + _MARGIN]


def make_clip(data: bytes, name: str) -> Samples:
    """Return a recording as a clip: 16 kHz, mono, trimmed, at most 6 s, peak 0.9.

    Args:
        data: An audio file that libsndfile reads.
        name: Says which part of a longer recording is taken: the same name, the same part.

    Returns:
        16-bit samples of shape (time,).

    Raises:
        ValueError: The recording is too short, silent, not finite or sampled below 8 kHz.
    """
    channels, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    waveform = channels.mean(axis=1)[: _LONGEST_READ_S * rate]
    if rate < _LOWEST_RATE:
        raise ValueError(f"sampled at {rate} Hz")
    if len(waveform) < _SHORTEST_READ_S * rate:
        raise ValueError("too short")
    if not np.isfinite(waveform).all() or np.abs(waveform).max() < _QUIETEST_PEAK:
        raise ValueError("silent or not finite")
    if rate != SAMPLE_RATE:
        import soxr

        waveform = soxr.resample(waveform, rate, SAMPLE_RATE, "VHQ")
    waveform = trimmed(waveform)
    if len(waveform) < SHORTEST_S * SAMPLE_RATE:
        raise ValueError("too short without its silence")
    if len(waveform) > LONGEST:
        start = int(md5(name), 16) % (len(waveform) - LONGEST)
        waveform = waveform[start : start + LONGEST]
    # In this order: in single precision the products round, and clips are known by their bytes.
    return np.round(waveform / np.abs(waveform).max() * _PEAK * 32767).astype(np.int16)
