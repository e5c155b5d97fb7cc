"""From whatever audio arrives to the crops that a model scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asvspoof_cm.audio import (
    SAMPLE_RATE,
    crop_starts,
    cut,
    resample,
    set_level,
)
from asvspoof_cm.models import InputSettings
from asvspoof_cm.utils.checks import check_rate

__all__ = [
    "NO_SPEECH",
    "InMemory",
    "Readable",
    "Utterance",
    "Waveform",
    "as_mono",
    "as_waveform",
    "take_crops",
]

Waveform: TypeAlias = Tensor | NDArray[Any]

MAX_CHANNELS = 64
"""More channels than this are taken for a (time, channels) array and refused."""

SILENT_PEAK = 1e-4
"""Below this peak, 80 dB under full scale, an utterance is "silent"."""

CLIPPED_LEVEL, CLIPPED_SHARE = 0.999, 1e-3
"""An utterance is "clipped" if this share of its samples reaches this level of full scale."""

CONSTANT_SHARE = 0.01
"""An utterance is "constant" if what varies in it has less than this share of its power."""

SHORTEST_S = 0.5
"""What is shorter has, like silence and constants, nothing in it that could be judged."""

NO_SPEECH = "no speech to judge"
"""The warning of an utterance on which a decision abstains."""

BLOCK_SAMPLES = 1 << 18


class Readable(Protocol):
    """Audio whose length is known and whose samples can be read from anywhere: `AudioFile`."""

    n_samples: int

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, shape (time,)."""


class InMemory:
    """A waveform (time,) as something to read from."""

    def __init__(self, waveform: Tensor) -> None:
        self.waveform = waveform
        self.n_samples = len(waveform)

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`."""
        stop = None if n_samples is None else start + n_samples
        return self.waveform[start:stop]


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """The crops of one utterance and what is known about it.

    Attributes:
        crops: The distinct crops, at the model's rate and level, shape (n_distinct, time).
        which: The row of `crops` that each crop of the test-time augmentation is.
        duration_s: How long the utterance is.
        resampled_from: Its sampling rate where that was not the model's.
        warnings: What may make its score doubtful.
    """

    crops: Tensor
    which: Sequence[int]
    duration_s: float
    resampled_from: int | None
    warnings: tuple[str, ...]


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


def take_crops(
    source: Readable, settings: InputSettings, *, resampled_from: int | None = None
) -> Utterance:
    """Cut the crops of the test-time augmentation out of audio at the model's rate.

    They are those of `tta_crops`, each distinct one once, and at the level that the model wants.
    The audio is read once, in blocks, so that memory does not grow with its length.

    Example:
        >>> utterance = take_crops(InMemory(torch.linspace(0, 0.5, 64000)), InputSettings())
        >>> utterance.crops.shape, utterance.which, utterance.crops.max().item()
        (torch.Size([1, 64000]), [0, 0, 0, 0, 0], 1.0)
    """
    n_samples = settings.n_samples
    starts = crop_starts(source.n_samples, settings.n_crops, n_samples)
    distinct = sorted(set(starts))
    levels = _Levels(settings.sample_rate)
    crops = torch.empty(len(distinct), n_samples)
    if source.n_samples < n_samples:
        whole = source.read()
        levels.add(whole)
        for crop, start in zip(crops, distinct, strict=True):
            crop.copy_(cut(whole, start, n_samples))
    else:
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            block = source.read(first, BLOCK_SAMPLES)
            levels.add(block)
            for crop, start in zip(crops, distinct, strict=True):
                low, high = max(first, start), min(first + len(block), start + n_samples)
                if low < high:
                    crop[low - start : high - start] = block[low - first : high - first]
    return Utterance(
        crops=set_level(crops, settings.normalization, levels.peak),
        which=[distinct.index(start) for start in starts],
        duration_s=source.n_samples / settings.sample_rate,
        resampled_from=resampled_from,
        warnings=levels.warnings(),
    )


class _Levels:
    """What the blocks of an utterance add up to."""

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.n_samples = 0
        self.n_clipped = 0
        self.peak = 0.0
        self.total = 0.0
        self.power = 0.0

    def add(self, block: Tensor) -> None:
        magnitude = block.abs()
        self.n_samples += len(block)
        self.peak = max(self.peak, magnitude.max().item())
        self.n_clipped += int(torch.count_nonzero(magnitude >= CLIPPED_LEVEL))
        self.total += block.sum(dtype=torch.float64).item()
        self.power += block.square().sum(dtype=torch.float64).item()

    def warnings(self) -> tuple[str, ...]:
        is_silent = self.peak < SILENT_PEAK
        varying = self.power - self.total**2 / self.n_samples
        is_constant = not is_silent and varying < CONSTANT_SHARE * self.power
        is_short = self.n_samples < SHORTEST_S * self.sample_rate
        found = {
            NO_SPEECH: is_silent or is_constant or is_short,
            "silent": is_silent,
            "constant": is_constant,
            "clipped": self.n_clipped >= CLIPPED_SHARE * self.n_samples,
            "shorter than 1 s": self.n_samples < self.sample_rate,
        }
        return tuple(name for name, is_so in found.items() if is_so)


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
