"""Where the audio of a protocol comes from: files, a tar or another container, or a pack."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol as Interface

from asvspoof_cm.audio import OpenAudio
from asvspoof_cm.data.containers import audio_entries, check_seekable, is_container, stem
from asvspoof_cm.data.folder import AudioFolder
from asvspoof_cm.data.openers import Opener
from asvspoof_cm.data.packed import INDEX_NAME, SHARD_PATTERN, PackedAudio
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import SAMPLE_RATE


class AudioSource(Interface):
    """What gives the audio of the rows of a protocol: a folder, a pack or another container."""

    def open(self, index: int) -> AbstractContextManager[OpenAudio]:
        """Open the utterance of row `index`."""


def open_audio(
    protocol: Protocol, audio_dir: str | os.PathLike[str], *, sample_rate: int = SAMPLE_RATE
) -> AudioSource:
    """Return the audio of a protocol: `PackedAudio` where `pack` wrote it, `AudioFolder` of files.

    A tar or Parquet file or a list (``.scp``, ``.jsonl``, …) in the place of a folder is read with
    `audio_entries`; utterances have the names that it gives them.

    Args:
        protocol: The utterances.
        audio_dir: The folder of their files or the folder that `pack` wrote, or such a file.
        sample_rate: The rate to read at; a packed cache has one rate only.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import read_protocol, write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=2, n_dev=2)
        >>> audio = open_audio(read_protocol(paths.dev_protocol), paths.audio_dir)
        >>> with audio.open(0) as utterance:
        ...     utterance.read(0, 1000).shape
        (1000,)
    """
    folder = Path(audio_dir)
    if folder.is_file():
        return _Container(protocol, folder, sample_rate)
    if (folder / INDEX_NAME).is_file():
        return PackedAudio(folder, protocol=protocol, sample_rate=sample_rate)
    if any(folder.glob(SHARD_PATTERN)):
        raise ValueError(f"`audio_dir`: {folder} is packed only in part. Run pack again to finish.")
    return AudioFolder(protocol, folder, sample_rate=sample_rate)


class _Container:
    """The audio of a protocol inside one file, or in the files that it lists."""

    def __init__(self, protocol: Protocol, source: Path, sample_rate: int) -> None:
        if not is_container(source):
            raise NotADirectoryError(
                f"`audio_dir` must be a folder, or a tar, Parquet, .scp or .jsonl file; {source} "
                "is none of these."
            )
        check_seekable(source)
        entries = dict(audio_entries(source))
        self._names: list[str] = protocol.utterance.tolist()
        self._openers: list[Opener | None] = [
            entries.get(name, entries.get(stem(name))) for name in self._names
        ]
        self._source, self._sample_rate = source, sample_rate
        if not any(self._openers):
            raise FileNotFoundError(
                f"`audio_dir`: {source} holds none of the {len(self._names)} utterances, such as "
                f"{self._names[0]!r}; it has {next(iter(entries), None)!r} and "
                f"{max(0, len(entries) - 1)} others."
            )

    def open(self, index: int) -> AbstractContextManager[OpenAudio]:
        """Open the utterance of row `index`."""
        opener = self._openers[index]
        if opener is None:
            raise FileNotFoundError(f"{self._source} holds no {self._names[index]!r}.")
        return opener(self._sample_rate)
