"""Files: any that libsndfile reads, from anywhere in them, mono and resampled.

PyTorch is imported where a tensor is made: the decoders of the service do without it.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import soundfile
from numpy.typing import NDArray

from asvspoof_cm.audio.resampling import polyphase, rate_ratio, resampling_reach
from asvspoof_cm.utils.checks import MAX_RATE, MIN_RATE, check_rate

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE_RATE = 16000
"""In Hz, where nothing else is said."""

AUDIO_EXTENSIONS = (".flac", ".wav", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au")
"""How the names of audio files end, in lower case."""

# libsndfile reports this many frames when a stream does not say how long it is.
_UNKNOWN_LENGTH = 0x7FFFFFFFFFFFFFFF
_BLOCK_VALUES = 1 << 22

MAX_CHANNELS = 64
"""The most channels that a header may announce."""

# libsndfile mends a WAV or AIFF that is shorter than its header says and only notes it in its log.
# Writers that can't seek back (a pipe) leave a size near 2 or 4 GiB, which is no truncation.
_CHUNK_SIZES = re.compile(r"^ *(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)
_STREAMED_SIZE = 0x7FFFF000


@runtime_checkable
class OpenAudio(Protocol):
    """One utterance whose length is known and whose samples can be read from anywhere."""

    n_samples: int
    native_rate: int

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, shape (time,)."""


def load_audio(
    path: str | os.PathLike[str],
    *,
    sample_rate: int = SAMPLE_RATE,
    start_s: float = 0.0,
    duration_s: float | None = None,
) -> Tensor:
    """Return the mono waveform of a file, or of a part of it.

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
        OSError: The file is missing, is a directory or can't be read.
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

    Args:
        source: A file, or the bytes of one, which are decoded in memory.
        sample_rate: The rate to resample to, in Hz.
        name: What error messages call it; None is the path, or "the audio" of bytes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "noise.flac"
        >>> soundfile.write(path, 0.1 * np.ones(32000), 8000)
        >>> with AudioFile(path) as file:
        ...     file.n_samples, file.native_rate, file.read(100, 16000).shape
        (64000, 8000, torch.Size([16000]))
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        *,
        sample_rate: int = SAMPLE_RATE,
        name: str | None = None,
    ) -> None:
        self.sample_rate = check_rate(sample_rate, "sample_rate")
        if isinstance(source, bytes):
            self.name = "the audio" if name is None else name
            if not source:
                raise ValueError(f"{self.name} is empty: it has no bytes.")
            self._file = _open(io.BytesIO(source), self.name)
        else:
            self.name = str(source) if name is None else name
            self._file = _open_path(Path(source), self.name)
        try:
            self.native_rate: int = self._file.samplerate
            self.n_channels: int = self._file.channels
            self._next_frame: int | None = 0
            if not MIN_RATE <= self.native_rate <= MAX_RATE or self.n_channels > MAX_CHANNELS:
                raise ValueError(
                    f"{self.name} must have {MIN_RATE} to {MAX_RATE} Hz and at most "
                    f"{MAX_CHANNELS} channels; its header says {self.native_rate} Hz and "
                    f"{self.n_channels} channels."
                )
            self.n_frames = self._count_frames()
            if self.n_frames == 0:
                raise ValueError(f"{self.name} holds no samples.")
        except BaseException:
            self._file.close()
            raise
        self._up, self._down = rate_ratio(self.native_rate, self.sample_rate)
        self.n_samples = -(-self.n_frames * self._up // self._down)

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, both counted at `sample_rate`."""
        import torch

        return torch.from_numpy(self.read_array(start, n_samples))

    def read_array(self, start: int = 0, n_samples: int | None = None) -> NDArray[np.float32]:
        """Return what `read` does, as an array."""
        if start < 0 or (n_samples is not None and n_samples < 0):
            raise ValueError(
                f"`start` and `n_samples` must not be negative; got {start} and {n_samples}."
            )
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

    def _read_frames(self, first: int, last: int) -> NDArray[np.float32]:
        try:
            # A seek costs a FLAC a search, even to where it stands.
            if first != self._next_frame:
                self._file.seek(first)
            self._next_frame = None
            blocks = list(self._decode(last - first))
        except soundfile.LibsndfileError as error:
            raise self._damaged(f"between samples {first} and {last}", error) from error
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

    def _decode(self, n_frames: int) -> Iterator[NDArray[np.float32]]:
        """Yield mono blocks up to where the file ends: a header that lies costs one of them."""
        n_block = _BLOCK_VALUES // self.n_channels
        for start in range(0, n_frames, n_block):
            n_wanted = min(n_block, n_frames - start)
            frames = self._file.read(n_wanted, dtype="float32", always_2d=True)
            with np.errstate(invalid="ignore", over="ignore"):  # refused later where not finite
                mono = frames[:, 0] if self.n_channels == 1 else frames.mean(axis=1)
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
        n_frames: int = self._file.frames
        if n_frames != _UNKNOWN_LENGTH:
            return n_frames
        n_frames = 0
        try:
            while n_read := len(self._file.read(1 << 20, dtype="int16", always_2d=True)):
                n_frames += n_read
        except soundfile.LibsndfileError as error:
            raise self._damaged(f"after sample {n_frames}", error) from error
        self._next_frame = None
        return n_frames

    def _damaged(self, where: str, error: soundfile.LibsndfileError) -> ValueError:
        return ValueError(
            f"{self.name} can't be decoded {where}; it may be truncated or damaged "
            f"({error.error_string})"
        )


def _open_path(path: Path, name: str) -> Any:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"an audio file is needed; {name} is a directory.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"an audio file must be a regular file; {name} is not one.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{name} can't be read: permission denied.")
    if status.st_size == 0:
        raise ValueError(f"{name} is an empty file.")
    # As bytes, because names need not be valid text; Windows has no such names.
    return _open(path if os.name == "nt" else os.fsencode(path), name)


def _open(file: Any, name: str) -> Any:
    try:
        return _SequentialSoundFile(file)
    except (soundfile.LibsndfileError, TypeError) as error:
        # soundfile raises TypeError for a .raw file, whose format can't be known.
        reason = getattr(error, "error_string", error)
        raise ValueError(f"{name} is not an audio file that libsndfile reads ({reason})") from error
