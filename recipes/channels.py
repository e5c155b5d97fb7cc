"""Channels of today: what a call, a message or a room does to speech, through ffmpeg's coders.

`coded` sends many waveforms through one channel as one stream: a process per coder, not per clip.

    apt-get install ffmpeg libavcodec-extra    # and fdkaac (contrib) for HE-AAC
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.fft
import scipy.signal

RATE: Final = 16_000
GAP: Final = RATE // 2
Array = np.ndarray[Any, np.dtype[np.float64]]

_GAP_LEVEL: Final = 10 ** (-66 / 20)
_LARGEST_DELAY: Final = RATE // 4
_ENVELOPE: Final = RATE // 100
_LEAST_CORRELATION: Final = 0.3
_TIMEOUT_S: Final = 600


@dataclass(frozen=True, kw_only=True)
class Coder:
    """A coder: how ffmpeg is told to encode, and how to decode what that wrote."""

    encode: tuple[str, ...]
    ending: str
    decode: tuple[str, ...] = ()
    """Options of the input, for formats without a header."""
    rate: int = RATE


@dataclass(frozen=True, kw_only=True)
class Channel:
    """What a waveform goes through, in turn: coders, or a disturbance."""

    family: str
    coders: tuple[Coder, ...] = ()
    noise: str = ""
    """white, pink or street."""
    snr_db: float = 0.0
    decay_s: float = 0.0
    """Of a room."""
    trained: bool = True
    """Whether training may hear it."""


def _ffmpeg(encoder: str, *options: str, rate: int = RATE, ending: str = "nut") -> Coder:
    return Coder(encode=("-ar", str(rate), "-c:a", encoder, *options), ending=ending, rate=rate)


def _kilobits(encoder: str, kilobits: float, *options: str, **more: Any) -> Coder:
    return _ffmpeg(encoder, "-b:a", f"{round(kilobits * 1000)}", *options, **more)


def _g726(kilobits: int) -> Coder:
    raw = ("-f", "g726", "-code_size", str(kilobits // 8), "-ar", "8000", "-ac", "1")
    bits = ("-b:a", f"{kilobits}k", "-f", "g726")
    return Coder(
        encode=("-ar", "8000", "-c:a", "g726", *bits), ending="g726", decode=raw, rate=8000
    )


def _opus(kilobits: float, rate: int = RATE) -> Coder:
    return _kilobits("libopus", kilobits, "-application", "voip", rate=rate, ending="ogg")


def _coders() -> Iterator[tuple[str, Coder]]:
    yield "g711u", _ffmpeg("pcm_mulaw", rate=8000, ending="wav")
    yield "g711a", _ffmpeg("pcm_alaw", rate=8000, ending="wav")
    band = ("-af", "highpass=f=300:p=2,lowpass=f=3400:p=2")
    yield "g711a_band", _ffmpeg("pcm_alaw", *band, rate=8000, ending="wav")
    yield "g722", _ffmpeg("g722", "-f", "g722", ending="g722")
    for kilobits in (16, 24, 32, 40):
        yield f"g726_{kilobits}", _g726(kilobits)
    yield "g723_63", _kilobits("g723_1", 6.3, rate=8000)
    yield "gsm", _ffmpeg("libgsm", "-f", "gsm", rate=8000, ending="gsm")
    for rate in (4.75, 5.15, 5.9, 6.7, 7.4, 7.95, 10.2, 12.2):
        name = f"amrnb_{rate:g}".replace(".", "")
        yield name, _kilobits("libopencore_amrnb", rate, rate=8000, ending="amr")
    for rate in (6.6, 8.85, 12.65, 14.25, 15.85, 18.25, 19.85, 23.05, 23.85):
        yield f"amrwb_{rate * 100:.0f}", _kilobits("libvo_amrwbenc", rate, ending="amr")
    for kilobits in (6, 8, 12):
        yield f"opus_nb_{kilobits}", _opus(kilobits, 8000)
    for kilobits in (6, 8, 10, 12, 16, 20, 24):
        yield f"opus_{kilobits}", _opus(kilobits)
    for quality in (3, 6):
        options = ("-cbr_quality", str(quality))
        yield f"speex_nb_{quality}", _ffmpeg("libspeex", *options, rate=8000, ending="ogg")
        yield f"speex_wb_{quality}", _ffmpeg("libspeex", *options, ending="ogg")
    yield "codec2_3200", _ffmpeg("libcodec2", "-mode", "3200", rate=8000, ending="c2")
    for kilobits, rate in ((16, RATE), (24, RATE), (32, RATE), (48, 24_000), (64, 44_100)):
        yield f"mp3_{kilobits}", _kilobits("libmp3lame", kilobits, rate=rate, ending="mp3")
    for kilobits, rate in ((16, RATE), (24, RATE), (32, RATE), (48, 24_000)):
        yield f"aac_{kilobits}", _kilobits("aac", kilobits, rate=rate, ending="m4a")
    high = ("fdkaac", "-S", "-p", "5", "-b", "24000")
    yield "aac_he_24", Coder(encode=high, ending="m4a", rate=32_000)
    for quality in (-1, 0, 1, 2, 3):
        name = f"vorbis_q{quality}".replace("-", "m")
        yield name, _ffmpeg("libvorbis", "-q:a", str(quality), ending="ogg")


CODERS: Final[Mapping[str, Coder]] = dict(_coders())
TANDEMS: Final = (
    ("g711a", "amrwb_1265"),
    ("g711u", "amrnb_122"),
    ("gsm", "opus_24"),
    ("amrnb_122", "g711a"),
    ("amrnb_74", "g711u", "opus_24"),
    ("amrwb_1265", "opus_24"),
    ("amrwb_2385", "g722"),
    ("opus_24", "g711a"),
    ("mp3_48", "opus_12"),
    ("opus_24", "aac_32"),
)
HELD_OUT: Final = ("amrwb_1585", "opus_16", "aac_he_24", "codec2_3200", "speex_wb_6")
"""Coders that training never hears, alone or in a tandem."""
FAMILIES: Final[Mapping[str, float]] = {
    "g711": 1.0,
    "g722": 0.7,
    "g726": 1.3,
    "g723": 0.7,
    "gsm": 1.5,
    "amrnb": 3.0,
    "amrwb": 3.0,
    "opus": 3.0,
    "speex": 1.0,
    "mp3": 1.2,
    "aac": 1.2,
    "vorbis": 0.8,
    "tandem": 2.5,
}
"""How often training hears each family, in proportion; its channels alike."""
_DEV: Final = (
    "g711u g711a g722 g726_32 gsm amrnb_122 amrnb_59 amrwb_2385 amrwb_1265 opus_24 opus_12 mp3_32 "
    "aac_32 vorbis_q1 white20 white10 pink15 street5 room05 amrwb_1585 opus_16 aac_he_24 "
    "codec2_3200 speex_wb_6 gsm+opus_24"
)
DEV: Final = tuple(_DEV.split())
"""What a detector is measured on."""


def _channels() -> Iterator[tuple[str, Channel]]:
    for name, coder in CODERS.items():
        family = name.split("_")[0].rstrip("ua")
        yield name, Channel(family=family, coders=(coder,), trained=name not in HELD_OUT)
    for names in TANDEMS:
        coders = tuple(CODERS[name] for name in names)
        yield "+".join(names), Channel(family="tandem", coders=coders)
    for name, noise, snr_db in (
        ("white20", "white", 20.0),
        ("white10", "white", 10.0),
        ("pink15", "pink", 15.0),
        ("street5", "street", 5.0),
    ):
        yield name, Channel(family="noise", noise=noise, snr_db=snr_db, trained=False)
    yield "room05", Channel(family="room", decay_s=0.5, trained=False)


CHANNELS: Final[Mapping[str, Channel]] = dict(_channels())
"""All channels by name; a tandem's has its coders, joined by +."""
TRAINED: Final = tuple(name for name, channel in CHANNELS.items() if channel.trained)


def coded(waveforms: Sequence[Array], channel: str, *, seed: int = 5) -> list[Array]:
    """Return 16 kHz waveforms, each as long as it was and in step, after a channel.

    Args:
        waveforms: Each of shape (time,), with a peak below 1.
        channel: A name of `CHANNELS`.
        seed: Of noise and rooms.
    """
    told = CHANNELS[channel]
    rng = np.random.default_rng(seed)
    if told.noise:
        return [_with_noise(w, told.noise, told.snr_db, rng) for w in waveforms]
    if told.decay_s:
        return [_in_room(w, told.decay_s, rng) for w in waveforms]
    stream, starts = _joined(waveforms, rng)
    for coder in told.coders:
        stream = _in_step(_transcoded(stream, coder), stream)
    return [stream[at : at + len(w)] for at, w in zip(starts, waveforms, strict=True)]


def _joined(waveforms: Sequence[Array], rng: np.random.Generator) -> tuple[Array, list[int]]:
    """Return one stream with faint noise around each waveform, and their places."""
    parts, starts, place = [], [], 0
    for waveform in waveforms:
        parts += [rng.standard_normal(GAP) * _GAP_LEVEL, waveform]
        starts.append(place + GAP)
        place += GAP + len(waveform)
    return np.concatenate([*parts, rng.standard_normal(GAP) * _GAP_LEVEL]), starts


def _transcoded(stream: Array, coder: Coder) -> Array:
    quiet = ("ffmpeg", "-v", "error", "-y", "-threads", "1")
    raw = ("-f", "s16le", "-ar", str(RATE), "-ac", "1")
    samples = np.round(np.clip(stream, -1, 1) * 32767).astype("<i2").tobytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"coded.{coder.ending}"
        if coder.encode[0] == "fdkaac":
            wav = Path(folder) / "stream.wav"
            _run([*quiet, *raw, "-i", "-", "-ar", str(coder.rate), str(wav)], samples)
            _run([*coder.encode, "-o", str(path), str(wav)])
        else:
            _run([*quiet, *raw, "-i", "-", *coder.encode, str(path)], samples)
        decoded = _run([*quiet, *coder.decode, "-i", str(path), "-ac", "1", *raw[:4], "-"])
    return np.frombuffer(decoded, "<i2") / 32768


def _run(command: Sequence[str], data: bytes = b"") -> bytes:
    done = subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')[-300:]}")
    return done.stdout


def _in_step(decoded: Array, stream: Array) -> Array:
    """Return `decoded` without the coder's delay, as long as `stream`."""
    n = min(len(decoded), len(stream), 60 * RATE)
    delay, correlation = _delay(decoded[:n], stream[:n])
    if correlation < _LEAST_CORRELATION:  # parametric coders keep the envelope alone
        window = np.ones(_ENVELOPE) / _ENVELOPE
        envelopes = [
            scipy.signal.fftconvolve(np.abs(each[:n]), window, "same") for each in (decoded, stream)
        ]
        delay, _ = _delay(*(each - each.mean() for each in envelopes))
    shifted = decoded[delay:] if delay > 0 else np.pad(decoded, (-delay, 0))
    return np.pad(shifted[: len(stream)], (0, max(0, len(stream) - len(shifted))))


def _delay(decoded: Array, stream: Array) -> tuple[int, float]:
    """Return how many samples `decoded` is late, and the correlation there."""
    size = scipy.fft.next_fast_len(len(stream) + _LARGEST_DELAY, real=True)
    spectra = scipy.fft.rfft(decoded, size) * np.conj(scipy.fft.rfft(stream, size))
    correlation = scipy.fft.irfft(spectra, size)
    lags = np.concatenate([correlation[-_LARGEST_DELAY:], correlation[:_LARGEST_DELAY]])
    place = int(lags.argmax())
    scale = np.sqrt(np.square(decoded).sum() * np.square(stream).sum()) + 1e-12
    return place - _LARGEST_DELAY, float(lags[place] / scale)


def _with_noise(waveform: Array, kind: str, snr_db: float, rng: np.random.Generator) -> Array:
    noise = _noise(kind, len(waveform), rng)
    wanted = np.square(waveform).mean() * 10 ** (-snr_db / 10)
    noisy = waveform + noise * np.sqrt(wanted / (np.square(noise).mean() + 1e-20))
    return np.asarray(noisy / max(1.0, np.abs(noisy).max() / 0.99))


def _noise(kind: str, n_samples: int, rng: np.random.Generator) -> Array:
    if kind == "white":
        return rng.standard_normal(n_samples)
    slope = {"pink": 0.5, "street": 0.8}[kind]
    noise = _coloured(n_samples, slope, rng)
    return noise if kind == "pink" else noise + _traffic(n_samples, rng)


def _coloured(n_samples: int, slope: float, rng: np.random.Generator) -> Array:
    """Return noise whose amplitude falls with the frequency to the power of `slope`."""
    size = scipy.fft.next_fast_len(n_samples, real=True)
    spectrum = scipy.fft.rfft(rng.standard_normal(size))
    frequency = np.maximum(scipy.fft.rfftfreq(size, 1 / RATE), 30.0)
    noise = scipy.fft.irfft(spectrum / frequency**slope, size)[:n_samples]
    return np.asarray(noise / (noise.std() + 1e-20))


def _traffic(n_samples: int, rng: np.random.Generator) -> Array:
    """Return engines and tyres that come and go, and now and then a horn."""
    times = np.arange(n_samples) / RATE
    mixture = np.zeros(n_samples)
    for _ in range(3):
        middle, width = rng.uniform(0, times[-1]), rng.uniform(0.5, 2.0)
        passing = np.exp(-(((times - middle) / width) ** 2))
        tyres = _coloured(n_samples, rng.uniform(0.2, 0.6), rng)
        hum = rng.uniform(40, 110) * (1 - 0.04 * np.tanh((times - middle) / width))
        phase = 2 * np.pi * np.cumsum(hum) / RATE
        engine = scipy.signal.sawtooth(phase, 0.9)
        mixture += passing * (tyres + 0.6 * engine) * rng.uniform(0.4, 1.2)
    if rng.random() < 0.15:
        horn = sum(scipy.signal.sawtooth(2 * np.pi * hz * times) for hz in rng.uniform(300, 500, 2))
        sounds = np.abs(times - rng.uniform(0, times[-1])) < rng.uniform(0.1, 0.4)
        mixture += 0.3 * horn * sounds
    return mixture


def _in_room(waveform: Array, decay_s: float, rng: np.random.Generator) -> Array:
    """Add reverberation that falls by 60 dB in `decay_s`: reflections, then a dense tail."""
    n_samples = int(decay_s * RATE)
    times = np.arange(n_samples) / RATE
    tail = rng.standard_normal(n_samples) * 10 ** (-3 * times / decay_s)
    tail[: int(0.003 * RATE)] = 0
    tail *= 10 ** (-rng.uniform(0, 4) / 20) / (np.sqrt(np.square(tail).sum()) + 1e-12)
    tail[0] = 1.0
    for _ in range(6):
        place = int(rng.uniform(0.002, 0.03) * RATE)
        tail[place] += rng.uniform(0.1, 0.4) * rng.choice((-1, 1))
    wet = scipy.signal.fftconvolve(waveform, tail)[: len(waveform)]
    return np.asarray(wet / max(1.0, np.abs(wet).max() / 0.99))


def is_available(channel: str) -> bool:
    """Return whether its programs are installed."""
    coders = CHANNELS[channel].coders
    needs = {"fdkaac" if coder.encode[0] == "fdkaac" else "ffmpeg" for coder in coders}
    needs |= {"ffmpeg"} if coders else set()
    return all(shutil.which(program) for program in needs)
