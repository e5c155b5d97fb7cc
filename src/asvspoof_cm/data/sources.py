"""Where the audio of a protocol comes from: a folder of files, or a packed cache."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol as Interface

from torch import Tensor

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.data.folder import EXTENSION, AudioFolder
from asvspoof_cm.data.packed import INDEX_NAME, SHARD_PATTERN, PackedAudio
from asvspoof_cm.data.protocol import Protocol

__all__ = ["AudioSource", "OpenAudio", "open_audio"]


class OpenAudio(Interface):
    """One utterance whose length is known and whose samples can be read from anywhere."""

    n_samples: int

    def read(self, start: int = 0, n_samples: int | None = None) -> Tensor:
        """Return up to `n_samples` samples from sample `start`, shape (time,)."""


class AudioSource(Interface):
    """What gives the audio of row `index` of a protocol: `AudioFolder` or `PackedAudio`."""

    def open(self, index: int) -> AbstractContextManager[OpenAudio]:
        """Open the utterance of row `index`."""


def open_audio(
    protocol: Protocol,
    audio_dir: str | os.PathLike[str],
    *,
    sample_rate: int = SAMPLE_RATE,
    extension: str = EXTENSION,
) -> AudioSource:
    """Return the audio of a protocol: `PackedAudio` where `pack` wrote it, else `AudioFolder`.

    Args:
        protocol: The utterances.
        audio_dir: The folder of their files or the folder that `pack` wrote.
        sample_rate: The rate to read at; a packed cache has one rate only.
        extension: What names without the extension of an audio format get; for files only.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import read_protocol, write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=2, n_dev=2)
        >>> audio = open_audio(read_protocol(paths.dev_protocol), paths.audio_dir)
        >>> with audio.open(0) as utterance:
        ...     utterance.read(0, 1000).shape
        torch.Size([1000])
    """
    folder = Path(audio_dir)
    if (folder / INDEX_NAME).is_file():
        return PackedAudio(folder, protocol=protocol, sample_rate=sample_rate)
    if any(folder.glob(SHARD_PATTERN)):
        raise ValueError(f"`audio_dir`: {folder} is packed only in part. Run pack again to finish.")
    return AudioFolder(protocol, folder, sample_rate=sample_rate, extension=extension)
