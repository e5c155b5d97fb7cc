"""Arrays of any dtype as mono waveforms."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asvspoof_cm.audio.reading import MAX_CHANNELS, SAMPLE_RATE
from asvspoof_cm.audio.resampling import resample
from asvspoof_cm.utils.checks import check_rate

Waveform: TypeAlias = Tensor | NDArray[Any]


def as_mono(waveform: Waveform, *, allow_empty: bool = False) -> Tensor:
    """Return audio of any dtype, mono or (channels, time), as a float32 tensor of shape (time,).

    Signed integers are divided by their full range, uint8 is 128 ± 128 as in WAV files; channels
    are averaged. More channels than 64, or than samples, are refused as (time, channels).
    """
    samples = _as_array(waveform)
    shape = samples.shape
    if samples.ndim not in (1, 2):
        raise ValueError(f"`waveform` must have shape (time,) or (channels, time); got {shape}.")
    if samples.size == 0 and not allow_empty:
        raise ValueError(f"`waveform` must hold at least one sample; got shape {shape}.")
    if samples.ndim == 2 and (shape[0] > MAX_CHANNELS or 1 <= shape[1] < shape[0]):
        raise ValueError(
            f"`waveform` must have shape (channels, time) with at most {MAX_CHANNELS} channels, "
            f"fewer than samples; got {shape}. Did you pass (time, channels)? Transpose it: "
            "waveform.T."
        )
    mono = _as_float(samples)
    if mono.ndim == 2:
        mono = mono.mean(axis=0) if mono.size else mono.reshape(-1)
    is_finite = np.isfinite(mono)
    if not is_finite.all():
        is_large = samples.dtype.kind == "f" and bool(np.isfinite(samples).all())
        raise ValueError(
            f"`waveform` must be finite; {np.count_nonzero(~is_finite)} of its {len(mono)} "
            f"samples are {'too large for float32' if is_large else 'NaN or infinite'}."
        )
    # A copy where torch could not write: it would warn.
    return torch.from_numpy(np.require(mono, requirements=["C", "W"]))


def as_waveform(
    waveform: Waveform, sample_rate: int = SAMPLE_RATE, new_rate: int = SAMPLE_RATE
) -> Tensor:
    """Return what `as_mono` does, resampled to `new_rate`."""
    return resample(as_mono(waveform), check_rate(sample_rate), new_rate)


def _as_array(waveform: Any) -> NDArray[Any]:
    if isinstance(waveform, str | bytes | os.PathLike):
        raise TypeError(
            f"`waveform` must be an array of samples; got the path {waveform!r}. Read it with "
            "load_audio, or score it with Scorer.score_files."
        )
    if isinstance(waveform, np.ma.MaskedArray):
        raise TypeError("`waveform` must not be masked: which samples are meant? Fill or cut it.")
    if isinstance(waveform, Tensor):
        samples = waveform.detach().cpu()
        is_half = samples.dtype in (torch.float16, torch.bfloat16)
        return np.asarray(samples.float() if is_half else samples)
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
