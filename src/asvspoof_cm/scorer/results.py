"""What scoring returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asvspoof_cm.calibration import decide, probability
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts
from asvspoof_cm.scorer.utterances import NO_SPEECH

__all__ = ["FileScore", "ScoreResult"]


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The score of one utterance, and what to know about it.

    Attributes:
        score: Higher means bonafide.
        crop_scores: The score of each crop on its own; `score` is that of their averaged logits.
        llr: The calibrated log-likelihood ratio of bonafide against spoof; None without a
            calibration.
        duration_s: How long the utterance is.
        resampled_from: Its sampling rate in Hz where that was not 16 kHz, else None.
        warnings: Any of "silent" (peak 80 dB below full scale), "constant" (99 % of the power is
            a constant offset), "clipped" (0.1 % of the samples reach full scale) and "shorter than
            1 s": the score may mean little. Silence, a constant and less than 0.5 s are also "no
            speech to judge": a decision abstains.

    Example:
        >>> result = ScoreResult(score=1.5, crop_scores=(1.0, 2.0), llr=0.0, duration_s=3.0)
        >>> round(result.probability(prior=0.05), 2), result.decision()
        (0.95, 1)
        >>> from dataclasses import replace
        >>> empty = replace(result, llr=9.0, warnings=("no speech to judge", "silent"))
        >>> round(empty.probability(prior=0.05), 2), empty.decision()
        (0.95, None)
    """

    score: float
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

        Without speech to judge, that is what the prior says.
        """
        llr = self._calibrated()
        return float(probability(llr if self.has_speech else np.float64(0.0), prior))

    def decision(self, costs: DetectionCosts = ASVSPOOF5) -> int | None:
        """Return the cheapest label, 0 (spoof) or 1 (bonafide), given costs and prior.

        None abstains: there is no speech to judge.
        """
        llr = self._calibrated()
        return int(decide(llr, costs)) if self.has_speech else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `llr` only where there is one."""
        content = {**asdict(self), "crop_scores": [*self.crop_scores], "warnings": [*self.warnings]}
        if self.llr is None:
            del content["llr"]
        return content

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
        path: The file, as it was given.
        result: Score and details.
        error: What was wrong, one line that names the file.

    Example:
        >>> FileScore(path=Path("a.wav"), error="a.wav is an empty file.").score is None
        True
    """

    path: Path
    result: ScoreResult | None = None
    error: str | None = None

    @property
    def score(self) -> float | None:
        """The score; None where there was an error."""
        return None if self.result is None else self.result.score

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        if self.result is None:
            return {"file": str(self.path), "error": self.error}
        return {"file": str(self.path), **self.result.as_dict()}
