"""Audio in the formats that corpora come in, as pairs of a name and what opens its audio.

docs/data.md has the table of formats, and of the names that they give to utterances. Names are only
names: nothing is ever unpacked to disk, so a member ``../x`` writes nowhere. Lists name files below
`root`; a name that leaves it is an error.
"""

from __future__ import annotations

import csv
import json
import math
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath, PureWindowsPath
from typing import Final, TypeAlias

from asvspoof_cm._util import import_extra
from asvspoof_cm.audio import AUDIO_EXTENSIONS
from asvspoof_cm.data.openers import (
    Opener,
    ParquetCells,
    open_bytes,
    open_cell,
    open_file,
    open_part,
    open_slice,
    refusing_damage,
)

AudioPath: TypeAlias = str | os.PathLike[str]

_PATH_COLUMNS: Final = ("audio_filepath", "path", "file", "file_name", "filename", "audio")
_ID_COLUMNS: Final = ("id", "utterance", "filename", "file_name", "file", "path")
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def audio_entries(
    source: AudioPath | Iterable[AudioPath], *, root: AudioPath | None = None
) -> Iterator[tuple[str, Opener]]:
    """Yield the name and the opener of every utterance of a source, or of several, in order.

    docs/data.md has the table of what a source may be. Openers read only when they are called, so a
    list of a million is cheap to make, to share out and to send to other processes. The exception
    is a compressed tar, which can't be entered in the middle: its openers hold their bytes.

    Args:
        source: A folder or a file, or several.
        root: Where the files that a list names must lie; None is the folder of the list. Relative
            names start there.

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
        for name, opener in _reader(path)(path, path.parent if root is None else Path(root)):
            if name in seen:
                where = "occurs twice" if seen[name] == path else f"is also in {seen[name]}"
                raise ValueError(
                    f"{path}: every utterance needs a name of its own; {name!r} {where}."
                )
            seen[name] = path
            yield name, opener


_Reader: TypeAlias = Callable[[Path, Path], Iterator[tuple[str, Opener]]]


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


def _read_file(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    yield stem(path.as_posix()), partial(open_file, path)


def _read_folder(folder: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    n_found = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if _is_audio(name):
                path = Path(parent, name)
                n_found += 1
                yield stem(path.relative_to(folder).as_posix()), partial(open_file, path)
    if not n_found:
        endings = tuple(_READERS.keys() - {".txt", ".tsv"})
        others = (p for p in sorted(folder.iterdir()) if p.is_file())
        hint = next((p.name for p in others if p.name.lower().endswith(endings)), None)
        raise ValueError(
            f"{folder} holds no audio file"
            + ("." if hint is None else f", but {hint}: name that as the source.")
        )


def _read_tar(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    is_plain = is_seekable(path)
    try:
        with tarfile.open(path, "r:" if is_plain else "r|*") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined] # they would add up
                if not (member.isreg() and _is_audio(PurePath(member.name).name)):
                    continue
                name = member.name
                if is_plain and member.offset_data + member.size > path.stat().st_size:
                    raise tarfile.ReadError(f"{name} would end beyond it")
                if is_plain:
                    place = member.offset_data, member.size
                    yield stem(name), partial(open_slice, path, name, *place)
                elif (file := tar.extractfile(member)) is not None:
                    yield stem(name), partial(open_bytes, file.read(), f"{path}:{name}")
    except (tarfile.TarError, EOFError, ValueError, OverflowError, TypeError) as error:
        # tarfile raises TypeError for a gzip header that is cut off.
        raise ValueError(f"{path} is not a whole tar file ({error}).") from error


def _read_parquet(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    parquet = import_extra("pyarrow.parquet", "datasets")
    with refusing_damage(path), parquet.ParquetFile(path) as file:
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
        cells = ParquetCells(path, audio)
        row = 0
        for batch in file.iter_batches(columns=[column], use_threads=False):
            names = batch.column(0) if ids else batch.column(0).field("path")
            for value in names.to_pylist():
                if value is None:
                    raise ValueError(f"{path}: row {row} has no name in the column {column!r}.")
                yield str(value) if ids else stem(value), partial(open_cell, cells, row)
                row += 1


def _read_scp(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
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
            yield name, partial(open_file, file)
        return
    for where, (name, recording, *times) in _columns(segments, 4):
        if recording not in files:
            raise ValueError(f"{where}: {path.name} has no recording {recording!r}.")
        start_s, end_s = (_seconds(time, where) for time in times)
        # Kaldi writes -1 for the end of the recording.
        duration_s = None if end_s == -1 else end_s - start_s
        yield name, _part(files[recording], start_s, duration_s, where)


def _read_txt(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    for where, line in _lines(path):
        yield stem(line), partial(open_file, _below(root, line, where))


def _read_csv(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
            delimiter = next((mark for mark in "\t;" if mark in first), ",")
            header = next(csv.reader([first], delimiter=delimiter), [])
            column = next((name for name in _PATH_COLUMNS if name in header), None)
            if column is None:
                raise ValueError(
                    f"{path} must have one of the columns {', '.join(_PATH_COLUMNS)}, the paths of "
                    f"the audio; it has {header}."
                )
            for number, row in enumerate(csv.DictReader(file, header, delimiter=delimiter), 2):
                where, audio = f"{path}, row {number}", row[column]
                if not audio:
                    raise ValueError(f"{where}: there is no path in the column {column!r}.")
                yield row.get("id") or stem(audio), partial(open_file, _below(root, audio, where))
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a table in UTF-8 text ({error}).") from error


def _read_jsonl(path: Path, root: Path) -> Iterator[tuple[str, Opener]]:
    for where, line in _lines(path):
        try:
            row = json.loads(line)
            file = next(row[name] for name in _PATH_COLUMNS if name in row)
            name = str(row["id"]) if "id" in row else stem(file)
        except (ValueError, StopIteration, TypeError, AttributeError) as error:
            raise ValueError(
                f'{where}: a line must be a JSON object with "audio_filepath" or "path"; got '
                f"{line[:80]!r}."
            ) from error
        audio = _below(root, file, where)
        if row.get("offset") is None:
            # The duration of a row without an offset is that of the file, rounded.
            yield name, partial(open_file, audio)
            continue
        start_s, duration_s = _seconds(row["offset"], where), row.get("duration")
        if duration_s is not None:
            duration_s = _seconds(duration_s, where)
        name = name if "id" in row else f"{name}@{start_s:.3f}"
        yield name, _part(audio, start_s, duration_s, where)


_READERS: Final[dict[str, _Reader]] = {
    **dict.fromkeys((".tar", *_COMPRESSED), _read_tar),
    ".parquet": _read_parquet,
    ".scp": _read_scp,
    ".jsonl": _read_jsonl,
    ".txt": _read_txt,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}


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
    if ".." in PureWindowsPath(name).parts or "\0" in name or not path.is_relative_to(top):
        raise ValueError(
            f"{where}: a file must lie below `root`, {top}; got {name!r}. Give another root if "
            "the list may be trusted."
        )
    return path


def _part(path: Path, start_s: float, duration_s: float | None, where: str) -> Opener:
    if start_s < 0 or (duration_s is not None and duration_s <= 0):
        raise ValueError(
            f"{where}: a part must start at 0 s or later and have a positive duration; got "
            f"{start_s} s and {duration_s} s."
        )
    return partial(open_part, path, start_s, duration_s)


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
