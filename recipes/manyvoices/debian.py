"""Voices of Debian: formants, diphones, unit selection and statistical models of packages.

Half of the clips are as the engine speaks them, the others have the channel of a human clip, like
those of `voices`. RHVoice, pico, the Catalan voice of festival and a family of espeak-ng's variants
are for the dev split: training hears none of their voices.
"""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import soundfile

from asvspoof_cm._util import track
from asvspoof_cm.labels import LABEL_NAMES, SAMPLE_RATE, SPOOF
from manyvoices.channel import normalize_peak
from manyvoices.clips import LONGEST, trimmed
from manyvoices.table import TABLE, Row, by_source, read_table, write_table
from manyvoices.vocoders import resampled
from manyvoices.voices import in_channel, read_sentences
from minispoof.clips import write_flac
from minispoof.randomness import choose, generator
from minispoof.speech import Array

__all__ = ["SPEAKERS", "Speaker", "is_installed", "make_debian"]

SHORTEST_S: Final = 1.2
SAVE_EVERY: Final = 50
_DRY_SHARE: Final = 0.5
_N_ATTEMPTS: Final = 4
_TIMEOUT_S: Final = 60
_WORLD: Final = Path(__file__).with_name("texts_world.tsv")

Speech: TypeAlias = Callable[[str, np.random.Generator, Path], None]
"""Speaks a text, with random pitch and rate, into a WAV file."""

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
_DEV_VARIANTS: Final = (
    "Alex Alicia Andrea Andy Annie AnxiousAndy Demonic Denis Diogo adam anika anikaRobot announcer "
    "antonio aunty belinda benjamin boris caleb croak david"
)
"""Those with names from A to D."""
_VARIANTS: Final = (
    "default m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f4 f5 klatt klatt2 klatt3 klatt4 klatt5 klatt6 Gene "
    "Gene2 Henrique Hugo Jacky Lee Marco Mario Michael Mike Mr_serious Nguyen RicishayMax "
    "RicishayMax2 RicishayMax3 Storm Tweaky UniRobot ed edward edward2 fast grandma grandpa "
    "gustave iven iven2 iven3 iven4 john kaukovalta linda marcelo max michel miguel norbert pablo "
    "paul pedro quincy rob robert robosoft robosoft2 robosoft3 robosoft4 robosoft5 robosoft6 "
    "robosoft7 robosoft8 sandro shelby steph steph2 steph3 travis victor whisper whisperf zac"
)
_OLD_VARIANTS: Final = "default m1 m2 m3 m4 m5 m6 m7 f1 f2 f3 f4 f5 klatt klatt2 klatt3 klatt4"
_OLD_LANGUAGES: Final = "en es fr hi it pt de nl sv fi pl cs ru hu el tr ro lv sk"
_FESTIVAL: Final = (
    ("kal_diphone", "latin-1", "en", 45),
    ("ked_diphone", "latin-1", "en", 45),
    ("cmu_us_slt_arctic_hts", "latin-1", "en", 45),
    ("lp_diphone", "latin-1", "it", 45),
    ("pc_diphone", "latin-1", "it", 45),
    ("czech_dita", "iso-8859-2", "cs", 35),
    ("czech_krb", "iso-8859-2", "cs", 35),
    ("czech_machac", "iso-8859-2", "cs", 35),
    ("czech_ph", "iso-8859-2", "cs", 35),
    ("suo_fi_lj_diphone", "latin-1", "fi", 35),
    ("hy_fi_mv_diphone", "latin-1", "fi", 35),
    ("hindi_NSK_diphone", "utf-8", "hi", 40),
    ("marathi_NSK_diphone", "utf-8", "mr", 35),
    ("msu_ru_nsh_clunits", "utf-8", "ru", 80),
    ("upc_ca_ona_hts", "iso-8859-15", "ca", 30),
)
_PICO: Final = {
    "en-US": "en",
    "en-GB": "en",
    "de-DE": "de",
    "es-ES": "es",
    "fr-FR": "fr",
    "it-IT": "it",
}
_RHVOICE: Final = {
    "alan": "en",
    "bdl": "en",
    "clb": "en",
    "aleksandr": "ru",
    "anna": "ru",
    "elena": "ru",
    "irina": "ru",
    "Leticia-F123": "pt",
    "anatol": "uk",
    "natalia": "uk",
    "spomenka": "eo",
    "kiko": "mk",
}
_FREETTS: Final = ("freetts", "cmu_us_kal", "cmulex", "cmudict04", "en_us")
_JTALK_DICTIONARY: Final = "/var/lib/mecab/dic/open-jtalk/naist-jdic"
_JTALK_VOICE: Final = "/usr/share/hts-voice/nitech-jp-atr503-m001/nitech_jp_atr503_m001.htsvoice"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """A voice of an engine."""

    engine: str
    voice: str
    languages: tuple[str, ...]
    speech: Callable[[str], Speech]
    """For texts of a language."""
    program: str
    n_clips: int
    split: str = "train"

    @property
    def generator(self) -> str:
        """Engine and voice."""
        return f"{self.engine}:{self.voice}"


def is_installed(speaker: Speaker) -> bool:
    """Return whether its program is there."""
    return shutil.which(speaker.program) is not None


def _run(command: Sequence[str], data: bytes = b"") -> bytes:
    done = subprocess.run(command, check=True, input=data, capture_output=True, timeout=_TIMEOUT_S)
    return done.stdout


def _espeak(program: str, variant: str, language: str) -> Speech:
    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        voice = choose(ESPEAK_NG[language].split(), rng) if program == "espeak-ng" else language
        suffix = "" if variant == "default" else f"+{variant.replace('_', ' ')}"
        rate, pitch, gap = rng.integers(115, 230), rng.integers(15, 90), rng.integers(0, 3)
        options = ["-v", voice + suffix, "-s", str(rate), "-p", str(pitch), "-g", str(gap)]
        _run([program, *options, "-w", str(path), text])

    return speak


def _flite(voice: str, language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        settings = ["--setf", f"duration_stretch={rng.uniform(0.8, 1.25):.2f}"]
        if voice.startswith("kal"):
            settings += ["--setf", f"int_f0_target_mean={rng.uniform(80, 160):.0f}"]
        _run(["flite", "-voice", voice, *settings, "-t", text, "-o", str(path)])

    return speak


def _festival(voice: str, encoding: str, language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        script = path.with_suffix(".scm")
        words = text.replace('"', "").replace("\\", "")
        lines = (
            f"(voice_{voice})",
            f"(Parameter.set 'Duration_Stretch {rng.uniform(0.8, 1.25):.2f})",
            f'(utt.save.wave (utt.synth (Utterance Text "{words}")) "{path}" \'riff)',
        )
        script.write_bytes("\n".join(lines).encode(encoding, "ignore"))
        _run(["festival", "-b", str(script)])

    return speak


def _ru_tts(voice: str, language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        options = ["-r", f"{rng.uniform(0.8, 1.3):.2f}", "-p", f"{rng.uniform(0.75, 1.4):.2f}"]
        options += ["-a"] if voice == "female" else []
        raw = _run(["ru_tts", *options], text.encode("koi8-r", "ignore"))
        samples = np.frombuffer(raw, np.int8).astype(np.float64) / 128
        soundfile.write(path, samples, 10_000, subtype="PCM_16")

    return speak


def _open_jtalk(language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        options = ["-r", f"{rng.uniform(0.8, 1.3):.2f}", "-fm", f"{rng.uniform(-4, 8):.1f}"]
        options += ["-a", f"{rng.uniform(0.48, 0.58):.2f}"]
        models = ["-x", _JTALK_DICTIONARY, "-m", _JTALK_VOICE]
        _run(["open_jtalk", *models, *options, "-ow", str(path)], text.encode())

    return speak


def _freetts(language: str) -> Speech:
    del language
    classes = ":".join(f"/usr/share/java/{name}.jar" for name in _FREETTS)

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        voice = choose(("kevin16", "kevin"), rng)
        options = ["-voice", voice, "-dumpAudio", str(path), "-text", text]
        _run(["java", "-cp", classes, "com.sun.speech.freetts.FreeTTS", *options])

    return speak


def _pico(locale: str, language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        pitch, speed = rng.integers(80, 131), rng.integers(80, 131)
        spoken = f"<pitch level='{pitch}'><speed level='{speed}'>{text}</speed></pitch>"
        _run(["pico2wave", "-l", locale, "-w", str(path), spoken])

    return speak


def _rhvoice(voice: str, language: str) -> Speech:
    del language

    def speak(text: str, rng: np.random.Generator, path: Path) -> None:
        options = ["-r", str(rng.integers(85, 125)), "-t", str(rng.integers(85, 120))]
        _run(["RHVoice-test", "-p", voice, *options, "-o", str(path)], text.encode())

    return speak


def _speakers() -> Iterator[Speaker]:
    world = tuple(ESPEAK_NG)
    for names, split, share in ((_VARIANTS, "train", 13), (_DEV_VARIANTS, "dev", 3)):
        for variant in names.split():
            yield Speaker(
                engine="espeak-ng",
                voice=variant,
                languages=world,
                speech=functools.partial(_espeak, "espeak-ng", variant),
                program="espeak-ng",
                n_clips=70 if variant == "default" else share,
                split=split,
            )
    for variant in _OLD_VARIANTS.split():
        yield Speaker(
            engine="espeak",
            voice=variant,
            languages=tuple(_OLD_LANGUAGES.split()),
            speech=functools.partial(_espeak, "espeak", variant),
            program="espeak",
            n_clips=10,
        )
    for voice in ("kal", "kal16", "awb", "rms", "slt"):
        yield Speaker(
            engine="flite",
            voice=voice,
            languages=("en",),
            speech=functools.partial(_flite, voice),
            program="flite",
            n_clips=45,
        )
    for voice, encoding, language, n_clips in _FESTIVAL:
        yield Speaker(
            engine="festival",
            voice=voice,
            languages=(language,),
            speech=functools.partial(_festival, voice, encoding),
            program="festival",
            n_clips=n_clips,
            split="dev" if voice == "upc_ca_ona_hts" else "train",
        )
    for voice in ("male", "female"):
        yield Speaker(
            engine="ru-tts",
            voice=voice,
            languages=("ru",),
            speech=functools.partial(_ru_tts, voice),
            program="ru_tts",
            n_clips=45,
        )
    yield Speaker(
        engine="open-jtalk",
        voice="nitech-m001",
        languages=("ja",),
        speech=_open_jtalk,
        program="open_jtalk",
        n_clips=60,
    )
    yield Speaker(
        engine="freetts",
        voice="kevin",
        languages=("en",),
        speech=_freetts,
        program="java",
        n_clips=30,
    )
    for locale, language in _PICO.items():
        yield Speaker(
            engine="pico",
            voice=locale,
            languages=(language,),
            speech=functools.partial(_pico, locale),
            program="pico2wave",
            n_clips=10,
            split="dev",
        )
    for voice, language in _RHVOICE.items():
        yield Speaker(
            engine="rhvoice",
            voice=voice,
            languages=(language,),
            speech=functools.partial(_rhvoice, voice),
            program="RHVoice-test",
            n_clips=5,
            split="dev",
        )


SPEAKERS: Final = tuple(_speakers())
"""All voices; README.md names the packages."""


def make_debian(
    tables: Sequence[tuple[Path, Sequence[Row]]],
    out: Path,
    *,
    seed: int = 5,
    speakers: Sequence[Speaker] = SPEAKERS,
) -> list[Row]:
    """Make the clips that `out` does not have yet, and write its table every 50 clips.

    Args:
        tables: Corpora with human clips. Without any, only the dry half is made; the same call with
            some makes the rest.
        out: Gets ``audio/`` and ``corpus.tsv``.
        seed: Of texts, pitches, rates and donors.
        speakers: Who speaks.

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
    known = read_table(out / TABLE) if (out / TABLE).exists() else []
    made = {row.utterance: row for row in known if (out / row.path).exists()}
    jobs = [
        (place, speaker)
        for speaker in speakers
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
        speaker.speech(language)(choose(sentences[language], rng), rng, path)
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
