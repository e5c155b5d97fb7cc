"""Arrays of any dtype as mono waveforms."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asvspoof_cm.audio.waveforms import SAMPLE_RATE, resample
from asvspoof_cm.utils.checks import check_rate

Waveform: TypeAlias = Tensor | NDArray[Any]

MAX_CHANNELS = 64
"""More channels than this are taken for a (time, channels) array and refused."""


def as_mono(waveform: Waveform, *, allow_empty: bool = False) -> Tensor:
    """Return audio of any dtype, mono or (channels, time), as a float32 tensor of shape (time,).

    Signed integers are divided by their full range, uint8 is 128 ± 128 as in WAV files; channels
    are averaged.

    Raises:
        TypeError: The dtype is not that of audio.
        ValueError: There are no samples, more than 64 channels, or NaN or infinite samples.

    Example:
        >>> as_mono(np.array([[0, 16384], [0, -32768]], dtype=np.int16))
        tensor([ 0.0000, -0.2500])
    """
    samples = _as_array(waveform)
    if samples.ndim not in (1, 2):
        raise ValueError(
            f"`waveform` must have shape (time,) or (channels, time); got {samples.shape}."
        )
    if samples.ndim == 2 and samples.shape[0] > MAX_CHANNELS:
        raise ValueError(
            f"`waveform` must have shape (channels, time) with at most {MAX_CHANNELS} channels; "
            f"got {samples.shape}. Did you pass (time, channels)? Transpose it: waveform.T."
        )
    if samples.size == 0 and not allow_empty:
        raise ValueError(f"`waveform` must hold at least one sample; got shape {samples.shape}.")
    mono = _as_float(samples)
    if mono.ndim == 2:
        mono = mono.mean(axis=0) if mono.size else mono.reshape(-1)
    is_finite = np.isfinite(mono)
    if not is_finite.all():
        raise ValueError(
            f"`waveform` must be finite; {np.count_nonzero(~is_finite)} of its {len(mono)} "
            "samples are NaN or infinite."
        )
    return torch.from_numpy(np.ascontiguousarray(mono))


def as_waveform(
    waveform: Waveform, sample_rate: int = SAMPLE_RATE, new_rate: int = SAMPLE_RATE
) -> Tensor:
    """Return what `as_mono` does, resampled to `new_rate`.

    Example:
        >>> as_waveform(np.zeros((2, 48000)), 48000).shape
        torch.Size([16000])
    """
    return resample(as_mono(waveform), check_rate(sample_rate), new_rate)


def _as_array(waveform: Waveform) -> NDArray[Any]:
    if isinstance(waveform, Tensor):
        waveform = waveform.detach().cpu()
        if waveform.dtype in (torch.float16, torch.bfloat16):
            waveform = waveform.float()
        return waveform.numpy()
    return np.asarray(waveform)


def _as_float(samples: NDArray[Any]) -> NDArray[np.float32]:
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        full_scale = np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))
        return np.asarray(samples.astype(np.float32) / full_scale, dtype=np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    raise TypeError(
        "`waveform` must hold floats, signed integers or uint8 (offset by 128); got "
        f"{samples.dtype}."
    )
