"""RawBoost's notch filters: their design, and the ranges they are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Drawn, beside, integers, uniform
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_between, check_gain, check_range


@dataclass(frozen=True, kw_only=True)
class NotchBands:
    """The ranges that notch filters are drawn from; defaults as published.

    Args:
        n_bands: Notches in a filter.
        centre_hz: Range of a notch's centre.
        width_hz: Range of a notch's width.
        n_taps: Range of a notch's number of coefficients, the upper end excluded; an even
            number gets one more.
        gain_db: Range of a filter's gain.
        sample_rate: Of the waveforms, in Hz.
    """

    n_bands: int = 5
    centre_hz: tuple[float, float] = (20.0, 8000.0)
    width_hz: tuple[float, float] = (100.0, 1000.0)
    n_taps: tuple[int, int] = (10, 100)
    gain_db: tuple[float, float] = (0.0, 0.0)
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_between("n_bands", self.n_bands, 1)
        check_range("centre_hz", self.centre_hz, 0, self.sample_rate / 2)
        check_range("width_hz", self.width_hz, 1)
        check_range("n_taps", self.n_taps, 1)
        check_gain("gain_db", self.gain_db)

    def draw(
        self,
        n_rows: int,
        n_filters: int,
        generator: torch.Generator,
        bias_db: tuple[float, float] = (0.0, 0.0),
    ) -> Drawn:
        """Return `n_filters` filters per row; all but the first have the gain less `bias_db`."""
        shape = (n_rows, n_filters, self.n_bands)
        low, high = self.n_taps
        n_taps = integers(shape, (low, max(low, high - 1)), generator)
        gain_db = uniform((n_rows, n_filters), self.gain_db, generator)
        biased = (self.gain_db[0] - bias_db[0], self.gain_db[1] - bias_db[1])
        gain_db[:, 1:] = uniform((n_rows, n_filters - 1), biased, generator)
        return {
            "centre_hz": uniform(shape, self.centre_hz, generator),
            "width_hz": uniform(shape, self.width_hz, generator),
            "n_taps": n_taps + (n_taps + 1) % 2,
            "gain_db": gain_db,
        }

    def taps(self, drawn: Drawn, waveform: Tensor) -> Tensor:
        """Return the filters `(n_rows, n_filters, n)`, on the device of `waveform`.

        Each is a cascade of band-stop FIRs, Hamming-windowed and symmetric, that pass all but
        [centre − width/2, centre + width/2], cut at 0 and at half the sample rate. The cascade's
        largest gain, over 512 frequencies, is that drawn. n is odd, of the longest cascade of all;
        the others are centred between zeros.
        """
        half = (drawn["n_taps"] - 1) // 2
        n_half, longest = int(half.sum(dim=-1).max()), int(half.max())
        half, centre_hz, width_hz, gain_db = (
            beside(values, waveform)
            for values in (half, drawn["centre_hz"], drawn["width_hz"], drawn["gain_db"])
        )
        nyquist_hz = self.sample_rate / 2
        low = ((centre_hz - width_hz / 2).clamp_min(1e-3) / nyquist_hz)[..., None]
        high = ((centre_hz + width_hz / 2).clamp_max(nyquist_hz - 1e-3) / nyquist_hz)[..., None]
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
