"""Measure speaker verification with a countermeasure, on trials made from a corpus.

    python examples/sasv_evaluation.py CORPUS                          # in ASVspoof 5's layout
    python examples/sasv_evaluation.py CORPUS --markdown docs/sasv.md  # into a page

Calibrations and fusion are fitted on the dev part; the figures are those of the eval part.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm import BONAFIDE, SPOOF, Scorer, load_audio, metrics
from asvspoof_cm.calibration import (
    Calibration,
    LinearFusion,
    fit_calibration,
    fit_fusion,
    fuse_sasv,
)
from asvspoof_cm.checkpoint import DEFAULT_NAME
from asvspoof_cm.data import AudioFolder, Protocol, read_protocol
from asvspoof_cm.labels import ABSENT, SASV_CLASSES
from asvspoof_cm.metrics import ASVSPOOF5_SASV, Interval, SasvCosts, read_scores
from sasv_pipeline import Encoder
from speaker_encoder import EcapaEncoder, mean_voice, prepare_speech

FloatArray: TypeAlias = NDArray[np.float64]
MARKERS = ("<!-- figures: begin -->\n", "<!-- figures: end -->\n")
_COLUMNS = ("claimed", "utterance", "kind", "imitated", "attack", "asv", "cm")


@dataclass(frozen=True, eq=False, kw_only=True)
class Trials:
    """Scored claims of identity, one row each: arrays of shape (n_trials,).

    Attributes:
        claimed: The speaker that is claimed.
        utterance: What is heard.
        kind: "target", "nontarget" or "spoof".
        imitated: Whether a spoof imitates the very speaker that it claims to be.
        attack: The attack of a spoof, "-" elsewhere.
        asv: Cosines of the speaker encoder.
        cm: Scores of the countermeasure.
    """

    claimed: NDArray[np.str_]
    utterance: NDArray[np.str_]
    kind: NDArray[np.str_]
    imitated: NDArray[np.bool_]
    attack: NDArray[np.str_]
    asv: FloatArray
    cm: FloatArray

    def __len__(self) -> int:
        return len(self.kind)

    def split(self, scores: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the scores of target, nontarget and spoofed trials."""
        target, nontarget, spoof = (scores[self.kind == kind] for kind in SASV_CLASSES)
        return target, nontarget, spoof

    def select(self, rows: NDArray[Any]) -> Trials:
        """Return some trials, in this order; one may come several times."""
        return Trials(**{name: getattr(self, name)[rows] for name in _COLUMNS})

    def imitations(self) -> Trials:
        """Return the trials without spoofs that don't imitate whom they claim to be."""
        return self.select(np.flatnonzero((self.kind != "spoof") | self.imitated))

    def counts(self) -> dict[str, int]:
        """Return the number of trials of each kind."""
        return {kind: int((self.kind == kind).sum()) for kind in SASV_CLASSES}

    def write(self, path: Path) -> None:
        """Write a TSV, one line per trial."""
        rows = zip(*(getattr(self, name) for name in _COLUMNS), strict=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(_COLUMNS)
            writer.writerows([*row[:5], f"{row[5]:.7f}", f"{row[6]:.7f}"] for row in rows)

    @classmethod
    def read(cls, path: str | Path) -> Trials:
        """Read what `write` wrote."""
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        columns = {name: np.array([row[name] for row in rows]) for name in _COLUMNS}
        columns["imitated"] = columns["imitated"] == "True"
        return cls(**{**columns, **{name: columns[name].astype(float) for name in ("asv", "cm")}})


def enrolments(corpus: Protocol, rng: np.random.Generator, n_enrol: int = 3) -> dict[str, Any]:
    """Return `n_enrol` bona fide rows of each speaker that has at least two more than that."""
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
    return enrolled


def claims(
    corpus: Protocol,
    enrolled: Mapping[str, list[int]],
    rng: np.random.Generator,
    n_nontarget: int = 3,
) -> list[tuple[str, int, str, bool]]:
    """Return claims: speaker, row of the corpus, kind, and whether a spoof imitates the speaker.

    docs/sasv.md says who claims to be whom.
    """
    gender = {speaker: str(corpus.gender[rows[0]]) for speaker, rows in enrolled.items()}
    taken = {row for rows in enrolled.values() for row in rows}
    found: list[tuple[str, int, str, bool]] = []
    for row in range(len(corpus)):
        speaker = str(corpus.speaker[row])
        if row in taken or corpus.label[row] not in (BONAFIDE, SPOOF):
            continue
        others = [name for name in enrolled if name != speaker]
        same = [name for name in others if gender[name] == corpus.gender[row] != ABSENT]
        if corpus.label[row] == BONAFIDE:
            if speaker in enrolled:
                found.append((speaker, row, "target", False))
            chosen = rng.permutation(same or others)[:n_nontarget].tolist()
            found += [(name, row, "nontarget", False) for name in chosen]
        elif speaker in enrolled:
            found.append((speaker, row, "spoof", True))
        else:
            found.append((str(rng.choice(same or others)), row, "spoof", False))
    return found


def score_trials(
    corpus: Protocol, audio_dir: Path, encoder: Encoder, scorer: Scorer, table: Path, seed: int = 0
) -> Trials:
    """Make the trials of a protocol, and score every utterance once with each system.

    The countermeasure's scores go to `table`, where a call that was killed goes on.
    """
    rng = np.random.default_rng(seed)
    enrolled = enrolments(corpus, rng)
    made = claims(corpus, enrolled, rng)
    done = scorer.score_protocol(corpus, audio_dir, table, progress=True)
    if done.n_failed:
        raise ValueError(f"{done.n_failed} clips can't be scored; {table}.errors.tsv has them.")
    scored = read_scores(table)
    cm = dict(zip(scored.filename, np.asarray(scored.cm), strict=True))
    files = AudioFolder(corpus, audio_dir)
    rows = sorted({row for _, row, _, _ in made} | {r for own in enrolled.values() for r in own})
    vectors = {}
    for row in rows:
        waveform = load_audio(files.path(row))
        speech = prepare_speech(waveform)
        vectors[row] = encoder.embed(speech if len(speech) else waveform)
    voices = {name: mean_voice([vectors[row] for row in own]) for name, own in enrolled.items()}
    at = np.array([row for _, row, _, _ in made])
    return Trials(
        claimed=np.array([name for name, *_ in made]),
        utterance=corpus.utterance[at],
        kind=np.array([kind for _, _, kind, _ in made]),
        imitated=np.array([imitated for *_, imitated in made]),
        attack=np.where(corpus.label[at] == SPOOF, corpus.attack[at], ABSENT),
        asv=np.array([voices[name] @ vectors[row] for name, row, *_ in made], dtype=float),
        cm=np.array([cm[name] for name in corpus.utterance[at].tolist()], dtype=float),
    )


@dataclass(frozen=True, kw_only=True)
class Calibrations:
    """What is fitted on the calibration part.

    Attributes:
        asv: From cosine to the LLR of target against nontarget.
        cm: From the countermeasure's score to the LLR of bona fide against spoof.
        fusion: From both raw scores to the LLR of target against the rest.
        costs: What all three were fitted for.
    """

    asv: Calibration
    cm: Calibration
    fusion: LinearFusion
    costs: SasvCosts

    def systems(self, trials: Trials) -> dict[str, FloatArray]:
        """Return the LLR of every trial by system: ASV alone, behind a gate, and fused with the CM.

        ASV alone is moved by a constant, so that `SasvCosts.threshold` is also its own Bayes
        threshold, which knows of nontargets only. The gate rejects what lies below the Bayes
        threshold of the CM, which knows of spoofs only, and leaves the rest to ASV.
        """
        costs = self.costs
        asv, cm = self.asv.apply(trials.asv), self.cm.apply(trials.cm)
        alone = asv - np.log1p(-costs.rho)
        passes = cm >= np.log(costs.c_fa_spoof * costs.p_spoof / (costs.c_miss * costs.p_target))
        return {
            "ASV alone": alone,
            "ASV behind the gate": np.where(passes, alone, alone.min() - 100.0),
            "`fuse_sasv`": fuse_sasv(asv, cm, costs),
            "`fit_fusion`": self.fusion.apply(np.stack([trials.asv, trials.cm], axis=1)),
        }


def fit(trials: Trials, costs: SasvCosts = ASVSPOOF5_SASV) -> Calibrations:
    """Fit both calibrations and the linear fusion, each for the prior that the costs amount to."""
    is_asv_trial = trials.kind != "spoof"
    # One row per utterance: bona fide ones stand in several trials.
    _, once = np.unique(trials.utterance, return_index=True)
    miss = costs.c_miss * costs.p_target
    nontarget, spoof = costs.c_fa_nontarget * costs.p_nontarget, costs.c_fa_spoof * costs.p_spoof
    return Calibrations(
        asv=fit_calibration(
            trials.asv[is_asv_trial],
            np.where(trials.kind[is_asv_trial] == "target", BONAFIDE, SPOOF),
            prior=nontarget / (miss + nontarget),
        ),
        cm=fit_calibration(
            trials.cm[once],
            np.where(is_asv_trial[once], BONAFIDE, SPOOF),
            prior=spoof / (miss + spoof),
        ),
        fusion=fit_fusion(np.stack([trials.asv, trials.cm], axis=1), trials.kind, costs),
        costs=costs,
    )


@dataclass(frozen=True, kw_only=True)
class SystemFigures:
    """One system on the evaluation part.

    Attributes:
        min_a_dcf: The lowest a-DCF of any threshold, and its interval over claimed speakers.
        gain: How far that lies below ASV alone, on the same trials; None for ASV alone.
        accepted: The share of accepted trials of each kind at the Bayes threshold.
        act_a_dcf: The a-DCF there.
    """

    min_a_dcf: Interval
    gain: Interval | None
    accepted: Mapping[str, float]
    act_a_dcf: float


def evaluate(
    fitted: Calibrations, trials: Trials, *, n_bootstrap: int = 1000, seed: int = 0
) -> tuple[dict[str, SystemFigures], dict[str, Interval]]:
    """Evaluate on trials that nothing was fitted on; intervals draw whole claimed speakers.

    Returns:
        The figures of each system, and those of ASV and countermeasure by themselves.
    """
    costs, llrs = fitted.costs, fitted.systems(trials)
    is_target = trials.kind == "target"
    labels = np.where(is_target, BONAFIDE, SPOOF)
    rows = np.arange(len(trials), dtype=np.float64)
    options: dict[str, Any] = {"n": n_bootstrap, "seed": seed}

    # The bootstrap knows two classes of scores. Here the scores are row numbers, and the rows tell
    # the three classes apart.
    def interval(value: Callable[[NDArray[np.intp]], float]) -> Interval:
        clusters = trials.claimed[is_target], trials.claimed[~is_target]
        pair = rows[is_target], rows[~is_target]
        return metrics.bootstrap(_of_rows(value), *pair, clusters=clusters, **options)

    def min_a_dcf(llr: FloatArray, at: NDArray[np.intp]) -> float:
        part = trials.select(at % len(trials))
        return metrics.a_dcf(*part.split(llr[at]), costs).value

    def gain(llr: FloatArray) -> Interval:
        both = np.concatenate([llrs["ASV alone"], llr])
        value = _of_rows(lambda at: min_a_dcf(both, at))
        pair = rows, rows + len(trials)
        return metrics.compare(*pair, labels, value, clusters=trials.claimed, **options)

    systems = {}
    for name, llr in llrs.items():
        passed = llr >= costs.threshold
        accepted = {kind: float(passed[trials.kind == kind].mean()) for kind in SASV_CLASSES}
        least = interval(lambda at, llr=llr: min_a_dcf(llr, at))
        below = None if name == "ASV alone" else gain(llr)
        systems[name] = SystemFigures(
            min_a_dcf=least, gain=below, accepted=accepted, act_a_dcf=act_a_dcf(accepted, costs)
        )

    def of_both(at: NDArray[np.intp]) -> tuple[Any, Any]:
        part = trials.select(at)
        return part.split(part.asv), _two_classes(part)

    def min_t_dcf(at: NDArray[np.intp]) -> float:
        asv, cm = of_both(at)
        return metrics.min_t_dcf(*cm, asv=asv, costs=costs).value

    _, once = np.unique(trials.utterance, return_index=True)
    return systems, {
        "ASV EER": interval(lambda at: metrics.eer(*of_both(at)[0][:2]).value),
        "CM EER": metrics.bootstrap("eer", *_two_classes(trials.select(once)), **options),
        "min t-DCF": interval(min_t_dcf),
        "t-EER": interval(lambda at: metrics.t_eer(*of_both(at)).value),
    }


def _of_rows(value: Callable[[NDArray[np.intp]], float]) -> Callable[..., float]:
    return lambda target, others: float(value(np.concatenate([target, others]).astype(np.intp)))


def _two_classes(trials: Trials) -> tuple[FloatArray, FloatArray]:
    """Return the countermeasure's scores of bona fide and of spoofed trials."""
    is_spoof = trials.kind == "spoof"
    return trials.cm[~is_spoof], trials.cm[is_spoof]


def act_a_dcf(accepted: Mapping[str, float], costs: SasvCosts = ASVSPOOF5_SASV) -> float:
    """Return the normalised a-DCF of the shares that are accepted; `metrics.a_dcf` is its minimum.

    1 is what rejecting or accepting everyone costs, whichever is cheaper.
    """
    miss = costs.c_miss * costs.p_target
    nontarget, spoof = costs.c_fa_nontarget * costs.p_nontarget, costs.c_fa_spoof * costs.p_spoof
    cost = miss * (1 - accepted["target"])
    cost += nontarget * accepted["nontarget"] + spoof * accepted["spoof"]
    return cost / min(miss, nontarget + spoof)


def markdown(title: str, fitted: Calibrations, trials: Trials, **options: Any) -> str:
    """Return the tables of the documentation for some trials."""
    systems, alone = evaluate(fitted, trials, **options)
    counts = ", ".join(f"{n:,} {kind}" for kind, n in trials.counts().items())
    n_speakers, n_imitated = len(set(trials.claimed.tolist())), int(trials.imitated.sum())
    trials_line = f"{n_speakers} enrolled speakers; trials: {counts}, of which {n_imitated} imitate"
    header = "system | min a-DCF | below ASV alone by | actual a-DCF | targets rejected"
    lines = [
        f"**{title}.** {trials_line} whom they claim to be.",
        "",
        f"| {header} | nontargets accepted | spoofs accepted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, of in systems.items():
        gain = "–" if of.gain is None else _text(of.gain)
        shares = (1 - of.accepted["target"], of.accepted["nontarget"], of.accepted["spoof"])
        cells = [name, _text(of.min_a_dcf), gain, f"{of.act_a_dcf:.3f}"]
        lines.append(f"| {' | '.join([*cells, *(f'{100 * x:.1f} %' for x in shares)])} |")
    figures = (
        f"{name} {_text(value, ' %' * name.endswith('EER'))}" for name, value in alone.items()
    )
    return "\n".join([*lines, "", ", ".join(figures) + "."]) + "\n"


def _text(interval: Interval, unit: str = "") -> str:
    scale, digits = (100, 1) if unit else (1, 3)
    value, low, high = (scale * x for x in (interval.value, interval.low, interval.high))
    text = f"{value:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"
    return text.replace("-", "−")


def write_figures(text: str, page: Path) -> None:
    """Put `text` between the markers of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        raise ValueError(f"{page} must have the lines {MARKERS[0]!r} and {MARKERS[1]!r}.")
    page.write_text(before + begin + text + end + after, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Score the trials of a corpus, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path, help="folder in the layout of ASVspoof 5")
    parser.add_argument("--checkpoint", help="another than the shipped one")
    parser.add_argument("--scores", type=Path, default=Path("build/sasv"), help="keep scores here")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into a page")
    parser.add_argument("--bootstrap", type=int, default=1000, help="replicates (1000)")
    args = parser.parse_args(arguments)
    own = args.checkpoint
    scorer = Scorer.from_checkpoint(own) if own else Scorer.from_pretrained()
    args.scores.mkdir(parents=True, exist_ok=True)
    encoder, scored = EcapaEncoder(), {}
    weights = str(scorer.settings()["sha256"])[:12]
    for part in ("dev", "eval"):
        protocol = read_protocol(args.corpus / f"ASVspoof5.{part}.track_1.tsv")
        table = args.scores / f"cm.{part}.{weights}.tsv"
        scored[part] = score_trials(protocol, args.corpus, encoder, scorer, table)
        scored[part].write(args.scores / f"ecapa.{part}.tsv")
    fitted, test = fit(scored["dev"]), scored["eval"]
    sets = {"Imitations only": test.imitations(), "All spoofs": test}
    tables = [markdown(title, fitted, of, n_bootstrap=args.bootstrap) for title, of in sets.items()]
    text = f"Countermeasure: {args.checkpoint or DEFAULT_NAME} (weights {weights}).\n\n"
    text += "\n".join(tables)
    print(text)
    if args.markdown:
        write_figures(text, args.markdown)


if __name__ == "__main__":
    main()
