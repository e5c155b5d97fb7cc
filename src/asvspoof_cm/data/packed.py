"""The packed cache: a corpus decoded once, as int16 samples in memory-mapped shards.

Decoding FLAC dominates an epoch of training; reading a crop of a shard is one copy. A pack is a
folder with

- ``shard-00000.i16``, …: the samples of one utterance after another, little-endian int16;
- ``shard-00000.json``, …: the utterances' names, lengths and errors. It is written after the
  samples, so a shard that has a record is whole;
- ``packed.json``: the rate and the number of shards, written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._util import Progress, atomic_path, check_between, n_cores, write_text
from asvspoof_cm.audio import InMemory
from asvspoof_cm.data.folder import AudioFolder
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.labels import SAMPLE_RATE

INDEX_NAME: Final = "packed.json"
SHARD_PATTERN: Final = "shard-*.json"
SHARD_SAMPLES: Final = 1 << 29
_FORMAT: Final = 1
_DTYPE: Final = np.dtype("<i2")
_FULL_SCALE: Final = 32768

_Samples: TypeAlias = np.ndarray[Any, np.dtype[np.int16]]


@dataclass(frozen=True, kw_only=True)
class _Shard:
    """The record of one shard; an utterance that can't be decoded has length 0 and an error."""

    sample_rate: int
    utterances: list[str]
    lengths: list[int]
    errors: dict[str, str]


def pack(
    protocol: Protocol | str | os.PathLike[str],
    audio_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    sample_rate: int = SAMPLE_RATE,
    n_threads: int | None = None,
    shard_samples: int = SHARD_SAMPLES,
    progress: bool = False,
) -> PackedAudio:
    """Decode the audio of a protocol once, into a folder that `SpoofDataset` reads in its place.

    After an interruption the same call resumes: shards that have a record are kept.
    One process at a time may write a folder.

    Args:
        protocol: The utterances, all of them and in this order: a `Protocol`, or its file.
        audio_dir: The folder of their files, as for `AudioFolder`.
        out: The folder to write.
        sample_rate: The rate to resample to.
        n_threads: How many files to decode at a time; None for one per core, at most 8.
        shard_samples: A shard is closed when it has this many samples; 2^29 are 1 GiB.
        progress: Show how far it is.

    Returns:
        The pack. Utterances that can't be decoded are in its `errors`; the others are packed.

    Note:
        int16 holds 16-bit audio at its own rate exactly. Anything else (24 bits, float, MP3,
        another rate, several channels) is rounded to 16 bits, without dither, and limited to ±1.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=4, n_dev=2)
        >>> packed = pack(paths.train_protocol, paths.audio_dir, tempfile.mkdtemp())
        >>> len(packed), packed.errors
        (4, {})
    """
    n_threads = min(8, n_cores()) if n_threads is None else n_threads
    check_between("sample_rate", sample_rate, 1)
    check_between("n_threads", n_threads, 1)
    check_between("shard_samples", shard_samples, 1)
    protocol = read_protocol(protocol, require_labels=False)
    folder = AudioFolder(protocol, audio_dir, sample_rate=sample_rate)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for left_behind in out.glob(".shard-*.tmp"):
        left_behind.unlink()
    names: list[str] = protocol.utterance.tolist()
    row = n_shards = 0
    with (
        ThreadPoolExecutor(n_threads) as pool,
        Progress(total=len(names), description="pack", unit="files", enabled=progress) as bar,
    ):
        while row < len(names):
            shard = _read_record(out, n_shards)
            if shard is not None:
                stop = row + len(shard.utterances)
                if shard.utterances != names[row:stop] or shard.sample_rate != sample_rate:
                    raise _holds_another_pack(out)
                bar.update(len(shard.utterances))
            else:
                blocks = _decode(pool, folder, range(row, len(names)), 4 * n_threads, bar)
                path = _shard_path(out, n_shards)
                shard = _write_shard(path, names[row:], blocks, sample_rate, shard_samples)
            row += len(shard.utterances)
            n_shards += 1
    if _read_record(out, n_shards) is not None:
        raise _holds_another_pack(out)
    index = {"format": _FORMAT, "sample_rate": sample_rate, "n_shards": n_shards}
    _write_json(out / INDEX_NAME, index)
    return PackedAudio(out, protocol=protocol)


class PackedAudio:
    """The utterances of a folder that `pack` wrote, or those rows that `protocol` has of them.

    `errors` says why utterances could not be packed, by name.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        protocol: Protocol | None = None,
        sample_rate: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        index = _read_json(self.folder / INDEX_NAME, ("format", "sample_rate", "n_shards"))
        if index["format"] != _FORMAT:
            raise ValueError(
                f"{self.folder} has format {index['format']} of the packed cache; this version "
                f"reads {_FORMAT}. Pack it again."
            )
        self.sample_rate: int = index["sample_rate"]
        if sample_rate not in (None, self.sample_rate):
            raise ValueError(
                f"`sample_rate` must be that of the pack {self.folder}, {self.sample_rate}; got "
                f"{sample_rate}. Pack the files at that rate."
            )
        self._maps: dict[int, _Samples] = {}
        self.errors: dict[str, str] = {}
        names: list[str] = []
        lengths = []
        for number in range(index["n_shards"]):
            shard = _read_record(self.folder, number)
            if shard is None:
                raise FileNotFoundError(f"{self.folder} lacks the record of shard {number}.")
            self.errors.update(shard.errors)
            names += shard.utterances
            lengths.append(np.array(shard.lengths, dtype=np.int64))
        self._utterance = np.array(names, dtype=np.str_)
        self._length = np.concatenate(lengths)
        self._offset = np.concatenate([np.cumsum(part) - part for part in lengths])
        self._shard = np.repeat(np.arange(len(lengths)), [len(part) for part in lengths])
        self._shard_samples = [int(part.sum()) for part in lengths]
        if protocol is None:
            return
        row_of = {name: row for row, name in enumerate(names)}
        wanted: list[str] = protocol.utterance.tolist()
        absent = [name for name in wanted if name not in row_of]
        if absent:
            raise ValueError(
                f"{len(absent)} of {len(wanted)} utterances of the protocol are not in the pack "
                f"{self.folder}, such as {absent[0]!r}. Pack the whole protocol."
            )
        rows = np.array([row_of[name] for name in wanted], dtype=np.int64)
        self._utterance, self._shard = protocol.utterance, self._shard[rows]
        self._length, self._offset = self._length[rows], self._offset[rows]

    def open(self, index: int) -> AbstractContextManager[PackedUtterance]:
        """Open the utterance of row `index`."""
        n_samples = int(self._length[index])
        if n_samples == 0:
            name = str(self._utterance[index])
            raise ValueError(f"{self.folder}: {name} could not be packed: {self.errors[name]}")
        start, samples = int(self._offset[index]), self._map(int(self._shard[index]))
        return nullcontext(PackedUtterance(samples[start : start + n_samples], self.sample_rate))

    def __len__(self) -> int:
        return len(self._utterance)

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be pickled as a copy of its samples.
        return {**self.__dict__, "_maps": {}}

    def _map(self, number: int) -> _Samples:
        if number not in self._maps:
            path = _shard_path(self.folder, number)
            # Reading a map beyond the end of its file would kill the process.
            if path.stat().st_size != self._shard_samples[number] * _DTYPE.itemsize:
                raise _is_damaged(path, "its size has changed")
            self._maps[number] = np.memmap(path, dtype=_DTYPE, mode="r")
        return self._maps[number]


class PackedUtterance(InMemory):
    """One utterance of a pack, read as an `AudioFile` is."""

    def __init__(self, samples: _Samples, native_rate: int) -> None:
        self._samples = samples
        self.n_samples = len(samples)
        self.native_rate = native_rate

    def read(self, start: int = 0, n_samples: int | None = None) -> NDArray[np.float32]:
        """Return up to `n_samples` samples from sample `start`, shape (time,)."""
        stop = self.n_samples if n_samples is None else start + n_samples
        part = self._samples[start:stop]
        return np.multiply(part, 1 / _FULL_SCALE, dtype=np.float32)


def _decode(
    pool: ThreadPoolExecutor, folder: AudioFolder, rows: range, block_rows: int, bar: Progress
) -> Iterator[list[_Samples | str]]:
    """Yield the samples of block after block of rows, or why there are none."""
    for start in range(rows.start, rows.stop, block_rows):
        block = range(start, min(start + block_rows, rows.stop))
        yield list(pool.map(lambda row: _decode_one(folder, row), block))
        bar.update(len(block))


def _decode_one(folder: AudioFolder, row: int) -> _Samples | str:
    try:
        with folder.open(row) as file:
            waveform = file.read()
    except (OSError, ValueError) as error:
        return str(error)
    scaled = np.clip(np.rint(waveform * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1)
    return np.asarray(scaled, dtype=_DTYPE)


def _write_shard(
    path: Path,
    names: list[str],
    blocks: Iterable[list[_Samples | str]],
    sample_rate: int,
    limit: int,
) -> _Shard:
    lengths: list[int] = []
    errors: dict[str, str] = {}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for block in blocks:
            for samples in block:
                if isinstance(samples, str):
                    errors[names[len(lengths)]] = samples
                    lengths.append(0)
                else:
                    file.write(samples.tobytes())
                    lengths.append(len(samples))
            if file.tell() >= limit * _DTYPE.itemsize:
                break
    packed = names[: len(lengths)]
    shard = _Shard(sample_rate=sample_rate, utterances=packed, lengths=lengths, errors=errors)
    _write_json(path.with_suffix(".json"), asdict(shard))
    return shard


def _read_record(out: Path, number: int) -> _Shard | None:
    path = _shard_path(out, number).with_suffix(".json")
    if not path.is_file():
        return None
    return _Shard(**_read_json(path, [field.name for field in fields(_Shard)]))


def _read_json(path: Path, names: Collection[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _is_damaged(path, str(error)) from error
    missing = [name for name in names if not isinstance(content, dict) or name not in content]
    if missing:
        raise _is_damaged(path, f"it lacks {', '.join(missing)}")
    return {name: content[name] for name in names}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, ensure_ascii=False))


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.i16"


def _is_damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}. Delete its folder and pack again.")


def _holds_another_pack(out: Path) -> ValueError:
    return ValueError(
        f"`out`: {out} holds the pack of other utterances or of another rate. "
        "Choose another folder, or delete it."
    )
