"""Coded variants of the clips of corpora: what slow coders make of them, stored.

A clip, its copies and the voices in its channel go through the same channel, and the clips of a
source through three, so that the channel tells nothing of the label.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import soundfile

from asvspoof_cm._util import track
from asvspoof_cm.labels import ABSENT
from channels import CHANNELS, DEV, FAMILIES, TRAINED, coded
from manyvoices.channel import normalize_peak
from manyvoices.table import TABLE, Row, md5, write_table
from minispoof.clips import write_flac
from minispoof.randomness import choose, generator

STREAM: Final = 80
"""Clips that are coded together."""
PER_SOURCE: Final = 3
_GAIN_DB: Final = (-12.0, 0.0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Coded(Row):
    """A coded clip; its parent is the coded parent of the clip."""

    channel: str
    corpus: str
    """The folder of the clip before, …"""
    original: str
    """… and its utterance."""


@dataclass(frozen=True)
class Job:
    """A clip to code: where it is, and where its corpus goes."""

    row: Coded
    path: Path
    out: Path
    gain: float = 1.0


def channel_of(
    recording: str, source: str, *, seed: int = 5, names: Sequence[str] = TRAINED
) -> str:
    """Return the channel of what was made of a recording: one of the three of its source."""
    families = [CHANNELS[name].family for name in names]
    weights = np.array([FAMILIES.get(f, 1.0) / families.count(f) for f in families])
    rng = generator(seed, "channels", source)
    n_names = min(PER_SOURCE, len(names))
    drawn = rng.choice(len(names), n_names, replace=False, p=weights / weights.sum())
    return names[int(choose(drawn.tolist(), generator(seed, "channel", recording)))]


def plan_coded(
    tables: Iterable[tuple[Path, Sequence[Row]]],
    out: Path,
    *,
    seed: int = 5,
    names: Sequence[str] = TRAINED,
) -> list[Job]:
    """Choose a channel for each clip of the train split; each corpus gets a folder in `out`.

    The source of a coded clip names its channel as well: pairs of a source are of one channel.
    """
    jobs = []
    for folder, rows in tables:
        corpus = folder.resolve().name
        for row in (row for row in rows if row.split == "train"):
            recording = _recording(row)
            channel = channel_of(recording, row.source, seed=seed, names=names)
            gain_db = generator(seed, "gain", recording).uniform(*_GAIN_DB)
            made = _made(row, corpus, channel, f"{channel}.{seed}", f"{row.source}@{channel}")
            jobs.append(Job(made, folder / row.path, out / corpus, float(10 ** (gain_db / 20))))
    return jobs


def plan_dev(
    tables: Iterable[tuple[Path, Sequence[Row]]],
    out: Path,
    *,
    most: int = 20,
    names: Sequence[str] = DEV,
) -> list[Job]:
    """Send at most 20 dev clips of each class and source through all channels: a corpus of each."""
    chosen = []
    for folder, rows in tables:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in (row for row in rows if row.split == "dev"):
            groups.setdefault((row.source, row.label), []).append(row)
        for group in groups.values():
            group.sort(key=lambda row: md5(row.utterance))
            chosen += [(folder, row) for row in group[:most]]
    return [
        Job(
            _made(row, folder.resolve().name, channel, channel, row.source),
            folder / row.path,
            out / channel,
        )
        for channel in names
        for folder, row in chosen
    ]


def _recording(row: Row) -> str:
    return row.utterance if row.parent == ABSENT else row.parent


def _made(row: Row, corpus: str, channel: str, suffix: str, source: str) -> Coded:
    utterance = f"{row.utterance}~{suffix}"
    parent = row.parent if row.parent == ABSENT else f"{row.parent}~{suffix}"
    told = {
        **asdict(row),
        "utterance": utterance,
        "path": f"audio/{utterance}.flac",
        "source": source,
        "parent": parent,
    }
    return Coded(**told, channel=channel, corpus=corpus, original=row.utterance)


def make_coded(jobs: Sequence[Job]) -> int:
    """Make the coded clips that are not there yet, and write the tables after each stream.

    Returns:
        How many there are.
    """
    present = {(job.out, job.row.utterance) for job in jobs if (job.out / job.row.path).exists()}
    by_folder: dict[Path, list[Job]] = {}
    for job in jobs:
        by_folder.setdefault(job.out, []).append(job)
    missing = [job for job in jobs if (job.out, job.row.utterance) not in present]
    for stream in track(_streams(missing), description="channels", unit="stream"):
        channel = stream[0].row.channel
        try:
            made = _coded_stream(stream, channel)
        except (OSError, RuntimeError) as error:
            logger.warning("%s: %d clips are left out: %s", channel, len(stream), error)
            continue
        present |= {(job.out, job.row.utterance) for job in made}
        for folder in {job.out for job in made}:
            _write(folder, by_folder[folder], present)
    for folder, of_folder in by_folder.items():
        _write(folder, of_folder, present)
    return len(present)


def _write(folder: Path, jobs: Sequence[Job], present: set[tuple[Path, str]]) -> None:
    rows = [job.row for job in jobs if (folder, job.row.utterance) in present]
    if rows:
        write_table(folder / TABLE, rows)


def _streams(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs of one channel each, a recording's together; the channels take turns."""
    channels: dict[str, list[Job]] = {}
    for job in jobs:
        channels.setdefault(job.row.channel, []).append(job)
    streams: list[tuple[int, list[Job]]] = []
    for of_channel in channels.values():
        of_channel.sort(key=lambda job: md5(_recording(job.row)))
        parts = [of_channel[at : at + STREAM] for at in range(0, len(of_channel), STREAM)]
        streams += enumerate(parts)
    return [part for _, part in sorted(streams, key=lambda pair: pair[0])]


def _coded_stream(stream: Sequence[Job], channel: str) -> list[Job]:
    clips = [soundfile.read(job.path, dtype="float64")[0] * job.gain for job in stream]
    made = []
    seed = int(md5(stream[0].row.utterance)[:8], 16)
    for job, waveform in zip(stream, coded(clips, channel, seed=seed), strict=True):
        try:
            write_flac(job.out / job.row.path, normalize_peak(waveform))
        except ValueError as error:
            logger.warning("%s is left out: %s", job.row.utterance, error)
            continue
        made.append(job)
    return made
