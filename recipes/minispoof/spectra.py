"""Short-time spectra: analysis, resynthesis, and the phases that a magnitude does not have."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from minispoof.speech import Array

__all__ = ["griffin_lim", "istft", "random_phases", "slaney_filterbank", "stft"]

Spectrum: TypeAlias = np.ndarray[Any, np.dtype[np.complex128]]


def stft(waveform: Array, n_fft: int, hop_length: int) -> Spectrum:
    """Return spectra of shape (n_frames, n_fft // 2 + 1), Hann windows, centred on the hops."""
    padded = np.pad(waveform, n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length]
    return np.fft.rfft(frames * _window(n_fft), axis=1)


def istft(spectrum: Spectrum, n_fft: int, hop_length: int, n_samples: int) -> Array:
    """Return the waveform whose spectra are the nearest, in the least-squares sense."""
    window = _window(n_fft)
    frames = np.fft.irfft(spectrum, n_fft, axis=1) * window
    total = np.zeros((len(frames) - 1) * hop_length + n_fft)
    weight = np.zeros_like(total)
    for number, frame in enumerate(frames):
        place = slice(number * hop_length, number * hop_length + n_fft)
        total[place] += frame
        weight[place] += window**2
    return (total / np.maximum(weight, 1e-3))[n_fft // 2 : n_fft // 2 + n_samples]


def random_phases(shape: tuple[int, ...], rng: np.random.Generator) -> Spectrum:
    """Return complex numbers of length 1."""
    return np.exp(2j * np.pi * rng.random(shape))


def griffin_lim(
    magnitude: Array,
    n_fft: int,
    hop_length: int,
    n_samples: int,
    rng: np.random.Generator,
    *,
    n_iterations: int = 40,
    momentum: float = 0.99,
) -> Array:
    """Find phases for a magnitude spectrogram (fast Griffin-Lim, Perraudin et al. 2013)."""
    phases = random_phases(magnitude.shape, rng)
    previous = np.zeros_like(phases)
    for _ in range(n_iterations):
        waveform = istft(magnitude * phases, n_fft, hop_length, n_samples)
        consistent = stft(waveform, n_fft, hop_length)[: len(magnitude)]
        accelerated = consistent + momentum * (consistent - previous)
        previous = consistent
        phases = accelerated / np.maximum(np.abs(accelerated), 1e-9)
    return istft(magnitude * phases, n_fft, hop_length, n_samples)


def slaney_filterbank(n_mels: int, n_fft: int, sample_rate: int, f_max: float) -> Array:
    """Return Mel filters of area 1 on Slaney's scale, which neural vocoders were trained with.

    Linear below 1 kHz, logarithmic above. Shape (n_mels, n_fft // 2 + 1).
    """
    step = np.log(6.4) / 27
    highest = 15 + np.log(f_max / 1000) / step
    mels = np.linspace(0, highest, n_mels + 2)
    corners = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    bins = np.fft.rfftfreq(n_fft, 1 / sample_rate)
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (right - left)


def _window(n_fft: int) -> Array:
    return np.hanning(n_fft + 1)[:-1]
