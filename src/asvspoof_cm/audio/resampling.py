"""Sampling rates changed without aliasing."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.signal

from asvspoof_cm.utils.checks import check_float, check_rate

if TYPE_CHECKING:
    from torch import Tensor

# Half-length of the resampling filter in periods of the lower rate, and its -6 dB point relative to
# the lower Nyquist frequency: with a Kaiser window of this beta, images are at least 80 dB down.
_HALF_PERIODS = 40
_CUTOFF = 0.938
_KAISER_BETA = 8.6
_MAX_FACTOR = 50_000


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
        >>> import torch
        >>> resample(torch.randn(2, 44100), 44100, 16000).shape
        torch.Size([2, 16000])
    """
    import torch

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
    """
    up, down = rate_ratio(orig_rate, new_rate)
    return _HALF_PERIODS * max(up, down) // up + 2


def polyphase(samples: np.ndarray[Any, Any], up: int, down: int) -> np.ndarray[Any, Any]:
    """Resample (..., time) by up / down."""
    taps: Any = _resampling_filter(max(up, down)).astype(samples.dtype)
    return np.asarray(scipy.signal.resample_poly(samples, up, down, axis=-1, window=taps))


@lru_cache(maxsize=8)
def _resampling_filter(factor: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return scipy.signal.firwin(
        2 * _HALF_PERIODS * factor + 1, _CUTOFF / factor, window=("kaiser", _KAISER_BETA)
    )


def rate_ratio(orig_rate: int, new_rate: int) -> tuple[int, int]:
    """Return the lowest whole numbers (up, down) in the ratio of the new rate to the old one.

    The filter is as long as the larger, so a ratio that needs more than `_MAX_FACTOR`, as only odd
    rates above 50 kHz do, is rounded: by less than 20 parts in a million.
    """
    ratio = Fraction(new_rate, orig_rate)
    if ratio < 1:
        ratio = ratio.limit_denominator(_MAX_FACTOR)
    else:
        ratio = 1 / (1 / ratio).limit_denominator(_MAX_FACTOR)
    return ratio.numerator, ratio.denominator
