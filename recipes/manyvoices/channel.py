"""The channel of a clip: spectrum, noise floor, room and codec, given to speech that has none.

Waveforms are float64 arrays of shape (time,) at 16 kHz.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import numpy as np
import scipy.ndimage
import scipy.signal
import torch

from asvspoof_cm.augmentation import transcode
from minispoof.speech import Array, mean_spectrum, shaped_noise

PEAK: Final = 0.9
CODECS: Final = {
    ".mp3": "mp3",
    ".ogg": "vorbis",
    ".oga": "vorbis",
    ".opus": "opus",
    ".webm": "opus",
    ".gsm": "gsm",
}
"""The codec of a recording, by the ending of its name."""
_LARGEST_BOOST_DB: Final = 12.0
_LARGEST_CUT_DB: Final = 60.0
_LEVELS: Final = (0.2, 0.6)
_N_TAPS: Final = 513
_SHORTEST_SILENCE: Final = 8


def fit_length(waveform: Array, n_samples: int) -> Array:
    """Cut the end, or add silence there."""
    return np.pad(waveform[:n_samples], (0, max(0, n_samples - len(waveform))))


def match_spectrum(waveform: Array, reference: Array, rng: np.random.Generator) -> Array:
    """Filter `waveform` to the long-term spectrum and level of `reference`.

    What `reference` does not have is removed: a copy of a telephone call has no band that the call
    had not. What `waveform` lost is raised by 12 dB at most; where that is not enough (vocoders end
    a little below 8 kHz), noise that follows its loudness fills the band.
    """
    wanted, own = mean_spectrum(reference, 0, 100), mean_spectrum(waveform, 0, 100)
    gain_db = np.clip(10 * np.log10(wanted / own), -_LARGEST_CUT_DB, None)
    typical_db = float(np.average(gain_db, weights=own))
    gain_db = np.minimum(gain_db, typical_db + _LARGEST_BOOST_DB)
    response = scipy.signal.firwin2(_N_TAPS, np.linspace(0, 1, len(gain_db)), 10 ** (gain_db / 20))
    matched = np.asarray(scipy.signal.fftconvolve(waveform, response, "same"))
    lacking = np.maximum(wanted - mean_spectrum(matched, 0, 100), wanted * 1e-3)
    lacking[lacking < wanted / 2] = 1e-14
    power = scipy.ndimage.uniform_filter1d(np.square(matched), _N_TAPS)
    loudness = np.sqrt(np.maximum(power, 0))  # in digital silence its running sum rounds below 0
    loudness /= np.sqrt(np.square(loudness).mean() + 1e-20)
    return matched + loudness * shaped_noise(lacking, len(matched), rng)


def recode(waveform: Array, origin: str, rng: np.random.Generator) -> Array:
    """Code and decode as a recording called `origin` was coded once; most were not."""
    codec = CODECS.get(PurePosixPath(origin).suffix.lower())
    if codec is None:
        return waveform
    level = 0.0 if codec == "gsm" else float(rng.uniform(*_LEVELS))
    coded = transcode(torch.from_numpy(waveform), codec, compression_level=level)
    return coded.numpy()


def with_offset(waveform: Array, reference: Array) -> Array:
    """Return `waveform` at the common peak, with the constant offset that `reference` has.

    Cheap converters leave an offset in recordings, and vocoders remove it.
    """
    return normalize_peak(normalize_peak(waveform - waveform.mean()) + reference.mean())


def keep_silence(waveform: Array, reference: Array) -> Array:
    """Return `waveform` with the digital silence of `reference`, a waveform of the same length.

    Where a recording stays at one value for half a millisecond it was cut, gated or switched off.
    """
    ends = np.append(np.flatnonzero(np.diff(reference)), len(reference) - 1)
    lengths = np.diff(ends, prepend=-1)
    is_silent = np.repeat(lengths >= _SHORTEST_SILENCE, lengths)
    return np.where(is_silent, reference, waveform)


def normalize_peak(waveform: Array) -> Array:
    """Scale to the peak that every clip of the corpus has.

    Raises:
        ValueError: The waveform is silent or not finite.
    """
    peak = float(np.abs(waveform).max(initial=0.0))
    if not 1e-6 < peak < np.inf:
        raise ValueError(f"`waveform` must have a finite peak above 0; got {peak}.")
    return waveform * (PEAK / peak)
