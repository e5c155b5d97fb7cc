"""Channels: what microphones, rooms, lines and networks do to a recording.

Give them to both classes alike, and to both recordings of a matched pair with the same draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import scipy.fft
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, interpolate, pad

from asvspoof_cm._util import check_between
from asvspoof_cm.audio import resample
from asvspoof_cm.augmentation.base import (
    GAIN_DB,
    SNR_DB,
    Augmentation,
    Drawn,
    beside,
    chance,
    check_range,
    columns,
    integers,
    row_noise,
    uniform,
)
from asvspoof_cm.augmentation.filters import add_noise, at_level, fir_filter, level
from asvspoof_cm.frontends import hz_to_mel
from asvspoof_cm.labels import SAMPLE_RATE

_N_PADDING = 1024  # what the equalizer rings on into, so that the end does not reach the start
_N_TAPS = 255  # with the window, 350 Hz from pass to stop at 16 kHz, and 74 dB
_BLOCK_S = 0.01  # between two values of the automatic gain
_MAX_GAIN_DB = 25.0
_N_PACKET = SAMPLE_RATE // 50
_BURST = (1, 3)  # packets that are lost one after another
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Gain(Augmentation):
    """Multiply each row by a gain uniform in dB; nothing is clipped.

    Args:
        gain_db: Range of the gain.

    Example:
        >>> Gain(gain_db=(-20, -20))(torch.ones(3))
        tensor([0.1000, 0.1000, 0.1000])
    """

    ranges: ClassVar = {"gain_db": GAIN_DB}
    gain_db: tuple[float, float] = (-12.0, 6.0)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        (gain_db,) = columns(waveform, drawn, "gain_db")
        return waveform * 10 ** (gain_db / 20)


@dataclass(frozen=True, kw_only=True)
class Polarity(Augmentation):
    """Turn half of the rows upside down.

    Example:
        >>> Polarity()(torch.ones(3)).abs()
        tensor([1., 1., 1.])
    """

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"is_inverted": chance(n_rows, 0.5, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        (is_inverted,) = columns(waveform, drawn, "is_inverted")
        return torch.where(is_inverted, -waveform, waveform)


@dataclass(frozen=True, kw_only=True)
class Clipping(Augmentation):
    """Overload: what lies above a share of the row's peak is cut off, or bent.

    Args:
        below_peak_db: Range of how far below the peak of the row the limit lies.
        soft_p: Probability of limit · tanh(x / limit) instead of a hard limit.

    Example:
        >>> Clipping(below_peak_db=(6.0206, 6.0206), soft_p=0.0)(torch.tensor([0.2, -0.8, 0.4]))
        tensor([ 0.2000, -0.4000,  0.4000])
    """

    ranges: ClassVar = {"below_peak_db": (0, 200)}
    below_peak_db: tuple[float, float] = (3.0, 20.0)
    soft_p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("soft_p", self.soft_p, 0, 1)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        drawn = super()._draw(n_rows, n_samples, generator)
        return {**drawn, "is_soft": chance(n_rows, self.soft_p, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        below_peak_db, is_soft = columns(waveform, drawn, "below_peak_db", "is_soft")
        peak = waveform.abs().amax(dim=1, keepdim=True).clamp_min(_TINY)
        limit = peak * 10 ** (-below_peak_db / 20)
        hard = torch.minimum(torch.maximum(waveform, -limit), limit)
        return torch.where(is_soft, limit * torch.tanh(waveform / limit), hard)


@dataclass(frozen=True, kw_only=True)
class AutomaticGain(Augmentation):
    """Automatic gain control: a gain that follows the level and evens it out.

    Where the mean power of the past, weighted by exp(−t / τ), lies d dB below that of the whole
    row, the gain is strength · d, limited to ± 25 dB.

    Args:
        time_s: Range of τ.
        strength: Range of the strength, from 0 (no change) to 1 (an even level).
    """

    ranges: ClassVar = {"time_s": (1e-3, 100), "strength": (0, 1)}
    time_s: tuple[float, float] = (0.05, 1.0)
    strength: tuple[float, float] = (0.3, 1.0)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        n_samples, n_block = waveform.shape[1], round(_BLOCK_S * SAMPLE_RATE)
        time_s, strength = columns(waveform, drawn, "time_s", "strength")
        power = avg_pool1d(waveform.square()[:, None], n_block, ceil_mode=True)[:, 0]
        age_s = torch.arange(power.shape[1], device=waveform.device) * _BLOCK_S
        weight = torch.exp(-age_s / time_s)
        recent = fir_filter(power, weight) / weight.cumsum(dim=1)
        mean = power.mean(dim=1, keepdim=True).clamp_min(_TINY)
        below_db = -10 * torch.log10((recent / mean).clamp_min(1e-12))
        gain_db = (strength * below_db).clamp(-_MAX_GAIN_DB, _MAX_GAIN_DB)
        smooth = interpolate(gain_db[:, None], n_block * power.shape[1], mode="linear")[:, 0]
        return waveform * 10 ** (smooth[:, :n_samples] / 20)


@dataclass(frozen=True, kw_only=True)
class RandomEqualizer(Augmentation):
    """Give each row a random smooth frequency response, at the power it had and without delay.

    Args:
        gain_db: Range of the gain at each point; from point to point it runs straight, in dB.
        n_points: From 0 Hz to half the sample rate, evenly on the Mel scale.
    """

    gain_db: tuple[float, float] = (-12.0, 12.0)
    n_points: int = 8

    def __post_init__(self) -> None:
        check_range("gain_db", self.gain_db, *GAIN_DB)
        check_between("n_points", self.n_points, 2)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"gain_db": uniform((n_rows, self.n_points), self.gain_db, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        gain_db, n_samples = beside(drawn["gain_db"], waveform), waveform.shape[1]
        n_fft = scipy.fft.next_fast_len(n_samples + _N_PADDING, real=True)
        bins = torch.fft.rfftfreq(n_fft, 1 / SAMPLE_RATE, device=waveform.device)
        highest = hz_to_mel(torch.tensor(SAMPLE_RATE / 2, device=waveform.device))
        place = hz_to_mel(bins) / highest * (self.n_points - 1)
        left = place.floor().clamp_max(self.n_points - 2).long()
        share = (place - left).to(waveform.dtype)
        curve_db = gain_db[:, left] * (1 - share) + gain_db[:, left + 1] * share
        spectrum = torch.fft.rfft(waveform, n=n_fft) * 10 ** (curve_db / 20)
        filtered = torch.fft.irfft(spectrum, n=n_fft)[:, :n_samples]
        return at_level(filtered, waveform)


@dataclass(frozen=True, kw_only=True)
class RandomBandLimit(Augmentation):
    """Cut each row off below and above random frequencies, steeply and without delay.

    Args:
        high_hz: Range of the upper frequency, where the gain is −6 dB.
        low_hz: Range of the lower one; 0 cuts nothing off.
    """

    ranges: ClassVar = {"high_hz": (0, math.inf), "low_hz": (0, math.inf)}
    high_hz: tuple[float, float] = (3000.0, 8000.0)
    low_hz: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        check_range("high_hz", self.high_hz, 0, SAMPLE_RATE / 2)
        check_range("low_hz", self.low_hz, 0, self.high_hz[0])

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        k = torch.arange(_N_TAPS, dtype=waveform.dtype, device=waveform.device) - _N_TAPS // 2
        window = 0.42 + 0.5 * torch.cos(2 * math.pi * k / (_N_TAPS - 1))  # Blackman's
        window = window + 0.08 * torch.cos(4 * math.pi * k / (_N_TAPS - 1))
        low_pass = []
        for cut_off_hz in columns(waveform, drawn, "low_hz", "high_hz"):
            taps = torch.sinc(2 * cut_off_hz / SAMPLE_RATE * k) * window
            low_pass.append(taps / taps.sum(dim=1, keepdim=True) * (cut_off_hz > 0))
        return fir_filter(waveform, low_pass[1] - low_pass[0], delay=_N_TAPS // 2)


@dataclass(frozen=True, kw_only=True)
class ColouredNoise(Augmentation):
    """Add noise whose spectrum rises or falls steadily, at a signal-to-noise ratio.

    Args:
        snr_db: Range of the signal-to-noise ratio.
        slope_db: Range of the slope in dB per octave: 0 is white, -3 pink, -6 brown noise.

    Example:
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> noisy = ColouredNoise(snr_db=(20, 20))(x)
        >>> round(float(20 * (x.norm() / (noisy - x).norm()).log10()), 2)
        20.0
    """

    ranges: ClassVar = {"snr_db": SNR_DB, "slope_db": GAIN_DB}
    needs_seed = True
    snr_db: tuple[float, float] = (8.0, 40.0)
    slope_db: tuple[float, float] = (-7.0, 2.0)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        (slope_db,) = columns(waveform, drawn, "slope_db")
        n_fft = scipy.fft.next_fast_len(waveform.shape[1], real=True)
        n_bins = n_fft // 2 + 1
        parts = row_noise(waveform.new_empty(len(waveform), 2 * n_bins), drawn["seed"])
        # The lowest five bins have one level, so that brown noise is no drift.
        number = torch.arange(n_bins, device=waveform.device, dtype=waveform.dtype).clamp_min(5)
        shape = (number / n_bins) ** (slope_db / (20 * math.log10(2)))
        spectrum = torch.complex(parts[:, :n_bins] * shape, parts[:, n_bins:] * shape)
        noise = torch.fft.irfft(spectrum, n_fft)[:, : waveform.shape[1]]
        return add_noise(waveform, noise, drawn["snr_db"])


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedNoise(Augmentation):
    """Add excerpts of recordings: street noise, music, or the babble of several voices.

    An excerpt starts anywhere in its clip, which repeats; several are added up at one level.

    Args:
        clips: Noises, tensors of shape (time,).
        snr_db: Range of the signal-to-noise ratio.
        n_clips: Range of the number of clips that are added up, both ends included.
    """

    ranges: ClassVar = {"snr_db": SNR_DB}
    clips: Sequence[Tensor]
    snr_db: tuple[float, float] = (0.0, 25.0)
    n_clips: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("n_clips", self.n_clips, 1)
        if not len(self.clips):
            raise ValueError("`clips` must hold at least one recording; got none.")
        for clip in self.clips:
            if clip.dim() != 1 or not clip.is_floating_point() or not clip.any():
                raise ValueError(
                    "`clips` must be float tensors (time,) that are not silent; got one of "
                    f"{clip.dtype} and shape {tuple(clip.shape)}."
                )

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        shape = (n_rows, self.n_clips[1])
        is_used = torch.arange(shape[1]) < integers((n_rows, 1), self.n_clips, generator)
        clip = integers(shape, (0, len(self.clips) - 1), generator)
        drawn = super()._draw(n_rows, n_samples, generator)
        offset = uniform(shape, (0, 1), generator)
        return {**drawn, "clip": torch.where(is_used, clip, -1), "offset": offset}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        place = torch.arange(waveform.shape[1])
        noise = torch.zeros(waveform.shape, dtype=waveform.dtype)
        for row, clips, offsets in zip(noise, drawn["clip"], drawn["offset"], strict=True):
            for clip, offset in zip(clips.tolist(), offsets.tolist(), strict=True):
                if clip >= 0:
                    samples = self.clips[clip]
                    excerpt = samples[(place + int(offset * len(samples))) % len(samples)]
                    row += excerpt / level(excerpt).clamp_min(_TINY)
        return add_noise(waveform, beside(noise, waveform), drawn["snr_db"])


@dataclass(frozen=True, kw_only=True)
class RandomRoom(Augmentation):
    """Put each row into a room: noise that decays exponentially follows each sound (Polack 1988).

    The direct sound stays where it is, and each row keeps its power.

    Args:
        decay_s: Range of the reverberation time, in which the sound decays by 60 dB.
        direct_db: Range of the level of the direct sound above all that follows.

    Example:
        >>> heard = RandomRoom()(torch.eye(1, 16000))  # a click
        >>> bool(heard[0, 0] == heard.max()), bool(heard[0, 1000].abs() > 0)
        (True, True)
    """

    ranges: ClassVar = {"decay_s": (1e-3, 10), "direct_db": GAIN_DB}
    needs_seed = True
    decay_s: tuple[float, float] = (0.1, 0.6)
    direct_db: tuple[float, float] = (-3.0, 12.0)

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        n_taps = min(waveform.shape[1], math.ceil(self.decay_s[1] * SAMPLE_RATE))
        return at_level(fir_filter(waveform, self._response(waveform, drawn, n_taps)), waveform)

    def _response(self, like: Tensor, drawn: Drawn, n_taps: int) -> Tensor:
        """Return `(n_rows, n_taps)`: first 1, then noise of the energy 10^(−direct_db / 10)."""
        decay_s, direct_db = columns(like, drawn, "decay_s", "direct_db")
        tail = row_noise(like.new_empty(len(like), n_taps), drawn["seed"])
        times = torch.arange(n_taps, device=like.device, dtype=like.dtype) / SAMPLE_RATE
        tail = tail * 10 ** (-3 * times / decay_s)
        tail[:, 0] = 0
        energy = tail.square().sum(dim=1, keepdim=True).clamp_min(torch.finfo(like.dtype).tiny)
        response = tail * 10 ** (-direct_db / 20) / energy.sqrt()
        response[:, 0] = 1
        return response


@dataclass(frozen=True, kw_only=True)
class RandomSpeed(Augmentation):
    """Change the speed of each row by a random whole percentage, in the time it had.

    Pitch, formants and tempo move together (Ko et al., "Audio augmentation for speech recognition",
    Interspeech 2015). What then lasts longer loses its end; what is over sooner begins again. Rows
    go through the CPU, and no gradient passes.

    Args:
        percent: Range of the speed, 100 being unchanged, 110 faster and higher.
    """

    percent: tuple[int, int] = (90, 110)
    counts: ClassVar = {"percent": (50, 200)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        place, rows = torch.arange(waveform.shape[1], device=waveform.device), []
        for row, percent in zip(waveform, drawn["percent"].tolist(), strict=True):
            played = resample(row, 160 * percent, 16000)
            rows.append(played[place % len(played)])
        return torch.stack(rows)


@dataclass(frozen=True, kw_only=True)
class PacketLoss(Augmentation):
    """Lose bursts of one to three packets of 20 ms; the last that came is repeated, ever softer.

    Args:
        share: Range of the share of lost packets.
        fade: Range of the factor per lost packet: 1 repeats the last as it was, 0 leaves a gap.
    """

    ranges: ClassVar = {"share": (0, 1), "fade": (0, 1)}
    share: tuple[float, float] = (0.01, 0.15)
    fade: tuple[float, float] = (0.0, 1.0)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        drawn, shape = super()._draw(n_rows, 1, generator), (n_rows, -(-n_samples // _N_PACKET))
        number, length = torch.arange(shape[1]), integers(shape, _BURST, generator)
        # A burst begins at a packet so often that the wanted share of all is lost.
        kept = (1 - drawn["share"][:, None]) ** (2 / sum(_BURST))
        begins = uniform(shape, (0, 1), generator) < 1 - kept
        lost_until = torch.where(begins, number + length, 0).cummax(dim=1).values
        return {**drawn, "is_lost": (number < lost_until) & (number > 0)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        n_samples = waveform.shape[1]
        is_lost, (fade,) = beside(drawn["is_lost"], waveform), columns(waveform, drawn, "fade")
        number = torch.arange(is_lost.shape[1], device=waveform.device)
        heard = torch.where(is_lost, 0, number).cummax(dim=1).values
        gain = fade ** (number - heard)
        packets = pad(waveform, (0, len(number) * _N_PACKET - n_samples))
        packets = packets.reshape(len(waveform), -1, _N_PACKET)
        repeated = packets.gather(1, heard[:, :, None].expand_as(packets)) * gain[:, :, None]
        return repeated.flatten(1)[:, :n_samples]


@dataclass(frozen=True, kw_only=True)
class Gaps(Augmentation):
    """Insert silence: what follows comes later, and what does not fit any more is lost.

    Args:
        n_gaps: Range of the number of gaps, both ends included.
        duration_s: Range of the duration of a gap.
        at_start: Put the first gap at the start of the row.

    Example:
        >>> late = Gaps(n_gaps=(1, 1), duration_s=(0.25, 0.25), at_start=True)(torch.ones(16000))
        >>> int(late.argmax())
        4000
    """

    n_gaps: tuple[int, int] = (1, 4)
    duration_s: tuple[float, float] = (0.01, 0.1)
    at_start: bool = False

    def __post_init__(self) -> None:
        check_range("n_gaps", self.n_gaps, 0, 1000)
        check_range("duration_s", self.duration_s, 0)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        n_gaps = integers((n_rows, 1), self.n_gaps, generator)
        number = torch.arange(self.n_gaps[1])
        start = (uniform((n_rows, len(number)), (0, 1), generator) * n_samples).long()
        if self.at_start:
            start[:, :1] = 0
        duration_s = uniform((n_rows, len(number)), self.duration_s, generator)
        length = (duration_s * SAMPLE_RATE).round().long() * (number < n_gaps)
        return {"start": start, "n_samples": length}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        start, length = (beside(drawn[name], waveform) for name in ("start", "n_samples"))
        place = torch.arange(waveform.shape[1], device=waveform.device)
        is_gap = torch.zeros_like(waveform, dtype=torch.bool)
        for first, n in zip(start.T[:, :, None], length.T[:, :, None], strict=True):
            is_gap |= (place >= first) & (place < first + n)
        source = ((~is_gap).cumsum(dim=1) - 1).clamp_min(0)
        return waveform.gather(1, source).masked_fill(is_gap, 0)
