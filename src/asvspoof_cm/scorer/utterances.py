"""The crops of one recording, at the rate and level that a model wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asvspoof_cm.audio import InputSettings, OpenAudio, crop_starts, cut, set_level

SILENT_PEAK = 1e-4  # 80 dB below full scale
CLIPPED_LEVEL, CLIPPED_SHARE = 0.999, 1e-3  # of full scale, of the samples
CONSTANT_SHARE = 0.01  # of the power in what varies
SHORTEST_S = 0.5  # what is shorter has nothing in it that could be judged
LEAST_COVERED = 0.25  # of an utterance in its crops
NO_SPEECH = "no speech to judge"
"""The warning of an utterance on which a decision abstains."""

BLOCK_SAMPLES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """The distinct crops (n_distinct, time) of one utterance and what is known about it.

    `which` is the row of `crops` that each crop of the test-time augmentation is.
    """

    crops: Tensor
    which: Sequence[int]
    duration_s: float
    resampled_from: int | None
    warnings: tuple[str, ...]


def take_crops(source: OpenAudio, settings: InputSettings) -> Utterance:
    """Return the crops of the test-time augmentation, cut out of audio at the model's rate.

    They are those of `tta_crops`, each distinct one once, and at the level that the model wants.
    The audio is read once, in blocks, so that memory does not grow with its length.
    """
    n_samples, rate = settings.n_samples, settings.sample_rate
    starts = crop_starts(source.n_samples, settings.n_crops, n_samples, one_crop=settings.one_crop)
    distinct = sorted(set(starts))
    levels = _Levels()
    crops = np.empty((len(distinct), n_samples), np.float32)
    if source.n_samples < n_samples:
        whole = source.read()
        levels.add(whole)
        for crop, start in zip(crops, distinct, strict=True):
            crop[:] = cut(whole, start, n_samples)
    else:
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            block = source.read(first, BLOCK_SAMPLES)
            levels.add(block)
            for crop, start in zip(crops, distinct, strict=True):
                low, high = max(first, start), min(first + len(block), start + n_samples)
                if low < high:
                    crop[low - start : high - start] = block[low - first : high - first]
    return Utterance(
        crops=torch.from_numpy(set_level(crops, settings.normalization, levels.peak)),
        which=[distinct.index(start) for start in starts],
        duration_s=source.n_samples / rate,
        resampled_from=None if source.native_rate == rate else source.native_rate,
        warnings=_warnings(levels, rate, len(distinct) * n_samples),
    )


class _Levels:
    """What the blocks of an utterance add up to."""

    def __init__(self) -> None:
        self.n_samples = self.n_clipped = 0
        self.peak = self.total = self.power = 0.0

    def add(self, block: NDArray[np.float32]) -> None:
        magnitude = np.abs(block)
        self.n_samples += len(block)
        self.peak = max(self.peak, float(magnitude.max()))
        self.n_clipped += int(np.count_nonzero(magnitude >= CLIPPED_LEVEL))
        self.total += float(block.sum(dtype=np.float64))
        self.power += float(np.square(block, dtype=np.float64).sum())


def _warnings(levels: _Levels, rate: int, n_in_crops: int) -> tuple[str, ...]:
    n_samples = levels.n_samples
    is_silent = levels.peak < SILENT_PEAK
    varying = levels.power - levels.total**2 / n_samples
    is_constant = not is_silent and varying < CONSTANT_SHARE * levels.power
    heard = f"the crops hold {n_in_crops / rate:.0f} of {n_samples / rate:.0f} s: see timeline"
    found = {
        NO_SPEECH: is_silent or is_constant or n_samples < SHORTEST_S * rate,
        "silent": is_silent,
        "constant": is_constant,
        "clipped": levels.n_clipped >= CLIPPED_SHARE * n_samples,
        "shorter than 1 s": n_samples < rate,
        heard: n_in_crops < LEAST_COVERED * n_samples,
    }
    return tuple(name for name, is_so in found.items() if is_so)
