"""The crops of one recording, at the rate and level that a model wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from asvspoof_cm.audio import (
    crop_starts,
    cut,
    set_level,
)
from asvspoof_cm.models import InputSettings

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
