"""Gains: one for all frequencies, or a smooth response, as of another microphone or room."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.fft
import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, uniform
from asvspoof_cm.frontends import hz_to_mel
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_between, check_gain

_N_PADDING = 1024  # what the filter rings on into, so that the end does not reach the start


@dataclass(frozen=True, kw_only=True)
class Gain(Augmentation):
    """Multiply each row by a gain uniform in dB; nothing is clipped.

    Args:
        gain_db: Range of the gain.

    Example:
        >>> Gain(gain_db=(-20, -20))(torch.ones(3))
        tensor([0.1000, 0.1000, 0.1000])
    """

    gain_db: tuple[float, float] = (-12.0, 6.0)

    def __post_init__(self) -> None:
        check_gain("gain_db", self.gain_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"gain_db": uniform((n_rows,), self.gain_db, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        return waveform * 10 ** (beside(drawn["gain_db"], waveform) / 20)[:, None]


@dataclass(frozen=True, kw_only=True)
class RandomEqualizer(Augmentation):
    """Give each row a random smooth frequency response, at the power it had and without delay.

    A countermeasure that knows corpora by their channel learns nothing about synthesis; with this
    the long-term spectrum tells it less.

    Args:
        gain_db: Range of the gain at each point; from point to point it runs straight, in dB.
        n_points: From 0 Hz to half the sample rate, evenly on the Mel scale.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> RandomEqualizer()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    gain_db: tuple[float, float] = (-12.0, 12.0)
    n_points: int = 8
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_gain("gain_db", self.gain_db)
        check_between("n_points", self.n_points, 2)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"gain_db": uniform((n_rows, self.n_points), self.gain_db, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        gain_db, n_samples = beside(drawn["gain_db"], waveform), waveform.shape[1]
        n_fft = scipy.fft.next_fast_len(n_samples + _N_PADDING, real=True)
        bins = torch.fft.rfftfreq(n_fft, 1 / self.sample_rate, device=waveform.device)
        highest = hz_to_mel(torch.tensor(self.sample_rate / 2, device=waveform.device))
        place = hz_to_mel(bins) / highest * (self.n_points - 1)
        left = place.floor().clamp_max(self.n_points - 2).long()
        share = (place - left).to(waveform.dtype)
        curve_db = gain_db[:, left] * (1 - share) + gain_db[:, left + 1] * share
        spectrum = torch.fft.rfft(waveform, n=n_fft) * 10 ** (curve_db / 20)
        filtered = torch.fft.irfft(spectrum, n=n_fft)[:, :n_samples]
        power, new_power = (x.square().sum(dim=1, keepdim=True) for x in (waveform, filtered))
        tiny = torch.finfo(waveform.dtype).tiny
        result: Tensor = filtered * (power / new_power.clamp_min(tiny)).sqrt()
        return result
