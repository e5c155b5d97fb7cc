"""Audio in the formats that corpora come in, as pairs of a name and what opens its audio.

| source | name of an utterance |
|---|---|
| a folder | its path below the folder, without the extension |
| an audio file | its path as given, without the extension |
| ``.tar`` (also ``.tar.gz``, ``.tgz``, ``.tar.bz2``, ``.tar.xz``), WebDataset's shards too | the \
member's name without the extension; members that are not audio are passed over |
| ``.parquet`` with a column ``audio``, of bytes or of ``{bytes, path}`` | the column ``id``, \
``utterance``, ``filename``, ``file_name``, ``file`` or ``path``, else ``audio.path`` |
| Kaldi's ``.scp`` | its first column, or that of the file ``segments`` beside it |
| ``.jsonl`` as in NeMo's manifests, with ``audio_filepath`` | ``id``, else the path without the \
extension, and ``@offset`` where the row has one |

Names are only names: nothing is ever unpacked to disk, so a member ``../x`` writes nowhere. Lists
name files below `root`; a name that leaves it is an error.
"""

from __future__ import annotations

import json
import math
import os
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, Final, Protocol as Interface, TypeAlias

import numpy as np
from torch import Tensor

from asvspoof_cm.audio import AUDIO_EXTENSIONS, SAMPLE_RATE, AudioFile

AudioPath: TypeAlias = str | os.PathLike[str]

MAX_OVERSHOOT_S: Final = 0.5
"""How far beyond the end of its file a part may end, as in Kaldi; it is then cut there."""

_ID_COLUMNS: Final = ("id", "utterance", "filename", "file_name", "file", "path")
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_PARQUET_ROWS: Final = 64


class OpenAudio(Interface):
    """One utterance whose length is known and whose samples can be read from anywhere."""

    n_samples: int
    native_rate: int

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, shape (time,)."""


class Opener(Interface):
    """What opens the audio of one utterance; it can be pickled and called in another process."""

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AbstractContextManager[OpenAudio]:
        """Open it, to be read at `sample_rate`."""


def audio_entries(
    source: AudioPath | Iterable[AudioPath], *, root: AudioPath | None = None
) -> Iterator[tuple[str, Opener]]:
    """Yield the name and the opener of every utterance of a source, or of several, in order.

    The table above says what a source may be. Openers read only when they are called, so a list
    of a million is cheap to make, to share out and to send to other processes. The exception is a
    compressed tar, which can't be entered in the middle: its openers hold their bytes.

    Args:
        source: A folder or a file, or several.
        root: Where the files that a list (``.scp``, ``.jsonl``) names must lie; None is the folder
            of the list. Relative names start there.

    Raises:
        ValueError: A source is of no such format or damaged, a list has a command in the place of
            a file or a file outside `root`, or a name occurs twice.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=2, n_dev=2)
        >>> name, opener = next(audio_entries(paths.audio_dir / "flac_D"))
        >>> with opener() as audio:
        ...     name, audio.native_rate, audio.read(0, 1000).shape
        ('D_0000000001', 16000, torch.Size([1000]))
    """
    several = [source] if isinstance(source, (str, os.PathLike)) else source
    seen: dict[str, Path] = {}
    for path in map(Path, several):
        for name, opener in _reader(path)(path, None if root is None else Path(root)):
            if name in seen:
                where = "occurs twice" if seen[name] == path else f"is also in {seen[name]}"
                raise ValueError(
                    f"{path}: every utterance needs a name of its own; {name!r} {where}."
                )
            seen[name] = path
            yield name, opener


_Reader: TypeAlias = Callable[[Path, Path | None], Iterator[tuple[str, Opener]]]


def is_container(path: Path) -> bool:
    """Whether a path is one of the formats here other than a single audio file."""
    return path.is_dir() or path.name.lower().endswith(tuple(_READERS))


def is_seekable(path: Path) -> bool:
    """Whether openers read only when they are called; those of a compressed tar hold bytes."""
    return not path.name.lower().endswith(_COMPRESSED)


def check_seekable(path: Path) -> None:
    """Refuse a source whose utterances can't be picked out."""
    if not is_seekable(path):
        raise ValueError(
            f"{path} is compressed, and utterances can't be picked out of it. Decompress it; the "
            "audio inside is compressed already."
        )


def _reader(path: Path) -> _Reader:
    if path.is_dir():
        return _read_folder
    for ending, reader in _READERS.items():
        if path.name.lower().endswith(ending):
            return reader
    if path.name.lower().endswith(AUDIO_EXTENSIONS):
        return _read_file
    raise ValueError(
        f"`source` must be a folder, an audio file or one that ends in {', '.join(_READERS)}; "
        f"got {path}."
    )


def _read_file(path: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    yield stem(path.as_posix()), FileOpener(path)


def _read_folder(folder: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    n_found = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if _is_audio(name):
                path = Path(parent, name)
                n_found += 1
                yield stem(path.relative_to(folder).as_posix()), FileOpener(path)
    if not n_found:
        hint = next((p for p in sorted(folder.iterdir()) if p.is_file() and is_container(p)), None)
        raise ValueError(
            f"{folder} holds no audio file"
            + ("." if hint is None else f", but {hint.name}: name that as the source.")
        )


def _read_tar(path: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    is_plain = is_seekable(path)
    try:
        with tarfile.open(path, "r:" if is_plain else "r|*") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined] # they would add up
                if not (member.isreg() and _is_audio(PurePath(member.name).name)):
                    continue
                name = member.name
                if is_plain:
                    yield stem(name), _Slice(path, name, member.offset_data, member.size)
                elif (file := tar.extractfile(member)) is not None:
                    yield stem(name), _Bytes(path, name, file.read())
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a whole tar file ({error}).") from error


def _read_parquet(path: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    parquet = _import_parquet()
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if "audio" not in schema.names:
            raise ValueError(f'{path} must have a column "audio"; it has {schema.names}.')
        is_struct = schema.field("audio").type.num_fields > 0
        ids = [name for name in _ID_COLUMNS if name in schema.names]
        if not ids and not is_struct:
            raise ValueError(
                f"{path} must have one of the columns {', '.join(_ID_COLUMNS)}, to name its "
                f"utterances; it has {schema.names}."
            )
        column, audio = ids[0] if ids else "audio.path", "audio.bytes" if is_struct else "audio"
        cells = _ParquetCells(path, audio)
        row = 0
        for batch in file.iter_batches(columns=[column], use_threads=False):
            names = batch.column(0) if ids else batch.column(0).field("path")
            for value in names.to_pylist():
                if value is None:
                    raise ValueError(f"{path}: row {row} has no name in the column {column!r}.")
                yield str(value) if ids else stem(value), _Cell(cells, row)
                row += 1


def _read_scp(path: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    root = path.parent if root is None else root
    files: dict[str, Path] = {}
    for where, (name, rest) in _columns(path, 2):
        if rest.endswith("|") or rest.startswith("|"):
            raise ValueError(
                f"{where}: {name} is a command, and a list must not run programs. Write the audio "
                f"to files first (Kaldi's wav-copy does); got {rest!r}."
            )
        if rest == "-" or rest.rpartition(":")[0].endswith(".ark"):
            raise ValueError(f"{where}: {name} must be an audio file; got {rest!r}.")
        if name in files:
            raise ValueError(f"{where}: a recording must occur once; {name!r} occurs twice.")
        files[name] = _below(root, rest, where)
    segments = path.with_name("segments")
    if not segments.is_file():
        for name, file in files.items():
            yield name, FileOpener(file)
        return
    for where, (name, recording, *times) in _columns(segments, 4):
        if recording not in files:
            raise ValueError(f"{where}: {path.name} has no recording {recording!r}.")
        start_s, end_s = (_seconds(time, where) for time in times)
        # Kaldi writes -1 for the end of the recording.
        duration_s = None if end_s == -1 else end_s - start_s
        yield name, _part(files[recording], start_s, duration_s, where)


def _read_jsonl(path: Path, root: Path | None) -> Iterator[tuple[str, Opener]]:
    root = path.parent if root is None else root
    for where, line in _lines(path):
        try:
            row = json.loads(line)
            file = row["audio_filepath"]
            name = str(row["id"]) if "id" in row else stem(file)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{where}: a line must be a JSON object with "audio_filepath"; got {line[:80]!r}.'
            ) from error
        audio = _below(root, file, where)
        if row.get("offset") is None:
            # The duration of a row without an offset is that of the file, rounded.
            yield name, FileOpener(audio)
            continue
        start_s = _seconds(row["offset"], where)
        duration_s = row.get("duration")
        if duration_s is not None:
            duration_s = _seconds(duration_s, where)
        name = name if "id" in row else f"{name}@{start_s:.3f}"
        yield name, _part(audio, start_s, duration_s, where)


_READERS: Final[dict[str, _Reader]] = {
    **dict.fromkeys((".tar", *_COMPRESSED), _read_tar),
    ".parquet": _read_parquet,
    ".scp": _read_scp,
    ".jsonl": _read_jsonl,
}


@dataclass(frozen=True, slots=True)
class FileOpener:
    """One file, opened when this is called."""

    path: Path

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AudioFile:
        """Open it, to be read at `sample_rate`."""
        return AudioFile(self.path, sample_rate=sample_rate)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a file; `duration_s` None goes to its end."""

    path: Path
    start_s: float
    duration_s: float | None

    @contextmanager
    def __call__(self, sample_rate: int = SAMPLE_RATE) -> Iterator[OpenAudio]:
        with AudioFile(self.path, sample_rate=sample_rate) as file:
            yield _OpenPart(file, self.start_s, self.duration_s)


@dataclass(frozen=True, slots=True)
class _Slice:
    """An audio file inside another file."""

    path: Path
    name: str
    offset: int
    n_bytes: int

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AudioFile:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.n_bytes)
        return AudioFile(content, sample_rate=sample_rate, name=f"{self.path}:{self.name}")


@dataclass(frozen=True, slots=True)
class _Bytes:
    path: Path
    name: str
    content: bytes

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AudioFile:
        return AudioFile(self.content, sample_rate=sample_rate, name=f"{self.path}:{self.name}")


@dataclass(frozen=True, slots=True)
class _Cell:
    cells: _ParquetCells
    row: int

    def __call__(self, sample_rate: int = SAMPLE_RATE) -> AudioFile:
        name = f"{self.cells.path}, row {self.row}"
        content = self.cells.content(self.row)
        if content is None:
            raise ValueError(f"{name} has no bytes of audio.")
        return AudioFile(content, sample_rate=sample_rate, name=name)


class _OpenPart:
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

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`."""
        left = max(0, self.n_samples - start)
        return self._file.read(
            self._first + start, left if n_samples is None else min(left, n_samples)
        )


class _ParquetCells:
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
        with self._lock:
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
            self._file = _import_parquet().ParquetFile(self.path)
            sizes = [
                self._file.metadata.row_group(k).num_rows for k in range(self._file.num_row_groups)
            ]
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


def _import_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow: pip install 'asvspoof-cm[datasets]'."
        ) from error
    return parquet


def _is_audio(name: str) -> bool:
    # macOS leaves files such as ._a.wav, which are not audio.
    return name.lower().endswith(AUDIO_EXTENSIONS) and not name.startswith(".")


def stem(name: str) -> str:
    """Return a name without the extension of an audio format."""
    for extension in AUDIO_EXTENSIONS:
        if name.lower().endswith(extension):
            return name[: -len(extension)]
    return name


def _below(root: Path, name: str, where: str) -> Path:
    top = root.absolute()
    path = top / name
    # Windows paths know both separators.
    if ".." in PureWindowsPath(name).parts or not path.is_relative_to(top):
        raise ValueError(
            f"{where}: a file must lie below `root`, {top}; got {name!r}. Give another root if "
            "the list may be trusted."
        )
    return path


def _part(path: Path, start_s: float, duration_s: float | None, where: str) -> _Part:
    if start_s < 0 or (duration_s is not None and duration_s <= 0):
        raise ValueError(
            f"{where}: a part must start at 0 s or later and have a positive duration; got "
            f"{start_s} s and {duration_s} s."
        )
    return _Part(path, start_s, duration_s)


def _seconds(value: str | float, where: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{where}: a time must be a number of seconds; got {value!r}.")
    return seconds


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where each line that is not blank stands, and the line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line.strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}).") from error


def _columns(path: Path, n_columns: int) -> Iterator[tuple[str, list[str]]]:
    for where, line in _lines(path):
        row = line.split(maxsplit=n_columns - 1)
        if len(row) != n_columns:
            raise ValueError(f"{where}: a line must have {n_columns} columns; got {row}.")
        yield where, row
