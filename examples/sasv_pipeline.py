"""Speaker verification with a countermeasure as its gate.

    python examples/sasv_pipeline.py                      # a demonstration on examples/audio
    python examples/sasv_pipeline.py --corpus ASVspoof5   # figures, on trials made from a corpus
    python examples/sasv_pipeline.py --corpus ASVspoof5 --markdown docs/sasv.md

`Verifier.verify` is the shape to take into production: it accepts, or rejects and says why, and
doesn't raise whatever audio arrives. docs/sasv.md describes the rest.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from asvspoof_cm import Scorer, load_audio, load_published_aasist
from asvspoof_cm._util import atomic_path
from asvspoof_cm.audio import as_mono, as_waveform
from asvspoof_cm.augmentation import CopySynthesis
from asvspoof_cm.calibration import Calibration, fuse_sasv
from asvspoof_cm.checkpoint import DEFAULT_NAME
from asvspoof_cm.data import read_protocol
from asvspoof_cm.labels import BONAFIDE, SAMPLE_RATE
from asvspoof_cm.metrics import ASVSPOOF5_SASV, SasvCosts
from sasv_evaluation import Evaluation, evaluate, fit, markdown
from sasv_trials import Encoder, TrialScores, make_trials, score_trials
from speaker_encoder import ENCODERS, mean_voice, prepare_speech

Reason: TypeAlias = Literal["accepted", "spoofed", "other speaker", "too short", "bad audio"]

CLIPS = Path(__file__).resolve().parent / "audio"
MARKERS = ("<!-- figures: begin -->\n", "<!-- figures: end -->\n")


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """A speaker's voice: the mean of the vectors of several utterances, of unit length."""

    voice: NDArray[np.float32]
    n_utterances: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of a trial.

    Attributes:
        accept: Whether this is the claimed speaker, speaking.
        reason: In a word, for counters and alarms.
        detail: In a sentence, for a log. Don't show it to the caller: it teaches an attacker.
        asv_llr: Of the claimed speaker against another; None where nothing was computed.
        cm_llr: Of bona fide against spoofed speech.
        sasv_llr: Of both together, what the decision was made on.
        warnings: What makes the scores doubtful though they were used, "clipped" say.
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
        scorer: The countermeasure.
        asv_calibration: From cosine to the LLR of target against nontarget; None takes the
            encoder's own.
        cm_calibration: From the scorer's score to the LLR of bona fide against spoof; None takes
            the scorer's own.
        costs: What errors cost, and how often they can occur; they set the threshold.
        min_speech_s: The least speech of a trial or an enrolment, pauses shortened.
    """

    def __init__(
        self,
        encoder: Encoder,
        scorer: Scorer,
        *,
        asv_calibration: Calibration | None = None,
        cm_calibration: Calibration | None = None,
        costs: SasvCosts = ASVSPOOF5_SASV,
        min_speech_s: float = 1.0,
    ) -> None:
        if cm_calibration is None and scorer.calibration is None:
            raise ValueError(
                "`cm_calibration` must be given for a scorer without a calibration; got None. "
                "Fit one on labelled scores: fit_calibration(scores, labels)."
            )
        self.encoder = encoder
        self.scorer = scorer
        self.asv_calibration = asv_calibration or encoder.calibration
        self.cm_calibration = cm_calibration
        self.costs = costs
        self.min_speech_s = min_speech_s

    def enrol(self, waveforms: Sequence[ArrayLike | Tensor], sample_rate: int) -> Enrolled:
        """Return the voice of a speaker from several utterances; three or more are advised.

        Raises:
            ValueError: An utterance has too little speech. Enrolment is the one place to be strict.
        """
        if not waveforms:
            raise ValueError("`waveforms` must hold at least one utterance; got none.")
        vectors = []
        for k, waveform in enumerate(waveforms):
            speech = prepare_speech(torch.from_numpy(as_waveform(_as_audio(waveform), sample_rate)))
            if len(speech) < self.min_speech_s * SAMPLE_RATE:
                raise ValueError(
                    f"`waveforms[{k}]` must have {self.min_speech_s:g} s of speech; it has "
                    f"{len(speech) / SAMPLE_RATE:.2f} s."
                )
            vectors.append(self.encoder.embed(speech))
        return Enrolled(voice=mean_voice(vectors), n_utterances=len(vectors))

    def verify(
        self, enrolled: Enrolled, waveform: ArrayLike | Tensor, sample_rate: int = SAMPLE_RATE
    ) -> Decision:
        """Decide whether `waveform`, (time,) or (channels, time), is the enrolled speaker, live."""
        try:
            audio = _as_audio(waveform)
            mono = as_mono(audio, allow_empty=True)
            if len(mono) < self.min_speech_s * sample_rate:
                return self._too_short(len(mono) / sample_rate, "audio")
            result = self.scorer.score(audio, sample_rate, detail=True)
            if not result.has_speech:
                return Decision(accept=False, reason="bad audio", detail="; ".join(result.warnings))
            speech = prepare_speech(torch.from_numpy(as_waveform(audio, sample_rate)))
            if len(speech) < self.min_speech_s * SAMPLE_RATE:
                return self._too_short(len(speech) / SAMPLE_RATE, "speech")
            cosine = float(enrolled.voice @ self.encoder.embed(speech))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            return Decision(accept=False, reason="bad audio", detail=str(error))
        asv_llr = float(self.asv_calibration.apply(cosine))
        if self.cm_calibration is not None:
            cm_llr = float(self.cm_calibration.apply(result.score))
        else:
            cm_llr = float(np.asarray(result.llr))
        return decide_trial(asv_llr, cm_llr, self.costs, result.warnings)

    def _too_short(self, duration_s: float, what: str) -> Decision:
        detail = f"{duration_s:.2f} s of {what}; {self.min_speech_s:g} s are needed"
        return Decision(accept=False, reason="too short", detail=detail)


def decide_trial(
    asv_llr: float, cm_llr: float, costs: SasvCosts, warnings: tuple[str, ...] = ()
) -> Decision:
    """Fuse two LLRs and decide; a rejection is put down to the one that weighs more in it."""
    sasv_llr = float(fuse_sasv(asv_llr, cm_llr, costs))
    # The two terms of `fuse_sasv`, as the posterior odds of either way to be an impostor.
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


def _as_audio(waveform: ArrayLike | Tensor) -> NDArray[Any] | Tensor:
    return waveform if isinstance(waveform, Tensor) else np.asarray(waveform)


# The command -------------------------------------------------------------------------------


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
        generator = torch.Generator().manual_seed(k)
        heard = {
            "its second half": halves[name][1],
            other: halves[other][1],
            "a vocoded copy of it": copy(halves[name][1], generator=generator),
            spoof: load_audio(folder / spoof),
        }
        decisions += [(name, what, verifier.verify(enrolled, x)) for what, x in heard.items()]
    return decisions


def measure(
    corpus: Path,
    encoder: Encoder,
    scorer: Scorer,
    *,
    work: Path,
    n_enrol: int,
    n_nontarget: int,
    seed: int,
) -> dict[str, TrialScores]:
    """Make and score the trials of a corpus: its dev part to calibrate, its eval part to test."""
    scored = {}
    for part in ("dev", "eval"):
        protocol = read_protocol(corpus / f"ASVspoof5.{part}.track_1.tsv")
        trials = make_trials(protocol, n_enrol=n_enrol, n_nontarget=n_nontarget, seed=seed)
        print(f"{part}: {len(trials.enrolment)} enrolled speakers, trials {trials.counts()}")
        scored[part] = score_trials(trials, protocol, corpus, encoder, scorer, work=work)
    return scored


def write_figures(text: str, page: Path, markers: tuple[str, str] = MARKERS) -> None:
    """Put `text` between the markers of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not (begin and end):
        raise ValueError(f"{page} must have the lines {markers[0]!r} and {markers[1]!r}.")
    with atomic_path(page) as temporary:
        temporary.write_text(before + begin + text + end + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on a corpus, or demonstrate on the clips."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, help="folder in the layout of ASVspoof 5")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--checkpoint", help="a checkpoint of this library (the shipped one)")
    model.add_argument("--published-aasist", metavar="PTH", help="published AASIST weights instead")
    parser.add_argument(
        "--encoder", nargs="+", choices=ENCODERS, default=[*ENCODERS], help="speaker encoders (all)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build/sasv"),
        metavar="DIR",
        help="what a killed run needs to go on (build/sasv)",
    )
    parser.add_argument("--scores", type=Path, metavar="DIR", help="keep ENCODER.PART.tsv here")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into a page")
    parser.add_argument("--n-enrol", type=int, default=3, help="utterances of an enrolment (3)")
    parser.add_argument("--n-nontarget", type=int, default=3, help="false claims per utterance (3)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="replicates (1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of trials and replicates (0)")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    if args.published_aasist:
        scorer = Scorer(load_published_aasist(args.published_aasist))
    elif args.checkpoint:
        scorer = Scorer.from_checkpoint(args.checkpoint)
    else:
        scorer = Scorer.from_pretrained()
    if args.corpus is None:
        verifier = Verifier(ENCODERS[args.encoder[0]](), scorer, min_speech_s=0.8)
        for claimed, heard, decision in demonstrate(verifier):
            print(f"{claimed:22} ← {heard:28} {decision.reason:14} {decision.detail}")
        print("\nA demonstration, not a measurement: these are a handful of trials.")
        return
    counts = {"n_enrol": args.n_enrol, "n_nontarget": args.n_nontarget, "seed": args.seed}
    options = {"n_bootstrap": args.bootstrap, "seed": args.seed}
    results: dict[str, dict[str, Evaluation]] = {"Imitations only": {}, "All spoofs": {}}
    for name in args.encoder:
        scored = measure(args.corpus, ENCODERS[name](), scorer, work=args.work, **counts)
        if args.scores:
            args.scores.mkdir(parents=True, exist_ok=True)
            for part, scores in scored.items():
                scores.write(args.scores / f"{name.lower()}.{part}.tsv")
        fitted = fit(scored["dev"])
        print(f"{name}: ASV calibration {fitted.asv}, CM calibration {fitted.cm}")
        parts = (scored["eval"].without_other_voices(), scored["eval"])
        for of_title, scores in zip(results.values(), parts, strict=True):
            of_title[name] = evaluate(fitted, scores, **options)
    name = Path(args.published_aasist or args.checkpoint or DEFAULT_NAME).name
    weights = str(scorer.settings()["sha256"])[:12]
    text = f"Countermeasure: {name} (weights {weights}), crops: {scorer.input.n_crops}.\n\n"
    text += "\n".join(f"**{title}.** {markdown(of)}" for title, of in results.items())
    print(f"\n{text}")
    if args.markdown:
        write_figures(text, args.markdown)


if __name__ == "__main__":
    main()
