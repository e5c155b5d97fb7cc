"""Rooms without recordings of any: sound that decays after the direct path."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, row_noise, seeds, uniform
from asvspoof_cm.augmentation.filters import fir_filter, level
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_gain, check_range

_TINY = 1e-30
_DECADES = 3  # of the amplitude: the reverberation time is that of a decay by 60 dB


@dataclass(frozen=True, kw_only=True)
class RandomRoom(Augmentation):
    """Put each row into a room: noise that decays exponentially follows each sound.

    That is the classical model of late reverberation (Polack 1988). The direct sound stays where it
    is, and each row keeps its power.

    Args:
        decay_s: Range of the reverberation time, in which the sound decays by 60 dB.
        direct_db: Range of the level of the direct sound above all that follows.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> heard = RandomRoom()(torch.eye(1, 16000))  # a click
        >>> bool(heard[0, 0] == heard.max()), bool(heard[0, 1000].abs() > 0)
        (True, True)
    """

    decay_s: tuple[float, float] = (0.1, 0.6)
    direct_db: tuple[float, float] = (-3.0, 12.0)
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_range("decay_s", self.decay_s, 1e-3, 10)
        check_gain("direct_db", self.direct_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "decay_s": uniform((n_rows,), self.decay_s, generator),
            "direct_db": uniform((n_rows,), self.direct_db, generator),
            "seed": seeds(n_rows, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        # As long for every row, so that nothing depends on the others; later sound is below -60 dB.
        n_taps = min(waveform.shape[1], math.ceil(self.decay_s[1] * self.sample_rate))
        wet = fir_filter(waveform, self._response(waveform, drawn, n_taps))
        return wet * (level(waveform) / level(wet).clamp_min(_TINY))[:, None]

    def _response(self, like: Tensor, drawn: Drawn, n_taps: int) -> Tensor:
        """Return `(n_rows, n_taps)`: first 1, then noise of the energy 10^(−direct_db / 10)."""
        decay_s, direct_db = (beside(drawn[name], like) for name in ("decay_s", "direct_db"))
        tail = row_noise(like.new_empty(len(like), n_taps), drawn["seed"])
        times = torch.arange(n_taps, device=like.device, dtype=like.dtype) / self.sample_rate
        tail = tail * 10 ** (-_DECADES * times / decay_s[:, None])
        tail[:, 0] = 0
        energy = tail.square().sum(dim=1, keepdim=True).clamp_min(torch.finfo(like.dtype).tiny)
        response = tail * 10 ** (-direct_db[:, None] / 20) / energy.sqrt()
        response[:, 0] = 1
        return response
