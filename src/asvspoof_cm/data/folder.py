"""Where audio is found: folders, lists, iterables, and the files of a protocol below one folder.

None of the audio is read here. What can't be found is an `Entry` with an error that stops no other.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from asvspoof_cm._util import text_of
from asvspoof_cm.audio import (
    AUDIO_EXTENSIONS,
    BAD_AUDIO,
    OpenAudio,
    Waveform,
    audio_name,
    open_audio,
)
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.labels import SAMPLE_RATE

AudioPath: TypeAlias = str | os.PathLike[str]
Audio: TypeAlias = "AudioPath | bytes | BinaryIO | Waveform"
"""A file, an open one, the bytes of one, or a waveform."""
Item: TypeAlias = "AudioPath | tuple[str, Audio] | tuple[str, Audio, int]"

# How the names of lists of audio files end.
_LISTS: Final = (".txt", ".csv", ".tsv")
# Where the public corpora keep their files, below the folder that they unpack into.
_SUBFOLDERS: Final = ("flac_T", "flac_D", "flac_E_eval", "flac_E_prog", "flac")
_N_PROBED = 100
_N_SHOWN = 5
# What a name that leaves its folder has; hardly any name has it, and a closer look is slow.
_SUSPECT = re.compile(r"[/\\:\0]|\.\.")


class Entry(NamedTuple):
    """One utterance: its name, its audio or what kept it from being found, and its root folder."""

    name: str
    audio: Any
    sample_rate: int = SAMPLE_RATE
    channel: int | None = None
    root: Path | None = None

    def open(
        self, sample_rate: int, channel: int | None = None
    ) -> AbstractContextManager[OpenAudio]:
        """Return the audio as a context, to be read at `sample_rate`, or raise what is wrong."""
        if isinstance(self.audio, Exception):
            raise self.audio
        root = self.root
        if root is not None and not self.audio.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{self.audio} is a link that leads out of {root}.")
        return open_audio(self.audio, self.sample_rate, sample_rate, channel=channel)


def find_audio(
    items: Iterable[Item], *, root: AudioPath | None = None, each_channel: bool = False
) -> Iterator[Entry]:
    """Yield the utterances that files, folders, lists and waveforms stand for, in their order.

    A folder gives every audio file below it, named by its place without the extension, where no
    other file has that name; files with other extensions are counted in a warning. A list ``.txt``
    has a path on each line, a ``.csv`` or ``.tsv`` a column of them and maybe one of names.

    Args:
        items: Paths, or tuples ``(name, audio)`` and ``(name, audio, sample_rate)``, whose audio is
            a file, an open one, the bytes of one, or a waveform.
        root: Where the files of a list must lie; None is the folder of the list.
        each_channel: Give each channel of a file an entry of its own, named ``name#0`` and so on.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a.flac").touch()
        >>> [entry.name for entry in find_audio([folder, ("noise", [0.1] * 16000)])]
        ['a', 'noise']
    """
    if isinstance(items, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError(
            f"`audio` must be several files; got one, {audio_name(items)}. Wrap it in a list: "
            "[path], or [(name, audio)]."
        )
    for item in items:
        for entry in _expand(item, root):
            yield from _channels(entry) if each_channel else (entry,)


def _expand(item: Item, root: AudioPath | None) -> Iterator[Entry]:
    if isinstance(item, tuple):
        yield Entry(str(item[0]), *item[1:])
        return
    path = Path(item)
    try:
        if path.is_dir():
            yield from _folder(path)
        elif path.suffix.lower() in _LISTS:
            yield from _listed(path, (path.parent if root is None else Path(root)).absolute())
        else:
            yield Entry(os.fspath(item), path)
    except BAD_AUDIO as error:  # of this list or folder: the others go on
        yield Entry(os.fspath(item), error)


def _folder(folder: Path) -> Iterator[Entry]:
    found: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        others += [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        for name in sorted(names):
            is_audio = name.lower().endswith(AUDIO_EXTENSIONS) and not name.startswith(".")
            (found if is_audio else others).append(Path(parent, name))
    if not found:
        raise ValueError(f"{folder} holds no audio file.")
    if others:
        shown = ", ".join(str(path.relative_to(folder)) for path in others[:_N_SHOWN])
        more = f" and {len(others) - _N_SHOWN} more" if len(others) > _N_SHOWN else ""
        warnings.warn(
            f"{folder}: {len(others)} of {len(found) + len(others)} files are no audio by their "
            f"names and are not read: {shown}{more}.",
            stacklevel=2,
        )
    counts = Counter(path.with_suffix("") for path in found)
    for path in found:
        named = path.with_suffix("") if counts[path.with_suffix("")] == 1 else path
        yield Entry(named.relative_to(folder).as_posix(), path)


def _listed(path: Path, root: Path) -> Iterator[Entry]:
    if path.suffix.lower() == ".txt":
        with text_of(path) as data:
            lines = enumerate(data.decode().split("\n"), start=1)
        rows = [(line.strip(), line.strip(), f"line {number}") for number, line in lines]
    else:
        protocol = read_protocol(path, require_labels=False)
        pairs = zip(protocol.utterance.tolist(), protocol.files().tolist(), strict=True)
        rows = [(name, file, repr(name)) for name, file in pairs]
    for name, file, where in rows:
        if not name:  # a blank line
            continue
        if _leaves(file) and not (Path(file).is_relative_to(root) and ".." not in Path(file).parts):
            error = ValueError(
                f"{path}, {where}: a file must lie below {root}; got {file!r}. Give another root "
                "if the list may be trusted."
            )
            yield Entry(name, error)
        else:
            yield Entry(name, root / file, root=root)


def _leaves(name: str) -> bool:
    """Return whether a name may lead out of its folder: Windows paths know both separators."""
    if not _SUSPECT.search(name):
        return False
    path = PureWindowsPath(name)
    return bool(path.anchor) or ".." in path.parts or "\0" in name


def _channels(entry: Entry) -> Iterator[Entry]:
    """Yield the entry of each channel on its own."""
    try:
        with entry.open(entry.sample_rate) as source:
            n_channels = source.n_channels
    except BAD_AUDIO as error:
        yield entry._replace(audio=error)
        return
    for k in range(n_channels):
        yield entry._replace(name=f"{entry.name}#{k}", channel=k)


class AudioFolder:
    """The files of a protocol below one folder, each as an `Entry`.

    A file is named by the protocol's column `file`, else by the utterance. A name without the
    extension of an audio format gets ``.flac``, or else that of the files that are there. They lie
    in `audio_dir` itself or in the one of its folders flac_T, flac_D, flac_E_eval, flac_E_prog and
    flac that holds any of the first hundred utterances. A name that leaves the folder, by ``..`` or
    as an absolute path, is an error; links are followed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a.flac").touch()
        >>> AudioFolder(Protocol.from_columns(["a", "b.wav"]), folder).path(1).name
        'b.wav'
    """

    def __init__(self, protocol: Protocol, audio_dir: AudioPath) -> None:
        if len(protocol) == 0:
            raise ValueError("`protocol` must hold at least one utterance; it holds none.")
        self._utterances, self._files = protocol.utterance, protocol.files()
        for name in filter(_leaves, self._files.tolist()):
            raise ValueError(
                f"{protocol.path or '`protocol`'}: the name of an utterance must stay below "
                f"`audio_dir`; got {name!r}. Write names relative to that folder."
            )
        root = Path(audio_dir)
        if not root.is_dir():
            raise NotADirectoryError(f"`audio_dir` must be a folder; {root} is not one.")
        rows = range(min(_N_PROBED, len(self)))
        for self._extension in AUDIO_EXTENSIONS:
            for self.folder in (root, *(root / name for name in _SUBFOLDERS)):
                if any(self.path(row).is_file() for row in rows):
                    return
        raise FileNotFoundError(
            f"`audio_dir`: neither {root} nor its folders {', '.join(_SUBFOLDERS)} hold any of the "
            f"first {len(rows)} utterances, such as {str(self._files[0])!r}."
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> Entry:
        return Entry(str(self._utterances[row]), self.path(row))

    def path(self, row: int) -> Path:
        """Return the file of a row, whether it exists or not."""
        name = str(self._files[row])
        is_whole = name.lower().endswith(AUDIO_EXTENSIONS)
        return self.folder / (name if is_whole else name + self._extension)


def audio_of(
    protocol: Protocol, audio: AudioPath | Iterable[Item]
) -> AudioFolder | Sequence[Entry]:
    """Return the audio of each row of a protocol: in a folder, a list of files, or named pairs.

    In the latter two utterances are found by their names, with or without an audio extension.
    """
    if isinstance(audio, str | os.PathLike):
        if Path(audio).suffix.lower() not in _LISTS or Path(audio).is_dir():
            return AudioFolder(protocol, audio)
        audio = [audio]
    found: dict[str, Entry] = {}
    for entry in find_audio(audio):
        if (stem := _stem(entry.name)) in found:
            raise ValueError(f"`audio_dir` must have each name once; {stem!r} occurs twice.")
        found[stem] = entry
    names: list[str] = protocol.utterance.tolist()
    if not found.keys() & map(_stem, names):
        raise FileNotFoundError(
            f"`audio_dir` holds none of the {len(names)} utterances, such as {names[0]!r}; it "
            f"has {len(found)} others, such as {next(iter(found), None)!r}."
        )
    no = "`audio_dir` has no audio of the name {!r}.".format
    return [found.get(_stem(n)) or Entry(n, FileNotFoundError(no(n))) for n in names]


def _stem(name: str) -> str:
    """Return a name without the extension of an audio format."""
    return name[: name.rindex(".")] if name.lower().endswith(AUDIO_EXTENSIONS) else name
