"""Source-filter synthesis: pulses and noise through the spectral envelope of a bona fide waveform.

The second family of vocoders beside that of `resynthesis`: statistical synthesis and conversion
give speech a new source, often at another pitch. Rough, and quick enough to run on each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.augmentation.base import (
    Augmentation,
    Parameters,
    beside,
    draw_seeds,
    integers,
    row_noise,
    uniform,
    working_precision,
)
from asvspoof_cm.augmentation.resynthesis import analyse, at_level_of, hann_window
from asvspoof_cm.utils.checks import check_range

__all__ = [
    "PulseParameters",
    "PulseSynthesis",
    "cepstral_envelope",
    "estimate_pitch",
    "pulse_excitation",
]

_N_FFT: Final = 1024
_HOP_LENGTH: Final = 128
_PITCH_HZ: Final = (65, 400)
_VOICED: Final = 0.5  # the correlation one period apart from which a frame counts as voiced
_TINY: Final = 1e-8


@working_precision
def estimate_pitch(waveform: Tensor) -> Tensor:
    """Return the pitch of each frame in Hz, 0 where there is none.

    The lag of the highest autocorrelation from 65 to 400 Hz, in windows of 64 ms. It is as good as
    a rough vocoder needs and no more: nothing joins the frames.

    Args:
        waveform: `(n_rows, time)` at 16 kHz, more than 512 samples.

    Returns:
        `(n_rows, n_frames)`, a frame each 8 ms.

    Example:
        >>> import torch
        >>> x = torch.sin(2 * torch.pi * 200 * torch.arange(16000) / 16000)
        >>> float(estimate_pitch(x[None]).median())
        200.0
    """
    return _pitch(analyse(waveform, _N_FFT, _HOP_LENGTH), hann_window(_N_FFT, waveform))


def _pitch(spectrum: Tensor, window: Tensor) -> Tensor:
    shortest, longest = (SAMPLE_RATE // hz for hz in reversed(_PITCH_HZ))
    correlation = _autocorrelation(spectrum)
    best = correlation[:, shortest : longest + 1].max(dim=1)
    lag = best.indices + shortest
    of_window = _autocorrelation(torch.fft.rfft(window)[None, :, None])[0, :, 0]
    expected = correlation[:, 0] * (of_window / of_window[0])[lag]
    is_voiced = best.values > _VOICED * expected.clamp_min(_TINY)
    return torch.where(is_voiced, SAMPLE_RATE / lag, 0.0).to(window.dtype)


def _autocorrelation(spectrum: Tensor) -> Tensor:
    correlation: Tensor = torch.fft.irfft(spectrum.abs().square(), dim=1)
    return correlation


@working_precision
def pulse_excitation(noise: Tensor, pitch_hz: Tensor, breath: Tensor) -> Tensor:
    """Return pulses at the pitch where there is one, and noise where there is none.

    Args:
        noise: `(n_rows, time)`, white, of power 1.
        pitch_hz: `(n_rows, n_frames)`, 0 where unvoiced; see `estimate_pitch`.
        breath: `(n_rows,)`, the share of noise in what is voiced, 0 to 1.

    Example:
        >>> import torch
        >>> pitch_hz, breath = torch.full((1, 126), 125.0), torch.zeros(1)
        >>> pulses = pulse_excitation(torch.randn(1, 16000), pitch_hz, breath)
        >>> int((pulses > 0).sum())
        125
    """
    per_sample = interpolate(pitch_hz[:, None], size=noise.shape[1], mode="nearest")[:, 0]
    period = SAMPLE_RATE / per_sample.clamp_min(1.0)
    cycles = torch.cumsum(per_sample.double() / SAMPLE_RATE, dim=1).floor()
    is_pulse = torch.diff(cycles, dim=1, prepend=torch.zeros_like(cycles[:, :1])) > 0
    share = torch.where(per_sample > 0, breath[:, None], 1.0)
    return (1 - share).sqrt() * is_pulse * period.sqrt() + share.sqrt() * noise


@working_precision
def cepstral_envelope(magnitude: Tensor, order: Tensor) -> Tensor:
    """Return magnitude spectra without their fine structure.

    Args:
        magnitude: `(n_rows, n_bins, n_frames)`.
        order: `(n_rows,)`, how many cepstral coefficients are kept; fewer are smoother.

    Example:
        >>> import torch
        >>> flat = torch.ones(1, 513, 4)
        >>> bool(torch.allclose(cepstral_envelope(flat, torch.tensor([30])), flat))
        True
    """
    cepstrum = torch.fft.irfft(magnitude.clamp_min(_TINY).log(), dim=1)
    quefrency = torch.arange(cepstrum.shape[1], device=magnitude.device)
    quefrency = torch.minimum(quefrency, cepstrum.shape[1] - quefrency)
    kept = (quefrency[None] < order[:, None])[..., None]
    envelope: Tensor = torch.fft.rfft(cepstrum * kept, dim=1).real.exp()
    return envelope


@dataclass(frozen=True, kw_only=True, eq=False)
class PulseParameters(Parameters):
    """The source and the filter of each row of `PulseSynthesis`.

    Attributes:
        pitch_factor: `(n_rows,)`.
        breath: `(n_rows,)`, see `pulse_excitation`.
        order: `(n_rows,)`, see `cepstral_envelope`.
        seed: `(n_rows,)`, of the noise.
    """

    pitch_factor: Tensor
    breath: Tensor
    order: Tensor
    seed: Tensor


@dataclass(frozen=True, kw_only=True)
class PulseSynthesis(Augmentation[PulseParameters]):
    """Replace each row by pulses and noise through its envelope, at its level: a spoof.

    Args:
        pitch_factor: Range of what the pitch is multiplied by; 1 copies it.
        breath: Range of the share of noise in what is voiced.
        order: Range of the cepstral coefficients of the envelope.

    Example:
        >>> import torch
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> PulseSynthesis()(x, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([16000])
    """

    pitch_factor: tuple[float, float] = (0.75, 1.35)
    breath: tuple[float, float] = (0.0, 0.3)
    order: tuple[int, int] = (18, 48)

    parameters_type: ClassVar[type[Parameters]] = PulseParameters

    def __post_init__(self) -> None:
        check_range("pitch_factor", self.pitch_factor, 0.25, 4)
        check_range("breath", self.breath, 0, 1)
        check_range("order", self.order, 1, _N_FFT // 2)

    @property
    def min_samples(self) -> int:
        """Half the window, which is reflected at the ends; zeros are added up to it."""
        return _N_FFT // 2 + 1

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> PulseParameters:
        return PulseParameters(
            n_rows=n_rows,
            pitch_factor=uniform((n_rows,), self.pitch_factor, generator),
            breath=uniform((n_rows,), self.breath, generator),
            order=integers((n_rows,), self.order, generator),
            seed=draw_seeds(n_rows, generator),
        )

    def _apply(self, waveform: Tensor, parameters: PulseParameters) -> Tensor:
        time = waveform.shape[1]
        waveform = pad(waveform, (0, max(0, self.min_samples - time)))
        factor, breath, order = (
            beside(values, waveform)
            for values in (parameters.pitch_factor, parameters.breath, parameters.order)
        )
        window = hann_window(_N_FFT, waveform)
        original = analyse(waveform, _N_FFT, _HOP_LENGTH)
        pitch_hz = _pitch(original, window) * factor[:, None]
        source = pulse_excitation(row_noise(waveform, parameters.seed), pitch_hz, breath)
        envelope = cepstral_envelope(original.abs(), order)
        spectrum = analyse(source, _N_FFT, _HOP_LENGTH) * envelope
        copy = torch.istft(spectrum, _N_FFT, _HOP_LENGTH, window=window, length=waveform.shape[1])
        return at_level_of(waveform, copy)[:, :time]
