"""A generated corpus in the layout of ASVspoof 5, to try and test things without the real one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import scipy.signal
import scipy.special
import soundfile

from asvspoof_cm.labels import SAMPLE_RATE

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

# The frame rate of each attack's imagined vocoder, in Hz: what its buzz is a harmonic series of.
_ATTACKS: Final = {
    "train": {"A01": 62.5, "A02": 80.0, "A03": 100.0},
    "dev": {"A09": 66.7, "A10": 75.0, "A11": 125.0},
}
_SHORTEST_S: Final = 0.1  # a few periods of the voice and of the buzz
_N_SPEAKERS: Final = {"train": 8, "dev": 4}
_BUZZ_BAND_HZ: Final = (3500.0, 7500.0)
_BUZZ_LEVEL: Final = 0.08
_VOWELS_HZ: Final = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))


class MiniaturePaths(NamedTuple):
    """What `write_miniature` wrote; `audio_dir` is the root, with the folders flac_T and flac_D."""

    audio_dir: Path
    train_protocol: Path
    dev_protocol: Path


def write_miniature(
    folder: str | os.PathLike[str],
    *,
    n_train: int = 240,
    n_dev: int = 120,
    duration_s: tuple[float, float] = (1.0, 3.0),
    seed: int = 0,
) -> MiniaturePaths:
    """Write a small corpus of synthetic voices, in the files and formats of ASVspoof 5.

    Half of the utterances are bona fide: a pulse train through moving formants, with breath and a
    noise floor. The others carry a faint buzz above 3.5 kHz, like that of a vocoder's frames; each
    attack has its own frame rate. Speakers and attacks of the two subsets are disjoint. A detector
    that finds the buzz makes no errors; nothing here says how well it does on real speech.

    Args:
        folder: Where to write ``flac_T``, ``flac_D``, ``ASVspoof5.train.tsv`` and
            ``ASVspoof5.dev.track_1.tsv``.
        n_train: The number of utterances to train with, at least 2.
        n_dev: The number of development utterances, at least 2.
        duration_s: The shortest and the longest duration, at least 0.1 s.
        seed: The seed of everything random.

    Example:
        >>> import tempfile
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=4, n_dev=2)
        >>> paths.train_protocol.name, len(list((paths.audio_dir / "flac_T").iterdir()))
        ('ASVspoof5.train.tsv', 4)
    """
    if min(n_train, n_dev) < 2:
        raise ValueError(f"`n_train` and `n_dev` must be at least 2; got {n_train} and {n_dev}.")
    if not _SHORTEST_S <= duration_s[0] <= duration_s[1]:
        raise ValueError(
            f"`duration_s` must be in order, the shortest at least {_SHORTEST_S} s; got "
            f"{duration_s}."
        )
    root = Path(folder)
    paths = MiniaturePaths(root, root / "ASVspoof5.train.tsv", root / "ASVspoof5.dev.track_1.tsv")
    rng = np.random.default_rng(seed)
    for protocol, subset, n in zip(paths[1:], _ATTACKS, (n_train, n_dev), strict=True):
        initial, attacks = subset[0].upper(), _ATTACKS[subset]
        (audio_dir := root / f"flac_{initial}").mkdir(parents=True, exist_ok=True)
        lines = []
        for number, is_spoof in enumerate(rng.permutation(n) >= n // 2, start=1):
            speaker = int(rng.integers(_N_SPEAKERS[subset]))
            n_samples = int(rng.uniform(*duration_s) * SAMPLE_RATE)
            gender, f0 = ("F", 200.0) if speaker % 2 else ("M", 100.0)
            waveform = _voice(n_samples, f0 * (1 + 0.04 * speaker), rng)
            key = "- bonafide bonafide"
            if is_spoof:
                attack = str(rng.choice([*attacks]))
                waveform = waveform + _buzz(waveform, attacks[attack], rng)
                key = f"AC1 {attack} spoof"
            waveform *= rng.uniform(0.2, 0.9) / np.abs(waveform).max()
            name = f"{initial}_{number:010d}"
            soundfile.write(audio_dir / f"{name}.flac", waveform, SAMPLE_RATE, subtype="PCM_16")
            lines.append(f"{initial}_{speaker + 1:04d} {name} {gender} - - - {key} -\n")
        protocol.write_text("".join(lines), encoding="utf-8")
    return paths


def _voice(n_samples: int, f0: float, rng: np.random.Generator) -> Array:
    time_s = np.arange(n_samples) / SAMPLE_RATE
    vibrato = np.sin(2 * np.pi * rng.uniform(2, 4) * time_s + rng.uniform(0, 2 * np.pi))
    phase = 2 * np.pi * np.cumsum(f0 * rng.uniform(0.9, 1.1) * (1 + 0.1 * vibrato)) / SAMPLE_RATE
    # exp(k (cos φ − 1)) is a smooth pulse once a period, with harmonics that fall off evenly.
    source = np.exp(60 * (np.cos(phase) - 1)) + 0.02 * rng.standard_normal(n_samples)
    syllables = 0.5 - 0.5 * np.cos(2 * np.pi * rng.uniform(3, 5) * time_s + rng.uniform(0, 6))
    n_vowels = max(1, n_samples // (SAMPLE_RATE // 2))
    parts = [
        _resonate(part, _VOWELS_HZ[int(rng.integers(len(_VOWELS_HZ)))])
        for part in np.array_split(source * syllables, n_vowels)
    ]
    voice = np.concatenate(parts)
    voice /= np.abs(voice).max()
    return voice + 10 ** rng.uniform(-3.5, -2.5) * rng.standard_normal(n_samples)


def _resonate(source: Array, formants_hz: Sequence[int]) -> Array:
    for formant_hz in formants_hz:
        radius = np.exp(-np.pi * 120 / SAMPLE_RATE)
        angle = 2 * np.pi * formant_hz / SAMPLE_RATE
        denominator = [1.0, -2 * radius * np.cos(angle), radius**2]
        source = np.asarray(scipy.signal.lfilter([sum(denominator)], denominator, source))
    return source


def _buzz(voice: Array, frame_rate_hz: float, rng: np.random.Generator) -> Array:
    low, high = (int(edge / frame_rate_hz) for edge in _BUZZ_BAND_HZ)
    phase = 2 * np.pi * (frame_rate_hz * np.arange(len(voice)) / SAMPLE_RATE + rng.uniform())
    # The mean of cos kφ for k from low to high is a pulse train in that band.
    above, below = (n * scipy.special.diric(phase, n) for n in (2 * high + 1, 2 * low - 1))
    series = (above - below) / 2 / (high - low + 1)
    envelope = np.asarray(scipy.signal.lfilter([0.005], [1, -0.995], np.abs(voice)))
    level = _BUZZ_LEVEL * rng.uniform(0.7, 1.4)
    return np.asarray(level * series * (0.3 + envelope / envelope.max()))
