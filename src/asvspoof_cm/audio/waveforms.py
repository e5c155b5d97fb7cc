"""A waveform at rest: its channels, its level and its sampling rate."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy.signal
import torch
from torch import Tensor

from asvspoof_cm.utils.checks import check_float, check_rate

SAMPLE_RATE = 16000

Normalization = Literal["crop", "utterance", "none"]
"""What crops are divided by: their own peak, that of the whole utterance, or nothing."""

# Half-length of the resampling filter in periods of the lower rate, and its -6 dB point relative to
# the lower Nyquist frequency: with a Kaiser window of this beta, images are at least 80 dB down.
_HALF_PERIODS = 40
_CUTOFF = 0.938
_KAISER_BETA = 8.6


def to_mono(waveform: Tensor) -> Tensor:
    """Average the channels: (channels, time) to (time,); a (time,) waveform stays as it is.

    Example:
        >>> to_mono(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 3.])
    """
    if waveform.dim() == 1:
        return waveform
    if waveform.dim() != 2:
        raise ValueError(
            f"`waveform` must have shape (time,) or (channels, time); got {tuple(waveform.shape)}."
        )
    return waveform.mean(dim=0)


def peak_normalize(waveform: Tensor) -> Tensor:
    """Scale each waveform so that its largest magnitude is 1; silence stays silence.

    Args:
        waveform: Float tensor of shape (..., time).

    Example:
        >>> peak_normalize(torch.tensor([0.0, -0.5, 0.25]))
        tensor([ 0.0000, -1.0000,  0.5000])
    """
    check_float(waveform)
    if waveform.shape[-1] == 0:
        raise ValueError("`waveform` must hold at least one sample; got none.")
    return waveform / peak_or_one(waveform)


def peak_or_one(waveform: Tensor) -> Tensor:
    """Return what `peak_normalize` divides by: the largest magnitude (..., 1), 1 for silence.

    Example:
        >>> peak_or_one(torch.tensor([[0.0, -0.5], [0.0, 0.0]]))
        tensor([[0.5000],
                [1.0000]])
    """
    peak = torch.maximum(waveform.amax(dim=-1, keepdim=True), -waveform.amin(dim=-1, keepdim=True))
    return torch.where(peak > 0, peak, torch.ones_like(peak))


def set_level(crops: Tensor, normalization: Normalization, peak: float) -> Tensor:
    """Return crops (..., time) of an utterance with that `peak`, divided as `normalization` says.

    Example:
        >>> set_level(torch.tensor([0.0, 0.25]), "utterance", peak=0.5)
        tensor([0.0000, 0.5000])
    """
    if normalization == "crop":
        return crops / peak_or_one(crops)
    return crops / peak if normalization == "utterance" and peak > 0 else crops


def resample(waveform: Tensor, orig_rate: int, new_rate: int) -> Tensor:
    """Change the sampling rate, without aliasing.

    A polyphase FIR (Kaiser window, at least 80 dB in the stop band) that keeps samples aligned:
    sample k of the result stands at time k / `new_rate`. It runs on the CPU and passes no gradient.

    Args:
        waveform: Float tensor of shape (..., time).
        orig_rate: Its sampling rate, in Hz.
        new_rate: The rate to change to, in Hz.

    Returns:
        A tensor of shape (..., ceil(time · new_rate / orig_rate)), of the same dtype and device.

    Example:
        >>> resample(torch.randn(2, 44100), 44100, 16000).shape
        torch.Size([2, 16000])
    """
    up, down = rate_ratio(check_rate(orig_rate, "orig_rate"), check_rate(new_rate, "new_rate"))
    check_float(waveform)
    if up == down:
        return waveform
    samples = waveform.detach().cpu()
    if samples.dtype not in (torch.float32, torch.float64):
        samples = samples.float()
    return torch.from_numpy(polyphase(samples.numpy(), up, down)).to(waveform)


def resampling_reach(orig_rate: int, new_rate: int) -> int:
    """Return how many samples before and after its place a sample of `resample` depends on.

    Both ends of a part that is resampled on its own need that much context to equal the same part
    of the whole, and the part must start at a multiple of orig_rate / gcd(orig_rate, new_rate).

    Example:
        >>> resampling_reach(48000, 16000)
        122
    """
    up, down = rate_ratio(orig_rate, new_rate)
    return _HALF_PERIODS * max(up, down) // up + 2


def polyphase(samples: np.ndarray[Any, Any], up: int, down: int) -> np.ndarray[Any, Any]:
    """Resample (..., time) by up / down."""
    taps: Any = _resampling_filter(max(up, down)).astype(samples.dtype)
    resampled = scipy.signal.resample_poly(samples, up, down, axis=-1, window=taps)
    return np.asarray(resampled)


@lru_cache(maxsize=16)
def _resampling_filter(factor: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return scipy.signal.firwin(
        2 * _HALF_PERIODS * factor + 1, _CUTOFF / factor, window=("kaiser", _KAISER_BETA)
    )


def rate_ratio(orig_rate: int, new_rate: int) -> tuple[int, int]:
    """Return the lowest whole numbers (up, down) in the ratio of the new rate to the old one."""
    divisor = math.gcd(orig_rate, new_rate)
    return new_rate // divisor, orig_rate // divisor
