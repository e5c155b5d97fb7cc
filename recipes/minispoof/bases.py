"""Bases: recordings of one speaker, joined to a few seconds each.

A base is finished as a bona fide clip, resynthesized by a vocoder, or lends its channel to
synthetic speech.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

from asvspoof_cm.labels import SAMPLE_RATE
from minispoof.randomness import generator
from minispoof.sources import Source
from minispoof.speech import Array, clean, load, mean_spectrum, set_level, shaped_noise
from minispoof.vocoders import pitch

_TARGET_S: Final = (1.8, 4.2)
_SHORTEST_S: Final = 1.4
_SHORTEST_PART_S: Final = 0.12
_GAP_S: Final = (0.06, 0.2)
_QUIETEST_PEAK: Final = 0.01
_HIGH_VOICE_HZ: Final = 165.0


@dataclass(frozen=True, eq=False)
class Base:
    """A few seconds of one speaker."""

    source: Source
    gender: str
    waveform: Array
    origin: str
    """The names of the recordings."""


def join_recordings(
    files: Sequence[Path], n_bases: int, most_parts: int, rng: np.random.Generator
) -> list[tuple[Array, str]]:
    """Join recordings, in random order and each used once, to at most `n_bases` waveforms.

    Recordings that cannot be read, are too short, silent, or equal to one before are left out. The
    gaps hold noise with the spectrum of the quiet frames. The first waveforms are the same
    whatever `n_bases` is.

    Returns:
        Waveforms and the names of their recordings.
    """
    order = iter(rng.permutation(len(files)).tolist())
    seen: set[str] = set()
    bases: list[tuple[Array, str]] = []
    while len(bases) < n_bases:
        parts: list[tuple[Array, str]] = []
        n_wanted, number = rng.uniform(*_TARGET_S) * SAMPLE_RATE, 0
        while sum(len(part) for part, _ in parts) < n_wanted and len(parts) < most_parts:
            number = next(order, -1)
            if number < 0:
                break
            part = _usable(files[number], seen)
            if part is not None:
                parts.append((part, files[number].name))
        if sum(len(part) for part, _ in parts) >= _SHORTEST_S * SAMPLE_RATE:
            joined = _joined([part for part, _ in parts], rng)
            bases.append((joined, "+".join(name for _, name in parts)))
        if number < 0:
            break
    return bases


def join_bases(source: Source, files: Sequence[Path], n_bases: int, *, seed: int) -> list[Base]:
    """Return the bases of a source."""
    rng = generator(seed, "bases", source.name)
    joined = join_recordings(files, n_bases, source.most_parts, rng)
    of_speaker = gender([waveform for waveform, _ in joined])
    return [Base(source, of_speaker, waveform, origin) for waveform, origin in joined]


def gender(waveforms: Sequence[Array]) -> str:
    """Guess "F" or "M" from the median pitch of a few waveforms; "-" where none is voiced."""
    tracks = [pitch(waveform) for waveform in waveforms[:6]]
    voiced = np.concatenate([track[track > 0] for track in tracks] or [np.empty(0)])
    if not voiced.size:
        return "-"
    return "F" if np.median(voiced) > _HIGH_VOICE_HZ else "M"


def quotas(available: dict[str, int], total: int) -> dict[str, int]:
    """Share `total` clips among speakers as evenly as what each has allows.

    Example:
        >>> quotas({"a": 2, "b": 9, "c": 9}, 12)
        {'a': 2, 'b': 5, 'c': 5}
    """
    shares = dict.fromkeys(available, 0)
    while sum(shares.values()) < min(total, sum(available.values())):
        open_to_more = [name for name in shares if shares[name] < available[name]]
        fewest = min(open_to_more, key=lambda name: shares[name])
        shares[fewest] += 1
    return shares


def _usable(path: Path, seen: set[str]) -> Array | None:
    try:
        waveform = load(path)
    except (OSError, ValueError, subprocess.CalledProcessError, soundfile.LibsndfileError):
        return None
    if not waveform.size or np.abs(waveform).max() < _QUIETEST_PEAK:
        return None
    digest = hashlib.sha256(np.round(waveform * 1000).astype(np.int16).tobytes()).hexdigest()
    if digest in seen:
        return None
    seen.add(digest)
    waveform = clean(waveform)
    return set_level(waveform) if len(waveform) >= _SHORTEST_PART_S * SAMPLE_RATE else None


def _joined(parts: Sequence[Array], rng: np.random.Generator) -> Array:
    pieces = [parts[0]]
    for part in parts[1:]:
        n_samples = int(rng.uniform(*_GAP_S) * SAMPLE_RATE)
        pieces += [shaped_noise(mean_spectrum(part, 0, 15), n_samples, rng), part]
    return np.concatenate(pieces)
