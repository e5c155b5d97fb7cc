"""Codecs by libsndfile or PyAV, in memory, and a quick imitation of speech coders."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from asvspoof_cm._util import check_between, check_float
from asvspoof_cm.audio import AudioFile, resample
from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, chance, integers
from asvspoof_cm.labels import SAMPLE_RATE


class _Coder(NamedTuple):
    """A format and subtype of libsndfile; or of PyAV, with rates of its own, the best first."""

    container: str
    encoder: str
    sample_rate: int = 0
    bit_rates: tuple[int, ...] = ()
    options: Mapping[str, str] = MappingProxyType({})


CODECS: Final[Mapping[str, _Coder]] = MappingProxyType(
    {
        "mu-law": _Coder("WAV", "ULAW"),
        "a-law": _Coder("WAV", "ALAW"),
        "gsm": _Coder("WAV", "GSM610"),
        "g721": _Coder("AU", "G721_32"),
        "ima-adpcm": _Coder("WAV", "IMA_ADPCM"),
        "mp3": _Coder("MP3", "MPEG_LAYER_III"),
        "vorbis": _Coder("OGG", "VORBIS"),
        "opus": _Coder("OGG", "OPUS"),
        "amr-nb": _Coder(
            "amr", "libopencore_amrnb", 8000, (12200, 10200, 7950, 7400, 6700, 5900, 5150, 4750)
        ),
        "g722": _Coder("wav", "g722", 16000, (64000,)),
        "g723.1": _Coder("wav", "g723_1", 8000, (6300,)),
        "g726": _Coder("wav", "g726", 8000, (40000, 32000, 24000, 16000)),
        "opus-voip": _Coder(
            "ogg", "libopus", 16000, (24000, 20000, 16000, 12000, 8000), {"application": "voip"}
        ),
        "aac": _Coder("adts", "aac", 16000, (64000, 48000, 32000, 24000, 16000)),
    }
)
"""The codecs that this library knows: the first eight by libsndfile, the others by PyAV."""

_ORDER = 16  # of the linear prediction of a speech coder
_N_PART = SAMPLE_RATE // 200  # 5 ms, which the pulses of a speech coder are chosen in
_N_PADDING = 4096  # silence after the waveform, for a codec's delay and its last block

_Samples = NDArray[np.float32]


def available_codecs() -> tuple[str, ...]:
    """Return the codecs that work here; those of mobile telephones need PyAV, the extra ``av``.

    Example:
        >>> "mu-law" in available_codecs()
        True
    """
    return tuple(filter(_works, CODECS))


def transcode(
    waveform: Tensor, codec: str, *, narrowband: bool = False, compression_level: float = 0.0
) -> Tensor:
    """Encode and decode each waveform, keeping its length, level and alignment.

    Args:
        waveform: `(..., time)`; it goes through the CPU, and no gradient passes.
        codec: A name of `available_codecs`.
        narrowband: Resample to 8 kHz for a codec of libsndfile; those of PyAV have their own rate.
        compression_level: 0 (best quality) to 1 (fewest bits); nothing changes for codecs with one
            bit rate.

    Note:
        A waveform with a peak above 1 is scaled down for the codec and up again.

    Example:
        >>> x = 0.5 * torch.sin(torch.arange(16000) / 10)
        >>> bool((transcode(x, "mu-law") - x).abs().max() < 0.02)
        True
    """
    if codec not in CODECS or not _works(codec):
        raise ValueError(
            f"`codec` must be one that works here, {', '.join(available_codecs())}; got {codec!r}."
        )
    check_between("compression_level", compression_level, 0, 1)
    check_float(waveform)
    n_wrong = int((~waveform.isfinite()).sum())
    if n_wrong:  # on NaN, encoders crash and take the process with them
        raise ValueError(
            f"`waveform` must be finite; got {n_wrong} NaN or infinite of {waveform.numel()} "
            "samples. Find the file, or the step before, that they come from."
        )
    rate = CODECS[codec].sample_rate or (8000 if narrowband else SAMPLE_RATE)
    rows = waveform.detach().cpu().float().reshape(-1, waveform.shape[-1])
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(1.0)
    narrow = resample(rows / scale, SAMPLE_RATE, rate)
    delay = _delay(codec, rate)
    coded = np.zeros(narrow.shape, np.float32)
    for row, samples in zip(coded, narrow.numpy(), strict=True):
        decoded = _encode_decode(samples, codec, rate, compression_level)
        decoded = np.pad(decoded, (max(0, -delay), 0))[max(0, delay) :][: len(row)]
        row[: len(decoded)] = decoded
    result = resample(torch.from_numpy(coded), rate, SAMPLE_RATE) * scale
    return result[:, : waveform.shape[-1]].to(waveform).reshape(waveform.shape)


def _encode_decode(samples: _Samples, codec: str, rate: int, level: float = 0.0) -> _Samples:
    file, coder = io.BytesIO(), CODECS[codec]
    padded = np.pad(samples, (0, _N_PADDING))
    if coder.sample_rate:
        _encode_av(file, padded, coder, level)
        with AudioFile(file, sample_rate=rate) as audio:
            return audio.read()
    # From 0.99999 on, libsndfile refuses a level for MP3.
    options = {"compression_level": min(level, 0.9999)} if coder.container in ("MP3", "OGG") else {}
    soundfile.write(file, padded, rate, format=coder.container, subtype=coder.encoder, **options)
    file.seek(0)
    decoded: _Samples = soundfile.read(file, dtype="float32")[0]
    return decoded


def _encode_av(file: io.BytesIO, samples: _Samples, coder: _Coder, level: float) -> None:
    import av

    integers = np.rint(samples.clip(-1, 1) * 32767).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(integers[None], format="s16", layout="mono")
    frame.sample_rate, frame.pts = coder.sample_rate, 0
    with av.open(file, "w", format=coder.container) as container:
        stream: Any = container.add_stream(coder.encoder, rate=coder.sample_rate, layout="mono")
        stream.bit_rate = coder.bit_rates[round(level * (len(coder.bit_rates) - 1))]
        stream.options = dict(coder.options)
        fitting = av.AudioResampler(stream.codec_context.format, "mono", coder.sample_rate)
        for part in [*fitting.resample(frame), None]:
            container.mux(stream.encode(part))


@functools.cache
def _works(codec: str) -> bool:
    coder = CODECS[codec]
    if not coder.sample_rate and not soundfile.check_format(coder.container, coder.encoder):
        return False
    try:
        _delay(codec, coder.sample_rate or SAMPLE_RATE)
    except (soundfile.LibsndfileError, ImportError, ValueError):
        return False  # ValueError: of PyAV too, which lacks a coder
    return True


@functools.cache
def _delay(codec: str, sample_rate: int) -> int:
    """Return by how many samples decoded noise, with the falling spectrum of speech, lags."""
    white = np.random.default_rng(0).standard_normal(sample_rate // 2)
    probe = np.convolve(white, 0.9 ** np.arange(64), mode="same")
    probe = (0.5 * probe / np.abs(probe).max()).astype(np.float32)
    decoded = _encode_decode(probe, codec, sample_rate)
    n_fft = 2 * max(len(probe), len(decoded))
    spectrum = np.fft.rfft(decoded, n_fft) * np.fft.rfft(probe, n_fft).conj()
    # By the phase alone: speech coders change the spectrum, and with it where the peak lies.
    spectrum /= np.abs(spectrum) + 1e-3 * np.abs(spectrum).max()
    lag = int(np.fft.irfft(spectrum, n_fft).argmax())
    return lag if lag < n_fft // 2 else lag - n_fft


@dataclass(frozen=True, kw_only=True)
class Codec(Augmentation):
    """Pass each row through a codec chosen at random; see `transcode`.

    Args:
        codecs: The names to choose from; None is all that `available_codecs` returns.
        narrowband_p: Probability of the round trip through 8 kHz.
        compression_level: Range of the level.

    Example:
        >>> Codec(codecs=("mu-law",), narrowband_p=0.5).draw(3, 16000)["codec"]
        ('mu-law', 'mu-law', 'mu-law')
    """

    codecs: tuple[str, ...] | None = None
    narrowband_p: float = 0.0
    compression_level: tuple[float, float] = (0.0, 0.0)
    ranges: ClassVar = {"compression_level": (0, 1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("narrowband_p", self.narrowband_p, 0, 1)
        if self.codecs == () or set(self.codecs or ()) - set(CODECS):
            raise ValueError(
                f"`codecs` must be names among {', '.join(CODECS)}; got {self.codecs}."
            )

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        names = self.codecs or available_codecs()
        choices = integers((n_rows,), (0, len(names) - 1), generator)
        narrowband = chance(n_rows, self.narrowband_p, generator)
        return {
            "codec": tuple(names[choice] for choice in choices.tolist()),
            "narrowband": narrowband,
            **super()._draw(n_rows, n_samples, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        columns = drawn["codec"], drawn["narrowband"].tolist(), drawn["compression_level"].tolist()
        coded = [
            transcode(row, codec, narrowband=narrowband, compression_level=level)
            for row, codec, narrowband, level in zip(waveform, *columns, strict=True)
        ]
        return torch.stack(coded)


@dataclass(frozen=True, kw_only=True)
class SpeechCoder(Augmentation):
    """Code speech in the manner of the coders of mobile telephones, in a few milliseconds.

    As in CELP (AMR, EVS, the speech part of Opus), each frame of 20 ms is a spectral envelope
    (linear prediction) excited by few pulses: of each 5 ms of the residual, the largest are kept,
    with one magnitude for all.

    Args:
        n_pulses: Range of the pulses in 5 ms, both ends included.
        strength: Range of the share of the coded waveform in the result, beside the original.
    """

    n_pulses: tuple[int, int] = (8, 32)
    strength: tuple[float, float] = (0.5, 1.0)
    counts: ClassVar = {"n_pulses": (1, _N_PART)}
    ranges: ClassVar = {"strength": (0, 1)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        n_samples = waveform.shape[1]
        n_frame, hop_length, n_fft = 4 * _N_PART, 2 * _N_PART, 8 * _N_PART
        window = torch.hann_window(n_frame, dtype=waveform.dtype, device=waveform.device).sqrt()
        right = hop_length + (-n_samples) % hop_length
        frames = pad(waveform, (hop_length, right)).unfold(1, n_frame, hop_length) * window
        spectrum = torch.fft.rfft(frames, n_fft)
        inverse = torch.fft.rfft(_prediction_error_filter(spectrum), n_fft)
        # The filter's response ends in the fifth part.
        residual = torch.fft.irfft(spectrum * inverse, n_fft)[..., : 5 * _N_PART]
        pulses = _largest_pulses(residual, drawn["n_pulses"])
        coded = torch.fft.irfft(torch.fft.rfft(pulses, n_fft) / inverse, n_fft)
        parts = (coded[..., :n_frame] * window).reshape(len(frames), -1, 2, hop_length)
        joined = (parts[:, 1:, 0] + parts[:, :-1, 1]).flatten(1)[:, :n_samples]
        return torch.lerp(waveform, joined, beside(drawn["strength"], waveform)[:, None])


def _prediction_error_filter(spectrum: Tensor) -> Tensor:
    """Return `(..., _ORDER + 1)`, 1 first: the linear prediction of frames of that spectrum."""
    r = torch.fft.irfft(spectrum.abs().square())[..., : _ORDER + 1]
    k = torch.arange(_ORDER + 1, device=r.device, dtype=r.dtype)
    # As in AMR: a window of 60 Hz over the lags, and noise 40 dB below the frame.
    r = r * torch.exp(-0.5 * (2 * torch.pi * 60 / SAMPLE_RATE * k) ** 2) * (1 + 1e-4 * (k == 0))
    return levinson(r + torch.finfo(r.dtype).tiny * (k == 0)) * 0.994**k


def levinson(r: Tensor) -> Tensor:
    """Return prediction error filters of autocorrelations, both `(..., order + 1)`."""
    error = r[..., :1]
    a = torch.ones_like(error)
    for i in range(1, r.shape[-1]):
        reflection = -(a * r[..., 1 : i + 1].flip(-1)).sum(dim=-1, keepdim=True) / error
        longer = pad(a, (0, 1))
        a = longer + reflection * longer.flip(-1)
        error = error * (1 - reflection.square())
    return a


def _largest_pulses(residual: Tensor, n_pulses: Tensor) -> Tensor:
    """Keep the largest `n_pulses` `(n_rows,)` of each `_N_PART` of `(n_rows, n_frames, time)`.

    They get one magnitude, in steps of 2 dB, so that the part keeps about its energy.
    """
    residual = residual.reshape(*residual.shape[:2], -1, _N_PART)
    magnitude = residual.abs()
    largest = magnitude.topk(int(n_pulses.max()), dim=-1).values
    n_pulses = beside(n_pulses, residual)[:, None, None, None]
    least = largest.gather(-1, (n_pulses - 1).expand(*residual.shape[:-1], 1))
    tiny = torch.finfo(residual.dtype).tiny
    power = residual.square().sum(dim=-1, keepdim=True) / n_pulses
    level_db = (5 * power.clamp_min(tiny).log10()).round() * 2
    return (residual.sign() * (magnitude >= least) * 10 ** (level_db / 20)).flatten(2)
