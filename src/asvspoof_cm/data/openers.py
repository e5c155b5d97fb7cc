"""What opens the audio of one utterance: a file, a part of one, or bytes inside another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol as Interface

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._util import import_extra, one_line
from asvspoof_cm.audio import AudioFile, InMemory, OpenAudio
from asvspoof_cm.labels import SAMPLE_RATE

MAX_OVERSHOOT_S: Final = 0.5
"""How far beyond the end of its file a part may end, as in Kaldi; it is then cut there."""

_PARQUET_ROWS: Final = 64


class Opener(Interface):
    """What opens the audio of one utterance, such as a partial of the functions below.

    It can be pickled and called in another process.
    """

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AbstractContextManager[OpenAudio]:
        """Open it, to be read at `sample_rate`."""


def open_file(path: Path, sample_rate: int = SAMPLE_RATE) -> AudioFile:
    """Open one file."""
    return AudioFile(path, sample_rate=sample_rate)


@contextmanager
def open_part(
    path: Path, start_s: float, duration_s: float | None, sample_rate: int = SAMPLE_RATE
) -> Iterator[OpenAudio]:
    """Open a part of a file; `duration_s` None goes to its end."""
    with AudioFile(path, sample_rate=sample_rate) as file:
        yield _OpenPart(file, start_s, duration_s)


def open_slice(
    path: Path, name: str, offset: int, n_bytes: int, sample_rate: int = SAMPLE_RATE
) -> AudioFile:
    """Open an audio file inside another file."""
    with path.open("rb") as file:
        file.seek(offset)
        return open_bytes(file.read(n_bytes), f"{path}:{name}", sample_rate)


def open_bytes(content: bytes, name: str, sample_rate: int = SAMPLE_RATE) -> AudioFile:
    """Open an audio file in memory."""
    return AudioFile(content, sample_rate=sample_rate, name=name)


def open_cell(cells: ParquetCells, row: int, sample_rate: int = SAMPLE_RATE) -> AudioFile:
    """Open a row of a Parquet file."""
    name = f"{cells.path}, row {row}"
    content = cells.content(row)
    if content is None:
        raise ValueError(f"{name} has no bytes of audio.")
    return open_bytes(content, name, sample_rate)


class _OpenPart(InMemory):
    """The samples of an open file from one moment to another."""

    def __init__(self, file: AudioFile, start_s: float, duration_s: float | None) -> None:
        rate = file.sample_rate
        self._file = file
        self._first = round(start_s * rate)
        stop = file.n_samples if duration_s is None else round((start_s + duration_s) * rate)
        if self._first >= file.n_samples or stop > file.n_samples + MAX_OVERSHOOT_S * rate:
            raise ValueError(
                f"{file.name} ends at {file.n_samples / rate:.3f} s; a part of it must not go from "
                f"{start_s} s to {stop / rate:.3f} s."
            )
        self.n_samples = min(stop, file.n_samples) - self._first
        self.native_rate = file.native_rate

    def read(self, start: int = 0, n_samples: int | None = None) -> NDArray[np.float32]:
        """Return up to `n_samples` samples from sample `start`."""
        left = max(0, self.n_samples - start)
        n_samples = left if n_samples is None else min(left, n_samples)
        return self._file.read(self._first + start, n_samples)


class ParquetCells:
    """The audio of a Parquet file by row: reading onwards is fast, going back reads again.

    Memory holds two batches of rows, so that threads may come in slightly out of order, however
    large the file's row groups are.
    """

    def __init__(self, path: Path, column: str) -> None:
        self.path, self._column = path, column
        self._lock = threading.Lock()
        self._recent: deque[tuple[int, Any]] = deque(maxlen=2)
        self._batches: Iterator[Any] = iter(())
        self._next = 0
        self._groups: np.ndarray[Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._column)

    def content(self, row: int) -> bytes | None:
        """Return the bytes of a row."""
        with self._lock, refusing_damage(self.path):
            for first, values in self._recent:
                if first <= row < first + len(values):
                    return values[row - first].as_py()  # type: ignore[no-any-return]
            self._seek(row)
            while True:
                batch = next(self._batches).column(0)
                values = batch.field("bytes") if batch.type.num_fields else batch
                self._recent.append((self._next, values))
                self._next += len(values)
                if row < self._next:
                    return values[row - self._next].as_py()  # type: ignore[no-any-return]

    def _seek(self, row: int) -> None:
        """Start at the row group of a row, unless going on leads there."""
        if self._groups is None:
            self._file = import_extra("pyarrow.parquet", "datasets").ParquetFile(self.path)
            metadata = self._file.metadata
            sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
            self._groups = np.cumsum([0, *sizes])
            self._next = len(self._groups) + int(self._groups[-1])  # nowhere
        group = int(np.searchsorted(self._groups, row, side="right")) - 1
        if not self._groups[group] <= self._next <= row:
            self._recent.clear()
            self._next = int(self._groups[group])
            self._batches = self._file.iter_batches(
                batch_size=_PARQUET_ROWS,
                row_groups=range(group, len(self._groups) - 1),
                columns=[self._column],
                use_threads=False,
            )


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Say of a damaged Parquet file what every reader here says, whatever Arrow raises."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, LookupError, UnicodeDecodeError, StopIteration) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system: it is not there, or can't be read
        raise ValueError(f"{path} is not a whole Parquet file ({one_line(error)}).") from error
