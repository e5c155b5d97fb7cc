"""Recorded noise, music and room impulse responses, from a folder of audio files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asvspoof_cm.audio import AUDIO_EXTENSIONS, AudioFile, load_audio
from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, integers, uniform
from asvspoof_cm.augmentation.filters import add_noise, fir_filter, level
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_snr


@dataclass(frozen=True, kw_only=True)
class _FromFolder(Augmentation):
    """What draws a file of a folder for each row."""

    folder: str | Path
    sample_rate: int = SAMPLE_RATE
    files: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        root = Path(self.folder)
        if not root.is_dir():
            raise NotADirectoryError(f"`folder` must be a folder of audio files; got {root}.")
        paths = (path for path in root.rglob("*") if path.suffix.lower() in AUDIO_EXTENSIONS)
        files = tuple(sorted(path.relative_to(root).as_posix() for path in paths))
        if not files:
            endings = ", ".join(AUDIO_EXTENSIONS)
            raise FileNotFoundError(
                f"`folder` must hold files ending in {endings}; {root} has none."
            )
        object.__setattr__(self, "files", files)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        choices = integers((n_rows,), (0, len(self.files) - 1), generator)
        return {"file": tuple(self.files[choice] for choice in choices.tolist())}

    def _paths(self, drawn: Drawn) -> list[Path]:
        """Return the drawn files, which must be files of the folder: a stored draw may name any."""
        strange = set(drawn["file"]).difference(self.files)
        if strange:
            raise ValueError(
                f"`drawn` must name files of the folder; got {min(strange)!r}, which is none of "
                f"its {len(self.files)}. Replay them with the folder that they were drawn from."
            )
        return [Path(self.folder) / file for file in drawn["file"]]


@dataclass(frozen=True, kw_only=True)
class FolderNoise(_FromFolder):
    """Add an excerpt of a random file of a folder, noise or music, at a drawn SNR.

    An excerpt runs on at the file's start when it reaches its end. One that would be digital
    silence starts at the next sample that isn't; a file of nothing else is an error.

    Args:
        folder: Searched with its subfolders, once, for names that end as `AUDIO_EXTENSIONS` do.
        sample_rate: Of the waveforms, in Hz; other files are resampled.
        snr_db: Range of the SNR.

    Example:
        >>> import tempfile, numpy, soundfile
        >>> folder = tempfile.mkdtemp()
        >>> soundfile.write(f"{folder}/hum.wav", numpy.sin(numpy.arange(8000) / 50), 16000)
        >>> FolderNoise(folder=folder)(torch.ones(16000)).shape
        torch.Size([16000])
    """

    snr_db: tuple[float, float] = (0.0, 20.0)

    def __post_init__(self) -> None:
        check_snr("snr_db", self.snr_db)
        super().__post_init__()

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            **super()._draw(n_rows, n_samples, generator),
            "offset": uniform((n_rows,), (0, 1), generator),
            "snr_db": uniform((n_rows,), self.snr_db, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        pairs = zip(self._paths(drawn), drawn["offset"].tolist(), strict=True)
        excerpts = [self._excerpt(path, offset, waveform.shape[1]) for path, offset in pairs]
        return add_noise(waveform, beside(torch.stack(excerpts), waveform), drawn["snr_db"])

    def _excerpt(self, path: Path, offset: float, n_samples: int) -> Tensor:
        """Return `(n_samples,)` from `offset`, a share of the file, on."""
        with AudioFile(path, sample_rate=self.sample_rate) as file:
            start = int(offset * file.n_samples)
            excerpt = _read_around(file, start, n_samples)
            if not excerpt.any():
                heard = np.flatnonzero(_read_around(file, start, file.n_samples))
                if not len(heard):
                    raise ValueError(
                        f"{path} must hold noise; all its samples are zero. Remove it."
                    )
                excerpt = _read_around(file, (start + int(heard[0])) % file.n_samples, n_samples)
            return torch.from_numpy(excerpt)


def _read_around(file: AudioFile, start: int, n_samples: int) -> NDArray[np.float32]:
    """Return `(n_samples,)` from `start` on; the file's end is followed by its start."""
    head = file.read(start, n_samples)
    if len(head) == n_samples:
        return head
    rest = file.read(0, n_samples - len(head))
    return np.concatenate((head, np.tile(rest, -(-n_samples // len(rest)))))[:n_samples]


@dataclass(frozen=True, kw_only=True)
class FolderReverb(_FromFolder):
    """Convolve with a random room impulse response of a folder.

    The largest value of the response, the direct path, stays in place; each row keeps its power.

    Args:
        folder: Searched with its subfolders, once, for names that end as `AUDIO_EXTENSIONS` do.
        sample_rate: Of the waveforms, in Hz; other files are resampled.

    Example:
        >>> import tempfile, numpy, soundfile
        >>> folder = tempfile.mkdtemp()
        >>> soundfile.write(f"{folder}/room.wav", 0.5 ** numpy.arange(1000), 16000)
        >>> FolderReverb(folder=folder)(torch.ones(16000)).shape
        torch.Size([16000])
    """

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        responses = []
        for path in self._paths(drawn):
            responses.append(load_audio(path, sample_rate=self.sample_rate))
            if not responses[-1].any():
                raise ValueError(f"{path} must hold an impulse response; all its samples are zero.")
        return reverberate(waveform, pad_sequence(responses, batch_first=True))


def reverberate(waveform: Tensor, taps: Tensor) -> Tensor:
    """Convolve waveforms `(n_rows, time)` with room impulse responses `(n_rows, n_taps)`."""
    taps = taps.to(waveform.dtype)
    taps = taps / level(taps)[:, None]
    direct = taps.abs().argmax(dim=1, keepdim=True)
    delay = int(direct.max())
    # Rows whose direct path is earlier wait for the latest.
    place = torch.arange(taps.shape[1] + delay) - (delay - direct)
    inside = (place >= 0) & (place < taps.shape[1])
    taps = taps.gather(1, place.clamp(0, taps.shape[1] - 1)) * inside
    wet = fir_filter(waveform, taps, delay)
    wet_level = level(wet)
    return wet * torch.where(wet_level > 0, level(waveform) / wet_level, 0)[:, None]
