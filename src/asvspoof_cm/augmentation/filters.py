"""Filters with their own coefficients per row, and levels."""

from __future__ import annotations

import math

import numpy as np
import scipy.fft
import scipy.signal
import torch
from torch import Tensor
from torch.nn.functional import pad

from asvspoof_cm.augmentation.base import beside

_TAIL = 1e-12  # where a recursive filter's impulse response is cut for the FFT


def fir_filter(waveform: Tensor, taps: Tensor, delay: int = 0) -> Tensor:
    """Filter each `(..., time)` by its own taps `(..., n)`: y[t] = Σ_k taps[k] · x[t + delay − k].

    Samples outside the waveform count as zero, and the length is kept.
    """
    return polynomial_filter(waveform, taps[..., None, :], delay)


def polynomial_filter(waveform: Tensor, taps: Tensor, delay: int = 0) -> Tensor:
    """Sum FIR-filtered powers: y[t] = Σ_i Σ_k taps[i, k] · x[t + delay − k]^(i + 1)."""
    n_samples, (n_orders, n_taps) = waveform.shape[-1], taps.shape[-2:]
    # Overlap-save: blocks a few times the filter keep the transforms small.
    n_fft = max(2048, 1 << (3 * n_taps - 1).bit_length())
    if n_fft >= n_samples + n_taps - 1:
        n_fft = scipy.fft.next_fast_len(n_samples + n_taps - 1, real=True)
    hop_length = n_fft - n_taps + 1
    n_blocks = -(-n_samples // hop_length)
    left = n_taps - 1 - delay
    right = (n_blocks - 1) * hop_length + n_fft - left - n_samples
    blocks = pad(waveform, (left, right)).unfold(-1, n_fft, hop_length)
    responses = torch.fft.rfft(beside(taps, waveform), n_fft)[..., None, :]
    power, spectrum = blocks, torch.fft.rfft(blocks) * responses[..., 0, :, :]
    for order in range(1, n_orders):
        power = power * blocks
        spectrum = torch.addcmul(spectrum, torch.fft.rfft(power), responses[..., order, :, :])
    filtered: Tensor = torch.fft.irfft(spectrum, n_fft)[..., n_taps - 1 :]
    return filtered.flatten(-2)[..., :n_samples]


def sos_filter(waveform: Tensor, sos: Tensor) -> Tensor:
    """Filter each `(..., time)` by its own second-order sections `(..., n_sections, 6)`.

    The waveform is filtered by FFT with the impulse response, until it has decayed to 1e-12.
    """
    sections = sos.reshape(-1, *sos.shape[-2:]).numpy()
    a0, a1, a2 = (sections[..., k] for k in (3, 4, 5))
    root = np.sqrt(a1**2 - 4 * a0 * a2 + 0j)
    radius = float((np.maximum(abs(root - a1), abs(root + a1)) / abs(2 * a0)).max())
    # Poles of several sections can lie together: their product decays later than each.
    decay = math.log(_TAIL) / math.log(radius) if radius > 0 else 0.0
    impulse = np.zeros(min(waveform.shape[-1], 2 * math.ceil(decay) + 2 * sections.shape[1] + 1))
    impulse[0] = 1.0
    taps = np.stack([scipy.signal.sosfilt(section, impulse) for section in sections])
    n_taps = 1 + int(np.flatnonzero((np.abs(taps) > _TAIL).any(axis=0)).max(initial=0))
    return fir_filter(waveform, torch.from_numpy(taps[:, :n_taps]).reshape(*sos.shape[:-2], n_taps))


def sos_filtfilt(waveform: Tensor, sos: Tensor) -> Tensor:
    """Filter each `(n_rows, time)` by its own `(n_rows, n_sections, 6)`, forward and backward.

    The ends are those of `scipy.signal.filtfilt`, for filters of even order: the waveform is
    continued by its reflection through the end point, and each pass starts from a steady state.
    """
    n_edge = min(3 * (2 * sos.shape[-2] + 1), waveform.shape[-1] - 1)
    first, last = waveform[..., :1], waveform[..., -1:]
    before = 2 * first - waveform[..., 1 : n_edge + 1].flip(-1)
    after = 2 * last - waveform[..., waveform.shape[-1] - n_edge - 1 : -1].flip(-1)
    extended = torch.cat((before, waveform, after), dim=-1)
    steady = beside((sos[..., :3].sum(-1) / sos[..., 3:].sum(-1)).prod(-1, keepdim=True), waveform)
    for _ in range(2):
        first = extended[..., :1]
        extended = (sos_filter(extended - first, sos) + first * steady).flip(-1)
    return extended[..., n_edge : n_edge + waveform.shape[-1]]


def add_noise(waveform: Tensor, noise: Tensor, snr_db: Tensor) -> Tensor:
    """Add `noise` `(..., time)`, scaled so that E[x²] / E[n²] = 10^(SNR / 10) holds exactly.

    An infinite SNR `(...)` adds nothing.

    Note:
        Silence (all zeros) stays silence.
    """
    ratio = 10.0 ** (-beside(snr_db, waveform) / 20)
    noise_level = level(noise)
    scale = torch.where(noise_level > 0, ratio * (level(waveform) / noise_level), 0)
    return torch.addcmul(waveform, noise, scale[..., None])


def at_level(waveform: Tensor, like: Tensor) -> Tensor:
    """Return waveforms `(n_rows, time)` with the power of others."""
    own = level(waveform)
    return waveform * torch.where(own > 0, level(like) / own, 0)[:, None]


def level(waveform: Tensor) -> Tensor:
    """Return the root of the energy `(...)` of each waveform `(..., time)`.

    Very small or large ones are taken relative to the peak: the squares leave float32.
    """
    norm: Tensor = torch.linalg.vector_norm(waveform, dim=-1)
    if norm.device.type == "cpu" and bool(((norm > 1e-15) & (norm < 1e15)).all()):
        return norm  # elsewhere the question would wait for the device
    peak: Tensor = torch.linalg.vector_norm(waveform, float("inf"), dim=-1, keepdim=True)
    relative = waveform / peak.clamp_min(torch.finfo(waveform.dtype).tiny)
    norm = torch.linalg.vector_norm(relative, dim=-1)
    return norm * peak[..., 0]


def limit_peak(waveform: Tensor) -> Tensor:
    """Divide each waveform `(..., time)` by its peak where that exceeds 1."""
    peak: Tensor = torch.linalg.vector_norm(waveform, float("inf"), dim=-1, keepdim=True)
    return waveform / peak.clamp_min(1.0)
