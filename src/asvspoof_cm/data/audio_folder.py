"""The audio files of a protocol below one folder, and never outside it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Final

import numpy as np

from asvspoof_cm.audio import AUDIO_EXTENSIONS, AudioFile
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import ABSENT, SAMPLE_RATE

# Where the public corpora keep their files, below the folder that they unpack into.
SUBFOLDERS: Final = ("flac_T", "flac_D", "flac_E_eval", "flac_E_prog", "flac")
_N_PROBED = 100
# What a name that leaves its folder has; hardly any name has it, and a closer look is slow.
_SUSPECT = re.compile(r"[/\\:\0]|\.\.")


class AudioFolder:
    """The files of a protocol below one folder.

    The file of an utterance is what the protocol's column `file` says, else its name. A name that
    ends with the extension of an audio format is a file name as it is; any other gets `extension`.
    Files are looked for in `audio_dir` itself or in the one of its folders flac_T, flac_D,
    flac_E_eval, flac_E_prog and flac that holds any of the first hundred utterances, so the root of
    a corpus serves for all its protocols. The extension is found with them.

    Args:
        protocol: The utterances. Names must stay below the folder: an absolute name, or one with
            ``..`` in it, is an error. Links inside the folder are followed.
        audio_dir: The folder.
        sample_rate: The rate to resample to.
        extension: What names without the extension of an audio format get; None is ``.flac``, or
            else the extension of the files that are there.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "a.flac").touch()
        >>> AudioFolder(Protocol.from_columns(["a", "b.wav"]), folder).path(1).name
        'b.wav'
    """

    def __init__(
        self,
        protocol: Protocol,
        audio_dir: str | os.PathLike[str],
        *,
        sample_rate: int = SAMPLE_RATE,
        extension: str | None = None,
    ) -> None:
        if len(protocol) == 0:
            raise ValueError("`protocol` must hold at least one utterance; it holds none.")
        self._names = np.where(protocol.file == ABSENT, protocol.utterance, protocol.file)
        _check_names(self._names.tolist(), protocol)
        if extension is not None and not extension.startswith("."):
            raise ValueError(f"`extension` must start with a dot; got {extension!r}.")
        self.sample_rate = sample_rate
        candidates = AUDIO_EXTENSIONS if extension is None else (extension,)
        self.folder, self.extension = self._find(Path(audio_dir), candidates)

    def path(self, index: int) -> Path:
        """Return the file of row `index`, whether it exists or not."""
        return self.folder / self._file_name(index, self.extension)

    def open(self, index: int) -> AudioFile:
        """Open the file of row `index`."""
        return AudioFile(self.path(index), sample_rate=self.sample_rate)

    def missing(self) -> list[int]:
        """Return the rows whose file does not exist."""
        return [k for k in range(len(self._names)) if not self.path(k).is_file()]

    def _file_name(self, index: int, extension: str) -> str:
        name = str(self._names[index])
        return name if name.lower().endswith(AUDIO_EXTENSIONS) else name + extension

    def _find(self, root: Path, extensions: Sequence[str]) -> tuple[Path, str]:
        """Return the folder and the extension of files that exist, the first of each."""
        if not root.is_dir():
            raise NotADirectoryError(f"`audio_dir` must be a folder; {root} is not one.")
        rows = range(min(_N_PROBED, len(self._names)))
        for extension in extensions:
            for folder in (root, *(root / name for name in SUBFOLDERS)):
                if any((folder / self._file_name(row, extension)).is_file() for row in rows):
                    return folder, extension
        raise FileNotFoundError(
            f"`audio_dir`: neither {root} nor its folders {', '.join(SUBFOLDERS)} hold any of the "
            f"first {len(rows)} utterances, such as {self._file_name(0, extensions[0])}."
        )


def _check_names(names: list[str], protocol: Protocol) -> None:
    for name in filter(_SUSPECT.search, names):
        # Windows paths know both separators, drives and shares.
        path = PureWindowsPath(name)
        if path.anchor or ".." in path.parts or "\0" in name:
            raise ValueError(
                f"{protocol.path or '`protocol`'}: the name of an utterance must stay below "
                f"`audio_dir`; got {name!r}. Write names relative to that folder."
            )
