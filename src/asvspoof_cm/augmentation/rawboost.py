"""RawBoost, algorithms 1 to 8, for waveforms in [-1, 1].

H. Tak et al., "RawBoost: a raw data boosting and augmentation method applied to automatic speaker
verification anti-spoofing", ICASSP 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import (
    SNR_DB,
    Augmentation,
    Drawn,
    beside,
    integers,
    row_generators,
    row_noise,
    uniform,
)
from asvspoof_cm.augmentation.compose import Compose, RandomApply
from asvspoof_cm.augmentation.filters import add_noise, fir_filter, limit_peak, polynomial_filter
from asvspoof_cm.labels import SAMPLE_RATE

# As published: how many powers of the waveform are filtered; of each filter the notches, and of
# each notch the coefficients (an even number getting one more), the centre and the width; how far
# the gain of each filter but the first lies below that.
N_ORDERS, N_NOTCHES, N_TAPS = 5, 5, (10, 99)
CENTRE_HZ, WIDTH_HZ, BIAS_DB = (20.0, 8000.0), (100.0, 1000.0), (5.0, 20.0)
# The largest share of samples that impulses change, and their gain: P and g_sd of the paper.
MAX_SHARE, GAIN = 0.1, 2.0


def draw_notches(n_rows: int, n_filters: int, generator: torch.Generator) -> Drawn:
    """Return `n_filters` filters per row; all but the first have a gain of −`BIAS_DB`."""
    shape = (n_rows, n_filters, N_NOTCHES)
    n_taps = integers(shape, N_TAPS, generator)
    gain_db = torch.zeros(n_rows, n_filters, dtype=torch.float64)
    gain_db[:, 1:] = -uniform((n_rows, n_filters - 1), BIAS_DB, generator)
    return {
        "centre_hz": uniform(shape, CENTRE_HZ, generator),
        "width_hz": uniform(shape, WIDTH_HZ, generator),
        "n_taps": n_taps + (n_taps + 1) % 2,
        "gain_db": gain_db,
    }


def notch_taps(drawn: Drawn, waveform: Tensor) -> Tensor:
    """Return the filters `(n_rows, n_filters, n)`, centred in n samples, beside `waveform`.

    Each is a cascade of band-stop FIRs, Hamming-windowed and symmetric, that pass all but
    [centre − width/2, centre + width/2]. Its largest gain, over 512 frequencies, is that drawn.
    """
    half = (drawn["n_taps"] - 1) // 2
    n_half, longest = int(half.sum(dim=-1).max()), int(half.max())
    nyquist_hz = SAMPLE_RATE / 2
    edges_hz = (drawn["centre_hz"] + side * drawn["width_hz"] / 2 for side in (-1, 1))
    low, high = (
        beside(edge_hz.clamp(1e-3, nyquist_hz - 1e-3) / nyquist_hz, waveform)[..., None]
        for edge_hz in edges_hz
    )
    half, gain_db = beside(half, waveform), beside(drawn["gain_db"], waveform)
    # One side of each symmetric band-stop: everything less the band, under the window.
    m = torch.arange(longest + 1, device=waveform.device, dtype=waveform.dtype)
    side = low * torch.sinc(low * m) - high * torch.sinc(high * m)
    side[..., 0] += 1
    window = 0.54 + 0.46 * torch.cos(torch.pi * m / half.clamp_min(1)[..., None])
    side = side * window * (m <= half[..., None])
    # A symmetric filter has a real response, h[0] + 2 Σ h[m] cos(ωm); a cascade multiplies.
    n_fft = max(1024, 1 << (2 * n_half).bit_length())
    responses = 2 * torch.fft.rfft(side, n_fft).real - side[..., :1]
    # The published design scales each filter to 1 at 0 Hz. Of that, only the sign outlives the
    # scaling of the whole, and a filter whose notch covers 0 Hz can't be divided by its gain.
    sign = torch.where(responses[..., :1] < 0, -1, 1)
    response = (responses * sign).prod(dim=-2)
    grid = response[..., : -1 : n_fft // 1024]
    gain = 10 ** (gain_db / 20) / grid.abs().amax(dim=-1)
    impulse = torch.fft.irfft(response * gain[..., None], n_fft)
    return torch.cat((impulse[..., n_fft - n_half :], impulse[..., : n_half + 1]), dim=-1)


@dataclass(frozen=True, kw_only=True)
class ConvolutiveNoise(Augmentation):
    """LnL, algorithm 1: y = Σ_i h_i ∗ x^i with notch filters h_i, i from 1 to 5.

    The mean is subtracted, and the result divided by its peak where that exceeds 1.

    Note:
        The filters' delay is removed exactly. The published code removes one sample more.
    """

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return draw_notches(n_rows, N_ORDERS, generator)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        taps = notch_taps(drawn, waveform)
        distorted = polynomial_filter(waveform, taps, (taps.shape[-1] - 1) // 2)
        return limit_peak(distorted - distorted.mean(dim=-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class ImpulsiveNoise(Augmentation):
    """ISD, algorithm 2: impulses in proportion to the samples they change.

    y[t] = x[t] (1 + 2 u v) at ⌊share · n⌋ random places t, u and v in U(−1, 1), the share in
    U(0, 0.1). The result is divided by its peak where that exceeds 1.
    """

    needs_seed = True

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        share = uniform((n_rows,), (0, MAX_SHARE), generator)
        return {"share": share, **super()._draw(n_rows, n_samples, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        n_samples, dtype = waveform.shape[1], waveform.dtype
        counts = (drawn["share"] * n_samples).long().tolist()
        # On the CPU, whose generator can be asked how many places are left without waiting for it.
        factor, generators = torch.ones(waveform.shape, dtype=dtype), row_generators(drawn["seed"])
        for row, count, generator in zip(factor, counts, generators, strict=True):
            u, v = 2 * torch.rand(2, count, dtype=dtype, generator=generator) - 1
            row[_random_places(n_samples, count, generator)] += GAIN * u * v
        return limit_peak(waveform * beside(factor, waveform))


def _random_places(n_samples: int, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` of `n_samples` places, drawn without replacement, in ascending order."""
    # Several times faster than a permutation of all. Of more than half, those left out are drawn.
    few = min(count, n_samples - count)
    joined = torch.zeros(n_samples, dtype=torch.bool)
    while (missing := few - int(joined.count_nonzero())) > 0:
        joined[torch.randint(n_samples, (missing,), generator=generator)] = True
    return (joined if few == count else ~joined).nonzero()[:, 0]


@dataclass(frozen=True, kw_only=True)
class StationaryNoise(Augmentation):
    """SSI, algorithm 3: white noise through a notch filter, added at exactly a drawn SNR.

    Args:
        snr_db: Range of the SNR.
    """

    ranges: ClassVar = {"snr_db": SNR_DB}
    needs_seed = True
    snr_db: tuple[float, float] = (10.0, 40.0)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        notch = draw_notches(n_rows, 1, generator)
        return {"notch": notch, **super()._draw(n_rows, n_samples, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        taps = notch_taps(drawn["notch"], waveform)[:, 0]
        white = row_noise(waveform, drawn["seed"])
        coloured = fir_filter(white, taps, (taps.shape[-1] - 1) // 2)
        return add_noise(waveform, coloured, drawn["snr_db"])


class _ParallelSum(Compose):
    """The sum of what each augmentation makes of the same input, peak-limited."""

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        stages = zip(self.augmentations, drawn["stages"], strict=True)
        return limit_peak(torch.stack([a.apply(waveform, of_a) for a, of_a in stages]).sum(0))


_LNL, _ISD, _SSI = ConvolutiveNoise, ImpulsiveNoise, StationaryNoise
_STAGES: dict[int, tuple[type[Augmentation], ...]] = {
    1: (_LNL,), 2: (_ISD,), 3: (_SSI,), 4: (_LNL, _ISD, _SSI), 5: (_LNL, _ISD), 6: (_LNL, _SSI),
    7: (_ISD, _SSI), 8: (_LNL, _ISD),
}  # fmt: skip


class RawBoost(RandomApply):
    """RawBoost, algorithms 1 to 8, as published.

    1 LnL, 2 ISD, 3 SSI; in turn: 4 = 1, 2, 3; 5 = 1, 2; 6 = 1, 3; 7 = 2, 3; 8 = 1 and 2 of the
    same input, summed, and divided by the peak where that exceeds 1.

    Args:
        algorithm: 1 to 8.
        p: Probability that a row is augmented.

    Example:
        >>> RawBoost(algorithm=5)(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    def __init__(self, algorithm: int = 4, p: float = 1.0) -> None:
        if algorithm not in _STAGES:
            raise ValueError(f"`algorithm` must be 1 to 8; got {algorithm!r}.")
        combine = _ParallelSum if algorithm == 8 else Compose
        super().__init__(combine([stage() for stage in _STAGES[algorithm]]), p)
