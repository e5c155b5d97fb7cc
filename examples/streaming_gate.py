"""A gate that decides while the caller speaks, and how soon it can.

    python examples/streaming_gate.py call.flac             # let a recording speak to the gate
    python examples/streaming_gate.py --corpus ASVspoof5    # time-to-decision figures of a corpus
    python examples/streaming_gate.py --corpus ASVspoof5 --markdown docs/sasv.md

The gate scores what it has heard after 1, 2, 3 and 5 seconds, counted from the first sound. It
decides as soon as the evidence is clear by a margin, and at the last time in any case.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from asvspoof_cm import Scorer, load_audio
from asvspoof_cm._util import track
from asvspoof_cm.audio import as_mono
from asvspoof_cm.calibration import Calibration, fit_calibration
from asvspoof_cm.checkpoint import DEFAULT_NAME
from asvspoof_cm.data import Protocol, open_audio, read_protocol
from asvspoof_cm.labels import BONAFIDE, SAMPLE_RATE, SPOOF
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts, eer
from sasv_pipeline import write_figures

FloatArray: TypeAlias = NDArray[np.float64]
Reason: TypeAlias = Literal["clear", "time is up", "caller stopped", "no speech"]

AT_S = (1.0, 2.0, 3.0, 5.0)
MARGIN = 2.0
ONSET = 0.01
MARKERS = ("<!-- gate: begin -->\n", "<!-- gate: end -->\n")


@dataclass(frozen=True, kw_only=True)
class GateDecision:
    """What the gate decided.

    Attributes:
        accept: Whether a person speaks.
        reason: "clear" where the evidence passed the margin, "time is up" at the last time.
        heard_s: How much audio it had heard, from the first sound on.
        llr: Of bona fide against spoofed speech, at that time; None without speech.
    """

    accept: bool
    reason: Reason
    heard_s: float
    llr: float | None = None


class StreamingGate:
    """Decides on one caller, chunk by chunk; several gates may share a scorer.

    Args:
        scorer: The countermeasure, calibrated unless `calibrations` are given.
        sample_rate: The sampling rate of the chunks, in Hz.
        calibrations: From the scorer's score to an LLR, by time; short speech needs another than
            long speech. None takes the scorer's own at every time of `AT_S`.
        costs: What errors cost, which sets the threshold.
        margin: How far beyond the threshold an LLR must lie to decide before the last time.
        onset: The level at which the caller begins; quieter samples before it don't count.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        sample_rate: int = SAMPLE_RATE,
        calibrations: Mapping[float, Calibration] | None = None,
        costs: DetectionCosts = ASVSPOOF5,
        margin: float = MARGIN,
        onset: float = ONSET,
    ) -> None:
        if calibrations is None and scorer.calibration is None:
            raise ValueError(
                "`calibrations` must be given for a scorer without a calibration; got None. "
                "Fit them with fit_times."
            )
        if margin < 0:
            raise ValueError(f"`margin` must not be negative; got {margin}.")
        self.scorer = scorer
        self.sample_rate = sample_rate
        self.calibrations = calibrations
        self.costs = costs
        self.margin = margin
        self.onset = onset
        self.decision: GateDecision | None = None
        self._at_s = sorted(AT_S if calibrations is None else calibrations)
        self._heard: Tensor = torch.empty(0)
        self._next = 0

    def push(self, chunk: ArrayLike | Tensor) -> GateDecision | None:
        """Take the next chunk, of any size; return the decision once there is one."""
        chunk = chunk if isinstance(chunk, Tensor) else np.asarray(chunk)
        samples = torch.from_numpy(as_mono(chunk, allow_empty=True))
        if not len(self._heard):
            loud = (samples.abs() >= self.onset).nonzero()
            samples = samples[int(loud[0]) :] if len(loud) else samples[:0]
        if self.decision is not None or not len(samples):
            return self.decision
        self._heard = torch.cat([self._heard, samples])
        while self.decision is None and self._n_next() <= len(self._heard):
            self._consider(self._at_s[self._next], is_last=self._next == len(self._at_s) - 1)
            self._next += 1
        return self.decision

    def stop(self) -> GateDecision:
        """Return the decision, made on what was heard where the caller stopped before it."""
        if self.decision is None:
            heard_s = len(self._heard) / self.sample_rate
            if heard_s == 0:
                self.decision = GateDecision(accept=False, reason="no speech", heard_s=0.0)
            else:
                llr = self._llr(self._heard, self._at_s[max(0, self._next - 1)])
                accept = llr >= self.costs.threshold
                self.decision = GateDecision(
                    accept=accept, reason="caller stopped", heard_s=heard_s, llr=llr
                )
        return self.decision

    def _n_next(self) -> int:
        return round(self._at_s[self._next] * self.sample_rate)

    def _consider(self, at_s: float, *, is_last: bool) -> None:
        llr = self._llr(self._heard[: self._n_next()], at_s)
        if is_last or is_clear(llr, self.costs, self.margin):
            self.decision = GateDecision(
                accept=llr >= self.costs.threshold,
                reason="time is up" if is_last else "clear",
                heard_s=at_s,
                llr=llr,
            )

    def _llr(self, samples: Tensor, at_s: float) -> float:
        result = self.scorer.score(samples, self.sample_rate, detail=True)
        if self.calibrations is not None:
            return float(self.calibrations[at_s].apply(result.score))
        return float(np.asarray(result.llr))


def is_clear(llr: ArrayLike, costs: DetectionCosts, margin: float) -> NDArray[np.bool_]:
    """Return whether evidence lies beyond the threshold by the margin, on either side."""
    return np.asarray(np.abs(np.asarray(llr) - costs.threshold) >= margin)


# How soon: the same rule on a corpus ----------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class PrefixScores:
    """Scores of the beginnings of utterances.

    Attributes:
        at_s: The times, shape (n_times,).
        score: The score after each time, shape (n_utterances, n_times). An utterance that ended
            before has the score of all of it.
        duration_s: How long each utterance is from its first sound on, shape (n_utterances,).
        label: 0 spoof, 1 bonafide, shape (n_utterances,).
    """

    at_s: FloatArray
    score: FloatArray
    duration_s: FloatArray
    label: NDArray[np.int64]


def score_prefixes(
    protocol: Protocol,
    folder: Path,
    scorer: Scorer,
    at_s: Sequence[float] = AT_S,
    *,
    onset: float = ONSET,
) -> PrefixScores:
    """Score what a gate would have heard of every utterance after each time."""
    scores, durations = [], []
    source = open_audio(protocol, folder)
    for k in track(range(len(protocol)), description="prefixes", unit="utt"):
        with source.open(k) as file:
            audio = torch.from_numpy(file.read())
        loud = (audio.abs() >= onset).nonzero()
        heard = audio[int(loud[0]) :] if len(loud) else audio
        ends = [min(len(heard), round(time * SAMPLE_RATE)) for time in at_s]
        distinct = sorted(set(ends))
        found = scorer.score_batch([heard[:end] for end in distinct])
        of_end = dict(zip(distinct, found.tolist(), strict=True))
        scores.append([of_end[end] for end in ends])
        durations.append(len(heard) / SAMPLE_RATE)
    return PrefixScores(
        at_s=np.asarray(at_s, dtype=np.float64),
        score=np.array(scores, dtype=np.float64),
        duration_s=np.array(durations),
        label=np.asarray(protocol.label),
    )


def fit_times(scores: PrefixScores, costs: DetectionCosts = ASVSPOOF5) -> dict[float, Calibration]:
    """Fit a calibration for each time, for the prior that the costs amount to."""
    prior = 1.0 / (1.0 + costs.beta)
    columns = zip(scores.at_s.tolist(), scores.score.T, strict=True)
    return {time: fit_calibration(column, scores.label, prior) for time, column in columns}


@dataclass(frozen=True, kw_only=True)
class TimeToDecision:
    """The curve of one part of a corpus, a value per time.

    Attributes:
        at_s: The times.
        eer: EER of what is known by then, over all utterances.
        lasting: The share of utterances that last as long.
        decided: The share that the gate has decided by then.
        rejected: Of the bona fide utterances, the share that is rejected by then.
        accepted: Of the spoofs, the share that is accepted by then.
        mean_s: The mean time of a decision.
    """

    at_s: tuple[float, ...]
    eer: tuple[float, ...]
    lasting: tuple[float, ...]
    decided: tuple[float, ...]
    rejected: tuple[float, ...]
    accepted: tuple[float, ...]
    mean_s: float

    def markdown(self) -> str:
        """Return the curve as a table."""
        titles = ("after", "EER (%)", "still speaking (%)", "decided (%)")
        titles += ("bona fide rejected (%)", "spoofs accepted (%)")
        lines = [f"| {' | '.join(titles)} |", "| " + " | ".join(["---"] * len(titles)) + " |"]
        columns = (self.eer, self.lasting, self.decided, self.rejected, self.accepted)
        for time, *values in zip(self.at_s, *columns, strict=True):
            lines.append(f"| {time:g} s | " + " | ".join(f"{100 * v:.1f}" for v in values) + " |")
        return "\n".join(lines) + f"\n\nMean time of a decision: {self.mean_s:.2f} s.\n"


def time_to_decision(
    scores: PrefixScores,
    calibrations: Mapping[float, Calibration],
    *,
    costs: DetectionCosts = ASVSPOOF5,
    margin: float = MARGIN,
) -> TimeToDecision:
    """Replay the gate on scored beginnings, by the rule of `StreamingGate`."""
    times = scores.at_s.tolist()
    llr = np.stack(
        [
            calibrations[time].apply(column)
            for time, column in zip(times, scores.score.T, strict=True)
        ],
        axis=1,
    )
    clear = is_clear(llr, costs, margin)
    clear[:, -1] = True
    # A caller who stops is decided on at once, with what was heard.
    clear |= scores.duration_s[:, None] <= scores.at_s
    first = clear.argmax(axis=1)
    accept = llr[np.arange(len(llr)), first] >= costs.threshold
    is_bonafide, is_spoof = scores.label == BONAFIDE, scores.label == SPOOF
    by = [first <= k for k in range(len(times))]
    return TimeToDecision(
        at_s=tuple(times),
        eer=tuple(
            float(eer(column[is_bonafide], column[is_spoof]).value) for column in scores.score.T
        ),
        lasting=tuple(float((scores.duration_s >= time).mean()) for time in times),
        decided=tuple(float(done.mean()) for done in by),
        rejected=tuple(float((done & ~accept)[is_bonafide].mean()) for done in by),
        accepted=tuple(float((done & accept)[is_spoof].mean()) for done in by),
        mean_s=float(np.minimum(scores.at_s[first], scores.duration_s).mean()),
    )


def listen(path: Path, scorer: Scorer, *, chunk_s: float = 0.1) -> GateDecision:
    """Let a recording speak to a gate, a tenth of a second at a time."""
    gate = StreamingGate(scorer)
    for chunk in load_audio(path).split(round(chunk_s * SAMPLE_RATE)):
        if (decision := gate.push(chunk)) is not None:
            return decision
    return gate.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Listen to recordings, or measure on a corpus."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, help="recordings to listen to")
    parser.add_argument("--corpus", type=Path, help="folder in the layout of ASVspoof 5")
    parser.add_argument("--checkpoint", help="a checkpoint of this library (the shipped one)")
    parser.add_argument("--margin", type=float, default=MARGIN, help=f"see the gate ({MARGIN:g})")
    parser.add_argument("--limit", type=int, metavar="N", help="N utterances of a part, at random")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into a page")
    args = parser.parse_args(arguments)
    scorer = (
        Scorer.from_checkpoint(args.checkpoint) if args.checkpoint else Scorer.from_pretrained()
    )
    for path in args.files:
        decision = listen(path, scorer)
        word = "accept" if decision.accept else "reject"
        print(f"{path}: {word} after {decision.heard_s:.1f} s, {decision.reason}")
    if args.corpus is None:
        return
    parts = {}
    for part in ("dev", "eval"):
        protocol = read_protocol(args.corpus / f"ASVspoof5.{part}.track_1.tsv")
        if args.limit is not None and args.limit < len(protocol):
            drawn = np.random.default_rng(0).permutation(len(protocol))[: args.limit]
            protocol = protocol.select(np.sort(drawn))
        parts[part] = score_prefixes(protocol, args.corpus, scorer)
    curve = time_to_decision(parts["eval"], fit_times(parts["dev"]), margin=args.margin)
    counts = " and ".join(f"{len(scores.label)} of {part}" for part, scores in parts.items())
    weights = str(scorer.settings()["sha256"])[:12]
    text = f"Countermeasure: {args.checkpoint or DEFAULT_NAME} (weights {weights}); margin "
    text += (
        f"{args.margin:g}; calibrated on dev, measured on eval ({counts}).\n\n{curve.markdown()}"
    )
    print(text)
    if args.markdown:
        write_figures(text, args.markdown, MARKERS)


if __name__ == "__main__":
    main()
