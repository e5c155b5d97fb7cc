"""Spoofs made of bona fide speech: copies by a vocoder of signal processing.

They share their speaker, words and channel with the recording, so that only the synthesis tells the
two apart (Wang and Yamagishi, "Spoofed training data for speech spoofing countermeasure can be
efficiently created using neural vocoders", ICASSP 2023).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import fold, pad

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, integers, row_noise
from asvspoof_cm.augmentation.filters import at_level
from asvspoof_cm.frontends import mel_filterbank, stft
from asvspoof_cm.labels import SAMPLE_RATE

_TINY = 1e-8
_MOMENTUM = 0.99
# n_fft, hop_length, Mel bands and iterations. Fewer bands blur the harmonics more, fewer iterations
# leave a rougher phase.
_VOCODERS = (
    (512, 128, 40, 16),
    (512, 160, 64, 6),
    (1024, 200, 80, 24),
    (1024, 256, 80, 10),
    (1024, 256, 120, 3),
    (2048, 320, 128, 8),
)


@dataclass(frozen=True, kw_only=True)
class CopySynthesis(Augmentation):
    """Replace each row by a copy from one of six vocoders, at its level. It counts as spoof.

    Args:
        detail: Range of the share of fine structure kept, as a power: 0 is the smooth magnitude of
            the Mel bands alone, 1 that of the waveform.

    Example:
        >>> CopySynthesis()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    ranges: ClassVar = {"detail": (0, 1)}
    needs_seed = True
    detail: tuple[float, float] = (0.0, 0.7)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        choice = integers((n_rows,), (0, len(_VOCODERS) - 1), generator)
        return {"choice": choice, **super()._draw(n_rows, n_samples, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        time = waveform.shape[1]
        # Half of the longest window is reflected at the ends.
        waveform = pad(waveform, (0, max(0, max(_VOCODERS)[0] // 2 + 1 - time)))
        copies = torch.empty_like(waveform)
        for number in sorted(set(drawn["choice"].tolist())):
            rows = (drawn["choice"] == number).nonzero()[:, 0]
            chosen, detail = beside(rows, waveform), beside(drawn["detail"][rows], waveform)
            n_fft, hop_length, n_mels, n_iterations = _VOCODERS[number]
            window = torch.hann_window(n_fft, dtype=waveform.dtype, device=waveform.device)
            spectrum = stft(waveform[chosen], window, hop_length=hop_length)
            magnitude = mel_magnitude(spectrum.abs(), n_mels, detail)
            start = row_noise(waveform[chosen], drawn["seed"][rows])
            copies[chosen] = reconstruct_phase(magnitude, start, hop_length, n_iterations)
        return at_level(copies, waveform)[:, :time]


def mel_magnitude(magnitude: Tensor, n_mels: int, detail: Tensor) -> Tensor:
    """Return the magnitude `(n_rows, n_bins, n_frames)` that a Mel spectrogram of it gives back."""
    to_mel, from_mel = _mel_pair(n_mels, 2 * (magnitude.shape[1] - 1))
    mel = beside(to_mel, magnitude) @ magnitude
    smooth = (beside(from_mel, magnitude) @ mel).clamp_min(_TINY)
    kept = detail[:, None, None]
    return smooth ** (1 - kept) * magnitude.clamp_min(_TINY) ** kept


@functools.lru_cache(maxsize=32)
def _mel_pair(n_mels: int, n_fft: int) -> tuple[Tensor, Tensor]:
    to_mel = mel_filterbank(n_mels, n_fft, sample_rate=SAMPLE_RATE)
    return to_mel, torch.linalg.pinv(to_mel.double()).float()


def reconstruct_phase(
    magnitude: Tensor, start: Tensor, hop_length: int, n_iterations: int
) -> Tensor:
    """Return waveforms of about that magnitude, from the phase of waveforms `start` on.

    The fast Griffin-Lim algorithm (Perraudin, Balazs and Søndergaard, WASPAA 2013).
    """
    n_fft, time = 2 * (magnitude.shape[1] - 1), start.shape[1]
    window = torch.hann_window(n_fft, dtype=start.dtype, device=start.device)

    def synthesise(target: Tensor) -> Tensor:
        spectrum = magnitude * (target / target.abs().clamp_min(_TINY))
        return _overlap_add(spectrum, window, hop_length, time)

    target, previous = stft(start, window, hop_length=hop_length), None
    for _ in range(n_iterations):
        rebuilt = stft(synthesise(target), window, hop_length=hop_length)
        target = rebuilt if previous is None else rebuilt + _MOMENTUM * (rebuilt - previous)
        previous = rebuilt
    return synthesise(target)


def _overlap_add(spectrum: Tensor, window: Tensor, hop_length: int, time: int) -> Tensor:
    """Return what torch.istft does, without its question to the device whether windows add up."""
    n_fft = len(window)
    frames = torch.fft.irfft(spectrum, n_fft, dim=1) * window[:, None]
    n_samples = n_fft + hop_length * (frames.shape[2] - 1)
    weight = window.square()[None, :, None].expand(1, -1, frames.shape[2])
    total, norm = (
        fold(x, (1, n_samples), (1, n_fft), stride=(1, hop_length))[:, 0, 0, n_fft // 2 :]
        for x in (frames, weight)
    )
    joined = total[:, :time] / norm[:, :time].clamp_min(_TINY)
    return pad(joined, (0, time - joined.shape[1]))
