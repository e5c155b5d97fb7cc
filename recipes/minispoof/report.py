"""What comes out beside the audio: protocols, checksums and the report of a build."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from asvspoof_cm._util import atomic_path
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES, SPOOF
from minispoof.attacks import Attack
from minispoof.clips import FOLDERS, Clip, Failures, Journal
from minispoof.confounds import PROTOCOLS, Confounds
from minispoof.randomness import generator
from minispoof.sources import SOURCES, Package

_MODULES: Final = "asvspoof-cm numpy scipy soundfile torch pyworld praat-parselmouth ttskit"
_ENGINES: Final = "ffmpeg espeak-ng flite festival sptk festvox-*"


def write_protocols(journal: Journal, seed: int) -> None:
    """Write the three protocols, ten columns each, in a random order."""
    for split, filename in PROTOCOLS.items():
        clips = sorted(
            (clip for clip in journal.clips.values() if clip.split == split),
            key=lambda clip: clip.name,
        )
        order = generator(seed, "protocol", split).permutation(len(clips))
        _write(journal.folder / filename, "".join(_row(clips[place]) for place in order))


def write_checksums(journal: Journal) -> None:
    """Write ``SHA256SUMS``, which ``sha256sum --check`` reads."""
    clips = sorted(journal.clips.values(), key=lambda clip: clip.name)
    lines = [f"{clip.sha256}  {FOLDERS[clip.split]}/{clip.name}.flac\n" for clip in clips]
    _write(journal.folder / "SHA256SUMS", "".join(lines))


def engine_versions() -> dict[str, str]:
    """Return the versions of the installed Debian and PyPI packages that clips depend on."""
    installed = {distribution.name: distribution.version for distribution in distributions()}
    versions = {name: installed[name] for name in _MODULES.split() if name in installed}
    pattern = "${db:Status-Status} ${Package} ${Version}\n"
    command = ["dpkg-query", "-W", "-f", pattern, *_ENGINES.split()]
    try:
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    except OSError:  # not a Debian
        return versions
    for line in lines:
        status, *package = line.split()
        if status == "installed":
            versions[package[0]] = package[1]
    return versions


def write_report(
    journal: Journal,
    *,
    settings: Mapping[str, Any],
    attacks: Sequence[Attack],
    packages: Sequence[Package],
    missing: Mapping[str, str],
    failures: Failures,
    confounds: Confounds | None,
) -> None:
    """Write ``report.json``: counts, confounds, failures, versions."""
    clips = list(journal.clips.values())
    speakers = {clip.speaker for clip in clips}
    content = {
        "settings": dict(settings),
        "counts": {split: _counts(clips, split) for split in FOLDERS},
        "attacks": {
            attack.name: {
                "split": attack.split,
                "tag": attack.tag,
                "description": attack.description,
                "clips": sum(clip.attack == attack.name for clip in clips),
                "failed": failures.counts[attack.name],
            }
            for attack in attacks
        },
        "speakers": {
            source.name: {
                "split": source.split,
                "package": source.package,
                "licence": source.licence,
            }
            for source in SOURCES
            if source.name in speakers
        },
        "missing": dict(missing),
        "failures": {
            name: f"{failures.counts[name]} clips, the last: {error}"
            for name, error in failures.last_error.items()
        },
        "confounds": asdict(confounds) if confounds else None,
        "packages": {p.name: {"version": p.version, "sha256": p.sha256} for p in packages},
        "versions": engine_versions(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    _write(journal.folder / "report.json", text)


def _row(clip: Clip) -> str:
    columns = (clip.speaker, clip.name, clip.gender, ABSENT, ABSENT, ABSENT)
    return " ".join((*columns, clip.tag, clip.attack, clip.label, ABSENT)) + "\n"


def _counts(clips: Sequence[Clip], split: str) -> dict[str, Any]:
    here = [clip for clip in clips if clip.split == split]
    labels = Counter(clip.label for clip in here)
    return {
        **{label: labels[label] for label in LABEL_NAMES},
        "speakers": len({clip.speaker for clip in here if clip.label == LABEL_NAMES[BONAFIDE]}),
        "attacks": len({clip.attack for clip in here if clip.label == LABEL_NAMES[SPOOF]}),
        "hours": round(sum(clip.duration_s for clip in here) / 3600, 3),
    }


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
