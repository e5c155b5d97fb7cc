"""From a file to crops of a fixed length.

A waveform is a float array or tensor of shape (time,), mono, at 16 kHz unless said otherwise.
Sections III-B.1 and III-C of the TFPARN paper define how it becomes 4 s crops:

- longer than a crop: cut one out, at random in training, from the centre in evaluation;
- shorter: repeat the whole waveform until it exceeds the crop, then cut;
- test-time augmentation: several crops, their starts evenly spaced from the first to the last.

Files are read as NumPy arrays, and crops are cut from arrays and tensors alike. PyTorch, libsndfile
and the filters of SciPy are imported when they are first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._formats import UNKNOWN_LENGTH, as_float, open_sound
from asvspoof_cm._util import (
    MAX_RATE,
    MIN_RATE,
    check_between,
    check_choice,
    check_float,
    check_not_negative,
    check_one_waveform,
    check_positive,
    check_positive_finite,
    check_rate,
)
from asvspoof_cm.labels import SAMPLE_RATE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "AUDIO_EXTENSIONS",
    "AudioFile",
    "InputSettings",
    "cut",
    "fix_length",
    "load_audio",
    "peak_normalize",
    "resample",
    "set_level",
    "tta_crops",
]

Array: TypeAlias = NDArray[np.float32]
Waveform: TypeAlias = "Tensor | NDArray[Any]"
AnyWaveform = TypeVar("AnyWaveform", "Tensor", NDArray[Any])
Normalization = Literal["crop", "utterance", "none"]
"""What crops are divided by: their own peak, that of the whole utterance, or nothing."""

AUDIO_EXTENSIONS = (
    *(".flac", ".wav", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".w64"),
    *(".m4a", ".aac", ".amr", ".wma", ".webm", ".mka", ".mp4", ".mov", ".mkv", ".3gp", ".avi"),
)
"""How the names of audio files end, in lower case."""

CROP_SAMPLES = 64000

MAX_CHANNELS = 64
"""The most channels that a header may announce."""

_BAD_BYTES = (OSError, ValueError, TypeError, ArithmeticError, RuntimeError)
BAD_AUDIO = (*_BAD_BYTES, MemoryError, ImportError)
"""What a hostile file can make of its reader; other errors are those of the code."""

_DIFFERENCE = 0.1  # the share of their power that channels don't share, where they differ

_BLOCK_VALUES = 1 << 22

# libsndfile mends a WAV or AIFF that is shorter than its header says and only notes it in its log.
# Writers that can't seek back (a pipe) leave a size near 2 or 4 GiB, which is no truncation.
_CHUNK_SIZES = re.compile(r"^ *(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
_STREAMED_SIZE = 0x7FFFF000

# What libsndfile decodes after a seek is wrong for up to a block of Vorbis, and in MP3 until the
# frames are past that the next ones borrow bits from: reading starts this many samples earlier.
_PREROLL = {"OGG": 8192, "MP3": 23040}

# Half-length of the resampling filter in periods of the lower rate, and its -6 dB point relative to
# the lower Nyquist frequency: with a Kaiser window of this beta, images are at least 80 dB down.
_HALF_PERIODS = 40
_CUTOFF = 0.938
_KAISER_BETA = 8.6
_MAX_FACTOR = 50_000


# What a model must be given


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """What a model needs to know about its input: stored in its checkpoint, read where it runs.

    Attributes:
        sample_rate: The sampling rate of the waveforms, in Hz.
        crop_s: The length of a crop, in seconds.
        n_crops: The crops of an utterance whose logits are averaged.
        one_crop: Where that crop lies if it is the only one: in the "center" or at the "start".
        normalization: What a crop is divided by: "crop", its own peak; "utterance", the peak of the
            whole utterance, which must then be read as a whole; "none", nothing.

    Example:
        >>> InputSettings(crop_s=1.5).n_samples
        24000
    """

    sample_rate: int = SAMPLE_RATE
    crop_s: float = 4.0
    n_crops: int = 5
    one_crop: Literal["center", "start"] = "center"
    normalization: Normalization = "crop"

    def __post_init__(self) -> None:
        check_rate(self.sample_rate)
        if not 1 / self.sample_rate <= self.crop_s <= 3600.0:
            raise ValueError(
                "`crop_s` must be a number of seconds from one sample to an hour; "
                f"got {self.crop_s}."
            )
        check_positive(self, "n_crops")
        check_between("n_crops", self.n_crops, 1, 1000)
        check_choice("one_crop", self.one_crop, ("center", "start"))
        check_choice("normalization", self.normalization, ("crop", "utterance", "none"))

    @property
    def n_samples(self) -> int:
        """The samples of a crop."""
        return round(self.crop_s * self.sample_rate)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> InputSettings:
        """Return the settings that `dataclasses.asdict` made a dict of."""
        unknown = sorted(content.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(
                f"the input settings have unknown fields {', '.join(unknown)}; they may come from "
                "a newer version of asvspoof-cm."
            )
        return cls(**content)


# Files


def load_audio(
    path: str | os.PathLike[str] | bytes | BinaryIO,
    *,
    sample_rate: int = SAMPLE_RATE,
    start_s: float = 0.0,
    duration_s: float | None = None,
    channel: int | None = None,
) -> Tensor:
    """Return the mono waveform of a file, or of a part of it.

    Only the part asked for is decoded. A part that is resampled equals the same part of the whole
    file resampled.

    Args:
        path: A file, as of `AudioFile`.
        sample_rate: The rate to resample to, in Hz.
        start_s: Where to start, in seconds.
        duration_s: How much to read, in seconds; None reads to the end. Where the file ends
            earlier, the result is shorter.
        channel: The channel to read, from 0 on; None is the average of all.

    Returns:
        A float32 tensor of shape (time,).

    Raises:
        OSError: The file is missing, is a directory or can't be read.
        ValueError: The file is empty, not audio, truncated, damaged, or holds NaN or infinity.

    Example:
        >>> import tempfile, soundfile
        >>> path = tempfile.mkdtemp() + "/tone.wav"
        >>> soundfile.write(path, np.sin(np.arange(44100) * 0.05), 44100)
        >>> load_audio(path, start_s=0.25, duration_s=0.5).shape
        torch.Size([8000])
    """
    import torch

    check_not_negative(start_s=start_s)
    if duration_s is not None:
        check_positive_finite(duration_s=duration_s)
    with AudioFile(path, sample_rate=sample_rate, channel=channel) as file:
        start = round(start_s * sample_rate)
        if start >= file.n_samples:
            raise ValueError(
                f"`start_s` must lie inside the file; got {start_s} s, but {file.name} ends at "
                f"{file.n_samples / sample_rate:.3f} s."
            )
        n_samples = None if duration_s is None else max(1, round(duration_s * sample_rate))
        return torch.from_numpy(file.read(start, n_samples))


class AudioFile:
    """An open audio file whose samples are read, mono and resampled, from anywhere in it.

    Use it where the length must be known before the part to read is chosen, or to go through a
    long file in blocks. What libsndfile does not read (m4a, AAC, WebM, AMR, WMA, videos) is decoded
    by PyAV, the extra ``av``: once to know the length, and again up to each part. For training,
    convert such files to FLAC or WAV.

    Args:
        source: A file, the bytes of one, or a file object, which must be open in binary mode.
        sample_rate: The rate to resample to, in Hz.
        channel: The channel to read, from 0 on; None is the average of all.
        name: What error messages call it; None is the path, or "the audio".

    Attributes:
        n_samples: Its length at `sample_rate`.
        native_rate: Its own sampling rate.
        n_channels: Its channels.
        channels_differ: Whether the channels averaged so far are not alike: more than a tenth of
            their power is in what they do not share, as where each has its own speaker.

    Example:
        >>> import tempfile, soundfile
        >>> path = tempfile.mkdtemp() + "/noise.flac"
        >>> soundfile.write(path, 0.1 * np.ones(32000), 8000)
        >>> with AudioFile(path) as file:
        ...     file.n_samples, file.native_rate, file.read(100, 16000).shape
        (64000, 8000, (16000,))
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | BinaryIO,
        *,
        sample_rate: int = SAMPLE_RATE,
        channel: int | None = None,
        name: str | None = None,
    ) -> None:
        self.sample_rate = check_rate(sample_rate, "sample_rate")
        self.channel = channel
        is_path = isinstance(source, str | os.PathLike)
        self.name = name or (str(source) if is_path else "the audio")
        self._file = open_sound(source, self.name)
        try:
            self.native_rate: int = self._file.samplerate
            self.n_channels: int = self._file.channels
            self._next_frame: int | None = 0
            self._power = self._own_power = 0.0
            if not (
                MIN_RATE <= self.native_rate <= MAX_RATE and 1 <= self.n_channels <= MAX_CHANNELS
            ):
                raise ValueError(
                    f"{self.name} must have {MIN_RATE} to {MAX_RATE} Hz and at most "
                    f"{MAX_CHANNELS} channels; its header says {self.native_rate} Hz and "
                    f"{self.n_channels} channels."
                )
            _check_channel(channel, self.n_channels, self.name)
            self.n_frames = self._count_frames()
            if self.n_frames == 0:
                raise ValueError(f"{self.name} holds no samples.")
        except BaseException:
            self.close()
            raise
        self._up, self._down = rate_ratio(self.native_rate, self.sample_rate)
        self.n_samples = -(-self.n_frames * self._up // self._down)

    @property
    def channels_differ(self) -> bool:
        """Whether the channels that were averaged so far are not alike."""
        return self._own_power > _DIFFERENCE * self._power

    def read(self, start: int = 0, n_samples: int | None = None) -> Array:
        """Return up to `n_samples` samples from sample `start`, both counted at `sample_rate`."""
        check_not_negative(start=start, n_samples=n_samples or 0)
        stop = self.n_samples if n_samples is None else min(start + n_samples, self.n_samples)
        if stop <= start:
            return np.empty(0, np.float32)
        if self._up == self._down:
            return self._read_frames(start, stop)
        # Output sample k stands at input position k · down / up. The context on both sides is the
        # filter's reach, and the first frame is a multiple of `down`, so that the polyphase grid
        # of this part is that of the whole file.
        reach = resampling_reach(self.native_rate, self.sample_rate)
        first = max(0, (start * self._down // self._up - reach) // self._down * self._down)
        last = min(self.n_frames, -(-stop * self._down // self._up) + reach)
        offset = first * self._up // self._down
        resampled = polyphase(self._read_frames(first, last), self._up, self._down)
        return resampled[start - offset : stop - offset].copy()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_frames(self, first: int, last: int) -> Array:
        with self._naming_damage(f"between samples {first} and {last}"):
            # A seek costs a FLAC a search, even to where it stands.
            if first != self._next_frame:
                start = max(0, first - _PREROLL.get(self._file.format, 0))
                self._file.seek(start)
                for _ in self._decode(first - start):
                    pass
            self._next_frame = None
            blocks = list(self._decode(last - first))
        mono = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        if len(mono) < last - first:
            raise ValueError(
                f"{self.name} is truncated: its header says {self.n_frames} samples, but only "
                f"{first + len(mono)} can be decoded."
            )
        self._next_frame = last
        # Integers have no NaN, and nearly all speech is stored as integers.
        if not self._file.subtype.startswith("PCM_") and not np.isfinite(mono).all():
            n_bad = int((~np.isfinite(mono)).sum())
            raise ValueError(
                f"{self.name} holds NaN or infinite values in {n_bad} of {len(mono)} samples."
            )
        return mono

    def _decode(self, n_frames: int) -> Iterator[Array]:
        """Yield mono blocks up to where the file ends: a header that lies costs one of them."""
        n_block = _BLOCK_VALUES // self.n_channels
        for start in range(0, n_frames, n_block):
            n_wanted = min(n_block, n_frames - start)
            frames = self._file.read(n_wanted, dtype="float32", always_2d=True)
            yield np.ascontiguousarray(self._mix(frames))
            if len(frames) < n_wanted:
                return

    def _mix(self, frames: Array) -> Array:
        if self.n_channels == 1 or self.channel is not None:
            return frames[:, self.channel or 0]
        mono, power, own_power = _average(frames)
        self._power += power
        self._own_power += own_power
        return mono

    def _count_frames(self) -> int:
        log = "" if self._file.format == "FLAC" else self._file.extra_info
        for announced, present in _CHUNK_SIZES.findall(log):
            if int(present) < int(announced) < _STREAMED_SIZE:
                raise ValueError(
                    f"{self.name} is truncated: its header announces {announced} bytes of audio, "
                    f"but only {present} are there."
                )
        n_frames: int = self._file.frames
        if n_frames != UNKNOWN_LENGTH:
            return n_frames
        n_frames, n_block = 0, _BLOCK_VALUES // self.n_channels
        while True:
            with self._naming_damage(f"after sample {n_frames}"):
                n_read = len(self._file.read(n_block, dtype="int16", always_2d=True))
            if not n_read:
                break
            n_frames += n_read
        self._next_frame = None
        return n_frames

    @contextmanager
    def _naming_damage(self, where: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # libsndfile's and PyAV's
            reason = getattr(error, "error_string", error)
            raise ValueError(
                f"{self.name} can't be decoded {where}; it may be truncated or damaged ({reason})"
            ) from error


def _average(frames: Array) -> tuple[Array, float, float]:
    """Return the average (time,) of channels (time, channels), their power, and what it lacks."""
    with np.errstate(invalid="ignore", over="ignore"):  # refused later where not finite
        mono: Array = frames.mean(axis=1)
        power = float(np.vdot(frames, frames))
        return mono, power, power - frames.shape[1] * float(np.vdot(mono, mono))


def _check_channel(channel: int | None, n_channels: int, name: str) -> None:
    if channel is not None and not 0 <= channel < n_channels:
        raise ValueError(
            f"`channel` must be from 0 to {n_channels - 1}: {name} has {n_channels} channels; got "
            f"{channel}."
        )


@dataclass(eq=False)
class InMemory:
    """A waveform (time,), read as an `AudioFile` is.

    Attributes:
        waveform: The samples, at the rate at which they are wanted.
        native_rate: The rate that they had before.
        n_channels: The channels that they had.
        channels_differ: Whether they are the average of channels that are not alike.
    """

    waveform: Array
    native_rate: int
    n_channels: int = 1
    channels_differ: bool = False

    @property
    def n_samples(self) -> int:
        """The number of samples."""
        return len(self.waveform)

    def read(self, start: int = 0, n_samples: int | None = None) -> Array:
        """Return up to `n_samples` samples from sample `start`."""
        return self.waveform[start : None if n_samples is None else start + n_samples]


OpenAudio: TypeAlias = AudioFile | InMemory


def open_audio(
    audio: Any, sample_rate: int, new_rate: int, *, channel: int | None = None
) -> AbstractContextManager[OpenAudio]:
    """Return audio of any kind as a context whose value is read at `new_rate`.

    Args:
        audio: A file, an open one, the bytes of one, a waveform, or what this function has opened.
        sample_rate: The rate of a waveform, in Hz.
        new_rate: The rate to resample to, in Hz.
        channel: The channel to read, from 0 on; None is the average of all.

    Example:
        >>> with open_audio(np.zeros(8000, np.float32), 8000, 16000) as audio:
        ...     audio.n_samples
        16000
    """
    if isinstance(audio, AudioFile | InMemory):
        return nullcontext(audio)
    if isinstance(audio, str | os.PathLike | bytes) or hasattr(audio, "read"):
        return AudioFile(audio, sample_rate=new_rate, channel=channel, name=audio_name(audio))
    return nullcontext(as_audio(audio, sample_rate, new_rate, channel=channel))


def audio_name(audio: Any) -> str:
    """Return what an error calls a piece of audio, never its content."""
    if isinstance(audio, str | os.PathLike):
        return os.fspath(audio)
    name = getattr(audio, "name", None)
    return name if isinstance(name, str) else "the audio"


# Sampling rates


def resample(waveform: AnyWaveform, orig_rate: int, new_rate: int) -> AnyWaveform:
    """Change the sampling rate, without aliasing.

    A polyphase FIR (Kaiser window, at least 80 dB in the stop band) that keeps samples aligned:
    sample k of the result stands at time k / `new_rate`. It runs on the CPU and passes no gradient.

    Args:
        waveform: Float array or tensor of shape (..., time).
        orig_rate: Its sampling rate, in Hz.
        new_rate: The rate to change to, in Hz.

    Returns:
        An array or tensor of shape (..., ceil(time · new_rate / orig_rate)), of the same dtype and
        device.

    Example:
        >>> import torch
        >>> resample(torch.randn(2, 44100), 44100, 16000).shape
        torch.Size([2, 16000])
    """
    up, down = rate_ratio(check_rate(orig_rate, "orig_rate"), check_rate(new_rate, "new_rate"))
    if isinstance(waveform, np.ndarray):
        if waveform.dtype.kind != "f":
            raise TypeError(
                f"`waveform` must hold floats; got {waveform.dtype}. Scale integers first: "
                "waveform / 32768 for int16."
            )
        if up == down:
            return waveform
        wide = waveform.astype(np.promote_types(waveform.dtype, np.float32), copy=False)
        return polyphase(wide, up, down).astype(waveform.dtype, copy=False)
    import torch

    check_float(waveform)
    if up == down:
        return waveform
    samples = waveform.detach().cpu()
    if samples.dtype not in (torch.float32, torch.float64):
        samples = samples.float()
    return torch.from_numpy(polyphase(samples.numpy(), up, down)).to(waveform)


def resampling_reach(orig_rate: int, new_rate: int) -> int:
    """Return how many samples before and after its place a sample of `resample` depends on.

    Both ends of a part that is resampled on its own need that much context to equal the same part
    of the whole, and the part must start at a multiple of orig_rate / gcd(orig_rate, new_rate).
    """
    up, down = rate_ratio(orig_rate, new_rate)
    return _HALF_PERIODS * max(up, down) // up + 2


def polyphase(samples: NDArray[Any], up: int, down: int) -> NDArray[Any]:
    """Resample (..., time) by up / down."""
    import scipy.signal

    taps: Any = _resampling_filter(max(up, down)).astype(samples.dtype)
    return np.asarray(scipy.signal.resample_poly(samples, up, down, axis=-1, window=taps))


@lru_cache(maxsize=8)
def _resampling_filter(factor: int) -> NDArray[np.float64]:
    import scipy.signal

    return scipy.signal.firwin(
        2 * _HALF_PERIODS * factor + 1, _CUTOFF / factor, window=("kaiser", _KAISER_BETA)
    )


def rate_ratio(orig_rate: int, new_rate: int) -> tuple[int, int]:
    """Return the lowest whole numbers (up, down) in the ratio of the new rate to the old one.

    The filter is as long as the larger, so a ratio that needs more than `_MAX_FACTOR`, as only odd
    rates above 50 kHz do, is rounded: by less than 20 parts in a million.
    """
    ratio = Fraction(new_rate, orig_rate)
    if ratio < 1:
        ratio = ratio.limit_denominator(_MAX_FACTOR)
    else:
        ratio = 1 / (1 / ratio).limit_denominator(_MAX_FACTOR)
    return ratio.numerator, ratio.denominator


# Levels


def peak_normalize(waveform: Tensor) -> Tensor:
    """Scale each waveform so that its largest magnitude is 1; silence stays silence.

    Args:
        waveform: Float tensor of shape (..., time).

    Example:
        >>> import torch
        >>> peak_normalize(torch.tensor([0.0, -0.5, 0.25]))
        tensor([ 0.0000, -1.0000,  0.5000])
    """
    import torch

    check_float(waveform)
    if waveform.shape[-1] == 0:
        raise ValueError("`waveform` must hold at least one sample; got none.")
    peak = torch.maximum(waveform.amax(dim=-1, keepdim=True), -waveform.amin(dim=-1, keepdim=True))
    return waveform / peak.masked_fill(peak == 0, 1)


def set_level(crops: Array, normalization: Normalization, peak: float | None = None) -> Array:
    """Return crops (..., time) of an utterance, divided as `normalization` says.

    `peak` is the largest magnitude of the utterance; only "utterance" needs it.

    Example:
        >>> set_level(np.array([0.0, 0.25], np.float32), "utterance", peak=0.5)
        array([0. , 0.5], dtype=float32)
    """
    if normalization == "none":
        return crops
    if normalization == "utterance" and peak is None:
        raise ValueError('`peak` must be that of the utterance with "utterance"; got None.')
    highest, lowest = crops.max(axis=-1, keepdims=True), crops.min(axis=-1, keepdims=True)
    largest = np.maximum(highest, -lowest) if peak is None or normalization == "crop" else peak
    return np.asarray(crops / np.where(largest == 0, 1, largest), np.float32)


# Crops


def fix_length(
    waveform: AnyWaveform,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> AnyWaveform:
    """Return exactly `n_samples` samples of a waveform of any length (section III-B.1).

    Args:
        waveform: Array or tensor of shape (time,).
        n_samples: The length of the crop.
        crop: "center" for evaluation, "random" for training.
        generator: The source of the random start; required by ``crop="random"``.

    Returns:
        A waveform of shape (n_samples,), a view of `waveform` where that is long enough.

    Example:
        >>> import torch
        >>> fix_length(torch.arange(10.0), 4)
        tensor([3., 4., 5., 6.])
        >>> fix_length(torch.tensor([1.0, 2.0, 3.0]), 4)
        tensor([2., 3., 1., 2.])
    """
    check_one_waveform(waveform)
    start = crop_start(len(waveform), n_samples, crop=crop, generator=generator)
    return cut(waveform, start, n_samples)


def tta_crops(
    waveform: AnyWaveform, n_crops: int = 5, n_samples: int = CROP_SAMPLES
) -> AnyWaveform:
    """Cut evenly spaced crops for test-time augmentation (section III-C).

    The first crop starts with the waveform, the last one ends with it. A waveform shorter than a
    crop is repeated until it exceeds the crop before it is cut. One crop is the centre crop.

    Args:
        waveform: Array or tensor of shape (time,).
        n_crops: The number of crops, K in the paper.
        n_samples: The length of each crop.

    Returns:
        Crops of shape (n_crops, n_samples).

    Example:
        >>> import torch
        >>> tta_crops(torch.randn(96000)).shape
        torch.Size([5, 64000])
    """
    check_one_waveform(waveform)
    starts = crop_starts(len(waveform), n_crops, n_samples)
    return waveform[(np.array(starts)[:, None] + np.arange(n_samples)) % len(waveform)]


def crop_starts(
    n_total: int,
    n_crops: int = 5,
    n_samples: int = CROP_SAMPLES,
    *,
    one_crop: Literal["center", "start"] = "center",
) -> list[int]:
    """Return where crops start, modulo `n_total` samples: equal starts mean equal crops."""
    check_between("n_crops", n_crops, 1)
    last = last_start(n_total, n_samples)
    if n_crops == 1:
        return [0 if one_crop == "start" else last // 2 % n_total]
    return [last * k // (n_crops - 1) % n_total for k in range(n_crops)]


def crop_start(
    n_total: int,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> int:
    """Return where the crop of `fix_length` starts in a waveform of `n_total` samples."""
    last = last_start(n_total, n_samples)
    if crop == "center":
        return last // 2
    if crop != "random":
        raise ValueError(f'`crop` must be "center" or "random"; got {crop!r}.')
    if generator is None:
        raise ValueError('`generator` must be a torch.Generator when crop="random"; got None.')
    import torch

    # A fraction, so that one draw means one place in recordings of nearly one length.
    return int(torch.rand((), generator=generator, dtype=torch.float64) * (last + 1))


def last_start(n_total: int, n_samples: int) -> int:
    """Return the last valid start of a crop, in the waveform repeated where it is too short."""
    check_between("n_samples", n_samples, 1)
    if n_total >= n_samples:
        return n_total - n_samples
    return (n_samples // n_total + 1) * n_total - n_samples


def cut(waveform: AnyWaveform, start: int, n_samples: int) -> AnyWaveform:
    """Return `n_samples` from `start` of a (time,) waveform repeated endlessly."""
    n_total = len(waveform)
    if start + n_samples <= n_total:
        return waveform[start : start + n_samples]
    return waveform[np.arange(start, start + n_samples) % n_total]


# Arrays of any dtype


def as_mono(waveform: Waveform, *, allow_empty: bool = False, channel: int | None = None) -> Array:
    """Return audio of any dtype, mono or (channels, time), as a float32 array of shape (time,).

    Signed integers are divided by their full range, uint8 is 128 ± 128 as in WAV files; channels
    are averaged unless `channel` says which to take. More channels than 64, or than samples, are
    refused as (time, channels).
    """
    return as_audio(waveform, allow_empty=allow_empty, channel=channel).waveform


def as_audio(
    waveform: Waveform,
    sample_rate: int = SAMPLE_RATE,
    new_rate: int | None = None,
    *,
    channel: int | None = None,
    allow_empty: bool = False,
) -> InMemory:
    """Return what `as_mono` does, resampled to `new_rate`, to be read as a file is."""
    sample_rate = check_rate(sample_rate)
    samples = _as_array(waveform)
    shape = samples.shape
    if samples.ndim not in (1, 2):
        raise ValueError(f"`waveform` must have shape (time,) or (channels, time); got {shape}.")
    if samples.size == 0 and not allow_empty:
        raise ValueError(f"`waveform` must hold at least one sample; got shape {shape}.")
    if samples.ndim == 2 and (shape[0] > MAX_CHANNELS or 1 <= shape[1] < shape[0]):
        raise ValueError(
            f"`waveform` must have shape (channels, time) with at most {MAX_CHANNELS} channels, "
            f"fewer than samples; got {shape}. Did you pass (time, channels)? Transpose it: "
            "waveform.T."
        )
    frames = as_float(samples).reshape(-1, shape[-1]) if samples.size else np.zeros((1, 0), "f")
    _check_channel(channel, len(frames), "`waveform`")
    differ = False
    if len(frames) == 1 or channel is not None:
        mono = frames[channel or 0]
    else:
        mono, power, own_power = _average(frames.T)
        differ = own_power > _DIFFERENCE * power
    is_finite = np.isfinite(mono)
    if not is_finite.all():
        is_large = samples.dtype.kind == "f" and bool(np.isfinite(samples).all())
        raise ValueError(
            f"`waveform` must be finite; {np.count_nonzero(~is_finite)} of its {len(mono)} "
            f"samples are {'too large for float32' if is_large else 'NaN or infinite'}."
        )
    # A copy where torch could not write: it would warn.
    mono = np.require(mono, requirements=["C", "W"])
    mono = resample(mono, sample_rate, new_rate or sample_rate)
    return InMemory(mono, sample_rate, n_channels=len(frames), channels_differ=differ)


def _as_array(waveform: Any) -> NDArray[Any]:
    if isinstance(waveform, bytes | bytearray | memoryview):
        came, hint = f"{len(waveform)} raw bytes", "numpy.frombuffer gives samples"
    elif isinstance(waveform, str | os.PathLike):
        came, hint = f"the path {waveform!r}", "Scorer.score_files takes it"
    elif hasattr(waveform, "read"):
        came, hint = "a file", "Scorer.score_files takes it"
    elif isinstance(waveform, np.ma.MaskedArray):
        raise TypeError("`waveform` must not be masked: which samples are meant? Fill or cut it.")
    elif hasattr(waveform, "detach"):
        samples = waveform.detach().cpu()
        is_half = samples.is_floating_point() and samples.itemsize == 2  # NumPy has no bfloat16
        return np.asarray(samples.float() if is_half else samples)
    else:
        return np.asarray(waveform)
    raise TypeError(
        f"`waveform` must be an array of samples; got {came}. Read it with load_audio; {hint}."
    )
