"""What scoring returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asvspoof_cm.calibration import decide, probability
from asvspoof_cm.labels import LABEL_NAMES, Unit
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts
from asvspoof_cm.scorer.utterances import NO_SPEECH


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The score of one utterance, and what to know about it.

    Attributes:
        score: Higher means bonafide.
        unit: What the score is: "llr", the calibrated log-likelihood ratio of bonafide against
            spoof; "log-odds", the logit difference z1 − z0; or "bonafide-logit", z1.
        crop_scores: The score of each crop on its own; `score` is that of their averaged logits.
        llr: The calibrated log-likelihood ratio; None without a calibration.
        duration_s: How long the utterance is.
        resampled_from: Its sampling rate in Hz where that was not the model's, else None.
        warnings: What may make the score mean little; docs/scoring.md lists them.

    Example:
        >>> result = ScoreResult(score=0.0, unit="llr", llr=0.0, crop_scores=(0.0,), duration_s=3.0)
        >>> round(result.probability(prior=0.05), 2), result.decision()
        (0.95, 1)
        >>> from dataclasses import replace
        >>> print(replace(result, warnings=("no speech to judge", "silent")).decision())
        None
    """

    score: float
    unit: Unit
    crop_scores: tuple[float, ...]
    duration_s: float
    llr: float | None = None
    resampled_from: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def has_speech(self) -> bool:
        """False where there is no speech to judge: silence, a constant, less than 0.5 s."""
        return NO_SPEECH not in self.warnings

    def probability(self, prior: float = ASVSPOOF5.p_spoof) -> float:
        """Return the probability of bonafide, given the prior probability of spoof.

        Without speech to judge, the prior alone.
        """
        llr = self._calibrated()
        return float(probability(llr if self.has_speech else np.float64(0.0), prior))

    def decision(self, costs: DetectionCosts = ASVSPOOF5) -> int | None:
        """Return the cheapest label, 0 (spoof) or 1 (bonafide), given costs and prior.

        None abstains: there is no speech to judge.
        """
        llr = self._calibrated()
        return int(decide(llr, costs)) if self.has_speech else None

    def verdict(self, costs: DetectionCosts = ASVSPOOF5) -> str | None:
        """Return the decision in words, "no speech to judge" among them; None if uncalibrated."""
        if not self.has_speech:
            return NO_SPEECH
        return None if self.llr is None else LABEL_NAMES[int(decide(self.llr, costs))]

    def as_dict(self, costs: DetectionCosts = ASVSPOOF5) -> dict[str, Any]:
        """Return plain values for JSON, with what follows from the costs; None if uncalibrated."""
        is_calibrated = self.llr is not None
        return {
            **asdict(self),
            "crop_scores": [*self.crop_scores],
            "warnings": [*self.warnings],
            "prior": costs.p_spoof,
            "probability": self.probability(costs.p_spoof) if is_calibrated else None,
            "threshold": costs.threshold,
            "decision": self.verdict(costs),
        }

    def _calibrated(self) -> np.float64:
        if self.llr is None:
            raise ValueError(
                "a probability or a decision needs a calibrated score; build the scorer with "
                "Scorer(…, calibration=fit_calibration(scores, labels))."
            )
        return np.float64(self.llr)


@dataclass(frozen=True, kw_only=True)
class FileScore:
    """The result of one file: either `result` or `error` is None.

    Attributes:
        path: The file, or its name in the folder, list or container that was given.
        result: Score and details.
        error: What was wrong, one line that names the file.
    """

    path: Path
    result: ScoreResult | None = None
    error: str | None = None

    @property
    def score(self) -> float | None:
        """The score; None where there was an error."""
        return None if self.result is None else self.result.score

    def as_dict(self, costs: DetectionCosts = ASVSPOOF5) -> dict[str, Any]:
        """Return plain values for JSON."""
        found = {"error": self.error} if self.result is None else self.result.as_dict(costs)
        return {"file": str(self.path), **found}


@dataclass(frozen=True, kw_only=True)
class ProtocolScores:
    """What `score_protocol` did.

    Attributes:
        output: The score file, or that of the shard.
        n_scored: Utterances with a score.
        n_resumed: Those of them that an earlier, interrupted run had left.
        n_failed: Utterances that could not be scored.
        errors: The file that says why; None where all were scored.
        n_without_speech: Utterances whose score means nothing: there is no speech to judge.
        warnings: The file that lists them and other doubtful ones; None where there are none.
    """

    output: Path
    n_scored: int
    n_resumed: int
    n_failed: int
    errors: Path | None
    n_without_speech: int = 0
    warnings: Path | None = None

    def __str__(self) -> str:
        parts = [f"{self.n_scored:,} utterances scored"]
        if self.n_resumed:
            parts[0] += f", {self.n_resumed:,} of them before"
        if self.errors is not None:
            parts.append(f"{self.n_failed:,} failed, see {self.errors}")
        if self.n_without_speech:
            seen = "" if self.warnings is None else f", see {self.warnings}"
            parts.append(f"{self.n_without_speech:,} without speech to judge{seen}")
        return "; ".join(parts)
