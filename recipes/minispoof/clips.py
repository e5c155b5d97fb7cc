"""Clips: what was built, and the building of what is left.

Each clip has a place, and a place has a name. A clip depends on the seed and its place, and is
written whole before its line is added to ``clips.jsonl``: a build that was stopped goes on where it
was.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import soundfile

from asvspoof_cm._util import atomic_path, sha256, track
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES, SAMPLE_RATE, SPOOF
from minispoof.attacks import Attack, Fake
from minispoof.bases import Base
from minispoof.randomness import choose, generator
from minispoof.sources import SOURCES
from minispoof.speech import Array, finish
from minispoof.synthesizers import Texts

FOLDERS: Final[Mapping[str, str]] = {"T": "flac_T", "D": "flac_D", "E": "flac_E_eval"}
N_ATTEMPTS: Final = 6
"""Some texts are refused by an engine, some bases are too short: that many others are tried."""
_FIRST_ATTACK_GROUP: Final = 1000  # below it are the speakers, by their number
_QUIETEST_PEAK: Final = 1e-4
_LONGEST_ORIGIN: Final = 200

Failures: TypeAlias = defaultdict[str, list[str]]
"""The errors of the places that stayed empty, by attack."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A line of ``clips.jsonl``."""

    name: str
    split: str
    label: str
    speaker: str
    gender: str
    origin: str
    tag: str = ABSENT
    attack: str = LABEL_NAMES[BONAFIDE]
    duration_s: float = 0.0
    sha256: str = ""


def write_flac(path: Path, waveform: Array) -> None:
    """Write a waveform within ±1 as 16-bit FLAC, whole or not at all."""
    samples = np.round(waveform * 32767).astype(np.int16)
    with atomic_path(path) as temporary:
        soundfile.write(temporary, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")


class Journal:
    """The clips of an output folder: ``clips.jsonl`` and the audio beside it.

    A clip counts as built if its file has the checksum of its line; a line cut short is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "clips.jsonl"
        self.clips: dict[str, Clip] = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            try:
                clip = Clip(**json.loads(line))
            except (ValueError, TypeError):
                continue
            path = self.audio_path(clip)
            if path.exists() and sha256(path) == clip.sha256:
                self.clips[clip.name] = clip

    def audio_path(self, clip: Clip) -> Path:
        """Return where the audio of a clip is."""
        return self.folder / FOLDERS[clip.split] / f"{clip.name}.flac"

    def add(self, clip: Clip, waveform: Array) -> None:
        """Write the audio, then the line, which ends one that was cut short."""
        path = self.audio_path(clip)
        write_flac(path, waveform)
        clip = replace(clip, duration_s=len(waveform) / SAMPLE_RATE, sha256=sha256(path))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(asdict(clip), ensure_ascii=False)}\n")
        self.clips[clip.name] = clip


def build_bonafide(
    journal: Journal, bases: Mapping[str, Sequence[Base]], shares: Mapping[str, int], *, seed: int
) -> Failures:
    """Build bona fide clips of one split: of each speaker the first bases, as many as its share."""
    failures: Failures = defaultdict(list)
    places = [(speaker, index) for speaker in bases for index in range(shares[speaker])]
    for speaker, index in track(places, description="bona fide", unit="clip"):
        base = bases[speaker][index]
        split = base.source.split
        name = _name(split, SOURCES.index(base.source), index)
        if name in journal.clips:
            continue
        waveform = finish(base.waveform, generator(seed, "bonafide", speaker, index))
        if waveform is None:
            failures[f"{split} bona fide"].append("too little speech")
            continue
        clip = Clip(
            name=name,
            split=split,
            label=LABEL_NAMES[BONAFIDE],
            speaker=speaker,
            gender=base.gender,
            origin=f"{speaker}|{base.origin}"[:_LONGEST_ORIGIN],
        )
        journal.add(clip, waveform)
    return failures


def build_spoof(
    journal: Journal,
    attack: Attack,
    bases: Mapping[str, Sequence[Base]],
    n_clips: int,
    *,
    texts: Texts,
    seed: int,
) -> Failures:
    """Build `n_clips` clips of one attack; a place that fails is reported and left empty."""
    failures: Failures = defaultdict(list)
    group = _FIRST_ATTACK_GROUP + int(attack.name[1:])
    for index in track(range(n_clips), description=f"{attack.name} {attack.tag}", unit="clip"):
        name = _name(attack.split, group, index)
        if name in journal.clips:
            continue
        try:
            waveform, fake = _render(attack, bases, index, texts=texts, seed=seed)
        except RuntimeError as error:
            failures[attack.name].append(str(error))
            continue
        of_speaker = bases.get(fake.speaker)
        clip = Clip(
            name=name,
            split=attack.split,
            label=LABEL_NAMES[SPOOF],
            speaker=fake.speaker,
            gender=of_speaker[0].gender if of_speaker else ABSENT,
            origin=fake.origin[:_LONGEST_ORIGIN],
            tag=attack.tag,
            attack=attack.name,
        )
        journal.add(clip, waveform)
    return failures


def _render(
    attack: Attack, bases: Mapping[str, Sequence[Base]], index: int, *, texts: Texts, seed: int
) -> tuple[Array, Fake]:
    problem = ""
    for attempt in range(N_ATTEMPTS):
        rng = generator(seed, attack.name, index, attempt)
        base = choose(bases[_speaker(list(bases), attack.name, index + attempt, seed)], rng)
        try:
            fake = attack.make(base, texts, rng)
        except Exception as error:  # whatever an engine does, the build goes on
            problem = f"{type(error).__name__}: {error}"
            continue
        if not np.isfinite(fake.waveform).all() or np.abs(fake.waveform).max() < _QUIETEST_PEAK:
            problem = "silent, or not finite"
            continue
        waveform = finish(fake.waveform, rng)
        if waveform is not None:
            return waveform, fake
        problem = "too little speech"
    raise RuntimeError(problem)


def _speaker(speakers: Sequence[str], attack: str, index: int, seed: int) -> str:
    """Return one of the speakers: each comes once a round, in an order of its own a round."""
    turn, place = divmod(index, len(speakers))
    order = generator(seed, attack, "round", turn).permutation(len(speakers))
    return speakers[order[place]]


def _name(split: str, group: int, index: int) -> str:
    return f"{split}_{group:04d}{index:06d}"
