"""Speaker verification with a countermeasure as its gate: the shape to take into production.

    python examples/sasv_pipeline.py    # a demonstration on the clips of examples/audio

`Verifier.verify` accepts a claim, or rejects it and says why; it doesn't raise, whatever audio
arrives. `sasv_evaluation.py` measures such a pipeline on a corpus, and docs/sasv.md explains both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from asvspoof_cm import BONAFIDE, Scorer, load_audio, read_protocol
from asvspoof_cm.audio import as_audio
from asvspoof_cm.augmentation import CopySynthesis
from asvspoof_cm.calibration import Calibration, fuse_sasv
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.metrics import ASVSPOOF5_SASV, SasvCosts
from speaker_encoder import EcapaEncoder, mean_voice, prepare_speech

Reason: TypeAlias = Literal["accepted", "spoofed", "other speaker", "too short", "bad audio"]
Voice: TypeAlias = NDArray[np.float32]

CLIPS = Path(__file__).resolve().parent / "audio"


class Encoder(Protocol):
    """What is needed of a speaker encoder."""

    calibration: Calibration
    """From cosine to the LLR of target against nontarget, for want of data of your own."""

    def embed(self, speech: Tensor) -> Voice:
        """Return the unit vector (d,) of prepared 16 kHz speech (time,)."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The outcome of a claim.

    Attributes:
        accept: Whether this is the claimed speaker, speaking.
        reason: In a word, for counters and alarms.
        detail: In a sentence, for a log. Don't show it to the caller: it teaches an attacker.
        asv_llr: Of the claimed speaker against another; None where nothing was computed.
        cm_llr: Of bona fide against spoofed speech.
        sasv_llr: Of both together, which the decision was made on.
        warnings: What makes the scores doubtful though they were used, such as "clipped".
    """

    accept: bool
    reason: Reason
    detail: str
    asv_llr: float | None = None
    cm_llr: float | None = None
    sasv_llr: float | None = None
    warnings: tuple[str, ...] = ()


class Verifier:
    """Enrols speakers and verifies claims; keeps no state between calls, so threads may share it.

    Args:
        encoder: The speaker encoder.
        scorer: The countermeasure, with a calibration.
        asv_calibration: From cosine to the LLR of target against nontarget; None takes the
            encoder's own.
        costs: What errors cost, and how often they can occur; they set the threshold.
        min_speech_s: The least speech of a trial or an enrolment, pauses shortened.
    """

    def __init__(
        self,
        encoder: Encoder,
        scorer: Scorer,
        *,
        asv_calibration: Calibration | None = None,
        costs: SasvCosts = ASVSPOOF5_SASV,
        min_speech_s: float = 1.0,
    ) -> None:
        if scorer.calibration is None:
            raise ValueError(
                "`scorer` must have a calibration; got one without. Fit it on labelled scores: "
                "Scorer(model, calibration=fit_calibration(scores, labels))."
            )
        self.encoder, self.scorer = encoder, scorer
        self.asv_calibration = asv_calibration or encoder.calibration
        self.costs, self.min_speech_s = costs, min_speech_s

    def enrol(self, waveforms: Sequence[ArrayLike | Tensor], sample_rate: int) -> Voice:
        """Return the voice of a speaker from several utterances; three or more are advised.

        Raises:
            ValueError: An utterance has too little speech. Enrolment is the one place to be strict.
        """
        if not waveforms:
            raise ValueError("`waveforms` must hold at least one utterance; got none.")
        vectors = []
        for k, waveform in enumerate(waveforms):
            speech = prepare_speech(_at_16k(waveform, sample_rate))
            if len(speech) < self.min_speech_s * SAMPLE_RATE:
                raise ValueError(
                    f"`waveforms[{k}]` must have {self.min_speech_s:g} s of speech; it has "
                    f"{len(speech) / SAMPLE_RATE:.2f} s."
                )
            vectors.append(self.encoder.embed(speech))
        return mean_voice(vectors)

    def verify(
        self, enrolled: Voice, waveform: ArrayLike | Tensor, sample_rate: int = SAMPLE_RATE
    ) -> Decision:
        """Decide whether `waveform`, (time,) or (channels, time), is the enrolled speaker, live."""
        try:
            audio = waveform if isinstance(waveform, Tensor) else np.asarray(waveform)
            mono = as_audio(audio, allow_empty=True).waveform
            if len(mono) < self.min_speech_s * sample_rate:
                return self._too_short(len(mono) / sample_rate, "audio")
            result = self.scorer.score_file(audio, sample_rate)
            if not result.has_speech:
                return Decision(accept=False, reason="bad audio", detail="; ".join(result.warnings))
            speech = prepare_speech(_at_16k(audio, sample_rate))
            if len(speech) < self.min_speech_s * SAMPLE_RATE:
                return self._too_short(len(speech) / SAMPLE_RATE, "speech")
            cosine = float(enrolled @ self.encoder.embed(speech))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            return Decision(accept=False, reason="bad audio", detail=str(error))
        asv_llr = float(self.asv_calibration.apply(cosine))
        return decide_trial(asv_llr, float(np.asarray(result.llr)), self.costs, result.warnings)

    def _too_short(self, duration_s: float, what: str) -> Decision:
        detail = f"{duration_s:.2f} s of {what}; {self.min_speech_s:g} s are needed"
        return Decision(accept=False, reason="too short", detail=detail)


def decide_trial(
    asv_llr: float, cm_llr: float, costs: SasvCosts, warnings: tuple[str, ...] = ()
) -> Decision:
    """Fuse two LLRs and decide; the reason of a rejection is the LLR that weighs more in it."""
    sasv_llr = float(fuse_sasv(asv_llr, cm_llr, costs))
    # The two terms of `fuse_sasv`: the posterior odds of a spoof, and of another speaker.
    as_spoof = math.log(costs.rho) - cm_llr if costs.rho > 0 else -math.inf
    as_other = math.log1p(-costs.rho) - asv_llr if costs.rho < 1 else -math.inf
    accept = sasv_llr >= costs.threshold
    reason: Reason = "accepted" if accept else "spoofed" if as_spoof > as_other else "other speaker"
    return Decision(
        accept=accept,
        reason=reason,
        detail=(
            f"LLR {sasv_llr:+.2f} against {costs.threshold:+.2f}: "
            f"speaker {asv_llr:+.2f}, bona fide {cm_llr:+.2f}"
        ),
        asv_llr=asv_llr,
        cm_llr=cm_llr,
        sasv_llr=sasv_llr,
        warnings=warnings,
    )


def _at_16k(waveform: ArrayLike | Tensor, sample_rate: int) -> Tensor:
    samples = waveform if isinstance(waveform, Tensor) else np.asarray(waveform)
    return torch.from_numpy(as_audio(samples, sample_rate, SAMPLE_RATE).waveform)


def demonstrate(verifier: Verifier, folder: Path = CLIPS) -> list[tuple[str, str, Decision]]:
    """Verify the clips that come with the examples: (claimed clip, heard, decision) of each trial.

    The first half of a clip is enrolled and its second half is heard: the same session, channel and
    noise on both sides make targets easier than in life. Heard are also another clip, a vocoded
    copy of the second half, which keeps the voice, and a synthesizer, which has its own.
    """
    clips = read_protocol(folder / "clips.tsv")
    is_bonafide = clips.label == BONAFIDE
    names, spoofs = clips.utterance[is_bonafide].tolist(), clips.utterance[~is_bonafide].tolist()
    halves = {name: load_audio(folder / name).tensor_split(2) for name in names}
    copy = CopySynthesis()
    decisions = []
    for k, name in enumerate(names):
        enrolled = verifier.enrol([halves[name][0]], SAMPLE_RATE)
        other, spoof = names[(k + len(names) // 2) % len(names)], spoofs[k % len(spoofs)]
        heard = {
            "its second half": halves[name][1],
            other: halves[other][1],
            "a vocoded copy of it": copy(
                halves[name][1], generator=torch.Generator().manual_seed(k)
            ),
            spoof: load_audio(folder / spoof),
        }
        decisions += [(name, what, verifier.verify(enrolled, x)) for what, x in heard.items()]
    return decisions


def main() -> None:
    """Print the decisions of the demonstration."""
    verifier = Verifier(EcapaEncoder(), Scorer.from_pretrained(), min_speech_s=0.8)
    for claimed, heard, decision in demonstrate(verifier):
        print(f"{claimed:22} ← {heard:28} {decision.reason:14} {decision.detail}")
    print("\nA demonstration, not a measurement: these are a handful of trials.")


if __name__ == "__main__":
    main()
