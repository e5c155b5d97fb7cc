"""Trials of speaker verification under attack: made from a corpus, and scored."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, as_tensor

from asvspoof_cm import BONAFIDE, SPOOF, Scorer
from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.data import Protocol as Corpus, open_audio
from asvspoof_cm.labels import ABSENT, SASV_CLASSES
from asvspoof_cm.metrics import read_scores
from speaker_encoder import mean_voice, prepare_speech

FloatArray: TypeAlias = NDArray[np.float64]
_COLUMNS = ("claimed", "utterance", "kind", "imitated", "attack")


class Encoder(Protocol):
    """What is needed of a speaker encoder."""

    calibration: Calibration
    """From cosine to the LLR of target against nontarget, for want of data of your own."""

    def embed(self, speech: Tensor) -> NDArray[np.float32]:
        """Return the unit vector (d,) of prepared 16 kHz speech (time,)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trials:
    """Claims of identity, one row each: shape (n_trials,).

    Attributes:
        enrolment: The utterances of each enrolled speaker.
        claimed: The speaker that is claimed.
        utterance: What is heard.
        kind: "target", "nontarget" or "spoof".
        imitated: Whether a spoof imitates the very speaker that it claims to be.
        attack: The attack of a spoof, "-" elsewhere.
    """

    enrolment: Mapping[str, Sequence[str]]
    claimed: NDArray[np.str_]
    utterance: NDArray[np.str_]
    kind: NDArray[np.str_]
    imitated: NDArray[np.bool_]
    attack: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.kind)

    def split(self, scores: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the scores of target, nontarget and spoofed trials."""
        values = np.asarray(scores, dtype=np.float64)
        target, nontarget, spoof = (values[self.kind == kind] for kind in SASV_CLASSES)
        return target, nontarget, spoof

    def select(self, rows: NDArray[np.intp]) -> Trials:
        """Return some trials, in this order; one may come several times."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Trials(enrolment=self.enrolment, **columns)

    def counts(self) -> dict[str, int]:
        """Return the number of trials of each kind."""
        return {kind: int((self.kind == kind).sum()) for kind in SASV_CLASSES}


def make_trials(corpus: Corpus, *, n_enrol: int = 3, n_nontarget: int = 4, seed: int = 0) -> Trials:
    """Make trials of one part of a corpus.

    Speakers with at least two utterances more than `n_enrol` are enrolled, with `n_enrol` of them,
    which are in no trial. Every other bona fide utterance claims its own speaker, if enrolled, and
    `n_nontarget` others. A spoof claims the speaker that the protocol gives it where that one is
    enrolled, the voice that it was copied or converted from; else, as a voice of its own, any one
    speaker. Others are of the same gender where the protocol knows it and such a one is enrolled.
    """
    rng = np.random.default_rng(seed)
    of_speaker: dict[str, list[int]] = {}
    for row in np.flatnonzero((corpus.label == BONAFIDE) & (corpus.speaker != ABSENT)).tolist():
        of_speaker.setdefault(str(corpus.speaker[row]), []).append(row)
    enrolled = {
        speaker: sorted(rng.choice(rows, n_enrol, replace=False).tolist())
        for speaker, rows in of_speaker.items()
        if len(rows) >= n_enrol + 2
    }
    if len(enrolled) < 2:
        raise ValueError(
            f"{corpus!r} must have at least two speakers with {n_enrol + 2} bona fide utterances "
            f"each; {len(enrolled)} have as many."
        )
    gender = {speaker: str(corpus.gender[rows[0]]) for speaker, rows in enrolled.items()}
    taken = {row for rows in enrolled.values() for row in rows}
    trials: list[tuple[str, int, str, bool]] = []
    for row in range(len(corpus)):
        speaker = str(corpus.speaker[row])
        if row in taken or corpus.label[row] not in (BONAFIDE, SPOOF):
            continue
        others = [name for name in enrolled if name != speaker]
        same = [name for name in others if gender[name] == corpus.gender[row] != ABSENT]
        if corpus.label[row] == BONAFIDE:
            if speaker in enrolled:
                trials.append((speaker, row, "target", False))
            chosen = rng.permutation(same or others)[:n_nontarget].tolist()
            trials += [(name, row, "nontarget", False) for name in chosen]
        elif speaker in enrolled:
            trials.append((speaker, row, "spoof", True))
        else:
            trials.append((str(rng.choice(same or others)), row, "spoof", False))
    rows = np.array([row for _, row, _, _ in trials])
    return Trials(
        enrolment={name: corpus.utterance[rows].tolist() for name, rows in enrolled.items()},
        claimed=np.array([name for name, _, _, _ in trials]),
        utterance=corpus.utterance[rows],
        kind=np.array([kind for _, _, kind, _ in trials]),
        imitated=np.array([imitated for _, _, _, imitated in trials]),
        attack=np.where(corpus.label[rows] == SPOOF, corpus.attack[rows], ABSENT),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialScores:
    """The raw scores of both systems, one per trial: cosines and countermeasure scores."""

    trials: Trials
    asv: FloatArray
    cm: FloatArray

    def without_other_voices(self) -> TrialScores:
        """Return the trials without spoofs that don't imitate whom they claim to be."""
        keep = np.flatnonzero((self.trials.kind != "spoof") | self.trials.imitated)
        return TrialScores(trials=self.trials.select(keep), asv=self.asv[keep], cm=self.cm[keep])

    def write(self, path: str | Path) -> None:
        """Write a TSV, one line per trial."""
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write("\t".join([*_COLUMNS, "asv", "cm"]) + "\n")
            columns = [getattr(self.trials, name) for name in _COLUMNS]
            for *cells, asv, cm in zip(*columns, self.asv, self.cm, strict=True):
                line = "\t".join(map(str, cells))
                file.write(f"{line}\t{asv:.7f}\t{cm:.7f}\n")

    @classmethod
    def read(cls, path: str | Path) -> TrialScores:
        """Read what `write` wrote; the enrolment isn't in it."""
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        columns = {name: np.array([row[name] for row in rows]) for name in _COLUMNS}
        columns["imitated"] = columns["imitated"] == "True"
        asv, cm = (np.array([float(row[name]) for row in rows]) for name in ("asv", "cm"))
        return cls(trials=Trials(enrolment={}, **columns), asv=asv, cm=cm)


def score_trials(
    trials: Trials,
    corpus: Corpus,
    audio_dir: str | Path,
    encoder: Encoder,
    scorer: Scorer,
    *,
    work: Path,
    progress: bool = True,
) -> TrialScores:
    """Score every utterance once with each system, and every trial from these.

    What is done is kept in the folder `work`: a call that was killed goes on, and the voices serve
    for another scorer.
    """
    work.mkdir(parents=True, exist_ok=True)
    part = "all" if corpus.path is None else corpus.path.stem
    cache = work / f"{part}.{type(encoder).__name__}.npz"
    vectors = embed_corpus(corpus, audio_dir, encoder, cache, progress=progress)
    weights = str(scorer.settings()["sha256"])[:12]
    output = work / f"{part}.{weights}.{scorer.input.n_crops}.tsv"
    done = scorer.score_protocol(corpus, audio_dir, output, progress=progress)
    if done.n_failed:
        raise ValueError(f"{done.n_failed} clips can't be scored; {output}.errors.tsv has them.")
    scored = read_scores(output)
    scores = dict(zip(scored.filename, np.asarray(scored.cm), strict=True))
    voices = {
        speaker: mean_voice([vectors[name] for name in enrolment])
        for speaker, enrolment in trials.enrolment.items()
    }
    pairs = zip(trials.claimed, trials.utterance, strict=True)
    return TrialScores(
        trials=trials,
        asv=np.array([voices[speaker] @ vectors[name] for speaker, name in pairs], dtype=float),
        cm=np.array([scores[name] for name in trials.utterance], dtype=float),
    )


def embed_corpus(
    corpus: Corpus,
    audio_dir: str | Path,
    encoder: Encoder,
    cache: Path,
    *,
    save_every: int = 100,
    progress: bool = True,
) -> dict[str, NDArray[np.float32]]:
    """Return the voice of each utterance by its name; those in the file `cache` are not computed.

    Remove the file after a change of encoder or audio.
    """
    vectors: dict[str, NDArray[np.float32]] = {}
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            vectors = dict(zip(stored["name"].tolist(), stored["vector"], strict=True))
    source = open_audio(corpus, audio_dir)
    todo = [row for row, name in enumerate(corpus.utterance.tolist()) if name not in vectors]
    shown = track(todo, total=len(todo), description="voices", unit="clip", enabled=progress)
    for n_done, row in enumerate(shown, start=1):
        with source.open(row) as audio:
            waveform = as_tensor(audio.read())
        speech = prepare_speech(waveform)
        name = str(corpus.utterance[row])
        vectors[name] = encoder.embed(speech if len(speech) else waveform)
        if n_done % save_every == 0 or n_done == len(todo):
            with atomic_path(cache) as temporary, temporary.open("wb") as file:
                np.savez(file, name=np.array([*vectors]), vector=np.stack([*vectors.values()]))
    return vectors
