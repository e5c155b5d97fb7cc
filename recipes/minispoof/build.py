"""Build the corpus: packages, bases, clips, protocols, report."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asvspoof_cm._util import atomic_path, track
from minispoof import confounds, report
from minispoof.attacks import Attack
from minispoof.bases import Base, cached_bases, quotas
from minispoof.clips import Failures, Journal, build_bonafide, build_spoof
from minispoof.sources import PACKAGES, SOURCES, SPLITS, Package, recordings, unpack
from minispoof.synthesizers import TEXT_PACKAGE, read_texts

FEWEST_RECORDINGS: Final = 12

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to build, and where."""

    work: Path
    """Packages and bases: 1.4 GB that may be deleted afterwards."""
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
    chosen = _chosen(attacks, options.only)
    packages, missing = _unpacked(options.work / "packages")
    bases = _bases(packages, options)
    if not any(bases.values()):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise ValueError(f"there are no human recordings to begin with. {reasons}")
    _check_same(options.out, _settings(options, bases))
    journal = Journal(options.out)
    failures = Failures()
    for split in SPLITS:
        shares = quotas(
            {name: len(b) for name, b in bases[split].items()}, options.n_bonafide[split]
        )
        failures.update(build_bonafide(journal, bases[split], shares, seed=options.seed))
    texts = read_texts(packages[TEXT_PACKAGE].folder) if TEXT_PACKAGE in packages else {}
    for attack in chosen:
        needed = attack.missing()
        if needed or not bases[attack.split]:
            missing[attack.name] = "; ".join(needed) or "no human source in its split"
            logger.warning("%s is left out: %s", attack.name, missing[attack.name])
            continue
        n_clips = options.n_per_attack[attack.split]
        made = build_spoof(
            journal, attack, bases[attack.split], n_clips, texts=texts, seed=options.seed
        )
        failures.update(made)
    report.write_protocols(journal, options.seed)
    report.write_checksums(journal)
    report.write_report(
        journal,
        settings=_settings(options, bases),
        attacks=attacks,
        packages=list(packages.values()),
        missing=missing,
        failures=failures,
        confounds=_confounds(journal),
    )
    return journal


def parse_sizes(text: str) -> dict[str, int]:
    """Read ``T=640,D=320,E=560``.

    Example:
        >>> parse_sizes("T=2,D=1,E=3")
        {'T': 2, 'D': 1, 'E': 3}
    """
    if not re.fullmatch(r"[TDE]=\d+(,[TDE]=\d+)*", text):
        raise ValueError(f"sizes must look like T=640,D=320,E=560; got {text!r}.")
    sizes = {part[0]: int(part[2:]) for part in text.split(",")}
    if set(sizes) != set(SPLITS):
        raise ValueError(f"sizes must name T, D and E once each; got {text!r}.")
    return sizes


def _chosen(attacks: Sequence[Attack], only: Sequence[str] | None) -> list[Attack]:
    known = [attack.name for attack in attacks]
    unknown = sorted(set(only or ()) - set(known))
    if unknown:
        raise ValueError(f"`only` must name attacks among {', '.join(known)}; got {unknown}.")
    return [attack for attack in attacks if only is None or attack.name in only]


def _unpacked(folder: Path) -> tuple[dict[str, Package], dict[str, str]]:
    progress = track(PACKAGES, description="packages", unit="package")
    results = {name: _package_or_problem(name, folder) for name in progress}
    packages = {name: found for name, found in results.items() if isinstance(found, Package)}
    missing = {name: found for name, found in results.items() if isinstance(found, str)}
    return packages, missing


def _package_or_problem(name: str, folder: Path) -> Package | str:
    try:
        return unpack(name, folder)
    except RuntimeError as error:
        logger.warning("%s is left out: %s", name, error)
        return str(error)


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
        folder = options.work / "bases"
        made = cached_bases(source, files[source], n_bases, seed=options.seed, folder=folder)
        if made:
            bases[source.split][source.name] = made
    return bases


def _settings(
    options: Options, bases: Mapping[str, Mapping[str, Sequence[Base]]]
) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "bona": dict(options.n_bonafide),
        "per_attack": dict(options.n_per_attack),
        "bases": {split: {k: len(b) for k, b in of.items()} for split, of in bases.items()},
    }


def _check_same(out: Path, settings: Mapping[str, Any]) -> None:
    path = out / "settings.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in settings if before.get(name) != settings[name]]
        if changed:
            raise ValueError(
                f"`out` must be built with one set of sizes, seed and speakers; {out} differs in "
                f"{', '.join(changed)}. Name another folder, or delete this one."
            )
        return
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _confounds(journal: Journal) -> confounds.Confounds | None:
    labels = {(clip.split, clip.label) for clip in journal.clips.values()}
    return confounds.check(journal.folder) if len(labels) == 2 * len(SPLITS) else None
