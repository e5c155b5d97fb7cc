"""From a file to crops of a fixed length.

A waveform is a float array or tensor of shape (time,), mono, at 16 kHz unless said otherwise.
Sections III-B.1 and III-C of the TFPARN paper define how it becomes 4 s crops. PyTorch, libsndfile
and the filters of SciPy are imported when they are first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._formats import UNKNOWN_LENGTH, as_float, open_sound
from asvspoof_cm._util import (
    MAX_RATE,
    MIN_RATE,
    check_between,
    check_choice,
    check_not_negative,
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
MAX_CROPS = 1000
MAX_CHANNELS = 64  # that a header may announce

BAD_AUDIO = (
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    ImportError,
)
"""What a hostile file can make of its reader; other errors are those of the code."""

_DIFFERENCE = 0.1  # the share of their power that channels don't share, where they differ

_BLOCK_VALUES = 1 << 22
BLOCK_SAMPLES = 1 << 20

NOTHING_TO_JUDGE = "no speech to judge"
"""The warning of an utterance on which a verdict abstains."""

_QUIET = 2.0**-15  # one step of 16 bits: what is below is digital silence, whatever the recording
_SILENT_PEAK = 1e-4  # 80 dB below full scale
_CLIPPED_LEVEL, _CLIPPED_SHARE = 0.999, 1e-3  # of full scale, of the samples
_CONSTANT_SHARE = 0.01  # of the power in what varies
_SHORTEST_S = 0.5  # what is shorter has nothing in it that could be judged
_LEAST_COVERED = 0.25  # of an utterance in its crops

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
        one_crop: Where that crop lies if it is the only one.
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
        check_between("crop_s", self.crop_s, 1 / self.sample_rate, 3600.0)
        check_positive(self, "n_crops")
        check_between("n_crops", self.n_crops, 1, MAX_CROPS)
        check_choice("one_crop", self.one_crop, ("center", "start"))
        check_choice("normalization", self.normalization, ("crop", "utterance", "none"))

    @property
    def n_samples(self) -> int:
        """The samples of a crop."""
        return round(self.crop_s * self.sample_rate)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> InputSettings:
        """Return the settings that `dataclasses.asdict` made a dict of."""
        if unknown := sorted(content.keys() - {field.name for field in fields(cls)}):
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
    """Return the mono waveform (time,) of a file, or of a part of it, float32.

    Only the part asked for is decoded; it equals that part of the whole file resampled. Where the
    file ends before the part does, the result is shorter.

    Args:
        path: A file, as of `AudioFile`.
        sample_rate: The rate to resample to, in Hz.
        start_s: Where to start, in seconds.
        duration_s: How much to read, in seconds; None reads to the end.
        channel: The channel to read, from 0 on; None is the average of all.

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


class AudioFile(AbstractContextManager["AudioFile"]):
    """An open audio file whose samples are read, mono and resampled, from anywhere in it.

    It goes through a long file in blocks. What libsndfile does not read (m4a, AAC, WebM, AMR, WMA,
    videos) is decoded by PyAV, the extra ``av``: once to know the length, and again up to each
    part. For training, convert such files to FLAC or WAV.

    Args:
        source: A file, the bytes of one, or a file object, which must be open in binary mode.
        sample_rate: The rate to resample to, in Hz.
        channel: The channel to read, from 0 on; None is the average of all.

    Attributes:
        n_samples: Its length at `sample_rate`.
        native_rate: Its own sampling rate.
        n_channels: Its channels.

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
    ) -> None:
        self.sample_rate = check_rate(sample_rate, "sample_rate")
        self.channel = channel
        self.name = audio_name(source)
        self._file = open_sound(source, self.name)
        try:
            self.native_rate: int = self._file.samplerate
            self.n_channels: int = self._file.channels
            self._next_frame: int | None = 0
            self._power = self._own_power = 0.0
            has_rate = MIN_RATE <= self.native_rate <= MAX_RATE
            if not (has_rate and 1 <= self.n_channels <= MAX_CHANNELS):
                raise ValueError(
                    f"{self.name} must have {MIN_RATE} to {MAX_RATE} Hz and at most {MAX_CHANNELS} "
                    f"channels; its header says {self.native_rate} Hz and {self.n_channels} "
                    "channels."
                )
            _check_channel(channel, self.n_channels, self.name)
            self.n_frames = self._count_frames()
            if self.n_frames == 0:
                raise ValueError(f"{self.name} holds no samples.")
        except BaseException:
            self.close()
            raise
        self._resampler = Resampler(self.native_rate, self.sample_rate)
        self.n_samples = self._resampler.n_known(self.n_frames, is_all=True)

    @property
    def channels_differ(self) -> bool:
        """Whether the channels that were averaged so far share less than 90 % of their power."""
        return self._own_power > _DIFFERENCE * self._power

    def read(self, start: int = 0, n_samples: int | None = None) -> Array:
        """Return up to `n_samples` samples from sample `start`, both counted at `sample_rate`."""
        check_not_negative(start=start, n_samples=n_samples or 0)
        stop = self.n_samples if n_samples is None else min(start + n_samples, self.n_samples)
        if stop <= start:
            return np.empty(0, np.float32)
        return self._resampler.part(self._read_frames, start, stop, self.n_frames)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

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
            mono, power, own_power = _mix(frames, self.channel)
            self._power += power
            self._own_power += own_power
            yield np.ascontiguousarray(mono)
            if len(frames) < n_wanted:
                return

    def _count_frames(self) -> int:
        log = "" if self._file.format == "FLAC" else self._file.extra_info
        for announced, present in _CHUNK_SIZES.findall(log):
            if int(present) < int(announced) < _STREAMED_SIZE:
                raise ValueError(
                    f"{self.name} is truncated: its header announces {announced} bytes of audio, "
                    f"but only {present} are there."
                )
        if self._file.frames != UNKNOWN_LENGTH:
            return int(self._file.frames)
        self._next_frame = None
        n_frames, n_read = 0, 1
        while n_read:
            with self._naming_damage(f"after sample {n_frames}"):
                n_block = _BLOCK_VALUES // self.n_channels
                n_read = len(self._file.read(n_block, dtype="int16", always_2d=True))
            n_frames += n_read
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


def _mix(frames: Array, channel: int | None) -> tuple[Array, float, float]:
    """Return one channel or the average (time,) of (time, channels), their power, and its loss."""
    if frames.shape[1] == 1 or channel is not None:
        return frames[:, channel or 0], 0.0, 0.0
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
    """A waveform (time,) at the rate that is wanted, read as an `AudioFile` is.

    The other fields say what it was before it was resampled and mixed.
    """

    waveform: Array
    native_rate: int
    n_channels: int = 1
    channels_differ: bool = False

    def __post_init__(self) -> None:
        self.n_samples = len(self.waveform)

    def read(self, start: int = 0, n_samples: int | None = None) -> Array:
        """Return up to `n_samples` samples from sample `start`."""
        return self.waveform[start : None if n_samples is None else start + n_samples]


OpenAudio: TypeAlias = AudioFile | InMemory


def open_audio(
    audio: Any, sample_rate: int, new_rate: int, *, channel: int | None = None
) -> AbstractContextManager[OpenAudio]:
    """Return a file, an open one, the bytes of one, or a waveform as a context of open audio."""
    if isinstance(audio, AudioFile | InMemory):
        return nullcontext(audio)
    is_bytes = isinstance(audio, bytes | bytearray | memoryview)
    if is_bytes or isinstance(audio, str | os.PathLike) or hasattr(audio, "read"):
        return AudioFile(audio, sample_rate=new_rate, channel=channel)
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

    A polyphase FIR (Kaiser window, at least 80 dB in the stop band), on the CPU and without
    gradient: sample k of the result stands at time k / `new_rate`. A float array or tensor (...,
    time) becomes one of the same dtype and device, (..., ceil(time · new_rate / orig_rate)).

    Example:
        >>> import torch
        >>> resample(torch.randn(2, 44100), 44100, 16000).shape
        torch.Size([2, 16000])
    """
    resampler = Resampler(check_rate(orig_rate, "orig_rate"), check_rate(new_rate, "new_rate"))
    samples = _as_array(waveform)
    if samples.dtype.kind != "f":
        raise TypeError(
            f"`waveform` must hold floats; got {samples.dtype}. Scale integers first: "
            "waveform / 32768 for int16."
        )
    if resampler.up == resampler.down:
        return waveform
    found = resampler(samples.astype(np.result_type(samples, np.float32)))
    if isinstance(waveform, np.ndarray):
        return found.astype(waveform.dtype, copy=False)
    import torch

    return torch.from_numpy(found).to(waveform)


class Resampler:
    """A change of the sampling rate by up / down, whose parts equal those of the whole.

    The filter is as long as the larger, so a ratio that needs more than `_MAX_FACTOR`, as only odd
    rates above 50 kHz do, is rounded: by less than 20 parts in a million.
    """

    def __init__(self, orig_rate: int, new_rate: int) -> None:
        low, high = sorted((orig_rate, new_rate))
        ratio = Fraction(low, high).limit_denominator(_MAX_FACTOR).as_integer_ratio()
        self.up, self.down = ratio if new_rate == low else ratio[::-1]
        # How many frames before and after its place a resampled sample depends on.
        periods = _HALF_PERIODS * max(self.up, self.down) // self.up
        self._reach = 0 if self.up == self.down else periods + 2

    def __call__(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return (..., time) at the new rate."""
        import scipy.signal

        taps: Any = _resampling_filter(max(self.up, self.down)).astype(samples.dtype)
        found = scipy.signal.resample_poly(samples, self.up, self.down, axis=-1, window=taps)
        return np.asarray(found)

    def n_known(self, n_frames: int, *, is_all: bool = False) -> int:
        """Return how many samples `n_frames` decide, whatever follows them unless they are all."""
        if is_all:
            return -(-n_frames * self.up // self.down)
        return max(0, n_frames - self._reach) * self.up // self.down

    def first_needed(self, start: int) -> int:
        """Return the first frame, on the filter's grid, that sample `start` depends on."""
        return max(0, (start * self.down // self.up - self._reach) // self.down * self.down)

    def part(
        self, read: Callable[[int, int], Array], start: int, stop: int, n_frames: int
    ) -> Array:
        """Return samples `start` to `stop` of a recording of `n_frames`, which `read` reads."""
        if self.up == self.down:
            return read(start, stop)
        first = self.first_needed(start)
        last = min(n_frames, -(-stop * self.down // self.up) + self._reach)
        offset = first * self.up // self.down
        return self(read(first, last))[start - offset : stop - offset].copy()


@lru_cache(maxsize=8)
def _resampling_filter(factor: int) -> NDArray[np.float64]:
    import scipy.signal

    return scipy.signal.firwin(
        2 * _HALF_PERIODS * factor + 1, _CUTOFF / factor, window=("kaiser", _KAISER_BETA)
    )


# Levels


def set_level(crops: Array, normalization: Normalization, peak: float | None = None) -> Array:
    """Return crops (..., time) of an utterance, divided as `normalization` says.

    `peak` is the largest magnitude of the utterance; only "utterance" needs it.

    Example:
        >>> set_level(np.array([0.0, 0.25], np.float32), "crop")
        array([0., 1.], dtype=float32)
    """
    if normalization == "none":
        return crops
    if normalization == "utterance" and peak is None:
        raise ValueError('`peak` must be that of the utterance with "utterance"; got None.')
    highest, lowest = crops.max(axis=-1, keepdims=True), crops.min(axis=-1, keepdims=True)
    largest = np.maximum(highest, -lowest) if peak is None or normalization == "crop" else peak
    return np.asarray(crops / np.where(largest == 0, 1, largest), np.float32)


# Crops


def fix_length(waveform: AnyWaveform, n_samples: int = CROP_SAMPLES) -> AnyWaveform:
    """Return the centre crop of a waveform (time,) of any length (section III-B.1).

    A waveform that is shorter is repeated; where it is long enough, a view is returned.

    Example:
        >>> import torch
        >>> fix_length(torch.tensor([1.0, 2.0, 3.0]), 4)
        tensor([2., 3., 1., 2.])
    """
    _check_waveform(waveform)
    return cut(waveform, _last_start(len(waveform), n_samples) // 2, n_samples)


def tta_crops(
    waveform: AnyWaveform, n_crops: int = 5, n_samples: int = CROP_SAMPLES
) -> AnyWaveform:
    """Return evenly spaced crops (n_crops, n_samples) of a waveform (time,) (section III-C).

    The first starts with the waveform, the last ends with it; one crop is the centre crop. A
    waveform that is shorter is repeated until it exceeds the crop.

    Example:
        >>> import torch
        >>> tta_crops(torch.randn(96000)).shape
        torch.Size([5, 64000])
    """
    _check_waveform(waveform)
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
    last = _last_start(n_total, n_samples)
    if n_crops == 1:
        return [0 if one_crop == "start" else last // 2 % n_total]
    return [last * k // (n_crops - 1) % n_total for k in range(n_crops)]


def random_start(n_total: int, n_samples: int, generator: torch.Generator) -> int:
    """Return where a random crop starts: one draw is one place in recordings of like length."""
    import torch

    drawn = torch.rand((), generator=generator, dtype=torch.float64)
    return int(drawn * (_last_start(n_total, n_samples) + 1))


def _last_start(n_total: int, n_samples: int) -> int:
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


def _check_waveform(waveform: Waveform) -> None:
    if waveform.ndim != 1 or len(waveform) == 0:
        raise ValueError(
            f"`waveform` must have shape (time,), with at least one sample; got "
            f"{tuple(waveform.shape)}. Average channels, and take batches one by one."
        )


# What is heard of an utterance


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """The distinct crops (n_distinct, time) of one utterance and what is known about it.

    `which` is the row of `crops` that each crop of the test-time augmentation is.
    """

    crops: Array
    which: Sequence[int]
    duration_s: float
    resampled_from: int | None
    warnings: tuple[str, ...]


def take_crops(source: OpenAudio, settings: InputSettings) -> Utterance:
    """Return the crops of the test-time augmentation, cut out of audio at the model's rate.

    Digital silence at the ends is left out. Each distinct crop is there once, at the level that the
    model wants. Long audio is read in blocks, so that memory does not grow with its length.
    """
    n_samples, rate = settings.n_samples, settings.sample_rate
    blocks = range(0, source.n_samples, BLOCK_SAMPLES)
    whole = source.read() if len(blocks) == 1 else None
    read = (source.read(k, BLOCK_SAMPLES) if whole is None else whole for k in blocks)
    first, stop, peak, notes = _listen(read, rate)
    n_heard = stop - first
    starts = crop_starts(n_heard, settings.n_crops, n_samples, one_crop=settings.one_crop)
    distinct = sorted(set(starts))
    if whole is None and n_heard >= n_samples:
        crops = np.stack([source.read(first + start, n_samples) for start in distinct])
    else:
        heard = source.read(first, n_heard) if whole is None else whole[first:stop]
        crops = np.stack([cut(heard, start, n_samples) for start in distinct])
    if len(crops) * n_samples < _LEAST_COVERED * n_heard:
        held_s = len(crops) * settings.crop_s
        notes += (f"the crops hold {held_s:.0f} of {n_heard / rate:.0f} s: see timeline",)
    if source.channels_differ:
        notes += ("the channels differ and were mixed: see channel",)
    return Utterance(
        crops=set_level(crops, settings.normalization, peak),
        which=[distinct.index(start) for start in starts],
        duration_s=source.n_samples / rate,
        resampled_from=None if source.native_rate == rate else source.native_rate,
        warnings=notes,
    )


def _listen(blocks: Iterable[Array], rate: int) -> tuple[int, int, float, tuple[str, ...]]:
    """Return where audio begins and ends to be heard, its peak, and what to warn of."""
    n_samples = n_clipped = stop = 0
    start: int | None = None
    peak = total = power = 0.0
    for block in blocks:
        magnitude = np.abs(block)
        loud = np.flatnonzero(magnitude > _QUIET)
        if len(loud):
            start = n_samples + int(loud[0]) if start is None else start
            stop = n_samples + int(loud[-1]) + 1
        n_samples += len(block)
        peak = max(peak, float(magnitude.max()))
        n_clipped += int(np.count_nonzero(magnitude >= _CLIPPED_LEVEL))
        total += float(block.sum(dtype=np.float64))
        power += float(np.square(block, dtype=np.float64).sum())
    if start is None:
        start, stop = 0, n_samples
    is_silent = peak < _SILENT_PEAK
    is_constant = not is_silent and power - total**2 / n_samples < _CONSTANT_SHARE * power
    found = {
        NOTHING_TO_JUDGE: is_silent or is_constant or stop - start < _SHORTEST_S * rate,
        "silent": is_silent,
        "constant": is_constant,
        "clipped": n_clipped >= _CLIPPED_SHARE * n_samples,
        "shorter than 1 s": stop - start < rate,
    }
    return start, stop, peak, tuple(name for name, is_so in found.items() if is_so)


# Arrays of any dtype


def as_audio(
    waveform: Waveform,
    sample_rate: int = SAMPLE_RATE,
    new_rate: int | None = None,
    *,
    channel: int | None = None,
    allow_empty: bool = False,
) -> InMemory:
    """Return audio of any dtype, mono or (channels, time), to be read as a file is.

    Signed integers are divided by their full range, uint8 is 128 ± 128 as in WAV files; channels
    are averaged unless `channel` says which to take. `new_rate` is the rate to resample to.
    """
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
            f"fewer than samples; got {shape}. Did you pass (time, channels)? Take waveform.T."
        )
    frames = as_float(samples).reshape(-1, shape[-1]) if samples.size else np.zeros((1, 0), "f")
    _check_channel(channel, len(frames), "`waveform`")
    mono, power, own_power = _mix(frames.T, channel)
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
    differ = own_power > _DIFFERENCE * power
    return InMemory(mono, sample_rate, n_channels=len(frames), channels_differ=differ)


def _as_array(waveform: Any) -> NDArray[Any]:
    if isinstance(waveform, np.ma.MaskedArray):
        raise TypeError("`waveform` must not be masked: which samples are meant? Fill or cut it.")
    is_bytes = isinstance(waveform, bytes | bytearray | memoryview)
    if is_bytes or isinstance(waveform, str | os.PathLike) or hasattr(waveform, "read"):
        raise TypeError(
            f"`waveform` must be an array of samples; got {type(waveform).__name__}. Read a file "
            "with load_audio, raw bytes with numpy.frombuffer."
        )
    if not hasattr(waveform, "detach"):
        return np.asarray(waveform)
    samples = waveform.detach().cpu()
    is_half = samples.is_floating_point() and samples.itemsize == 2  # NumPy has no bfloat16
    return np.asarray(samples.float() if is_half else samples)
