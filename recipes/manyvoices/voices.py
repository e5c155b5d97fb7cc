"""New voices: texts spoken by engines, in the channels of human clips.

Each clip has a human clip as its donor: the voice gets its long-term spectrum, noise floor, codec
and at most its length, now and then a room, and counts to its source. So "clean" is no cue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import scipy.signal
import soundfile

from asvspoof_cm._util import track
from asvspoof_cm.labels import LABEL_NAMES, SAMPLE_RATE, SPOOF
from manyvoices.channel import match_spectrum, normalize_peak, recode, with_offset
from manyvoices.clips import trimmed
from manyvoices.engines import VOICES, Voice
from manyvoices.table import TABLE, Row, by_source, read_lines, write_table
from minispoof.clips import write_flac
from minispoof.randomness import choose, generator
from minispoof.speech import Array, mean_spectrum, shaped_noise

PART: Final = 10
"""Clips that are made together: Piper's noise depends on what its session did before."""
SHORTEST_S: Final = 0.8
_ROOM_SHARE: Final = 0.35
_DECAY_S: Final = (0.1, 0.5)
_DIRECT_DB: Final = (0.0, 12.0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """Clips of one voice: their rows, donors and texts."""

    voice: Voice
    name: str
    rows: tuple[Row, ...]
    donors: tuple[Path, ...]
    texts: tuple[str, ...]


def read_sentences(path: Path | None = None) -> dict[str, list[str]]:
    """Return the sentences of a file like texts.tsv, by language."""
    path = path or Path(__file__).with_name("texts.tsv")
    sentences: dict[str, list[str]] = {}
    for line in read_lines(path):
        sentences.setdefault(line["language"], []).append(line["text"])
    return sentences


def plan_voices(
    tables: Sequence[tuple[Path, Sequence[Row]]],
    *,
    seed: int = 5,
    voices: Sequence[Voice] = VOICES,
    sentences: Mapping[str, Sequence[str]] | None = None,
) -> list[Part]:
    """Choose texts and donors for the clips of each voice.

    Returns:
        Parts of ten clips, one engine after the other; of its voices, the first part of each before
        the second of any.
    """
    sentences = sentences or read_sentences()
    donors: dict[str, list[list[tuple[Path, Row]]]] = {}
    for folder, rows in tables:
        for of_source in by_source(rows).values():
            for split in ("train", "dev"):
                human = [(folder, row) for row in of_source if row.is_human and row.split == split]
                if human:
                    donors.setdefault(split, []).append(human)
    engines = list(dict.fromkeys(voice.generator for voice in voices))
    parts: list[tuple[tuple[int, int], Part]] = []
    for voice in voices:
        places = range(voice.n_clips) if voice.split in donors else range(0)
        for number, start in enumerate(places[::PART]):
            chosen = [
                _clip(voice, place, donors[voice.split], sentences[voice.language], seed)
                for place in places[start : start + PART]
            ]
            rows, paths, texts = zip(*chosen, strict=True)
            rank = (engines.index(voice.generator), number)
            parts.append((rank, Part(voice, f"{voice.name}-{number}", rows, paths, texts)))
    return [part for _, part in sorted(parts, key=lambda pair: pair[0])]


def _clip(
    voice: Voice,
    place: int,
    donors: Sequence[Sequence[tuple[Path, Row]]],
    sentences: Sequence[str],
    seed: int,
) -> tuple[Row, Path, str]:
    utterance = f"{voice.generator}-{voice.name}-{place:03d}"
    rng = generator(seed, "voices", utterance)
    folder, donor = choose(choose(donors, rng), rng)
    row = Row(
        utterance=utterance,
        path=f"audio/{utterance}.flac",
        label=LABEL_NAMES[SPOOF],
        generator=voice.generator,
        speaker=f"{voice.generator}:{voice.name}",
        source=donor.source,
        split=voice.split,
        parent=donor.utterance,
        origin=donor.origin,
    )
    return row, folder / donor.path, choose(sentences, rng)


def in_channel(waveform: Array, donor: Array, origin: str, rng: np.random.Generator) -> Array:
    """Return synthetic speech as if it had been recorded where `donor` was.

    Args:
        waveform: Clean speech, shape (time,).
        donor: A human clip.
        origin: Its name, whose ending says what codec it went through.
        rng: Of room, noise and codec.
    """
    waveform = trimmed(waveform)
    if rng.random() < _ROOM_SHARE:
        waveform = _in_room(waveform, rng)
    if len(waveform) > len(donor):
        start = int(rng.integers(len(waveform) - len(donor) + 1))
        waveform = waveform[start : start + len(donor)]
    if len(waveform) < SHORTEST_S * SAMPLE_RATE:
        raise ValueError(f"`waveform` must last {SHORTEST_S} s; got {len(waveform)} samples.")
    matched = match_spectrum(normalize_peak(waveform), donor, rng)
    floor = shaped_noise(mean_spectrum(donor, 0, 10), len(matched), rng)
    return with_offset(recode(normalize_peak(matched + floor), origin, rng), donor)


def _in_room(waveform: Array, rng: np.random.Generator) -> Array:
    """Add the reverberation of a room: noise that decays, after the direct sound."""
    decay_s, direct_db = rng.uniform(*_DECAY_S), rng.uniform(*_DIRECT_DB)
    times = np.arange(int(decay_s * SAMPLE_RATE)) / SAMPLE_RATE
    tail = rng.standard_normal(len(times)) * 10 ** (-3 * times / decay_s)
    tail *= 10 ** (-direct_db / 20) / np.sqrt(np.square(tail).sum())
    tail[0] = 1.0
    return np.asarray(scipy.signal.fftconvolve(waveform, tail)[: len(waveform)])


def make_voices(parts: Sequence[Part], out: Path, weights: Path, *, seed: int = 5) -> list[Row]:
    """Make the parts that `out` does not have yet, and write its table after each.

    A voice whose engine or weights are missing is left out, with a warning.
    """
    rows: list[Row] = [row for part in parts for row in part.rows if (out / row.path).exists()]
    present = {row.utterance for row in rows}
    for part in track(parts, description="voices", unit="part"):
        if all(row.utterance in present for row in part.rows):
            continue
        try:
            for row, waveform in _spoken(part, weights, seed):
                write_flac(out / row.path, waveform)
                present.add(row.utterance)
        except Exception as error:  # of whatever package the engine comes from
            logger.warning("%s is left out: %s: %s", part.name, type(error).__name__, error)
        rows = [row for part in parts for row in part.rows if row.utterance in present]
        write_table(out / TABLE, rows)
    write_table(out / TABLE, rows)
    return rows


def _spoken(part: Part, weights: Path, seed: int) -> Iterator[tuple[Row, Array]]:
    number = int(generator(seed, "speak", part.name).integers(2**31))
    speech = part.voice.make(weights)(part.texts, number)
    for row, donor, waveform in zip(part.rows, part.donors, speech, strict=True):
        recorded = soundfile.read(donor, dtype="float64")[0]
        rng = generator(seed, "channel", row.utterance)
        try:
            yield row, in_channel(waveform, recorded, row.origin, rng)
        except ValueError as error:
            logger.warning("%s is left out: %s", row.utterance, error)
