"""A random smooth equalizer: another microphone, room or loudspeaker, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.fft
import torch
from torch import Tensor

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.augmentation.base import (
    Augmentation,
    Drawn,
    beside,
    check_gain,
    uniform,
    working_precision,
)
from asvspoof_cm.frontends import hz_to_mel

_N_PADDING = 1024  # what the filter rings on into, so that the end does not reach the start


@working_precision
def equalize(waveform: Tensor, gain_db: Tensor, *, sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Filter each waveform with gains that run straight, in dB, from point to point.

    The filter has no phase: nothing is delayed. Each row keeps its power.

    Args:
        waveform: `(n_rows, time)`.
        gain_db: `(n_rows, n_points)`, from 0 Hz to half the sample rate, evenly on the Mel scale.
        sample_rate: In Hz.
    """
    n_fft = scipy.fft.next_fast_len(waveform.shape[1] + _N_PADDING, real=True)
    n_points = gain_db.shape[1]
    if gain_db.dim() != 2 or len(gain_db) != len(waveform) or n_points < 2:
        raise ValueError(
            f"`gain_db` must have shape ({len(waveform)}, n_points), with two points or more; got "
            f"{tuple(gain_db.shape)}."
        )
    bins = torch.fft.rfftfreq(n_fft, 1 / sample_rate, device=waveform.device)
    highest = hz_to_mel(torch.tensor(sample_rate / 2, device=waveform.device))
    place = hz_to_mel(bins) / highest * (n_points - 1)
    left = place.floor().clamp_max(n_points - 2).long()
    share = (place - left).to(waveform.dtype)
    curve_db = gain_db[:, left] * (1 - share) + gain_db[:, left + 1] * share
    spectrum = torch.fft.rfft(waveform, n=n_fft) * 10 ** (curve_db / 20)
    filtered: Tensor = torch.fft.irfft(spectrum, n=n_fft)[:, : waveform.shape[1]]
    power, new_power = (x.square().sum(dim=1, keepdim=True) for x in (waveform, filtered))
    tiny = torch.finfo(waveform.dtype).tiny
    result: Tensor = filtered * (power / new_power.clamp_min(tiny)).sqrt()
    return result


@dataclass(frozen=True, kw_only=True)
class RandomEqualizer(Augmentation):
    """Give each row a random smooth frequency response, at the power it had.

    A countermeasure that knows corpora by their channel learns nothing about synthesis; with this
    the long-term spectrum tells it less.

    Args:
        gain_db: Range of the gain at each point.
        n_points: From 0 Hz to half the sample rate, evenly on the Mel scale.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> import torch
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> RandomEqualizer()(x, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([16000])
    """

    gain_db: tuple[float, float] = (-12.0, 12.0)
    n_points: int = 8
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_gain("gain_db", self.gain_db)
        if self.n_points < 2:
            raise ValueError(f"`n_points` must be at least 2; got {self.n_points}.")

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        gains = uniform((n_rows, self.n_points), self.gain_db, generator)
        return {
            "gain_db": gains,
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        gain_db = beside(drawn["gain_db"], waveform)
        return equalize(waveform, gain_db, sample_rate=self.sample_rate)
