"""Coloured noise: hiss, hum of traffic, and what lies between."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.fft
import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, row_noise, seeds, uniform
from asvspoof_cm.augmentation.filters import add_noise
from asvspoof_cm.utils.checks import check_gain, check_snr

_DB_PER_OCTAVE = 6.0206  # of a spectrum whose amplitude is in proportion to frequency


@dataclass(frozen=True, kw_only=True)
class ColouredNoise(Augmentation):
    """Add noise whose spectrum rises or falls steadily, at a signal-to-noise ratio.

    Args:
        snr_db: Range of the signal-to-noise ratio.
        slope_db: Range of the slope in dB per octave: 0 is white, -3 pink, -6 brown noise.

    Example:
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> noisy = ColouredNoise(snr_db=(20, 20))(x)
        >>> round(float(20 * (x.norm() / (noisy - x).norm()).log10()), 2)
        20.0
    """

    snr_db: tuple[float, float] = (8.0, 40.0)
    slope_db: tuple[float, float] = (-7.0, 2.0)

    def __post_init__(self) -> None:
        check_snr("snr_db", self.snr_db)
        check_gain("slope_db", self.slope_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "snr_db": uniform((n_rows,), self.snr_db, generator),
            "slope_db": uniform((n_rows,), self.slope_db, generator),
            "seed": seeds(n_rows, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        noise = coloured_noise(waveform, beside(drawn["slope_db"], waveform), drawn["seed"])
        return add_noise(waveform, noise, drawn["snr_db"])


def coloured_noise(like: Tensor, slope_db: Tensor, seed: Tensor) -> Tensor:
    """Return noise like `like` `(n_rows, time)` with a slope `(n_rows,)` in dB per octave."""
    # Made as a spectrum: half the work of filtering noise in time. The lowest five bins have one
    # level, so that brown noise is no drift.
    n_fft = scipy.fft.next_fast_len(like.shape[1], real=True)
    n_bins = n_fft // 2 + 1
    parts = row_noise(like.new_empty(len(like), 2 * n_bins), seed)
    number = torch.arange(n_bins, device=like.device, dtype=like.dtype).clamp_min(5)
    shape = (number / n_bins) ** (slope_db[:, None] / _DB_PER_OCTAVE)
    spectrum = torch.complex(parts[:, :n_bins] * shape, parts[:, n_bins:] * shape)
    noise: Tensor = torch.fft.irfft(spectrum, n_fft)[:, : like.shape[1]]
    return noise
