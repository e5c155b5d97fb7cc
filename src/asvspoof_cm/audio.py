"""From a file to crops of a fixed length.

A waveform is a float tensor of shape (time,), mono, at 16 kHz unless said otherwise. Sections
III-B.1 and III-C of the TFPARN paper define how it becomes 4 s crops:

- longer than a crop: cut one out, at random in training, from the centre in evaluation;
- shorter: repeat the whole waveform until it exceeds the crop, then cut;
- test-time augmentation: several crops, their starts evenly spaced from the first to the last.
"""

from __future__ import annotations

import math
import os
import re
import stat
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
import scipy.signal
import soundfile
import torch
from torch import Tensor
from typing_extensions import Self

__all__ = [
    "AUDIO_EXTENSIONS",
    "CROP_SAMPLES",
    "SAMPLE_RATE",
    "AudioFile",
    "fix_length",
    "load_audio",
    "peak_normalize",
    "resample",
    "to_mono",
    "tta_crops",
]

SAMPLE_RATE = 16000
CROP_SAMPLES = 64000
AUDIO_EXTENSIONS = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au")
"""How the names of audio files end, in lower case."""

# libsndfile reports this many frames when a stream does not say how long it is.
_UNKNOWN_LENGTH = 0x7FFFFFFFFFFFFFFF
_BLOCK_FRAMES = 1 << 20

# libsndfile mends a WAV or AIFF that is shorter than its header says and only notes it in its log.
# Writers that can't seek back (a pipe) leave a size near 2 or 4 GiB, which is no truncation.
_CHUNK_SIZES = re.compile(r"^ *(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
_STREAMED_SIZE = 0x7FFFF000

# Half-length of the resampling filter in periods of the lower rate, and its -6 dB point relative to
# the lower Nyquist frequency: with a Kaiser window of this beta, images are at least 80 dB down.
_HALF_PERIODS = 40
_CUTOFF = 0.938
_KAISER_BETA = 8.6


def load_audio(
    path: str | os.PathLike[str],
    *,
    sample_rate: int = SAMPLE_RATE,
    start_s: float = 0.0,
    duration_s: float | None = None,
) -> Tensor:
    """Read a file, or a part of it, as a mono waveform.

    Only the part asked for is decoded. A part that is resampled equals the same part of the whole
    file resampled.

    Args:
        path: Any file that libsndfile reads (WAV, FLAC, Ogg, MP3, …).
        sample_rate: The rate to resample to, in Hz.
        start_s: Where to start, in seconds.
        duration_s: How much to read, in seconds; None reads to the end. Where the file ends
            earlier, the result is shorter.

    Returns:
        A float32 tensor of shape (time,), the average of the channels.

    Raises:
        OSError: The file is missing, a directory or not readable.
        ValueError: The file is empty, not audio, truncated, or holds NaN or infinite samples.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tone.wav"
        >>> tone = np.sin(np.arange(44100) * 0.05)
        >>> soundfile.write(path, np.stack([tone, tone], axis=1), 44100)
        >>> load_audio(path).shape
        torch.Size([16000])
        >>> load_audio(path, start_s=0.25, duration_s=0.5).shape
        torch.Size([8000])
    """
    if not (math.isfinite(start_s) and start_s >= 0):
        raise ValueError(f"`start_s` must be finite and not negative; got {start_s}.")
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise ValueError(f"`duration_s` must be finite and positive, or None; got {duration_s}.")
    with AudioFile(path, sample_rate=sample_rate) as file:
        start = round(start_s * sample_rate)
        if start >= file.n_samples:
            raise ValueError(
                f"`start_s` must lie inside the file; got {start_s} s, but {path} ends at "
                f"{file.n_samples / sample_rate:.3f} s."
            )
        n_samples = None if duration_s is None else max(1, round(duration_s * sample_rate))
        return file.read(start, n_samples)


class _SequentialSoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """A SoundFile that does not seek to where it already is after each read.

    That seek costs a FLAC a second decoding, and fails at the end of one of unknown length.
    """

    def seekable(self) -> bool:
        return False


class AudioFile:
    """An open audio file whose samples are read, mono and resampled, from anywhere in it.

    Use it where the length must be known before the part to read is chosen, or to go through a
    long file in blocks; `load_audio` is the short form.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "noise.flac"
        >>> soundfile.write(path, 0.1 * np.ones(32000), 8000)
        >>> with AudioFile(path) as file:
        ...     file.n_samples, file.native_rate, file.read(100, 16000).shape
        (64000, 8000, torch.Size([16000]))
    """

    def __init__(self, path: str | os.PathLike[str], *, sample_rate: int = SAMPLE_RATE) -> None:
        self.path = Path(path)
        self.sample_rate = _check_rate(sample_rate, "sample_rate")
        self._file = _open(self.path)
        try:
            self.native_rate: int = self._file.samplerate
            self.n_channels: int = self._file.channels
            self._next_frame: int | None = 0
            self.n_frames = self._count_frames()
            if self.n_frames == 0:
                raise ValueError(f"{self.path} holds no samples.")
        except BaseException:
            self._file.close()
            raise
        self._up, self._down = _ratio(self.native_rate, self.sample_rate)
        self.n_samples = -(-self.n_frames * self._up // self._down)

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, both counted at `sample_rate`."""
        if start < 0 or (n_samples is not None and n_samples < 0):
            raise ValueError(
                f"`start` and `n_samples` must not be negative; got {start} and {n_samples}."
            )
        stop = self.n_samples if n_samples is None else min(start + n_samples, self.n_samples)
        if stop <= start:
            return torch.empty(0)
        if self._up == self._down:
            return torch.from_numpy(self._read_frames(start, stop))
        # Output sample k stands at input position k · down / up. The context on both sides is the
        # filter's reach, and the first frame is a multiple of `down`, so that the polyphase grid
        # of this part is that of the whole file.
        reach = resampling_reach(self.native_rate, self.sample_rate)
        first = max(0, (start * self._down // self._up - reach) // self._down * self._down)
        last = min(self.n_frames, -(-stop * self._down // self._up) + reach)
        offset = first * self._up // self._down
        resampled = _polyphase(self._read_frames(first, last), self._up, self._down)
        return torch.from_numpy(resampled[start - offset : stop - offset].copy())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read_frames(self, first: int, last: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        try:
            # A seek costs a FLAC a search, even to where it stands.
            if first != self._next_frame:
                self._file.seek(first)
            self._next_frame = None
            frames = self._file.read(last - first, dtype="float32", always_2d=True)
            self._next_frame = first + len(frames)
        except soundfile.LibsndfileError as error:
            raise ValueError(
                f"{self.path} can't be decoded between samples {first} and {last}; it may be "
                f"truncated or damaged ({error.error_string})"
            ) from error
        if len(frames) < last - first:
            raise ValueError(
                f"{self.path} is truncated: its header says {self.n_frames} samples, but only "
                f"{first + len(frames)} can be decoded."
            )
        mono = frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1)
        # Integers have no NaN, and nearly all speech is stored as integers.
        if not self._file.subtype.startswith("PCM_") and not np.isfinite(mono).all():
            n_bad = int((~np.isfinite(frames)).any(axis=1).sum())
            raise ValueError(
                f"{self.path} holds NaN or infinite values in {n_bad} of {len(frames)} samples."
            )
        return np.ascontiguousarray(mono)

    def _count_frames(self) -> int:
        log = "" if self._file.format == "FLAC" else self._file.extra_info
        for announced, present in _CHUNK_SIZES.findall(log):
            if int(present) < int(announced) < _STREAMED_SIZE:
                raise ValueError(
                    f"{self.path} is truncated: its header announces {announced} bytes of audio, "
                    f"but only {present} are there."
                )
        n_frames: int = self._file.frames
        if n_frames != _UNKNOWN_LENGTH:
            return n_frames
        n_frames = 0
        while n_read := len(self._file.read(_BLOCK_FRAMES, dtype="int16", always_2d=True)):
            n_frames += n_read
        self._next_frame = None
        return n_frames


def resample(waveform: Tensor, orig_rate: int, new_rate: int) -> Tensor:
    """Change the sampling rate, without aliasing.

    A polyphase FIR (Kaiser window, at least 80 dB in the stop band) that keeps samples aligned:
    sample k of the result stands at time k / `new_rate`.

    Args:
        waveform: Float tensor of shape (..., time).
        orig_rate: Its sampling rate, in Hz.
        new_rate: The rate to change to, in Hz.

    Returns:
        A tensor of shape (..., ceil(time · new_rate / orig_rate)), of the same dtype and device.

    Example:
        >>> resample(torch.randn(2, 44100), 44100, 16000).shape
        torch.Size([2, 16000])
    """
    up, down = _ratio(_check_rate(orig_rate, "orig_rate"), _check_rate(new_rate, "new_rate"))
    if up == down:
        return waveform
    _check_float(waveform)
    samples = waveform.detach().cpu()
    if samples.dtype not in (torch.float32, torch.float64):
        samples = samples.float()
    return torch.from_numpy(_polyphase(samples.numpy(), up, down)).to(waveform)


def resampling_reach(orig_rate: int, new_rate: int) -> int:
    """Return how many samples before and after its place a sample of `resample` depends on.

    Both ends of a part that is resampled on its own need that much context to equal the same part
    of the whole, and the part must start at a multiple of orig_rate / gcd(orig_rate, new_rate).

    Example:
        >>> resampling_reach(48000, 16000)
        122
    """
    up, down = _ratio(orig_rate, new_rate)
    return _HALF_PERIODS * max(up, down) // up + 2


def to_mono(waveform: Tensor) -> Tensor:
    """Average the channels: (channels, time) to (time,); a (time,) waveform stays as it is.

    Example:
        >>> to_mono(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 3.])
    """
    if waveform.dim() == 1:
        return waveform
    if waveform.dim() != 2:
        raise ValueError(
            f"`waveform` must have shape (time,) or (channels, time); got {tuple(waveform.shape)}."
        )
    return waveform.mean(dim=0)


def peak_normalize(waveform: Tensor) -> Tensor:
    """Scale each waveform so that its largest magnitude is 1; silence stays silence.

    Args:
        waveform: Float tensor of shape (..., time).

    Example:
        >>> peak_normalize(torch.tensor([0.0, -0.5, 0.25]))
        tensor([ 0.0000, -1.0000,  0.5000])
    """
    _check_float(waveform)
    return waveform / peak_or_one(waveform)


def peak_or_one(waveform: Tensor) -> Tensor:
    """Return what `peak_normalize` divides by: the largest magnitude (..., 1), 1 for silence.

    Example:
        >>> peak_or_one(torch.tensor([[0.0, -0.5], [0.0, 0.0]]))
        tensor([[0.5000],
                [1.0000]])
    """
    peak = torch.maximum(waveform.amax(dim=-1, keepdim=True), -waveform.amin(dim=-1, keepdim=True))
    return torch.where(peak > 0, peak, torch.ones_like(peak))


def fix_length(
    waveform: Tensor,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return exactly `n_samples` samples of a waveform of any length (section III-B.1).

    Args:
        waveform: Tensor of shape (time,).
        n_samples: The length of the crop.
        crop: "center" for evaluation, "random" for training.
        generator: The source of the random start; required by ``crop="random"``.

    Returns:
        A tensor of shape (n_samples,).

    Example:
        >>> fix_length(torch.arange(10.0), 4)
        tensor([3., 4., 5., 6.])
        >>> fix_length(torch.tensor([1.0, 2.0, 3.0]), 4)
        tensor([2., 3., 1., 2.])
    """
    _check_waveform(waveform)
    start = crop_start(len(waveform), n_samples, crop=crop, generator=generator)
    return cut(waveform, start, n_samples)


@overload
def tta_crops(
    waveform: Tensor,
    n_crops: int = ...,
    n_samples: int = ...,
    *,
    return_starts: Literal[False] = ...,
) -> Tensor: ...
@overload
def tta_crops(
    waveform: Tensor, n_crops: int = ..., n_samples: int = ..., *, return_starts: Literal[True]
) -> tuple[Tensor, list[int]]: ...
def tta_crops(
    waveform: Tensor,
    n_crops: int = 5,
    n_samples: int = CROP_SAMPLES,
    *,
    return_starts: bool = False,
) -> Tensor | tuple[Tensor, list[int]]:
    """Cut evenly spaced crops for test-time augmentation (section III-C).

    The first crop starts with the waveform, the last one ends with it. A waveform shorter than a
    crop is repeated until it exceeds the crop before it is cut. One crop is the centre crop.

    Args:
        waveform: Tensor of shape (time,).
        n_crops: The number of crops, K in the paper.
        n_samples: The length of each crop.
        return_starts: Also return where in `waveform` each crop starts. Crops with equal starts are
            identical.

    Returns:
        Crops of shape (n_crops, n_samples), and with `return_starts` the list of starts.

    Example:
        >>> crops, starts = tta_crops(torch.randn(96000), return_starts=True)
        >>> crops.shape, starts
        (torch.Size([5, 64000]), [0, 8000, 16000, 24000, 32000])
        >>> tta_crops(torch.randn(64000), return_starts=True)[1]
        [0, 0, 0, 0, 0]
    """
    _check_waveform(waveform)
    starts = crop_starts(len(waveform), n_crops, n_samples)
    crops = torch.stack([cut(waveform, start, n_samples) for start in starts])
    return (crops, starts) if return_starts else crops


def crop_starts(n_total: int, n_crops: int = 5, n_samples: int = CROP_SAMPLES) -> list[int]:
    """Return where the crops of `tta_crops` start in a waveform of `n_total` samples.

    Starts in a repeated waveform are given modulo its length, so equal starts mean equal crops.

    Example:
        >>> crop_starts(32000)
        [0, 8000, 16000, 24000, 0]
    """
    if n_crops < 1:
        raise ValueError(f"`n_crops` must be at least 1; got {n_crops}.")
    last = last_start(n_total, n_samples)
    if n_crops == 1:
        return [last // 2 % n_total]
    return [last * k // (n_crops - 1) % n_total for k in range(n_crops)]


def crop_start(
    n_total: int,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> int:
    """Return where the crop of `fix_length` starts in a waveform of `n_total` samples.

    With it and `cut`, only the crop needs to be read of a file longer than one.

    Example:
        >>> crop_start(96000), crop_start(64000), crop_start(32000)
        (16000, 0, 16000)
    """
    last = last_start(n_total, n_samples)
    if crop == "center":
        return last // 2
    if crop != "random":
        raise ValueError(f'`crop` must be "center" or "random"; got {crop!r}.')
    if generator is None:
        raise ValueError('`generator` must be a torch.Generator when crop="random"; got None.')
    return int(torch.randint(last + 1, (), generator=generator))


def last_start(n_total: int, n_samples: int = CROP_SAMPLES) -> int:
    """Return the last valid start of a crop, in the waveform repeated where it is too short.

    Example:
        >>> last_start(64001), last_start(64000), last_start(32000)
        (1, 0, 32000)
    """
    if n_samples < 1:
        raise ValueError(f"`n_samples` must be at least 1; got {n_samples}.")
    if n_total >= n_samples:
        return n_total - n_samples
    return (n_samples // n_total + 1) * n_total - n_samples


def cut(waveform: Tensor, start: int, n_samples: int) -> Tensor:
    """Return `n_samples` from `start` of a (time,) waveform repeated endlessly.

    Example:
        >>> cut(torch.tensor([1.0, 2.0, 3.0]), 2, 4)
        tensor([3., 1., 2., 3.])
    """
    n_total = len(waveform)
    if start + n_samples <= n_total:
        return waveform[start : start + n_samples]
    start %= n_total
    n_repeats = -(-(start + n_samples) // n_total)
    return waveform.repeat(n_repeats)[start : start + n_samples]


def _polyphase(samples: np.ndarray[Any, Any], up: int, down: int) -> np.ndarray[Any, Any]:
    taps: Any = _resampling_filter(max(up, down)).astype(samples.dtype)
    resampled = scipy.signal.resample_poly(samples, up, down, axis=-1, window=taps)
    return np.asarray(resampled)


@lru_cache(maxsize=16)
def _resampling_filter(factor: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return scipy.signal.firwin(
        2 * _HALF_PERIODS * factor + 1, _CUTOFF / factor, window=("kaiser", _KAISER_BETA)
    )


def _ratio(orig_rate: int, new_rate: int) -> tuple[int, int]:
    divisor = math.gcd(orig_rate, new_rate)
    return new_rate // divisor, orig_rate // divisor


def _open(path: Path) -> Any:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"`path` must name an audio file; {path} is a directory.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"`path` must name a regular file; {path} is not one.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} can't be read: permission denied.")
    if status.st_size == 0:
        raise ValueError(f"{path} is an empty file.")
    try:
        return _SequentialSoundFile(path)
    except (soundfile.LibsndfileError, TypeError) as error:
        # soundfile raises TypeError for a .raw file, whose format can't be known.
        reason = getattr(error, "error_string", error)
        raise ValueError(f"{path} is not an audio file that libsndfile reads ({reason})") from error


def _check_rate(rate: int, name: str) -> int:
    if rate <= 0 or rate != int(rate):
        raise ValueError(f"`{name}` must be a positive whole number of Hz; got {rate}.")
    return int(rate)


def _check_float(waveform: Tensor) -> None:
    if not waveform.is_floating_point():
        raise TypeError(
            f"`waveform` must be a float tensor; got {waveform.dtype}. "
            "Scale integers first: waveform / 32768 for int16."
        )


def _check_waveform(waveform: Tensor) -> None:
    if waveform.dim() != 1:
        raise ValueError(
            f"`waveform` must have shape (time,); got {tuple(waveform.shape)}. "
            "Average channels with to_mono, and take batches one by one."
        )
    if len(waveform) == 0:
        raise ValueError("`waveform` must hold at least one sample; got none.")
