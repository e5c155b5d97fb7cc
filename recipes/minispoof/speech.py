"""Waveforms: reading, silence, level, channel and codec, and the last stage of every clip.

A waveform is a float64 array of shape (time,) at 16 kHz.
"""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.signal
import soundfile
import torch

from asvspoof_cm import audio
from asvspoof_cm.labels import SAMPLE_RATE

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

LEVEL: Final = 0.05
"""The root mean square of active speech, before the random gain of the last stage."""
SHORTEST_S: Final = 1.2
LONGEST_S: Final = (1.6, 3.6)
FRAME: Final = SAMPLE_RATE // 50
CODECS: Final = {"vorbis-44k": 44_100, "vorbis-22k": 22_050, "g722": 16_000, "pcm": 16_000}
"""The codec generations that the human sources went through, and their sampling rates."""

_HIGH_PASS: Final = scipy.signal.butter(2, 50, "highpass", fs=SAMPLE_RATE, output="sos")
_N_FFT: Final = 512
_FLOOR_DB: Final = (33.0, 48.0)
_GAIN_DB: Final = 4.0
_LIMIT: Final = LEVEL * 10 ** (12 / 20)
_FADE: Final = 80
_CODED_PEAK: Final = 0.7
_TINY: Final = 1e-12


def load(path: Path) -> Array:
    """Read a recording at 16 kHz, mono.

    Raises:
        ValueError: It is sampled below 16 kHz: its missing band would tell the classes apart.
    """
    if path.suffix == ".g722":
        return _ffmpeg(["-f", "g722", "-i", str(path)], b"")
    sample_rate = soundfile.info(path).samplerate
    if sample_rate < SAMPLE_RATE:
        raise ValueError(f"`path` must be sampled at 16 kHz or more; {path} is at {sample_rate}.")
    return audio.load_audio(path).numpy().astype(np.float64)


def resample(waveform: Array, orig_rate: int, new_rate: int) -> Array:
    """Change the sampling rate."""
    tensor = torch.from_numpy(np.ascontiguousarray(waveform, dtype=np.float64))
    return audio.resample(tensor, orig_rate, new_rate).numpy()


def frame_powers(waveform: Array) -> Array:
    """Return the mean power of each 20 ms, shape (n_frames,)."""
    n_frames = len(waveform) // FRAME
    return np.square(waveform[: n_frames * FRAME].reshape(n_frames, FRAME)).mean(axis=1)


def trim(waveform: Array, *, range_db: float = 28.0, margin_s: float = 0.03) -> Array:
    """Cut the ends that are more than `range_db` below the 95th percentile of the frames."""
    powers = frame_powers(waveform)
    if len(powers) < 5:
        return waveform
    active = np.flatnonzero(powers > np.percentile(powers, 95) * 10 ** (-range_db / 10))
    if not active.size:
        return waveform
    margin = int(margin_s * SAMPLE_RATE)
    start = max(0, active[0] * FRAME - margin)
    return waveform[start : (active[-1] + 1) * FRAME + margin]


def clean(waveform: Array) -> Array:
    """Remove what lies below 50 Hz, and the silence at the ends."""
    return trim(np.asarray(scipy.signal.sosfilt(_HIGH_PASS, waveform)))


def set_level(waveform: Array) -> Array:
    """Scale active speech (frames within 25 dB of the loud ones) to the common level."""
    powers = frame_powers(waveform)
    if len(powers) < 2:
        power = np.square(waveform).mean()
    else:
        power = powers[powers >= np.percentile(powers, 95) * 10**-2.5].mean()
    return waveform * (LEVEL / np.sqrt(power + _TINY))


def mean_spectrum(waveform: Array, lowest: float, highest: float) -> Array:
    """Return the smoothed mean power spectrum of the frames between two percentiles of level.

    Returns:
        Powers of shape (257,), positive.
    """
    if len(waveform) < 2 * _N_FFT:
        return np.full(_N_FFT // 2 + 1, 1e-10)
    window = np.hanning(_N_FFT)
    frames = np.lib.stride_tricks.sliding_window_view(waveform, _N_FFT)[:: _N_FFT // 2]
    powers = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2 / np.square(window).sum()
    levels = powers.sum(axis=1)
    low, high = np.percentile(levels, [lowest, highest])
    mean = powers[(levels >= low) & (levels <= high)].mean(axis=0) + 1e-14
    return np.convolve(np.pad(mean, 4, mode="edge"), np.full(9, 1 / 9), "valid")


def shaped_noise(spectrum: Array, n_samples: int, rng: np.random.Generator) -> Array:
    """Return Gaussian noise with a power spectrum given from 0 to 8 kHz."""
    response = scipy.signal.firwin2(257, np.linspace(0, 1, len(spectrum)), np.sqrt(spectrum))
    noise = rng.standard_normal(n_samples + len(response) - 1)
    return np.asarray(scipy.signal.fftconvolve(noise, response, "valid"))


def match_channel(waveform: Array, donor: Array, rng: np.random.Generator) -> Array:
    """Give synthetic speech the long-term spectrum and the noise floor of a recording."""
    waveform, donor = set_level(waveform), set_level(donor)
    ratio = mean_spectrum(donor, 50, 100) / mean_spectrum(waveform, 50, 100)
    gain = 10 ** (np.clip(10 * np.log10(ratio), -25, 25) / 20)
    response = scipy.signal.firwin2(513, np.linspace(0, 1, len(gain)), gain)
    shaped = set_level(scipy.signal.fftconvolve(waveform, response, "same"))
    return shaped + shaped_noise(mean_spectrum(donor, 0, 10), len(shaped), rng)


def recode(waveform: Array, codec: str, rng: np.random.Generator) -> Array:
    """Code and decode as the human source was coded once, so that the codec tells nothing."""
    rate = CODECS[codec]
    if codec == "pcm":
        return waveform
    scale = _CODED_PEAK / (np.abs(waveform).max() + _TINY)
    if codec == "g722":
        samples = (waveform * scale).astype("<f4").tobytes()
        raw = ["-f", "f32le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-i", "-"]
        coded = _run_ffmpeg([*raw, "-c:a", "g722", "-f", "g722", "-"], samples)
        decoded = _ffmpeg(["-f", "g722", "-i", "-"], coded)
    else:
        quality = float(rng.uniform(0.4, 0.8))
        coded = resample(waveform * scale, SAMPLE_RATE, rate)
        decoded = resample(_through_vorbis(coded, rate, quality), rate, SAMPLE_RATE)
    return decoded[: len(waveform)] / scale


def finish(waveform: Array, rng: np.random.Generator) -> Array | None:
    """Apply the last stage, the same for both classes; None where too little speech is left.

    Band, silence at the ends, duration, level, noise floor, limiter and gain are drawn or set in
    one way, so that none of them says whether a person spoke.
    """
    waveform = clean(waveform)
    longest = int(rng.uniform(*LONGEST_S) * SAMPLE_RATE)
    if len(waveform) > longest:
        start = int(rng.integers(len(waveform) - longest + 1))
        waveform = trim(waveform[start : start + longest])
    if len(waveform) < SHORTEST_S * SAMPLE_RATE:
        return None
    floor = shaped_noise(1 / (np.arange(257) + 4.0), len(waveform), rng)
    floor *= LEVEL * 10 ** (-rng.uniform(*_FLOOR_DB) / 20) / floor.std()
    limited = _LIMIT * np.tanh((set_level(waveform) + floor) / _LIMIT)
    limited -= limited.mean()
    limited *= 10 ** (rng.uniform(-_GAIN_DB, _GAIN_DB) / 20)
    limited *= min(1.0, 0.97 / np.abs(limited).max())
    fade = np.linspace(0, 1, _FADE)
    limited[:_FADE] *= fade
    limited[-_FADE:] *= fade[::-1]
    return limited


def _through_vorbis(waveform: Array, sample_rate: int, quality: float) -> Array:
    buffer = io.BytesIO()
    options = {"format": "OGG", "subtype": "VORBIS", "compression_level": quality}
    with soundfile.SoundFile(buffer, "w", sample_rate, 1, **options) as file:
        # libsndfile's Vorbis encoder keeps a block on the stack: a long one overflows it.
        for start in range(0, len(waveform), 4096):
            file.write(waveform[start : start + 4096])
    buffer.seek(0)
    return soundfile.read(buffer)[0]


def _ffmpeg(source: list[str], stdin: bytes) -> Array:
    raw = _run_ffmpeg([*source, "-ac", "1", "-ar", str(SAMPLE_RATE), "-f", "f32le", "-"], stdin)
    return np.frombuffer(raw, "<f4").astype(np.float64)


def _run_ffmpeg(arguments: list[str], stdin: bytes) -> bytes:
    command = ["ffmpeg", "-v", "error", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout
