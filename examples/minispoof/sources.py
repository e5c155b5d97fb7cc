"""The people who speak in Debian packages, and the split each of them belongs to.

Splits are disjoint in language, so that a volunteer who recorded two packages in one language
cannot sit in two splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LANGUAGES", "PACKAGES", "SOURCES", "SPLITS", "Source", "recordings"]

SPLITS: Final = ("T", "D", "E")
"""Train, dev and eval, by the letters that ASVspoof 5 uses."""

LANGUAGES: Final[Mapping[str, str]] = {
    "T": "ru fr ro el da de hu nb ml",
    "D": "es ca gl bg lt sl",
    "E": "en it cs nl be uk he ar wa tn zh",
}

_RECORDED: Final[Mapping[str, str]] = {
    "tuxpaint": "fr ru ro ca bg es be el da",
    "ktuberling": "ca da de el en fr gl lt ru sl uk wa",
    "klettres": "ar cs da de en en_GB es fr he hu it lt ml nb nl ru tn uk",
    "asterisk": "en es fr it ru",
    "fillets": "cs nl",
}

_SPLIT_OF: Final = {
    language: split for split, languages in LANGUAGES.items() for language in languages.split()
}

DROPPED: Final[Mapping[str, str]] = {
    "asterisk_es": "the speaker of asterisk_en, by the copyright file",
    "klettres_nl": "close to a speaker of another split (speaker-embedding cosine above 0.865)",
    "ktuberling_wa": "close to a speaker of another split (speaker-embedding cosine above 0.865)",
}
"""Sources that are left out, because one person may not speak in two splits."""


@dataclass(frozen=True)
class Source:
    """One speaker, as far as a package tells."""

    name: str
    language: str
    package: str
    pattern: str
    """A regular expression for the paths of the recordings inside the package."""
    codec: str
    """What the recordings went through; a key of `speech.CODECS`."""
    licence: str
    most_parts: int = 5
    """How many recordings may be joined to one clip: more where each is one syllable."""

    @property
    def split(self) -> str:
        """T, D or E."""
        return _SPLIT_OF[self.language]


def _catalogue() -> Iterator[Source]:
    for language in _RECORDED["tuxpaint"].split():
        yield Source(
            *(f"tuxpaint_{language}", language, "tuxpaint-stamps-default"),
            *(rf"_desc_{language}\.ogg$", "vorbis-44k", "GPL-2+"),
        )
    for language in _RECORDED["ktuberling"].split():
        codec = "vorbis-22k" if language == "ca" else "vorbis-44k"
        yield Source(
            *(f"ktuberling_{language}", language, "ktuberling-data"),
            *(rf"/sounds/{language}/.*\.(ogg|wav)$", codec, "GPL-2+"),
        )
    for name in _RECORDED["klettres"].split():
        yield Source(
            *(f"klettres_{name}", name.split("_")[0], "klettres-data"),
            *(rf"/klettres/{name}/.*\.ogg$", "vorbis-44k", "GPL-2+"),
        )
    for language in _RECORDED["asterisk"].split():
        licence = "CC-BY-3.0" if language in ("it", "ru") else "CC-BY-SA-3.0"
        yield Source(
            *(f"asterisk_{language}", language, f"asterisk-core-sounds-{language}-g722"),
            *(r"\.g722$", "g722", licence),
        )
    for language in _RECORDED["fillets"].split():
        for role in "mv":  # the two fish, each with its actor
            yield Source(
                *(f"fillets_{language}_{role}", language, f"fillets-ng-data-{language}"),
                *(rf"/sound/.*/{language}/[^/-]+-{role}-[^/]*\.ogg$", "vorbis-22k", "GPL-2"),
            )
    syllables = r"/ogg/[^/]*/{}\.ogg$"
    yield Source(
        *("gcin_liu", "zh", "gcin-voice", syllables.format(3), "vorbis-44k", "GPL-3 / LGPL-3", 12)
    )
    yield Source(
        *("gcin_lo", "zh", "gcin-voice", syllables.format(5), "vorbis-44k", "CC-BY-3.0", 12)
    )
    yield Source("festvoxru_nsh", "ru", "festvox-ru", r"\.wav$", "pcm", "BSD-like")


SOURCES: Final = tuple(source for source in _catalogue() if source.name not in DROPPED)
PACKAGES: Final = tuple(dict.fromkeys(source.package for source in SOURCES))


def recordings(source: Source, folder: Path) -> list[Path]:
    """Return the recordings of a source in its unpacked package, sorted."""
    pattern = re.compile(source.pattern)
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if pattern.search(path.as_posix()))
