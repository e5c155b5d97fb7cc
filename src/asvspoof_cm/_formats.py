"""Open audio with libsndfile, or with PyAV what libsndfile can't read; damaged Ogg is refused."""

from __future__ import annotations

import errno
import io
import os
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._util import open_regular

UNKNOWN_LENGTH = 0x7FFFFFFFFFFFFFFF
"""The frames of a stream that does not say how long it is, as libsndfile reports them."""

# The demuxers that FFmpeg may use: playlists would open other files, or the network.
_DEMUXERS = (
    "aac,ac3,amr,ape,asf,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,wav,webm,wv"
)

# Formats whose header states no duration: FFmpeg guesses it from the bit rate.
_WITHOUT_DURATION = ("aac", "ac3", "amr", "eac3", "mp3", "mpeg", "mpegts")
_TOLERANCE_S = 0.2

_MAX_CHANNELS = 8  # of more, PyAV reads planes that are not there


def open_sound(source: Any, name: str) -> Any:
    """Open a path, bytes or a file object with libsndfile, or else with PyAV."""
    is_path = isinstance(source, str | os.PathLike)
    file = open_regular(source) if is_path else _as_file(source)
    # By its name libsndfile reads a file faster; as bytes, because names need not be valid text,
    # but Windows has no such names.
    target = file if not is_path else source if os.name == "nt" else os.fsencode(source)
    sound: Any = None
    try:
        if not (magic := file.read(4)):
            raise ValueError(f"{name} is empty.")
        file.seek(0)
        if magic == b"OggS":
            _check_ogg(file, name)
            file.seek(0)
        try:
            sound = _sequential()(target)
        except (RuntimeError, TypeError) as error:
            # soundfile raises TypeError for a .raw file, whose format can't be known.
            reason = getattr(error, "error_string", error)
            sound = AvFile(file, name, reason=reason, owns_file=is_path)
        return sound
    finally:
        if is_path and not isinstance(sound, AvFile):
            file.close()


def _as_file(source: Any) -> Any:
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source)
    if not hasattr(source, "read"):
        raise TypeError(
            f"`source` must be a path, bytes or a file object; got {type(source).__name__}."
        )
    if not isinstance(source.read(0), bytes):
        raise TypeError("`source` must be open in binary mode; got a text file.")
    if not (hasattr(source, "seekable") and source.seekable()):
        return io.BytesIO(source.read())
    source.seek(0)
    return source


@lru_cache(maxsize=1)
def _sequential() -> Any:
    """Return a SoundFile that does not seek to where it already is after each read.

    That seek costs a FLAC a second decoding, and fails at the end of one of unknown length.
    """
    import soundfile

    return type("SequentialSoundFile", (soundfile.SoundFile,), {"seekable": lambda _: False})


def _check_ogg(file: BinaryIO, name: str) -> None:
    """Raise where an Ogg file lacks a page or a part of one: decoders pass over the damage."""
    next_number: dict[int, int] = {}
    unfinished: set[int] = set()
    place = 0
    while head := file.read(27):
        sizes = file.read(head[26]) if len(head) == 27 else b""
        body = file.read(sum(sizes))
        if head[:4] != b"OggS" and not unfinished:
            return  # what comes after the end is not sound
        if len(head) < 27 or len(sizes) < head[26] or len(body) < sum(sizes):
            raise ValueError(f"{name} is truncated: its last page ends early.")
        serial, number, crc = struct.unpack("<III", head[14:26])
        page = head[:22] + bytes(4) + head[26:] + sizes + body
        if head[:4] != b"OggS" or _ogg_crc(page) != crc:
            raise ValueError(f"{name} is damaged: its page at byte {place} has a wrong checksum.")
        if number != next_number.get(serial, number):
            raise ValueError(f"{name} is damaged: pages are missing before byte {place}.")
        next_number[serial] = number + 1
        (unfinished.discard if head[5] & 4 else unfinished.add)(serial)
        place += len(page)
    if unfinished:
        raise ValueError(f"{name} is truncated: its last page does not end the stream.")


_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def _ogg_crc(page: bytes) -> int:
    """Return Ogg's CRC-32: that of zlib with bits in the other order, from 0 and not inverted."""
    crc = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc:032b}"[::-1], 2)


class AvFile:
    """What PyAV decodes, with the part of soundfile's interface that `AudioFile` uses."""

    frames = UNKNOWN_LENGTH
    format = subtype = extra_info = ""

    def __init__(self, file: BinaryIO, name: str, *, reason: object, owns_file: bool) -> None:
        self._file, self._name, self._reason, self._owns_file = file, name, reason, owns_file
        try:
            import av
        except ImportError:
            raise ValueError(
                f"{name} is not an audio file that libsndfile reads ({reason}). For m4a, AAC, "
                "WebM, AMR, WMA and videos, install PyAV: pip install 'asvspoof-cm[av]'."
            ) from None
        self._av: Any = av
        try:
            self._restart()
        except (av.FFmpegError, OSError) as error:
            too_much = error.errno == errno.ENOMEM
            reason = "its header asks for too much at once" if too_much else error.strerror
            raise self._no_audio(reason) from error

    def _no_audio(self, reason: object) -> ValueError:
        return ValueError(
            f"{self._name} is not an audio file that libsndfile ({self._reason}) or FFmpeg "
            f"({reason}) reads."
        )

    def _restart(self) -> None:
        self._file.seek(0)
        allowed = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
        self._container = self._av.open(self._file, options=allowed, metadata_errors="ignore")
        if not self._container.streams.audio:
            raise ValueError(f"{self._name} has no audio stream.")
        self._stream = self._container.streams.audio[0]
        decoder = self._stream.codec_context
        if not (decoder and decoder.sample_rate and decoder.layout.nb_channels):
            raise self._no_audio("finds no sound that it decodes")
        self.samplerate: int = decoder.sample_rate
        self.channels: int = decoder.layout.nb_channels
        if self.channels > _MAX_CHANNELS:
            raise ValueError(
                f"{self._name} must have at most {_MAX_CHANNELS} channels to be read by PyAV; its "
                f"header says {self.channels}."
            )
        self._blocks = filter(len, self._decode())
        self._rest: NDArray[np.float32] = np.empty((0, self.channels), np.float32)
        self._place = 0

    def close(self) -> None:
        self._container.close()
        if self._owns_file:
            self._file.close()

    def seek(self, frame: int) -> None:
        if frame < self._place:
            self._restart()
        while self._place < frame and len(self.read(min(frame - self._place, 1 << 16))):
            pass

    def read(
        self, n_frames: int, dtype: str = "float32", *, always_2d: bool = True
    ) -> NDArray[np.float32]:
        parts = [self._rest[:0]]
        while n_frames > 0:
            if not len(self._rest):
                self._rest = next(self._blocks, self._rest)
            part, self._rest = self._rest[:n_frames], self._rest[n_frames:]
            if not len(part):
                break
            parts.append(part)
            n_frames -= len(part)
            self._place += len(part)
        return np.concatenate(parts)

    def _decode(self) -> Iterator[NDArray[np.float32]]:
        n_decoded = 0
        try:
            for frame in self._container.decode(self._stream):
                found = frame.sample_rate, frame.layout.nb_channels
                if found != (self.samplerate, self.channels):
                    raise ValueError(
                        f"{self._name} changes its sampling rate or its channels midway. Convert "
                        "it to WAV or FLAC first."
                    )
                samples = frame.to_ndarray()
                if not frame.format.is_planar:
                    samples = samples.reshape(-1, self.channels).T
                n_decoded += samples.shape[1]
                yield as_float(samples).T
        except (self._av.FFmpegError, OSError) as error:  # of seeking to where nothing is
            raise RuntimeError(error.strerror) from error
        found_s, announced_s = n_decoded / self.samplerate, self._announced_s()
        if found_s < announced_s - _TOLERANCE_S:
            raise ValueError(
                f"{self._name} is truncated: its header says {announced_s:.2f} s, but only "
                f"{found_s:.2f} s can be decoded."
            )

    def _announced_s(self) -> float:
        """Return the duration that the header states; 0 where it states none for the sound."""
        if self._container.format.name in _WITHOUT_DURATION:
            return 0.0
        if self._stream.duration:
            return float(self._stream.duration * self._stream.time_base)
        if self._container.streams.video or not self._container.duration:
            return 0.0
        return float(self._container.duration / self._av.time_base)


def as_float(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Return samples as float32: integers over their full range, uint8 offset by 128."""
    if samples.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        full_scale = np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))
        return np.asarray(samples.astype(np.float32) / full_scale, dtype=np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    raise TypeError(
        "`waveform` must hold floats, signed integers or uint8 (offset by 128); got "
        f"{samples.dtype}."
    )
