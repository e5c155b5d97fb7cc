"""A random band limit: recordings of another sample rate or bit rate, brought to ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, uniform
from asvspoof_cm.augmentation.filters import fir_filter
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_range

_N_TAPS = 255  # with the window, 350 Hz from pass to stop at 16 kHz, and 74 dB


@dataclass(frozen=True, kw_only=True)
class RandomBandLimit(Augmentation):
    """Cut each row off at a random frequency, steeply and without delay.

    Corpora differ in where their spectrum ends, by sample rate, codec and generator, and a
    countermeasure that learns these edges knows corpora, not synthesis.

    Args:
        high_hz: Range of the frequency, where the gain is −6 dB.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> RandomBandLimit()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    high_hz: tuple[float, float] = (3000.0, 8000.0)
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_range("high_hz", self.high_hz, 0, self.sample_rate / 2)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"high_hz": uniform((n_rows,), self.high_hz, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        dtype, device = waveform.dtype, waveform.device
        k = torch.arange(_N_TAPS, dtype=dtype, device=device) - _N_TAPS // 2
        per_sample = 2 * beside(drawn["high_hz"], waveform)[:, None] / self.sample_rate
        window = torch.blackman_window(_N_TAPS, periodic=False, dtype=dtype, device=device)
        taps = torch.sinc(per_sample * k) * window
        return fir_filter(waveform, taps / taps.sum(dim=1, keepdim=True), delay=_N_TAPS // 2)
