"""The people who speak in Debian packages, and the split each of them belongs to.

Packages are downloaded and unpacked, once, without being installed. Splits are disjoint in
language, so that a volunteer who recorded two packages in one language cannot sit in two splits.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asvspoof_cm._util import sha256

SPLITS: Final = ("T", "D", "E")
"""Train, dev and eval, by the letters that ASVspoof 5 uses."""

LANGUAGES: Final[Mapping[str, str]] = {
    "T": "ru fr ro el da de hu nb ml",
    "D": "es ca gl bg lt sl",
    "E": "en it cs nl be uk he ar wa tn zh",
}

_SPLIT_OF: Final = {
    language: split for split, languages in LANGUAGES.items() for language in languages.split()
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A line of ``sources.tsv``: one speaker, as far as a package tells."""

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
    with Path(__file__).with_name("sources.tsv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield Source(**{**line, "most_parts": int(line["most_parts"])})


SOURCES: Final = tuple(_catalogue())
PACKAGES: Final = tuple(dict.fromkeys(source.package for source in SOURCES))


def recordings(source: Source, folder: Path) -> list[Path]:
    """Return the recordings of a source in its unpacked package, sorted."""
    pattern = re.compile(source.pattern)
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if pattern.search(path.as_posix()))


@dataclass(frozen=True)
class Package:
    """An unpacked package."""

    name: str
    version: str
    sha256: str
    """Of the .deb file."""
    folder: Path


def unpack(name: str, folder: Path) -> Package:
    """Download a package with apt and unpack it under `folder`, unless that was done before.

    Raises:
        RuntimeError: apt does not have it, or is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    if not (target.is_dir() and any(folder.glob(f"{name}_*.deb"))):
        temporary = folder / f"{name}.part"
        shutil.rmtree(temporary, ignore_errors=True)
        _run(["apt-get", "download", name], folder)
        _run(["dpkg-deb", "-x", _archive(name, folder).name, temporary.name], folder)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    archive = _archive(name, folder)
    version = _run(["dpkg-deb", "-f", archive.name, "Version"], folder).strip()
    return Package(name, version, sha256(archive), target)


def _archive(name: str, folder: Path) -> Path:
    return max(folder.glob(f"{name}_*.deb"))


def _run(command: list[str], folder: Path) -> str:
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(
            f"`{' '.join(command)}` can't be run: {error}. Packages need apt-get and dpkg-deb."
        ) from error
    if result.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
    return result.stdout
