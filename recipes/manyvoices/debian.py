"""Voices of Debian: formants, diphones, unit selection and statistical models of packages.

Half of the clips are as the engine speaks them, the others have the channel of a human clip, like
those of `voices`. RHVoice, pico, the Catalan voice of festival and a family of espeak-ng's variants
are for the dev split: training hears none of their voices.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import soundfile

from asvspoof_cm._util import track
from asvspoof_cm.labels import LABEL_NAMES, SAMPLE_RATE, SPOOF
from manyvoices.channel import normalize_peak
from manyvoices.clips import LONGEST, trimmed
from manyvoices.table import TABLE, Row, by_source, known_rows, read_lines, write_table
from manyvoices.vocoders import resampled
from manyvoices.voices import in_channel, read_sentences
from minispoof.clips import write_flac
from minispoof.randomness import choose, generator
from minispoof.speech import Array

SHORTEST_S: Final = 1.2
SAVE_EVERY: Final = 50
_DRY_SHARE: Final = 0.5
_N_ATTEMPTS: Final = 4
_TIMEOUT_S: Final = 60
SPEAKERS: Final = Path(__file__).with_name("debian.tsv")
"""README.md names the packages."""
_WORLD: Final = Path(__file__).with_name("texts_world.tsv")

_PLAIN: Final = (
    "af ar bg bn ca cs cy da de el eo et eu fa fi hr hu id is ka ko la lt lv mk mr nb nl "
    "pl ro ru sk sl sq sv sw ta te tr uk"
)
ESPEAK_NG: Final[Mapping[str, str]] = {
    "en": "en-us en-gb en-gb-scotland en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd en-029 en-us-nyc",
    "es": "es es-419",
    "fr": "fr-fr fr-be fr-ch",
    "hi": "hi",
    "it": "it",
    "pt": "pt pt-br",
    "zh": "cmn",
    "vi": "vi vi-vn-x-central vi-vn-x-south",
    **{code: code for code in _PLAIN.split()},
}
"""espeak-ng's voices for each language of texts."""
_FREETTS: Final = ("freetts", "cmu_us_kal", "cmulex", "cmudict04", "en_us")
_JTALK_DICTIONARY: Final = "/var/lib/mecab/dic/open-jtalk/naist-jdic"
_JTALK_VOICE: Final = "/usr/share/hts-voice/nitech-jp-atr503-m001/nitech_jp_atr503_m001.htsvoice"

Rng: TypeAlias = np.random.Generator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """A line of ``debian.tsv``: a voice of an engine."""

    engine: str
    voice: str
    languages: tuple[str, ...]
    """Of the texts that it speaks."""
    n_clips: int
    split: str = "train"
    encoding: str = "utf-8"

    @property
    def generator(self) -> str:
        """Engine and voice."""
        return f"{self.engine}:{self.voice}"


def read_speakers(path: Path = SPEAKERS) -> list[Speaker]:
    """Return the lines of a file like ``debian.tsv``; "*" are all languages of espeak-ng."""
    return [
        Speaker(
            engine=line["engine"],
            voice=line["voice"],
            languages=tuple(ESPEAK_NG if line["languages"] == "*" else line["languages"].split()),
            n_clips=int(line["n_clips"]),
            split=line["split"],
            encoding=line["encoding"],
        )
        for line in read_lines(path)
    ]


def is_installed(speaker: Speaker) -> bool:
    """Return whether the program of its engine is there."""
    return shutil.which(ENGINES[speaker.engine].program) is not None


# Each engine speaks a text, with random pitch and rate, into a WAV file.


def _run(command: Sequence[str], data: bytes = b"") -> bytes:
    done = subprocess.run(command, check=True, input=data, capture_output=True, timeout=_TIMEOUT_S)
    return done.stdout


def _espeak(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    is_new = of.engine == "espeak-ng"
    voice = choose(ESPEAK_NG[language].split(), rng) if is_new else language
    suffix = "" if of.voice == "default" else f"+{of.voice.replace('_', ' ')}"
    rate, pitch, gap = rng.integers(115, 230), rng.integers(15, 90), rng.integers(0, 3)
    options = ["-v", voice + suffix, "-s", str(rate), "-p", str(pitch), "-g", str(gap)]
    _run([of.engine, *options, "-w", str(path), text])


def _flite(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    settings = ["--setf", f"duration_stretch={rng.uniform(0.8, 1.25):.2f}"]
    if of.voice.startswith("kal"):
        settings += ["--setf", f"int_f0_target_mean={rng.uniform(80, 160):.0f}"]
    _run(["flite", "-voice", of.voice, *settings, "-t", text, "-o", str(path)])


def _festival(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    script = path.with_suffix(".scm")
    words = text.replace('"', "").replace("\\", "")
    lines = (
        f"(voice_{of.voice})",
        f"(Parameter.set 'Duration_Stretch {rng.uniform(0.8, 1.25):.2f})",
        f'(utt.save.wave (utt.synth (Utterance Text "{words}")) "{path}" \'riff)',
    )
    script.write_bytes("\n".join(lines).encode(of.encoding, "ignore"))
    _run(["festival", "-b", str(script)])


def _ru_tts(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    options = ["-r", f"{rng.uniform(0.8, 1.3):.2f}", "-p", f"{rng.uniform(0.75, 1.4):.2f}"]
    options += ["-a"] if of.voice == "female" else []
    raw = _run(["ru_tts", *options], text.encode("koi8-r", "ignore"))
    samples = np.frombuffer(raw, np.int8).astype(np.float64) / 128
    soundfile.write(path, samples, 10_000, subtype="PCM_16")


def _open_jtalk(
    of: Speaker, language: str, text: str, rng: np.random.Generator, path: Path
) -> None:
    options = ["-r", f"{rng.uniform(0.8, 1.3):.2f}", "-fm", f"{rng.uniform(-4, 8):.1f}"]
    options += ["-a", f"{rng.uniform(0.48, 0.58):.2f}"]
    models = ["-x", _JTALK_DICTIONARY, "-m", _JTALK_VOICE]
    _run(["open_jtalk", *models, *options, "-ow", str(path)], text.encode())


def _freetts(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    classes = ":".join(f"/usr/share/java/{name}.jar" for name in _FREETTS)
    voice = choose(("kevin16", "kevin"), rng)
    options = ["-voice", voice, "-dumpAudio", str(path), "-text", text]
    _run(["java", "-cp", classes, "com.sun.speech.freetts.FreeTTS", *options])


def _pico(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    pitch, speed = rng.integers(80, 131), rng.integers(80, 131)
    spoken = f"<pitch level='{pitch}'><speed level='{speed}'>{text}</speed></pitch>"
    _run(["pico2wave", "-l", of.voice, "-w", str(path), spoken])


def _rhvoice(of: Speaker, language: str, text: str, rng: Rng, path: Path) -> None:
    options = ["-r", str(rng.integers(85, 125)), "-t", str(rng.integers(85, 120))]
    _run(["RHVoice-test", "-p", of.voice, *options, "-o", str(path)], text.encode())


class Engine(NamedTuple):
    """A program, and what lets it speak."""

    program: str
    speak: Callable[[Speaker, str, str, Rng, Path], None]


ENGINES: Final[dict[str, Engine]] = {
    "espeak-ng": Engine("espeak-ng", _espeak),
    "espeak": Engine("espeak", _espeak),
    "flite": Engine("flite", _flite),
    "festival": Engine("festival", _festival),
    "ru-tts": Engine("ru_tts", _ru_tts),
    "open-jtalk": Engine("open_jtalk", _open_jtalk),
    "freetts": Engine("java", _freetts),
    "pico": Engine("pico2wave", _pico),
    "rhvoice": Engine("RHVoice-test", _rhvoice),
}


def make_debian(
    tables: Sequence[tuple[Path, Sequence[Row]]],
    out: Path,
    *,
    seed: int = 5,
    speakers: Sequence[Speaker] | None = None,
) -> list[Row]:
    """Make the clips that `out` does not have yet, and write its table every 50 clips.

    Args:
        tables: Corpora with human clips. Without any, only the dry half is made; the same call with
            some makes the rest.
        out: Gets ``audio/`` and ``corpus.tsv``.
        seed: Of texts, pitches, rates and donors.
        speakers: Who speaks; None are those of ``debian.tsv``.

    Returns:
        All clips that are there.
    """
    sentences = {**read_sentences(), **read_sentences(_WORLD)}
    donors: dict[str, list[list[tuple[Path, Row]]]] = {"train": [], "dev": []}
    for folder, rows in tables:
        for of_source in by_source(rows).values():
            for split, groups in donors.items():
                human = [(folder, row) for row in of_source if row.is_human and row.split == split]
                if human:
                    groups.append(human)
    made = {row.utterance: row for row in known_rows(out) if (out / row.path).exists()}
    jobs = [
        (place, speaker)
        for speaker in (read_speakers() if speakers is None else speakers)
        if is_installed(speaker)
        for place in range(speaker.n_clips)
    ]
    for place, speaker in track(sorted(jobs, key=lambda job: job[0]), description="debian"):
        utterance = f"debian-{speaker.engine}-{speaker.voice}-{place:03d}"
        is_dry = generator(seed, "dry", utterance).random() < _DRY_SHARE
        if utterance in made or not (is_dry or donors[speaker.split]):
            continue
        for attempt in range(_N_ATTEMPTS):
            rng = generator(seed, "debian", utterance, attempt)
            try:
                donor = None if is_dry else choose(choose(donors[speaker.split], rng), rng)
                row, waveform = _clip(speaker, utterance, sentences, donor, rng)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                logger.info("%s, attempt %d: %s", utterance, attempt, error)
                continue
            write_flac(out / row.path, waveform)
            made[utterance] = row
            if len(made) % SAVE_EVERY == 0:
                write_table(out / TABLE, made.values())
            break
    write_table(out / TABLE, made.values())
    return list(made.values())


def _clip(
    speaker: Speaker,
    utterance: str,
    sentences: Mapping[str, Sequence[str]],
    donor: tuple[Path, Row] | None,
    rng: np.random.Generator,
) -> tuple[Row, Array]:
    language = choose(speaker.languages, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        text = choose(sentences[language], rng)
        ENGINES[speaker.engine].speak(speaker, language, text, rng, path)
        samples, rate = soundfile.read(path, dtype="float64", always_2d=True)
    waveform = trimmed(resampled(normalize_peak(samples[:, 0]), rate, SAMPLE_RATE))[:LONGEST]
    source, parent, origin = f"debian/{speaker.engine}", "-", f"{speaker.generator}:{language}"
    if donor is not None:
        folder_of, row = donor
        source, parent, origin = row.source, row.utterance, row.origin
        recorded = soundfile.read(folder_of / row.path, dtype="float64")[0]
        waveform = in_channel(waveform, recorded, origin, rng)
    if len(waveform) < SHORTEST_S * SAMPLE_RATE:
        raise ValueError("too short")
    made = Row(
        utterance=utterance,
        path=f"audio/{utterance}.flac",
        label=LABEL_NAMES[SPOOF],
        generator=speaker.generator,
        speaker=speaker.generator,
        source=source,
        split=speaker.split,
        parent=parent,
        origin=origin,
    )
    return made, normalize_peak(waveform)
