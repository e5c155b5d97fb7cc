"""Texts to speak, in many languages: the descriptions of Tux Paint's stamps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from minispoof.randomness import choose

__all__ = ["PACKAGE", "Texts", "read_texts", "text_in"]

PACKAGE: Final = "tuxpaint-stamps-default"
Texts: TypeAlias = Mapping[str, list[str]]
"""Sentences by language, as Tux Paint names it: "en", "fr", "zh_CN", …"""

_LENGTHS: Final = range(5, 90)
_TRANSLATION: Final = re.compile(r"([a-zA-Z_]+)\.utf8=(.+)")
_UNSPEAKABLE: Final = re.compile(r"[0-9$€£(]")
_QUOTES: Final = re.compile(r'[«»“”„"\[\]{}*_/\\<>|]')


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
