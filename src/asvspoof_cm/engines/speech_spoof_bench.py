"""A checkpoint as a system of the speech_spoof_bench arena, without a dependency on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.scorer import Scorer

__all__ = ["SpeechSpoofBenchModel"]


class SpeechSpoofBenchModel:
    """What the arena runs: subclass it and name your checkpoint.

    The arena builds its systems without arguments, so settings are class attributes; None for
    `n_crops` is the checkpoint's. A higher score means bonafide, as there; its datasets number the
    classes the other way round, which concerns labels only.

    Example:
        >>> class MyTFPARN(SpeechSpoofBenchModel):
        ...     name = "tfparn"
        ...     checkpoint = "tfparn.pt"
        >>> MyTFPARN().expected_sample_rate
        16000
    """

    name: ClassVar[str] = "asvspoof-cm"
    checkpoint: ClassVar[str | Path | None] = None
    device: ClassVar[str] = "auto"
    n_crops: ClassVar[int | None] = None
    expected_sample_rate: ClassVar[int] = SAMPLE_RATE
    batch_size: ClassVar[int] = 32

    def __init__(self) -> None:
        self._scorer: Scorer | None = None

    def load(self) -> None:
        """Read the checkpoint."""
        if self.checkpoint is None:
            raise ValueError(
                f"`checkpoint` of {type(self).__name__} must name a checkpoint; got None. "
                "Subclass it and set the attribute."
            )
        self._scorer = Scorer.from_checkpoint(
            self.checkpoint, device=self.device, n_crops=self.n_crops, batch_size=self.batch_size
        )

    def score_batch(self, audios: Sequence[NDArray[np.float32]], srs: Sequence[int]) -> list[float]:
        """Return a score for each mono waveform (time,), given their sampling rates."""
        if self._scorer is None:
            raise RuntimeError("`load()` must be called before `score_batch`.")
        scores: list[float] = self._scorer.score_batch(audios, list(srs)).tolist()
        return scores

    def unload(self) -> None:
        """Let go of the model."""
        self._scorer = None
