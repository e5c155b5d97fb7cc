"""The TFPARN paper's augmentations (section III-B.2): FIR with tanh, Butterworth, white noise.

The paper calls them RawBoost; they are not those of Tak et al. (2022), which are in `RawBoost`. Its
text gives formulas, the probability and the SNR. The ranges are those of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

import scipy.signal
import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import (
    SNR_DB,
    Augmentation,
    Drawn,
    chance,
    integers,
    row_noise,
    uniform,
)
from asvspoof_cm.augmentation.compose import OneOf
from asvspoof_cm.augmentation.filters import add_noise, fir_filter, sos_filtfilt
from asvspoof_cm.labels import SAMPLE_RATE

PassBand: TypeAlias = Literal["lowpass", "highpass", "bandpass"]
# The ranges of the authors' code: of algorithm 1 the taps, the probability of the tanh and its α.
N_TAPS, TANH_P, ALPHA = (5, 14), 0.5, (0.1, 0.5)


@dataclass(frozen=True, kw_only=True)
class RandomFIR(Augmentation):
    """Algorithm 1: x̃ = x ∗ h with a random short FIR h, then tanh(αx̃) for some of the rows.

    The coefficients are standard normal, divided by the sum of their magnitudes. The convolution is
    centred, as ``mode="same"`` of `scipy.signal.convolve`. The level is not restored.
    """

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        n_taps = integers((n_rows, 1), N_TAPS, generator)
        n_most = int(n_taps.max())
        taps = torch.randn(n_rows, n_most, dtype=torch.float64, generator=generator)
        # The middle of each filter lies where that of the longest does.
        place = torch.arange(n_most) - (n_most - 1) // 2 + (n_taps - 1) // 2
        taps = taps * ((place >= 0) & (place < n_taps))
        taps = taps / taps.abs().sum(dim=1, keepdim=True)
        alpha = uniform((n_rows,), ALPHA, generator) * chance(n_rows, TANH_P, generator)
        return {"taps": taps, "alpha": alpha}  # an α of 0 leaves x̃ as it is

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        taps = drawn["taps"]
        filtered = fir_filter(waveform, taps, (taps.shape[1] - 1) // 2).contiguous()
        for row, alpha in enumerate(drawn["alpha"].tolist()):
            if alpha > 0:  # tanh costs as much as the filter: only where it is wanted
                filtered[row].mul_(alpha).tanh_()
        return filtered


@dataclass(frozen=True, kw_only=True)
class _Butterworth(Augmentation):
    kind: PassBand
    low_hz: tuple[float, float] = (200.0, 1000.0)
    high_hz: tuple[float, float] = (3000.0, 6000.0)
    ranges: ClassVar = {"low_hz": (0, SAMPLE_RATE / 2), "high_hz": (0, SAMPLE_RATE / 2)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        cut_offs = zip(drawn["low_hz"].tolist(), drawn["high_hz"].tolist(), strict=True)
        sections = [butterworth_sos(self.kind, low, high) for low, high in cut_offs]
        return sos_filtfilt(waveform, torch.stack(sections))


class RandomButterworth(OneOf):
    """Algorithm 2: a random low-, high- or band-pass Butterworth filter, forward and backward.

    The kind is uniform over the three. Both passes together are `scipy.signal.filtfilt`: no delay,
    and twice the attenuation in dB. A band-pass of order n has n poles at either edge.
    """

    def __init__(self) -> None:
        low_pass = _Butterworth(kind="lowpass", high_hz=(1000.0, 4000.0))
        super().__init__([low_pass, _Butterworth(kind="highpass"), _Butterworth(kind="bandpass")])


def butterworth_sos(kind: PassBand, low_hz: float, high_hz: float, order: int = 4) -> Tensor:
    """Return a Butterworth filter as second-order sections, `(n_sections, 6)`."""
    cut_offs: Any = {"lowpass": high_hz, "highpass": low_hz, "bandpass": [low_hz, high_hz]}
    sections = scipy.signal.butter(order, cut_offs[kind], kind, output="sos", fs=SAMPLE_RATE)
    return torch.from_numpy(sections)


@dataclass(frozen=True, kw_only=True)
class WhiteNoise(Augmentation):
    """Algorithm 3: white Gaussian noise at an SNR uniform in `snr_db`, met exactly.

    Args:
        snr_db: Range of the SNR; ``(inf, inf)`` adds nothing.

    Example:
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> noisy = WhiteNoise(snr_db=(20, 20))(x)
        >>> round(float(10 * torch.log10(x.square().sum() / (noisy - x).square().sum())), 3)
        20.0
    """

    ranges: ClassVar = {"snr_db": SNR_DB}
    needs_seed = True
    snr_db: tuple[float, float] = (10.0, 40.0)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        return add_noise(waveform, row_noise(waveform, drawn["seed"]), drawn["snr_db"])


class TFPARNAugment(OneOf):
    """The paper's augmentation: with probability `p`, one of its three algorithms per row.

    Args:
        p: Probability that a row is augmented.

    Example:
        >>> TFPARNAugment(p=0.5)(torch.randn(4, 16000)).shape
        torch.Size([4, 16000])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__([RandomFIR(), RandomButterworth(), WhiteNoise()], p=p)

    @classmethod
    def authors(cls) -> Self:
        """Return what the authors ran: the default, as the text leaves the ranges open."""
        return cls(p=0.5)
