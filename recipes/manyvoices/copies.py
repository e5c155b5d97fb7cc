"""Copies: human clips that went through a vocoder or a neural codec.

A copy has the source, the speaker, the words, the length, the band and the codec of its parent, so
that only the synthesis tells the two apart. Everything random depends on the seed and the name of
the clip: an interrupted run goes on where it was, and ends with the same bytes.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.labels import LABEL_NAMES, SPOOF
from manyvoices.channel import (
    fit_length,
    keep_silence,
    match_spectrum,
    normalize_peak,
    recode,
    with_offset,
)
from manyvoices.table import TABLE, Row, both_classes, by_source, write_table
from manyvoices.vocoders import CONVERTERS, COPIERS, HELD_OUT, Copier
from minispoof.clips import write_flac
from minispoof.randomness import generator
from minispoof.speech import Array
from minispoof.vocoders import Vocoder

SAVE_EVERY: Final = 50

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A copy to make."""

    row: Row
    parent: Path


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How many human clips are copied, as fractions.

    A clip of a source with humans alone gets one copy, or with probability `second` two; a clip of
    a source that has both classes gets one with probability `mixed`. In dev, the share `dev`
    of the clips of a source get one, at most `most_per_dev_source`.
    """

    second: float = 0.3
    mixed: float = 0.4
    dev: float = 0.5
    most_per_dev_source: int = 12


CONVERTED: Final = Shares(second=0.0, mixed=0.3, dev=0.0)
"""Of conversions, which are for the train split alone."""


def plan(
    tables: Iterable[tuple[Path, Sequence[Row]]],
    *,
    seed: int = 5,
    shares: Shares = Shares(),  # noqa: B008 - frozen
    copiers: Mapping[str, Copier] = COPIERS,
    held_out: Mapping[str, Copier] = HELD_OUT,
) -> list[Job]:
    """Choose the copies of the human clips, in the order to make them.

    Args:
        tables: Folders and the rows of their tables.
        seed: Of the choices.
        shares: How many.
        copiers: Those of the train split.
        held_out: Those of the dev split.

    Returns:
        First a copy for each clip of a source that has humans alone, then those of other sources,
        then those of the dev split, then second copies; a random order within each.
    """
    first: list[tuple[float, Job]] = []
    dev: list[tuple[float, Job]] = []
    mixed: list[tuple[float, Job]] = []
    second: list[tuple[float, Job]] = []
    for folder, rows in tables:
        for of_source in by_source(rows).values():
            of_dev: list[tuple[float, tuple[float, Job]]] = []
            for row in (row for row in of_source if row.is_human):
                rng = generator(seed, "copies", row.utterance)
                place, chance = rng.random(2)
                chosen = copiers if row.split == "train" else held_out
                jobs = [(place, _job(row, folder, name)) for name in _two_of(chosen, rng)]
                if row.split == "dev":
                    of_dev.append((chance, jobs[0]))
                elif row.split == "train" and not both_classes(of_source):
                    first.append(jobs[0])
                    second += jobs[1:] if chance < shares.second else []
                elif row.split == "train" and chance < shares.mixed:
                    mixed.append(jobs[0])
            n_dev = min(shares.most_per_dev_source, math.ceil(shares.dev * len(of_dev)))
            dev += [job for _, job in sorted(of_dev, key=lambda pair: pair[0])[:n_dev]]
    stages = (sorted(stage, key=lambda pair: pair[0]) for stage in (first, mixed, dev, second))
    return [job for stage in stages for _, job in stage]


def _two_of(copiers: Mapping[str, Copier], rng: np.random.Generator) -> list[str]:
    """Draw two copiers by their shares, one where there is no other."""
    names = list(copiers)
    weights = np.array([copiers[name].share for name in names])
    n_names = min(2, len(names))
    drawn = rng.choice(len(names), n_names, replace=False, p=weights / weights.sum())
    return [names[number] for number in drawn]


def _job(row: Row, folder: Path, name: str) -> Job:
    utterance = f"{row.utterance}-{name.removeprefix('copy-')}"
    copied = Row(
        utterance=utterance,
        path=f"audio/{utterance}.flac",
        label=LABEL_NAMES[SPOOF],
        generator=name,
        speaker=row.speaker,
        source=row.source,
        split=row.split,
        parent=row.utterance,
        origin=row.origin,
    )
    return Job(copied, folder / row.path)


def copy(waveform: Array, vocoder: Vocoder, origin: str, rng: np.random.Generator) -> Array:
    """Return the copy of a 16 kHz clip by `vocoder`, in the channel of that clip.

    Args:
        waveform: Shape (time,).
        vocoder: Takes it and `rng`.
        origin: The name of the recording, whose ending says what codec it went through.
        rng: Of the vocoder's noise and the codec's quality.
    """
    copied = fit_length(vocoder(waveform, rng), len(waveform))
    normalize_peak(copied)  # raises for silence, on which the filter could not be fitted
    matched = match_spectrum(copied, waveform, rng)
    coded = recode(normalize_peak(matched), origin, rng)
    return keep_silence(with_offset(coded, waveform), waveform)


def make_copies(jobs: Sequence[Job], out: Path, weights: Path, *, seed: int = 5) -> list[Row]:
    """Make the copies that `out` does not have yet, and write its table and ``failed.tsv``.

    The table is written every 50 clips and lists what is there. A clip that a vocoder fails on is
    left out.
    """
    known = {**COPIERS, **CONVERTERS, **HELD_OUT}
    vocoders = functools.cache(lambda name: known[name].make(weights))
    present = {job.row.utterance for job in jobs if (out / job.row.path).exists()}
    failed: list[str] = []
    seconds: Counter[str] = Counter()
    n_made: Counter[str] = Counter()
    for job in track(jobs, description="copies", unit="clip"):
        row, start_s = job.row, time.perf_counter()
        if row.utterance in present:
            continue
        try:
            waveform = soundfile.read(job.parent, dtype="float64")[0]
            rng = generator(seed, "copy", row.utterance)
            write_flac(out / row.path, copy(waveform, vocoders(row.generator), row.origin, rng))
        except Exception as error:  # of whatever package the vocoder comes from
            logger.warning("%s: no copy: %s", row.utterance, error)
            failed.append(f"{row.utterance}\t{type(error).__name__}: {error}")
            continue
        present.add(row.utterance)
        n_made[row.generator] += 1
        seconds[row.generator] += time.perf_counter() - start_s
        if len(present) % SAVE_EVERY == 0:
            write_table(out / TABLE, (job.row for job in jobs if job.row.utterance in present))
    rows = [job.row for job in jobs if job.row.utterance in present]
    write_table(out / TABLE, rows)
    with atomic_path(out / "failed.tsv") as temporary:
        temporary.write_text("".join(f"{line}\n" for line in failed), encoding="utf-8")
    for name, count in sorted(n_made.items()):
        logger.info("%s: %d made, %.2f s each", name, count, seconds[name] / count)
    return rows
