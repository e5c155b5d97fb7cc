"""A gate that decides while the caller speaks, and how soon it can.

    python examples/streaming_gate.py call.flac    # a recording speaks to the gate

The gate scores what it has heard after 1, 2, 3 and 5 seconds, counted from the first sound. It
decides as soon as the evidence lies beyond the threshold by a margin, and at the last time in any
case. Each time has a calibration of its own: a score means less after one second than after five.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm import Scorer, load_audio
from asvspoof_cm.audio import as_audio
from asvspoof_cm.calibration import Calibration, fit_calibration
from asvspoof_cm.data import AudioFolder, Protocol
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts

Array: TypeAlias = NDArray[Any]
Reason: TypeAlias = Literal["clear", "time is up", "caller stopped", "no speech"]

AT_S = (1.0, 2.0, 3.0, 5.0)
ONSET = 0.01


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
    """Listens to one caller, chunk by chunk; several gates may share a scorer.

    Args:
        scorer: The countermeasure, calibrated unless `calibrations` are given.
        sample_rate: The sampling rate of the chunks, in Hz.
        calibrations: From the scorer's score to an LLR, by time, as `fit_times` returns them. None
            takes the scorer's own at every time of `AT_S`.
        costs: What errors cost, which sets the threshold.
        margin: How far beyond the threshold an LLR must lie to decide before the last time.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        sample_rate: int = SAMPLE_RATE,
        calibrations: Mapping[float, Calibration] | None = None,
        costs: DetectionCosts = ASVSPOOF5,
        margin: float = 2.0,
    ) -> None:
        if calibrations is None and scorer.calibration is None:
            raise ValueError(
                "`calibrations` must be given for a scorer without a calibration; got None. "
                "Fit them with fit_times."
            )
        self.scorer, self.sample_rate, self.costs = scorer, sample_rate, costs
        self.calibrations, self.margin = calibrations, margin
        self.decision: GateDecision | None = None
        self._at_s = sorted(AT_S if calibrations is None else calibrations)
        self._next = 0
        self._heard: Array = np.empty(0, np.float32)

    def push(self, chunk: Any) -> GateDecision | None:
        """Take the next chunk, of any size; return the decision once there is one."""
        if self.decision is not None:
            return self.decision
        samples = as_audio(np.asarray(chunk), allow_empty=True).waveform
        self._heard = from_onset(np.concatenate([self._heard, samples]))
        while self.decision is None and self._n_next() <= len(self._heard):
            llr = self._llr(self._heard[: self._n_next()])
            is_last = self._next == len(self._at_s) - 1
            if is_last or (llr is not None and abs(llr - self.costs.threshold) >= self.margin):
                self._decide(llr, "time is up" if is_last else "clear", self._at_s[self._next])
            self._next += 1
        return self.decision

    def stop(self) -> GateDecision:
        """Return the decision, made on what was heard where the caller stopped before it."""
        if self.decision is not None:
            return self.decision
        llr = self._llr(self._heard) if len(self._heard) else None
        return self._decide(llr, "caller stopped", len(self._heard) / self.sample_rate)

    def _n_next(self) -> int:
        return round(self._at_s[self._next] * self.sample_rate)

    def _llr(self, samples: Array) -> float | None:
        result = self.scorer.score_file(samples, self.sample_rate)
        if not result.has_speech:
            return None
        if self.calibrations is None:
            return float(np.asarray(result.llr))
        duration_s = len(samples) / self.sample_rate
        before = [time for time in self._at_s if time <= duration_s]
        return float(self.calibrations[before[-1] if before else self._at_s[0]].apply(result.score))

    def _decide(self, llr: float | None, reason: Reason, heard_s: float) -> GateDecision:
        accept = llr is not None and llr >= self.costs.threshold
        reason = "no speech" if llr is None else reason
        self.decision = GateDecision(accept=accept, reason=reason, heard_s=heard_s, llr=llr)
        return self.decision


def from_onset(samples: Array) -> Array:
    """Return the samples from the first one on that is as loud as `ONSET`."""
    loud = np.flatnonzero(np.abs(samples) >= ONSET)
    return samples[loud[0] :] if len(loud) else samples[:0]


def score_prefixes(
    protocol: Protocol, folder: Path, scorer: Scorer, at_s: Sequence[float] = AT_S
) -> Array:
    """Return the score of every utterance after each time, shape (n_utterances, n_times).

    An utterance that ended before a time has the score of all of it.
    """
    files = AudioFolder(protocol, folder)
    scores = []
    for k in range(len(protocol)):
        heard = from_onset(load_audio(files.path(k)).numpy())
        ends = [min(len(heard), round(time * SAMPLE_RATE)) for time in at_s]
        scores.append(scorer.score_batch([heard[:end] for end in ends]))
    return np.array(scores)


def fit_times(
    scores: Array, labels: Array, at_s: Sequence[float] = AT_S, costs: DetectionCosts = ASVSPOOF5
) -> dict[float, Calibration]:
    """Fit a calibration for each time, for the prior that the costs amount to."""
    prior = 1.0 / (1.0 + costs.beta)
    return {
        time: fit_calibration(column, labels, prior)
        for time, column in zip(at_s, scores.T, strict=True)
    }


def listen(path: Path, gate: StreamingGate, *, chunk_s: float = 0.1) -> GateDecision:
    """Let a recording speak to a gate, a tenth of a second at a time."""
    for chunk in load_audio(path).split(round(chunk_s * SAMPLE_RATE)):
        if (decision := gate.push(chunk)) is not None:
            return decision
    return gate.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Listen to recordings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, help="recordings to listen to")
    parser.add_argument("--checkpoint", help="another than the shipped one")
    args = parser.parse_args(arguments)
    own = args.checkpoint
    scorer = Scorer.from_checkpoint(own) if own else Scorer.from_pretrained()
    for path in args.files:
        decision = listen(path, StreamingGate(scorer))
        word = "accept" if decision.accept else "reject"
        print(f"{path}: {word} after {decision.heard_s:.1f} s, {decision.reason}")


if __name__ == "__main__":
    main()
