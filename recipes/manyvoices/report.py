"""The report of a corpus: what is in it, and what could give the label away.

Two floors stand beside any result. A regression on trivial statistics of the clips (level, silence,
bandwidth) says how far recording conditions tell the classes apart; the share of humans in each
source says how far the source alone does.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from asvspoof_cm import metrics
from asvspoof_cm._tables import render
from asvspoof_cm._util import track
from asvspoof_cm.labels import SAMPLE_RATE
from manyvoices.fingerprints import Match, fingerprint, shared_recordings
from manyvoices.table import Row, both_classes, by_source
from minispoof.confounds import fit_logistic, statistics
from minispoof.randomness import generator
from minispoof.speech import Array


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `make_report` finds; ``print`` shows it as Markdown."""

    counts: Mapping[str, Mapping[str, int]]
    """By split: clips of each class, hours, generators, speakers, sources, those with both."""
    generators: Mapping[str, int]
    trivial_eer: Mapping[str, float]
    """Of the regression on trivial statistics, fitted on train, by split."""
    source_eer: Mapping[str, float]
    """Of the share of humans in the source, by split."""
    shared: Sequence[Match]
    """Recordings that are in two splits."""
    problems: Mapping[str, int]
    """Clips that could not be had, by reason."""

    def __str__(self) -> str:
        names = [*dict.fromkeys(name for counts in self.counts.values() for name in counts)]
        table = [
            [name, *(f"{counts.get(name, 0):,}" for counts in self.counts.values())]
            for name in names
        ]
        for title, floor in (
            ("EER of trivial statistics", self.trivial_eer),
            ("EER of the source alone", self.source_eer),
        ):
            table.append([title, *(_percent(floor.get(split)) for split in self.counts)])
        parts = [render(["", *self.counts], table, "markdown")]
        parts.append(f"{len(self.shared)} recordings are in two splits.")
        parts += [f"- {match.first} and {match.second}" for match in self.shared[:20]]
        if self.problems:
            rows = [[why, str(n)] for why, n in Counter(self.problems).most_common()]
            parts.append(render(["could not be had", "clips"], rows, "markdown"))
        largest = [[name, str(n)] for name, n in Counter(self.generators).most_common(20)]
        parts.append(render(["generator", "clips"], largest, "markdown"))
        return "\n\n".join(parts) + "\n"


def make_report(
    tables: Sequence[tuple[Path, Sequence[Row]]], *, problems: Mapping[str, int] | None = None
) -> Report:
    """Read every clip of some corpora, and describe them as one.

    Args:
        tables: Folders and the rows of their tables.
        problems: Clips that could not be had, by reason.
    """
    splits: dict[str, list[tuple[Path, Row]]] = {}
    for folder, rows in tables:
        for row in rows:
            splits.setdefault(row.split, []).append((folder, row))
    order = sorted(splits, key=lambda split: (split != "train", split != "dev", split))
    counts, features, prints = {}, {}, {}
    for split in order:
        waveforms = track(splits[split], description=f"clips of {split}", unit="clip")
        described = [_describe(folder / row.path) for folder, row in waveforms]
        rows = [row for _, row in splits[split]]
        features[split] = np.array([item[0] for item in described])
        prints[split] = {
            row.utterance: item[1]
            for row, item in zip(rows, described, strict=True)
            # A copy or a voice without a word of the split's own recordings is found by its parent.
            if row.is_human or row.parent == "-"
        }
        counts[split] = _counts(rows, sum(item[2] for item in described))
    shared = [
        match
        for place, split in enumerate(order)
        for other in order[:place]
        for match in shared_recordings(prints[split], prints[other])
    ]
    labels = {split: np.array([row.is_human for _, row in splits[split]]) for split in order}
    every = [row for _, rows in tables for row in rows]
    return Report(
        counts=counts,
        generators=Counter(row.generator for row in every if not row.is_human),
        trivial_eer=_trivial_eer(features, labels),
        source_eer={s: source_floor([row for _, row in splits[s]]) for s in order},
        shared=shared,
        problems=problems or {},
    )


def source_floor(rows: Sequence[Row]) -> float:
    """Return the EER of a detector that knows the source of a clip and nothing else.

    A clip gets the share of humans in the half of its source that it is not in: 0.5 is what a
    corpus should give, 0 is one whose sources have one class each.
    """
    human = np.array([row.is_human for row in rows])
    _, codes = np.unique([row.source for row in rows], return_inverse=True)
    half = np.array([generator(0, "half", row.utterance).integers(2) for row in rows])
    shares = np.empty(len(rows))
    for part in (0, 1):
        other, own = half != part, half == part
        n_humans = np.bincount(codes[other], weights=human[other], minlength=codes.max() + 1)
        n_clips = np.bincount(codes[other], minlength=codes.max() + 1)
        # A source without clips in the other half has the share of the corpus.
        share = (n_humans + human.mean() * 1e-6) / (n_clips + 1e-6)
        shares[own] = share[codes[own]]
    return _eer(shares, human)


def _describe(path: Path) -> tuple[Array, np.ndarray, int]:
    waveform = soundfile.read(path, dtype="float64")[0]
    return statistics(waveform), fingerprint(waveform), len(waveform)


def _counts(rows: Sequence[Row], n_samples: int) -> dict[str, int]:
    groups = by_source(rows)
    return {
        "human clips": sum(row.is_human for row in rows),
        "synthetic clips": sum(not row.is_human for row in rows),
        "minutes": round(n_samples / SAMPLE_RATE / 60),
        "generators": len({row.generator for row in rows if not row.is_human}),
        "human speakers": len({row.speaker for row in rows if row.is_human}),
        "sources": len(groups),
        "sources with both classes": sum(both_classes(group) for group in groups.values()),
    }


def _trivial_eer(
    features: Mapping[str, Array], labels: Mapping[str, np.ndarray]
) -> dict[str, float]:
    if len(set(labels.get("train", ()))) < 2:
        return {}
    mean, spread = features["train"].mean(axis=0), features["train"].std(axis=0) + 1e-12
    weights, _ = fit_logistic((features["train"] - mean) / spread, labels["train"].astype(int))
    return {
        split: _eer((features[split] - mean) / spread @ weights, labels[split])
        for split in features
    }


def _eer(scores: Array, human: np.ndarray) -> float:
    if len(set(human.tolist())) < 2:
        return float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # above 50 % is no mistake here
        return metrics.eer(scores[human], scores[~human], ties="grouped").value


def _percent(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.1%}"
