"""Recorded noise, music and room impulse responses, from a folder of audio files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from asvspoof_cm.audio import AUDIO_EXTENSIONS, SAMPLE_RATE, AudioFile, load_audio
from asvspoof_cm.augmentation.base import (
    Augmentation,
    Drawn,
    beside,
    check_snr,
    integers,
    uniform,
    working_precision,
)
from asvspoof_cm.augmentation.filters import add_noise, fir_filter, level


@dataclass(frozen=True, kw_only=True)
class FolderNoise(Augmentation):
    """Add an excerpt of a random file of a folder, noise or music, at a drawn SNR.

    An excerpt runs on at the file's start when it reaches its end. One that would be digital
    silence starts at the next sample that isn't; a file of nothing else is an error.

    Args:
        folder: Searched with its subfolders, once, for names that end as `AUDIO_EXTENSIONS` do.
        snr_db: Range of the SNR.
        sample_rate: Of the waveforms, in Hz; other files are resampled.

    Example:
        >>> import tempfile, numpy, soundfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> soundfile.write(f"{folder}/hum.wav", numpy.sin(numpy.arange(8000) / 50), 16000)
        >>> augment = FolderNoise(folder=folder)
        >>> drawn = augment.draw(1, 16000, torch.Generator().manual_seed(0))
        >>> drawn["file"]
        ('hum.wav',)
        >>> augment.apply(torch.ones(16000), drawn).shape
        torch.Size([16000])
    """

    folder: str | Path
    snr_db: tuple[float, float] = (0.0, 20.0)
    sample_rate: int = SAMPLE_RATE
    files: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_snr("snr_db", self.snr_db)
        object.__setattr__(self, "files", _audio_files(self.folder))

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "file": _draw_files(self.files, n_rows, generator),
            "offset": uniform((n_rows,), (0, 1), generator),
            "snr_db": uniform((n_rows,), self.snr_db, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        _check_files(drawn["file"], self.files)
        excerpts = [
            _read_excerpt(Path(self.folder) / file, offset, waveform.shape[1], self.sample_rate)
            for file, offset in zip(drawn["file"], drawn["offset"].tolist(), strict=True)
        ]
        noise = beside(torch.stack(excerpts), waveform)
        return add_noise(waveform, noise, beside(drawn["snr_db"], waveform))


@working_precision
def reverberate(waveform: Tensor, impulse_response: Tensor) -> Tensor:
    """Convolve each waveform with a room impulse response, keeping alignment and level.

    The largest value of the response, the direct path, stays in place; the output has the RMS of
    the input.

    Args:
        waveform: `(..., time)`.
        impulse_response: `(..., n_taps)`, on the CPU.
    """
    taps = impulse_response.to(waveform.dtype)
    taps = taps / level(taps)[..., None]
    direct = taps.abs().argmax(dim=-1, keepdim=True)
    delay = int(direct.max())
    # Rows whose direct path is earlier wait for the latest.
    place = torch.arange(taps.shape[-1] + delay, device=taps.device) - (delay - direct)
    inside = (place >= 0) & (place < taps.shape[-1])
    taps = taps.gather(-1, place.clamp(0, taps.shape[-1] - 1)) * inside
    wet = fir_filter(waveform, taps.to(waveform.device), delay)
    wet_level = level(wet)
    return wet * torch.where(wet_level > 0, level(waveform) / wet_level, 0)[..., None]


@dataclass(frozen=True, kw_only=True)
class FolderReverb(Augmentation):
    """Convolve with a random room impulse response of a folder; see `reverberate`.

    Args:
        folder: Searched with its subfolders, once, for names that end as `AUDIO_EXTENSIONS` do.
        sample_rate: Of the waveforms, in Hz; other files are resampled.

    Example:
        >>> import tempfile, numpy, soundfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> soundfile.write(f"{folder}/room.wav", 0.5 ** numpy.arange(1000), 16000)
        >>> augment = FolderReverb(folder=folder)
        >>> augment(torch.ones(16000), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([16000])
    """

    folder: str | Path
    sample_rate: int = SAMPLE_RATE
    files: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", _audio_files(self.folder))

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        files = _draw_files(self.files, n_rows, generator)
        return {
            "file": files,
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        _check_files(drawn["file"], self.files)
        responses = [self._read(Path(self.folder) / file) for file in drawn["file"]]
        longest = max(len(response) for response in responses)
        padded = [pad(response, (0, longest - len(response))) for response in responses]
        return reverberate(waveform, torch.stack(padded))

    def _read(self, path: Path) -> Tensor:
        response = load_audio(path, sample_rate=self.sample_rate)
        if not response.any():
            raise ValueError(f"{path} must hold an impulse response; all its samples are zero.")
        return response


def _audio_files(folder: str | Path) -> tuple[str, ...]:
    """Return the audio files below `folder`, as sorted paths inside it."""
    root = Path(folder)
    if not root.is_dir():
        raise NotADirectoryError(f"`folder` must be a folder of audio files; got {folder}.")
    paths = (path for path in root.rglob("*") if path.suffix.lower() in AUDIO_EXTENSIONS)
    files = tuple(sorted(path.relative_to(root).as_posix() for path in paths))
    if not files:
        raise FileNotFoundError(
            f"`folder` must hold files ending in {', '.join(AUDIO_EXTENSIONS)}; {folder} has none."
        )
    return files


def _draw_files(files: tuple[str, ...], n_rows: int, generator: torch.Generator) -> tuple[str, ...]:
    choices = integers((n_rows,), (0, len(files) - 1), generator)
    return tuple(files[choice] for choice in choices.tolist())


def _check_files(drawn: tuple[str, ...], files: tuple[str, ...]) -> None:
    """Raise unless the drawn files are files of the folder: a stored draw may name any."""
    strange = set(drawn).difference(files)
    if strange:
        raise ValueError(
            f"`drawn` must name files of the folder; got {min(strange)!r}, which is none of "
            f"its {len(files)}. Replay them with the folder that they were drawn from."
        )


def _read_excerpt(path: Path, offset: float, n_samples: int, sample_rate: int) -> Tensor:
    """Return `(n_samples,)` from `offset`, a share of the file, on."""
    with AudioFile(path, sample_rate=sample_rate) as file:
        start = int(offset * file.n_samples)
        excerpt = _read_around(file, start, n_samples)
        if not excerpt.any():
            heard = _read_around(file, start, file.n_samples).nonzero()
            if not len(heard):
                raise ValueError(f"{path} must hold noise; all its samples are zero. Remove it.")
            excerpt = _read_around(file, (start + int(heard[0])) % file.n_samples, n_samples)
        return excerpt


def _read_around(file: AudioFile, start: int, n_samples: int) -> Tensor:
    """Return `(n_samples,)` from `start` on; the file's end is followed by its start."""
    head = file.read(start, n_samples)
    if len(head) == n_samples:
        return head
    rest = file.read(0, n_samples - len(head))
    return torch.cat((head, rest.repeat(-(-n_samples // len(rest)))))[:n_samples]
