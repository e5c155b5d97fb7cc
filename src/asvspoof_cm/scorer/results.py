"""What scoring returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asvspoof_cm.calibration import decide, probability
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts

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
            1 s": the score may mean little.

    Example:
        >>> result = ScoreResult(score=1.5, crop_scores=(1.0, 2.0), llr=0.0, duration_s=3.0)
        >>> round(result.probability(prior=0.05), 2), result.decision()
        (0.95, 1)
    """

    score: float
    crop_scores: tuple[float, ...]
    duration_s: float
    llr: float | None = None
    resampled_from: int | None = None
    warnings: tuple[str, ...] = ()

    def probability(self, prior: float = ASVSPOOF5.p_spoof) -> float:
        """Return the probability of bonafide, given the prior probability of spoof."""
        return float(probability(self._calibrated(), prior))

    def decision(self, costs: DetectionCosts = ASVSPOOF5) -> int:
        """Return the cheapest label, 0 (spoof) or 1 (bonafide), given costs and prior."""
        return int(decide(self._calibrated(), costs))

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
