"""What is no speech: music, effects, machines and animals of Debian's packages, tones and crowds.

`nospeech.tsv` lists the packages; files whose names speak of voices are left out of its patterns.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import scipy.signal
import soundfile

from asvspoof_cm._util import track
from asvspoof_cm.labels import ABSENT, SAMPLE_RATE
from manyvoices.channel import normalize_peak
from manyvoices.packages import Recordings, archive_of, members
from manyvoices.table import TABLE, Row, known_rows, md5, read_lines, write_table
from manyvoices.vocoders import resampled
from minispoof.clips import write_flac
from minispoof.randomness import generator
from minispoof.speech import Array

LABEL: Final = "nospeech"
SOUNDS: Final = Path(__file__).with_name("nospeech.tsv")
LENGTHS_S: Final = (1.0, 6.0)
MOST_PER_PACKAGE: Final = 60
N_OF_KIND: Final = 50
N_CROWDS: Final = {"train": 120, "dev": 50}
N_MIXTURES: Final = 200
_MOST_PER_FILE: Final = 8
_TALKERS: Final = (24, 60)
_QUIETEST_PEAK: Final = 1e-3
_EUROPE_HZ: Final = 425.0
_KEYS_HZ: Final = ((697.0, 770.0, 852.0, 941.0), (1209.0, 1336.0, 1477.0, 1633.0))

Make: TypeAlias = Callable[[], Iterator[tuple[str, Array]]]
"""Yields origins and waveforms."""
Synthesis: TypeAlias = Callable[[Array, np.random.Generator], Array]
"""Takes times in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sounds:
    """A line of ``nospeech.tsv``: the sounds in a Debian package."""

    package: str
    file: str
    pattern: str
    kind: str
    split: str


def read_sounds(path: Path = SOUNDS) -> list[Sounds]:
    """Return the lines of a file like ``nospeech.tsv``."""
    return [Sounds(**line) for line in read_lines(path)]


def make_nospeech(
    tables: Sequence[tuple[Path, Sequence[Row]]],
    out: Path,
    downloads: Path,
    *,
    seed: int = 5,
    sounds: Sequence[Sounds] | None = None,
) -> list[Row]:
    """Make the clips of all packages and kinds that `out` does not have, and write its table.

    Args:
        tables: Corpora with human clips, of which crowds are made; without any there are none.
        out: Gets ``audio/`` and ``corpus.tsv``, written after each package and kind.
        downloads: Where packages are, or are put.
        seed: Of the choices and the tones.
        sounds: See `read_sounds`.

    Returns:
        All clips that are there.
    """
    sounds = read_sounds() if sounds is None else sounds
    rows = known_rows(out)
    complete = {row.source for row in rows}
    jobs = [
        (f"debian/{line.package}", line.kind, line.split, _package(line, downloads, seed))
        for line in sounds
    ]
    jobs += [
        (f"synthesis/{kind}", kind, split, _synthesis(kind, synthesis, seed))
        for split, syntheses in SYNTHESES.items()
        for kind, synthesis in syntheses.items()
    ]
    jobs += [(f"crowd/{split}", "crowd", split, _crowds(tables, split, seed)) for split in N_CROWDS]
    for source, kind, split, make in track(jobs, description="no speech", unit="source"):
        if source in complete:
            continue
        try:
            for origin, waveform in make():
                rows.append(_written(out, waveform, source, kind, split, origin))
        except (OSError, ValueError, EOFError) as error:
            logger.warning("%s: %s", source, error)
        write_table(out / TABLE, rows)
    if "mixture" not in complete and len(rows) > 1:
        rows += list(_mixtures(rows, out, seed))
        write_table(out / TABLE, rows)
    return rows


def _written(out: Path, waveform: Array, source: str, kind: str, split: str, origin: str) -> Row:
    utterance = f"nospeech-{md5(f'{source}|{origin}')[:14]}"
    row = Row(
        utterance=utterance,
        path=f"audio/{utterance}.flac",
        label=LABEL,
        generator=ABSENT,
        speaker=kind,
        source=source,
        split=split,
        origin=origin,
    )
    write_flac(out / row.path, normalize_peak(waveform))
    return row


def _package(line: Sounds, downloads: Path, seed: int) -> Make:
    told = {"package": line.package, "file": line.file, "pattern": line.pattern, "kind": line.kind}
    unknown = dict.fromkeys(("speaker", "source", "language", "licence", "evidence"), "")
    archive = Recordings(registry="debian", **told, **unknown)

    def make() -> Iterator[tuple[str, Array]]:
        rng = generator(seed, "nospeech", line.package)
        found = list(pieces(members(archive_of(archive, downloads), line.pattern), rng))
        for number in np.sort(rng.permutation(len(found))[:MOST_PER_PACKAGE]):
            yield found[number]

    return make


def pieces(
    files: Iterator[tuple[str, bytes, str]], rng: np.random.Generator
) -> Iterator[tuple[str, Array]]:
    """Yield pieces of 1 to 6 s: of long sounds from random places, of short ones in a row.

    Args:
        files: Path, content and speaker, as `packages.members` yields them.
        rng: Of places, lengths and gaps.
    """
    row: list[Array] = []
    wanted = rng.uniform(*LENGTHS_S)
    for path, data, _ in files:
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                duration_s = file.frames / file.samplerate
                n_parts = min(_MOST_PER_FILE, math.ceil(duration_s / 15))
                parts = [_part(file, rng) for _ in range(n_parts)]
        except (soundfile.LibsndfileError, ValueError):
            continue
        for number, part in enumerate(parts):
            if len(part) and np.abs(part).max() < _QUIETEST_PEAK:
                continue
            if len(part) >= LENGTHS_S[0] * SAMPLE_RATE:
                yield f"{path}#{number}", part
            elif len(part):
                gap = rng.standard_normal(int(rng.uniform(0.02, 0.3) * SAMPLE_RATE)) * 1e-4
                row += [normalize_peak(part) * rng.uniform(0.4, 1.0), gap]
                if sum(map(len, row)) >= wanted * SAMPLE_RATE:
                    yield f"{path}#row", np.concatenate(row)
                    row, wanted = [], rng.uniform(*LENGTHS_S)


def _part(file: soundfile.SoundFile, rng: np.random.Generator) -> Array:
    """Read a random part of a sound, all of it where it is short."""
    wanted = int(rng.uniform(1.5, LENGTHS_S[1]) * file.samplerate)
    start = int(rng.integers(max(1, file.frames - wanted)))
    file.seek(start)
    samples = file.read(wanted, dtype="float64", always_2d=True).mean(axis=1)
    if not np.isfinite(samples).all():
        raise ValueError("not finite")
    return resampled(samples, file.samplerate, SAMPLE_RATE)


def _synthesis(kind: str, synthesis: Synthesis, seed: int) -> Make:
    def make() -> Iterator[tuple[str, Array]]:
        for number in range(N_OF_KIND):
            rng = generator(seed, "nospeech", kind, number)
            times = np.arange(int(rng.uniform(*LENGTHS_S) * SAMPLE_RATE)) / SAMPLE_RATE
            waveform = normalize_peak(synthesis(times, rng))
            noise = rng.standard_normal(len(times)) * 10 ** (-rng.uniform(25, 90) / 20)
            yield f"{kind}-{number}", waveform + noise

    return make


def _crowds(tables: Sequence[tuple[Path, Sequence[Row]]], split: str, seed: int) -> Make:
    def make() -> Iterator[tuple[str, Array]]:
        talkers = [
            folder / row.path
            for folder, rows in tables
            for row in rows
            if row.is_human and row.split == split
        ]
        for number in range(N_CROWDS[split] if len(talkers) >= _TALKERS[1] else 0):
            rng = generator(seed, "crowd", split, number)
            n_talkers = int(rng.integers(*_TALKERS))
            crowd = np.zeros(int(rng.uniform(2.0, LENGTHS_S[1]) * SAMPLE_RATE))
            for place in rng.choice(len(talkers), n_talkers, replace=False):
                voice = soundfile.read(talkers[place], dtype="float64")[0]
                voice = np.resize(np.roll(voice, int(rng.integers(len(voice)))), len(crowd))
                crowd += voice / (voice.std() + 1e-9) * 10 ** (-rng.uniform(0, 6) / 20)
            tail = rng.standard_normal(8000) * np.exp(-np.arange(8000) / rng.uniform(800, 4000))
            yield f"crowd-{number}", scipy.signal.fftconvolve(crowd, tail)[: len(crowd)]

    return make


def _mixtures(rows: Sequence[Row], out: Path, seed: int) -> Iterator[Row]:
    """Yield mixtures of two clips of the train split."""
    train = [row for row in rows if row.split == "train"]
    for number in range(min(N_MIXTURES, len(train) // 2)):
        rng = generator(seed, "mixture", number)
        both = [train[place] for place in rng.choice(len(train), 2, replace=False)]
        first, second = (soundfile.read(out / row.path, dtype="float64")[0] for row in both)
        second = np.resize(second, len(first)) * 10 ** (-rng.uniform(0, 15) / 20)
        origin = "+".join(row.utterance for row in both)
        yield _written(out, first + second, "mixture", "mixture", "train", origin)


def _tone(times: Array, rng: np.random.Generator) -> Array:
    hz = float(np.exp(rng.uniform(np.log(80), np.log(6000))))
    swing = 1 + rng.uniform(0, 0.8) * np.sin(2 * np.pi * rng.uniform(0.5, 12) * times)
    return np.sin(2 * np.pi * hz * times) * swing


def _chord(times: Array, rng: np.random.Generator) -> Array:
    root = rng.uniform(80, 500)
    notes = root * 2 ** (rng.choice(24, 4, replace=False) / 12)
    partials = [np.sin(2 * np.pi * k * note * times) / k for note in notes for k in range(1, 7)]
    decay = np.exp(-(times % rng.uniform(0.4, 2.0)) * rng.uniform(0, 4))
    return np.asarray(sum(partials) * decay)


def _dtmf(times: Array, rng: np.random.Generator) -> Array:
    length, gap = rng.uniform(0.06, 0.25, 2)
    key = (times // (length + gap)).astype(int)
    keys = rng.integers(4, size=(2, key.max() + 1))
    tones = [
        np.sin(2 * np.pi * np.array(hz)[k[key]] * times)
        for hz, k in zip(_KEYS_HZ, keys, strict=True)
    ]
    return np.asarray(sum(tones) * (times % (length + gap) < length))


def _cadence(times: Array, tones: Sequence[float], on_s: float, off_s: float) -> Array:
    tone = sum(np.sin(2 * np.pi * hz * times) for hz in tones)
    return np.asarray(tone * (times % (on_s + off_s) < on_s))


def _ringback(times: Array, rng: np.random.Generator) -> Array:
    on_s, off_s = ((1.0, 4.0), (0.5, 0.5), (0.25, 0.25), (1.0, 0.2))[rng.integers(4)]
    return _cadence(times, [_EUROPE_HZ + rng.uniform(-25, 25)], on_s, off_s)


def _noise(times: Array, rng: np.random.Generator) -> Array:
    slope = rng.uniform(0, 1.2)
    frequency = np.maximum(np.fft.rfftfreq(len(times), 1 / SAMPLE_RATE), 20)
    spectrum = np.fft.rfft(rng.standard_normal(len(times))) / frequency**slope
    return np.asarray(np.fft.irfft(spectrum, len(times)))


def _chirp(times: Array, rng: np.random.Generator) -> Array:
    low, high = np.sort(np.exp(rng.uniform(np.log(60), np.log(7500), 2)))
    if rng.random() < 0.5:
        low, high = high, low
    period = rng.uniform(0.2, 3)
    return np.asarray(
        scipy.signal.chirp(times % period, float(low), period, float(high), "logarithmic")
    )


def _oscillator(times: Array, rng: np.random.Generator) -> Array:
    sweep = 1 + rng.uniform(0, 0.2) * np.sin(2 * np.pi * rng.uniform(0.3, 9) * times)
    phase = 2 * np.pi * np.cumsum(rng.uniform(50, 900) * sweep) / SAMPLE_RATE
    wave = scipy.signal.sawtooth(phase, rng.uniform(0, 1))
    return np.asarray(np.sign(wave) if rng.random() < 0.5 else wave)


def _machine(times: Array, rng: np.random.Generator) -> Array:
    hz = rng.uniform(20, 120) * (1 + 0.02 * np.sin(2 * np.pi * rng.uniform(0.1, 1) * times))
    phase = 2 * np.pi * np.cumsum(hz) / SAMPLE_RATE
    levels = rng.uniform(0, 1, 40) / np.arange(1, 41) ** rng.uniform(0.3, 1.2)
    hum = sum(level * np.sin(k * phase) for k, level in enumerate(levels, 1))
    rattle = rng.standard_normal(len(times)) * (1 + np.sin(phase)) * rng.uniform(0, 0.5)
    return np.asarray(hum + rattle)


def _clicks(times: Array, rng: np.random.Generator) -> Array:
    waveform = np.zeros(len(times))
    for _ in range(int(rng.integers(3, 40))):
        place = int(rng.integers(len(times) - 100))
        decay = np.exp(-np.arange(100) / rng.uniform(3, 40))
        waveform[place : place + 100] += rng.standard_normal(100) * decay * rng.uniform(0.2, 1)
    return waveform


def _modem(times: Array, rng: np.random.Generator) -> Array:
    bits = rng.integers(2, size=int(times[-1] * 1200) + 1)
    hz = np.array(((1200.0, 2200.0), (980.0, 1180.0), (1300.0, 2100.0))[rng.integers(3)])
    baud = float(rng.choice((75, 300, 1200)))
    return np.sin(2 * np.pi * np.cumsum(hz[bits[(times * baud).astype(int)]]) / SAMPLE_RATE)


def _melody(times: Array, rng: np.random.Generator) -> Array:
    beat = rng.uniform(0.1, 0.4)
    note = (times // beat).astype(int)
    steps = np.array((0, 2, 4, 5, 7, 9, 11, 12))[rng.integers(8, size=note.max() + 1)]
    phase = 2 * np.pi * np.cumsum(rng.uniform(150, 600) * 2 ** (steps[note] / 12)) / SAMPLE_RATE
    levels = enumerate(rng.uniform(0, 1, 8), 1)
    wave = sum(level / k * np.sin(k * phase) for k, level in levels)
    return np.asarray(wave * np.exp(-(times % beat) * rng.uniform(0, 15)))


def _beeps(times: Array, rng: np.random.Generator) -> Array:
    return _cadence(times, rng.uniform(500, 3500, 1).tolist(), *rng.uniform(0.05, 0.6, 2))


def _american_ringback(times: Array, rng: np.random.Generator) -> Array:
    tones = ((440.0, 480.0), (480.0, 620.0), (350.0, 440.0))[rng.integers(3)]
    return _cadence(times, tones, *((2.0, 4.0), (0.5, 0.5), (0.25, 0.25))[rng.integers(3)])


def _siren(times: Array, rng: np.random.Generator) -> Array:
    swing = np.sin(2 * np.pi * rng.uniform(0.2, 4) * times)
    hz = rng.uniform(500, 1200) * 2 ** (rng.uniform(0.2, 1) * swing)
    return np.sin(2 * np.pi * np.cumsum(hz) / SAMPLE_RATE)


def _morse(times: Array, rng: np.random.Generator) -> Array:
    unit = rng.uniform(0.04, 0.12)
    key = np.concatenate([[1] * rng.choice((1, 3)) + [0] * rng.choice((1, 3)) for _ in range(200)])
    return np.sin(2 * np.pi * rng.uniform(400, 1000) * times) * key[(times // unit).astype(int)]


def _wind(times: Array, rng: np.random.Generator) -> Array:
    knots = rng.uniform(0.1, 1, int(times[-1] * 2) + 3)
    gusts = np.interp(times * 2, np.arange(len(knots)), knots)
    low = rng.uniform(100, 400)
    sections = scipy.signal.butter(2, (low, low * 4), "bandpass", fs=SAMPLE_RATE, output="sos")
    return np.asarray(scipy.signal.sosfilt(sections, rng.standard_normal(len(times))) * gusts)


def _bells(times: Array, rng: np.random.Generator) -> Array:
    period = rng.uniform(0.3, 2)
    inside = times % period
    index = rng.uniform(1, 8) * np.exp(-inside * 3)
    hz = rng.uniform(200, 1500)
    modulation = index * np.sin(2 * np.pi * hz * rng.uniform(1.2, 3.6) * inside)
    return np.sin(2 * np.pi * hz * inside + modulation) * np.exp(-inside * rng.uniform(1, 6))


SYNTHESES: Final[Mapping[str, Mapping[str, Synthesis]]] = {
    "train": {
        "tone": _tone,
        "chord": _chord,
        "dtmf": _dtmf,
        "ringback": _ringback,
        "noise": _noise,
        "chirp": _chirp,
        "oscillator": _oscillator,
        "machine": _machine,
        "clicks": _clicks,
        "modem": _modem,
        "melody": _melody,
        "beeps": _beeps,
    },
    "dev": {
        "american-ringback": _american_ringback,
        "siren": _siren,
        "morse": _morse,
        "wind": _wind,
        "bells": _bells,
    },
}
"""Kinds of synthesis of each split."""
