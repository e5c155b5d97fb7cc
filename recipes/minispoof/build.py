"""Build the corpus: packages, bases, clips, protocols, report."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from asvspoof_cm._util import track, write_json, write_text
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES
from minispoof.attacks import Attack
from minispoof.bases import Base, join_bases, quotas
from minispoof.clips import FOLDERS, Clip, Failures, Journal, build_bonafide, build_spoof
from minispoof.confounds import PROTOCOLS, check
from minispoof.randomness import generator
from minispoof.sources import PACKAGES, SOURCES, SPLITS, Package, recordings, unpack
from minispoof.synthesizers import TEXT_PACKAGE, read_texts

FEWEST_RECORDINGS: Final = 12

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to build, and where."""

    work: Path
    """Packages, which may be deleted afterwards."""
    out: Path
    seed: int
    n_bonafide: Mapping[str, int]
    """The number of bona fide clips of each split."""
    n_per_attack: Mapping[str, int]
    """The number of clips of each attack, by split."""
    only: Sequence[str] | None = None
    """Names of attacks; None builds all."""


def build(options: Options, attacks: Sequence[Attack]) -> Journal:
    """Build what is missing, and write protocols and report.

    Raises:
        ValueError: `options.out` holds a corpus with other sizes, seed or speakers,
            `options.only` names an unknown attack, or there is no human recording at all.
    """
    names, only = [attack.name for attack in attacks], options.only
    if unknown := sorted(set(only or ()) - set(names)):
        raise ValueError(f"`only` must name attacks among {', '.join(names)}; got {unknown}.")
    packages, missing = _unpacked(options.work)
    bases = _bases(packages, options)
    if not any(bases.values()):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise ValueError(f"there are no human recordings to begin with. {reasons}")
    settings = {
        "seed": options.seed,
        "bona": dict(options.n_bonafide),
        "per_attack": dict(options.n_per_attack),
        "bases": {split: {k: len(b) for k, b in of.items()} for split, of in bases.items()},
    }
    _check_same(options.out / "settings.json", settings)
    journal = Journal(options.out)
    failures: Failures = defaultdict(list)
    for split in SPLITS:
        available = {name: len(b) for name, b in bases[split].items()}
        shares = quotas(available, options.n_bonafide[split])
        failures.update(build_bonafide(journal, bases[split], shares, seed=options.seed))
    texts = read_texts(packages[TEXT_PACKAGE].folder) if TEXT_PACKAGE in packages else {}
    for attack in attacks:
        if only is not None and attack.name not in only:
            continue
        if attack.missing() or not bases[attack.split]:
            missing[attack.name] = "; ".join(attack.missing()) or "no human source in its split"
            logger.warning("%s is left out: %s", attack.name, missing[attack.name])
            continue
        of, n_clips = bases[attack.split], options.n_per_attack[attack.split]
        made = build_spoof(journal, attack, of, n_clips, texts=texts, seed=options.seed)
        failures.update(made)
    write_protocols(journal, options.seed)
    report = {
        "settings": settings,
        "missing": missing,
        "failures": {name: f"{len(e)} clips, the last: {e[-1]}" for name, e in failures.items()},
        "packages": {p.name: {"version": p.version, "sha256": p.sha256} for p in packages.values()},
        **_counts(journal, attacks),
    }
    write_json(options.out / "report.json", report)
    return journal


def parse_sizes(text: str) -> dict[str, int]:
    """Read ``T=640,D=320,E=560``.

    Example:
        >>> parse_sizes("T=2,D=1,E=3")
        {'T': 2, 'D': 1, 'E': 3}
    """
    sizes = {part[0]: int(part[2:]) for part in re.findall(r"[TDE]=\d+", text)}
    if not re.fullmatch(r"[TDE]=\d+(,[TDE]=\d+){2}", text) or set(sizes) != set(SPLITS):
        raise ValueError(f"sizes must look like T=640,D=320,E=560; got {text!r}.")
    return sizes


def _unpacked(work: Path) -> tuple[dict[str, Package], dict[str, str]]:
    packages, missing = {}, {}
    for name in track(PACKAGES, description="packages", unit="package"):
        try:
            packages[name] = unpack(name, work / "packages")
        except RuntimeError as error:
            missing[name] = str(error)
            logger.warning("%s is left out: %s", name, error)
    return packages, missing


def _bases(packages: Mapping[str, Package], options: Options) -> dict[str, dict[str, list[Base]]]:
    files = {
        source: recordings(source, packages[source.package].folder)
        for source in SOURCES
        if source.package in packages
    }
    usable = [source for source, found in files.items() if len(found) >= FEWEST_RECORDINGS]
    bases: dict[str, dict[str, list[Base]]] = {split: {} for split in SPLITS}
    for source in track(usable, description="human recordings", unit="speaker"):
        n_speakers = sum(other.split == source.split for other in usable)
        # Twice an even share: speakers with many recordings fill in for those with few, and
        # vocoders meet recordings that are not among the bona fide clips.
        n_bases = int(2.2 * options.n_bonafide[source.split] / n_speakers) + 4
        if made := join_bases(source, files[source], n_bases, seed=options.seed):
            bases[source.split][source.name] = made
    return bases


def _check_same(path: Path, settings: Mapping[str, Any]) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    before = json.loads(path.read_text(encoding="utf-8"))
    if changed := [name for name in settings if before.get(name) != settings[name]]:
        raise ValueError(
            f"`out` must be built with one set of sizes, seed and speakers; {path.parent} differs "
            f"in {', '.join(changed)}. Name another folder, or delete this one."
        )


def write_protocols(journal: Journal, seed: int) -> None:
    """Write the three protocols, ten columns each, in a random order."""
    for split, filename in PROTOCOLS.items():
        clips = sorted(
            (clip for clip in journal.clips.values() if clip.split == split),
            key=lambda clip: clip.name,
        )
        order = generator(seed, "protocol", split).permutation(len(clips))
        write_text(journal.folder / filename, "".join(_row(clips[place]) for place in order))


def _row(clip: Clip) -> str:
    columns = (clip.speaker, clip.name, clip.gender, ABSENT, ABSENT, ABSENT)
    return " ".join((*columns, clip.tag, clip.attack, clip.label, ABSENT)) + "\n"


def _counts(journal: Journal, attacks: Sequence[Attack]) -> dict[str, Any]:
    """Return counts of clips and speakers, and the confounds of a whole corpus."""
    clips = list(journal.clips.values())
    counts: dict[str, Any] = {}
    for split in FOLDERS:
        here = [clip for clip in clips if clip.split == split]
        people = {clip.speaker for clip in here if clip.label == LABEL_NAMES[BONAFIDE]}
        hours = round(sum(clip.duration_s for clip in here) / 3600, 3)
        counts[split] = {**Counter(clip.label for clip in here), "speakers": len(people)}
        counts[split]["hours"] = hours
    of_attack = Counter(clip.attack for clip in clips)
    is_whole = len({(clip.split, clip.label) for clip in clips}) == 2 * len(SPLITS)
    return {
        "counts": counts,
        "attacks": {
            attack.name: {"description": attack.description, "clips": of_attack[attack.name]}
            for attack in attacks
        },
        "confounds": asdict(check(journal.folder)) if is_whole else None,
    }
