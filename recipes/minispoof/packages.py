"""Debian packages: download one and unpack it, once, without installing it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from asvspoof_cm._util import sha256

__all__ = ["Package", "unpack"]


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
