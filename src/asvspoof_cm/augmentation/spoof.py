"""Spoofs made of bona fide speech: shuffled segments (B12) and copies by a vocoder.

Shuffled segments resemble unit selection (attack A12 of ASVspoof 5), which waveform-level detectors
miss most. Vocoded copies share their speaker, words and channel with the recording, so that only
the synthesis tells the two apart (Wang and Yamagishi, "Spoofed training data for speech spoofing
countermeasure can be efficiently created using neural vocoders", ICASSP 2023); the vocoder here is
one of signal processing, quick enough to run on each batch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import fold, pad

from asvspoof_cm._util import as_generator, check_between, check_range
from asvspoof_cm.augmentation.base import (
    Augmentation,
    Drawn,
    beside,
    integers,
    row_noise,
    seeds,
    uniform,
)
from asvspoof_cm.frontends import mel_filterbank, stft
from asvspoof_cm.labels import BONAFIDE, SAMPLE_RATE, SPOOF

_TINY = 1e-8
_MOMENTUM = 0.99


@dataclass(frozen=True, kw_only=True)
class ShuffleSegments(Augmentation):
    """Cut each row, drop near-silent segments and shuffle the rest. The result counts as spoof.

    Args:
        mean_s: Mean lengths in seconds; each row takes one of them.
        variance_s2: Variance of the length, in s²; lengths are normal, at least one sample.
        silence: A segment is dropped where its mean |x| is below this share of the peak.
        sample_rate: Of the waveforms, in Hz.

    Note:
        The threshold is published for waveforms whose peak is 1, hence "share of the peak": the
        result doesn't depend on the level. What is kept is repeated up to the input's length. A
        row of near-silent segments only keeps them all. An order that would leave two or more
        kept segments as they were is rotated by one, so that no bona fide waveform comes out.

    Example:
        >>> ShuffleSegments()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    mean_s: tuple[float, ...] = (0.08, 0.2)
    variance_s2: float = 2.5e-5
    silence: float = 0.05
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        if not self.mean_s or min(self.mean_s) * self.sample_rate < 1:
            raise ValueError(
                "`mean_s` must hold lengths in seconds of at least one sample; "
                f"got {self.mean_s} at {self.sample_rate} Hz."
            )
        check_between("variance_s2", self.variance_s2, 0)
        check_between("silence", self.silence, 0, 1)

    @property
    def min_samples(self) -> int:
        """Two of the longest mean segments: a shorter waveform could come out as it was."""
        return math.ceil(2 * max(self.mean_s) * self.sample_rate)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        choice = integers((n_rows,), (0, len(self.mean_s) - 1), generator)
        mean_s = torch.tensor(self.mean_s, dtype=torch.float64)[choice, None]
        n_more = math.ceil(1.2 * n_samples / (min(self.mean_s) * self.sample_rate)) + 1
        lengths = torch.empty(n_rows, 0, dtype=torch.int64)
        while lengths.shape[1] == 0 or int(lengths.sum(dim=1).min()) < n_samples:
            normal = torch.randn(n_rows, n_more, dtype=torch.float64, generator=generator)
            more_s = mean_s + math.sqrt(self.variance_s2) * normal
            more = (more_s * self.sample_rate).round().long().clamp_min(1)
            lengths = torch.cat((lengths, more), dim=1)
        lengths = pad(lengths.cumsum(dim=1).clamp_max(n_samples), (1, 0)).diff(dim=1)
        lengths = lengths[:, : int((lengths > 0).sum(dim=1).max())]
        keys = torch.rand(lengths.shape, dtype=torch.float64, generator=generator)
        return {"n_samples": lengths, "order": keys.argsort(dim=1)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        time, ends = waveform.shape[1], drawn["n_samples"].cumsum(dim=1)
        if not bool((ends[:, -1] == time).all()):
            raise ValueError(
                f"`n_samples` must sum to the waveform's {time} samples in each row; got "
                f"{ends[:, -1].tolist()}. Draw for this length."
            )
        n_samples, ends, order = (
            beside(values, waveform) for values in (drawn["n_samples"], ends, drawn["order"])
        )
        starts = ends - n_samples
        size = waveform.detach().abs()
        total = pad(size.cumsum(dim=1), (1, 0))
        mean = (total.gather(1, ends) - total.gather(1, starts)) / n_samples.clamp_min(1)
        loud = (mean >= self.silence * size.amax(dim=1, keepdim=True)) & (n_samples > 0)
        kept = torch.where(loud.any(dim=1, keepdim=True), loud, n_samples > 0).gather(1, order)
        starts = starts.gather(1, order)
        lengths = n_samples.gather(1, order) * kept
        ends = lengths.cumsum(dim=1)
        # Ascending, so far as kept, is as it was: begin with the second segment.
        highest = torch.where(kept, order, -1).cummax(dim=1).values
        is_same = (highest[:, :-1] < order[:, 1:]) | ~kept[:, 1:]
        first = lengths.gather(1, kept.long().argmax(dim=1, keepdim=True))
        shift = first * is_same.all(dim=1, keepdim=True)
        place = (torch.arange(time, device=waveform.device) + shift) % ends[:, -1:]
        segment = torch.searchsorted(ends, place, right=True)
        return waveform.gather(1, (starts - ends + lengths).gather(1, segment) + place)


class _Vocoder(NamedTuple):
    """An analysis into Mel bands and the iterations of its synthesis.

    Fewer bands blur the harmonics more, fewer iterations leave a rougher phase.
    """

    n_fft: int
    hop_length: int
    n_mels: int
    n_iterations: int


_VOCODERS = (
    _Vocoder(n_fft=512, hop_length=128, n_mels=40, n_iterations=16),
    _Vocoder(n_fft=512, hop_length=160, n_mels=64, n_iterations=6),
    _Vocoder(n_fft=1024, hop_length=200, n_mels=80, n_iterations=24),
    _Vocoder(n_fft=1024, hop_length=256, n_mels=80, n_iterations=10),
    _Vocoder(n_fft=1024, hop_length=256, n_mels=120, n_iterations=3),
    _Vocoder(n_fft=2048, hop_length=320, n_mels=128, n_iterations=8),
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

    detail: tuple[float, float] = (0.0, 0.7)

    def __post_init__(self) -> None:
        check_range("detail", self.detail, 0, 1)

    @property
    def min_samples(self) -> int:
        """Half the longest window, which is reflected at the ends; zeros are added up to it."""
        return max(vocoder.n_fft for vocoder in _VOCODERS) // 2 + 1

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "choice": integers((n_rows,), (0, len(_VOCODERS) - 1), generator),
            "detail": uniform((n_rows,), self.detail, generator),
            "seed": seeds(n_rows, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        time = waveform.shape[1]
        waveform = pad(waveform, (0, max(0, self.min_samples - time)))
        result = torch.empty_like(waveform)
        for number in sorted(set(drawn["choice"].tolist())):
            rows = (drawn["choice"] == number).nonzero()[:, 0]
            chosen = beside(rows, waveform)
            result[chosen] = _vocode(
                waveform[chosen],
                row_noise(waveform[chosen], drawn["seed"][rows]),
                beside(drawn["detail"][rows], waveform),
                _VOCODERS[number],
            )
        return result[:, :time]


def _vocode(waveform: Tensor, start: Tensor, detail: Tensor, vocoder: _Vocoder) -> Tensor:
    n_fft, hop_length, n_mels, n_iterations = vocoder
    window = torch.hann_window(n_fft, dtype=waveform.dtype, device=waveform.device)
    spectrum = stft(waveform, window, hop_length=hop_length)
    magnitude = mel_magnitude(spectrum.abs(), n_mels, detail)
    copy = reconstruct_phase(magnitude, start, hop_length, n_iterations)
    level, new_level = (x.square().mean(dim=1, keepdim=True).sqrt() for x in (waveform, copy))
    return copy * level / new_level.clamp_min(_TINY)


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


def as_extra_spoof(
    waveforms: Tensor,
    labels: Tensor,
    generator: torch.Generator | None = None,
    *,
    fraction: float = 0.5,
    augment: Augmentation | None = None,
) -> tuple[Tensor, Tensor]:
    """Append changed copies of bona fide rows to a training batch, labelled spoof.

    Args:
        waveforms: `(batch, time)`, at least ``augment.min_samples`` long.
        labels: `(batch,)`, `SPOOF` or `BONAFIDE`, on the CPU: how many rows are added depends on
            them, and nothing here waits for another device.
        generator: Chooses the rows and changes them; None takes a fresh seed.
        fraction: How many rows to add for each bona fide row, 0 to 1. What isn't a whole number
            of rows is rounded up or down at random, so that the average is exact.
        augment: What makes a spoof of every bona fide row: `CopySynthesis`, or the published
            `ShuffleSegments` (B12), which None takes. Not `RandomApply`, which leaves rows as they
            are.

    Returns:
        `(batch + extra, time)` and `(batch + extra,)`. A batch without bona fide gains nothing.

    Example:
        >>> x, y = torch.randn(3, 16000), torch.tensor([BONAFIDE, SPOOF, BONAFIDE])
        >>> more_x, more_y = as_extra_spoof(x, y, fraction=1.0)
        >>> more_x.shape, more_y.tolist()
        (torch.Size([5, 16000]), [1, 0, 1, 0, 0])
    """
    augment = ShuffleSegments() if augment is None else augment
    if waveforms.dim() != 2 or labels.shape != waveforms.shape[:1]:
        raise ValueError(
            "`waveforms` must have shape (batch, time) and `labels` (batch,); got "
            f"{tuple(waveforms.shape)} and {tuple(labels.shape)}."
        )
    if waveforms.shape[1] < augment.min_samples:
        raise ValueError(
            f"`waveforms` must be at least {augment.min_samples} samples long, or "
            f"{type(augment).__name__} can't change them as meant; got {waveforms.shape[1]}. "
            "Use longer crops."
        )
    if labels.device.type != "cpu":
        raise ValueError(
            f"`labels` must be on the CPU, where a loader leaves them; got {labels.device}, which "
            "would have to be waited for. Pass labels.cpu()."
        )
    check_between("fraction", fraction, 0, 1)
    generator = as_generator(generator)
    bonafide = (labels == BONAFIDE).nonzero()[:, 0]
    spare = torch.rand(1, dtype=torch.float64, generator=generator).item()
    n_extra = math.floor(fraction * len(bonafide) + spare)
    if n_extra == 0:
        return waveforms, labels
    chosen = torch.randperm(len(bonafide), generator=generator)[:n_extra].sort().values
    extra = augment(waveforms[beside(bonafide[chosen], waveforms)], generator=generator)
    return torch.cat((waveforms, extra)), torch.cat((labels, labels.new_full((n_extra,), SPOOF)))
