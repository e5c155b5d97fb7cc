"""The scorer: one object from audio of any kind to scores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.audio import InMemory, Waveform, as_waveform
from asvspoof_cm.checkpoint import load_checkpoint, load_pretrained
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.scorer import bulk, timelines
from asvspoof_cm.scorer.inference import (
    FloatArray,
    Inference,
    run as run,
    run_batches as run_batches,
)
from asvspoof_cm.scorer.results import ScoreResult
from asvspoof_cm.scorer.utterances import Utterance, take_crops

Waveforms: TypeAlias = Iterable[Waveform]
Rates: TypeAlias = int | Sequence[int]


class Scorer(Inference):
    """A countermeasure ready for use: audio of any kind in, scores out; higher means bonafide.

    Every utterance is averaged to mono, resampled to the model's rate without aliasing and cut into
    evenly spaced crops, each brought to the model's level; the score is that of their averaged
    logits (sections III-B.1 and III-C of the TFPARN paper). Rate, crops and level are those of
    ``model.input``, which a checkpoint brings along. Crops that are identical are computed
    once, and crops of many utterances share batches: neither changes a score by more than rounding.

    A scorer works on its own copy of the model, in evaluation mode: nothing happens to `model`,
    and training it further does not reach the scorer. Nothing is kept between calls, so threads
    may share a scorer.

    Args:
        model: A `Countermeasure`, or anything that maps float32 waveforms (batch, time) on the CPU
            to logits (batch, 2), such as what `asvspoof_cm.export.load_onnx` returns; the latter
            is used as it is, not copied.
        device: "auto" is CUDA, else MPS, else the CPU; under torchrun each process takes the CUDA
            device of its local rank.
        n_crops: Crops of each utterance, K in the paper; 1 is the centre crop. None is the model's.
        crop_s: Their length in seconds. None is the model's, the length that it was trained on.
        batch_size: Crops in a batch.
        score: The unit of scores. "llr" is the calibrated log-likelihood ratio, "log-odds" the
            logit difference z1 − z0, "bonafide-logit" z1. None is "llr" where there is a
            calibration, else "log-odds".
        precision: "bf16" and "fp16" run the model under autocast: faster where the hardware has
            it. Scores change in about the third digit and then depend on the batch as well.
        calibration: The map from log-odds to log-likelihood ratios; "model" is the one that the
            model brings along, if it does, None is none. Where it was fitted on scores of other
            crops or another precision, a warning says so.

    Attributes:
        input: Rate, crops and level in use.
        unit: The unit of scores in use.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> scorer = Scorer(TFPARN(), device="cpu")
        >>> scorer
        Scorer(TFPARN on cpu, 5 crops of 4 s, score: log-odds)
        >>> isinstance(scorer.score(torch.randn(48000), sample_rate=16000), float)
        True
        >>> result = scorer.score(np.zeros((2, 22050), np.int16), sample_rate=44100, detail=True)
        >>> len(result.crop_scores), result.duration_s, result.resampled_from, result.warnings
        (5, 0.5, 44100, ('no speech to judge', 'silent', 'shorter than 1 s'))
    """

    score_file = bulk.score_file
    score_files = bulk.score_files
    score_protocol = bulk.score_protocol
    timeline = timelines.timeline
    attention = timelines.attention

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Return a scorer of a model that `save_checkpoint` wrote.

        Args:
            path: The checkpoint.
            **options: The other arguments of `Scorer`.
        """
        return cls(load_checkpoint(path), **options)

    @classmethod
    def from_pretrained(cls, name: str | None = None, **options: Any) -> Self:
        """Return a scorer of a checkpoint that comes with the package; its SHA-256 is checked.

        Args:
            name: One of `asvspoof_cm.checkpoint.PRETRAINED`; None takes the default and logs once
                which that is.
            **options: The other arguments of `Scorer`.

        Example:
            >>> from asvspoof_cm.checkpoint import DEFAULT_NAME
            >>> scorer = Scorer.from_pretrained(DEFAULT_NAME, device="cpu")
            >>> result = scorer.score(np.zeros(16000), detail=True)
            >>> result.unit, result.decision(), result.warnings
            ('llr', None, ('no speech to judge', 'silent'))
        """
        return cls(load_pretrained(name), **options)

    @overload
    def score(
        self, waveform: Waveform, sample_rate: int = ..., *, detail: Literal[False] = ...
    ) -> float: ...
    @overload
    def score(
        self, waveform: Waveform, sample_rate: int = ..., *, detail: Literal[True]
    ) -> ScoreResult: ...
    def score(
        self, waveform: Waveform, sample_rate: int = SAMPLE_RATE, *, detail: bool = False
    ) -> float | ScoreResult:
        """Return the score of one utterance.

        Args:
            waveform: Array or tensor of shape (time,) or (channels, time). Signed integers are
                divided by their full range; uint8 is 128 ± 128 as in WAV files.
            sample_rate: Its sampling rate, in Hz.
            detail: Return a `ScoreResult` instead of the score alone.

        Raises:
            ValueError: There is no sample, or NaN or infinite ones, or the shape is wrong: more
                channels than samples, or than 64, are taken for a (time, channels) array.
        """
        result = self.score_utterance(self._prepare(waveform, sample_rate), "`waveform`")
        return result if detail else result.score

    @overload
    def score_batch(
        self, waveforms: Waveforms, sample_rate: Rates = ..., *, detail: Literal[False] = ...
    ) -> FloatArray: ...
    @overload
    def score_batch(
        self, waveforms: Waveforms, sample_rate: Rates = ..., *, detail: Literal[True]
    ) -> list[ScoreResult]: ...
    def score_batch(
        self, waveforms: Waveforms, sample_rate: Rates = SAMPLE_RATE, *, detail: bool = False
    ) -> FloatArray | list[ScoreResult]:
        """Return the scores of many utterances of any length, crops packed into full batches.

        Args:
            waveforms: Each as in `score`; a 2-D array is a batch of mono utterances.
            sample_rate: One rate for all, or one for each.
            detail: Return a list of `ScoreResult` instead of the scores.

        Returns:
            Scores of shape (n,).

        Raises:
            ValueError: As `score`; the message says which utterance.
        """
        results = []
        for k, result in self.score_utterances(self._prepare_batch(waveforms, sample_rate)):
            if isinstance(result, str):
                raise ValueError(f"`waveforms[{k}]` can't be scored: {result}")
            results.append(result)
        return results if detail else np.array([result.score for result in results], dtype=float)

    def embed(self, waveform: Waveform, sample_rate: int = SAMPLE_RATE) -> NDArray[np.float32]:
        """Return the model's utterance vector, averaged over the crops, shape (d,).

        Args:
            waveform: As in `score`.
            sample_rate: Its sampling rate, in Hz.
        """
        if not isinstance(self.model, Countermeasure):
            raise ValueError(
                f"the model must have `embed`; {type(self.model).__name__} gives logits only."
            )
        utterance = self._prepare(waveform, sample_rate)
        vectors = self.run(self.model.embed, utterance.crops)
        return vectors[list(utterance.which)].mean(dim=0).numpy()

    def _prepare(self, waveform: Waveform, sample_rate: int) -> Utterance:
        samples = as_waveform(waveform, sample_rate, self.input.sample_rate)
        return take_crops(InMemory(samples, int(sample_rate)), self.input)

    def _prepare_batch(
        self, waveforms: Waveforms, sample_rate: Rates
    ) -> Iterator[tuple[int, Utterance]]:
        rates: Iterable[int]
        if not isinstance(sample_rate, Sequence) or isinstance(sample_rate, str):
            rates = itertools.repeat(sample_rate)
        else:
            rates, waveforms = sample_rate, list(waveforms)
            if len(sample_rate) != len(waveforms):
                raise ValueError(
                    "`sample_rate` must be one rate, or one for each utterance; got "
                    f"{len(sample_rate)} rates for {len(waveforms)} utterances."
                )
        for k, (waveform, rate) in enumerate(zip(waveforms, rates, strict=False)):
            try:
                yield k, self._prepare(waveform, rate)
            except (TypeError, ValueError) as error:
                raise type(error)(f"`waveforms[{k}]`: {error}") from error
