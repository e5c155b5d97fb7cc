"""The scorer: one object from audio of any kind to scores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.audio.arrays import Waveform, as_waveform
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data.folder import EXTENSION
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.pretrained import load_pretrained
from asvspoof_cm.scorer import bulk, timelines
from asvspoof_cm.scorer.inference import Described, FloatArray, Inference, conditions_of
from asvspoof_cm.scorer.results import FileScore, ScoreResult
from asvspoof_cm.scorer.shards import ProtocolScores
from asvspoof_cm.scorer.utterances import InMemory, Utterance, take_crops


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
        score: "logit_difference" is z1 − z0, a log-odds; "bonafide_logit" is z1; "llr" is the
            calibrated logit difference.
        precision: "bf16" runs the model under autocast: faster where the hardware has it. Scores
            change in about the third digit and then depend on the batch as well.
        calibration: The map from this kind of score to log-likelihood ratios. Where it was fitted
            on scores of other crops or another precision, a warning says so.

    Attributes:
        input: Rate, crops and level in use.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> scorer = Scorer(TFPARN(), device="cpu")
        >>> isinstance(scorer.score(torch.randn(48000), sample_rate=16000), float)
        True
        >>> result = scorer.score(np.zeros((2, 22050), np.int16), sample_rate=44100, detail=True)
        >>> len(result.crop_scores), result.duration_s, result.resampled_from, result.warnings
        (5, 0.5, 44100, ('no speech to judge', 'silent', 'shorter than 1 s'))
    """

    @classmethod
    def from_model(
        cls,
        model: Callable[[Tensor], Tensor],
        *,
        calibration: Calibration | None = None,
        **options: Any,
    ) -> Self:
        """Return a scorer that uses the calibration which a model brings along.

        That is ``model.meta["calibration"]``, one of logit differences; it is used unless another
        is given or ``score="bonafide_logit"``.

        Args:
            model: See `Scorer`.
            calibration: See `Scorer`.
            **options: The other arguments of `Scorer`.
        """
        wanted = calibration is None and options.get("score") != "bonafide_logit"
        if wanted and isinstance(model, Described) and model.meta.get("calibration"):
            calibration = Calibration.from_dict(model.meta["calibration"])
            if not calibration.fitted_for:  # of version 0.1.0: it belongs to the model's settings
                conditions = conditions_of(model.input, "fp32")
                calibration = replace(calibration, fitted_for=conditions)
        return cls(model, calibration=calibration, **options)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike[str], *, calibration: Calibration | None = None, **options: Any
    ) -> Self:
        """Return a scorer of a model that `save_checkpoint` wrote.

        A calibration that is stored in the checkpoint is used as in `from_model`.

        Args:
            path: The checkpoint.
            calibration: See `Scorer`.
            **options: The other arguments of `Scorer`.
        """
        return cls.from_model(load_checkpoint(path), calibration=calibration, **options)

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        calibration: Calibration | None = None,
        **options: Any,
    ) -> Self:
        """Return a scorer of a checkpoint that comes with the package.

        Its SHA-256 is checked. Its calibration is used as in `from_checkpoint`.

        Args:
            name: One of `asvspoof_cm.pretrained.available()`; None takes the default and logs once
                which that is.
            calibration: See `Scorer`.
            **options: The other arguments of `Scorer`.

        Example:
            >>> from asvspoof_cm.pretrained import DEFAULT_NAME
            >>> scorer = Scorer.from_pretrained(DEFAULT_NAME, device="cpu")
            >>> result = scorer.score(np.zeros(16000), detail=True)
            >>> result.decision(), result.warnings
            (None, ('no speech to judge', 'silent'))
        """
        return cls.from_model(load_pretrained(name), calibration=calibration, **options)

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
        """Score one utterance.

        Args:
            waveform: Array or tensor of shape (time,) or (channels, time). Signed integers are
                divided by their full range; uint8 is 128 ± 128 as in WAV files.
            sample_rate: Its sampling rate, in Hz.
            detail: Return a `ScoreResult` instead of the score alone.

        Raises:
            ValueError: There is no sample, or NaN or infinite ones, or the shape is wrong: more
                than 64 channels are taken for a (time, channels) array.
        """
        utterance = self._prepare(waveform, sample_rate)
        ((_, result),) = self.score_utterances([(None, utterance)])
        if isinstance(result, str):
            raise ValueError(f"`waveform` can't be scored: {result}")
        return result if detail else result.score

    @overload
    def score_batch(
        self,
        waveforms: Iterable[Waveform],
        sample_rate: int | Sequence[int] = ...,
        *,
        detail: Literal[False] = ...,
    ) -> FloatArray: ...
    @overload
    def score_batch(
        self,
        waveforms: Iterable[Waveform],
        sample_rate: int | Sequence[int] = ...,
        *,
        detail: Literal[True],
    ) -> list[ScoreResult]: ...
    def score_batch(
        self,
        waveforms: Iterable[Waveform],
        sample_rate: int | Sequence[int] = SAMPLE_RATE,
        *,
        detail: bool = False,
    ) -> FloatArray | list[ScoreResult]:
        """Score many utterances of any mix of lengths, their crops packed into full batches.

        Args:
            waveforms: Each as in `score`; a 2-D array is a batch of mono utterances.
            sample_rate: One rate for all, or one for each.
            detail: Return a list of `ScoreResult` instead of the scores.

        Returns:
            Scores of shape (n,).

        Raises:
            ValueError: As `score`; the message says which utterance.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> Scorer(TFPARN(), device="cpu", n_crops=1).score_batch(
            ...     [np.zeros(16000), np.zeros((2, 8000))], [16000, 8000]
            ... ).shape
            (2,)
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

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> Scorer(TFPARN(), device="cpu").embed(np.zeros(64000)).shape
            (256,)
        """
        if not isinstance(self.model, Countermeasure):
            raise ValueError(
                f"the model must have `embed`; {type(self.model).__name__} gives logits only."
            )
        utterance = self._prepare(waveform, sample_rate)
        batches = torch.split(utterance.crops, self.batch_size)
        vectors = torch.cat([self.run(self.model.embed, batch) for batch in batches])
        return vectors[list(utterance.which)].mean(dim=0).numpy()

    def score_files(
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        n_threads: int | None = None,
        progress: bool = False,
    ) -> Iterator[FileScore]:
        """Score audio files, yielding a `FileScore` for each, in order.

        Files are decoded in threads ahead of the model, each read once in blocks: memory grows
        neither with their number nor with their length. A file that can't be scored yields a
        `FileScore` with its `error`, and the rest goes on.

        Args:
            paths: The files, read lazily. Folders, tars and the other formats of
                `asvspoof_cm.data.audio_entries` stand for what they hold, by its names.
            n_threads: Threads that decode; None is one for each core, up to four.
            progress: Show progress on standard error.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> [score.error for score in Scorer(TFPARN(), device="cpu").score_files(["no.wav"])]
            ["[Errno 2] No such file or directory: 'no.wav'"]
        """
        return bulk.score_files(self, paths, n_threads=n_threads, progress=progress)

    def score_protocol(
        self,
        protocol: Protocol | str | os.PathLike[str],
        audio_dir: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        shard: tuple[int, int] | None = None,
        resume: bool | Literal["if_same"] = True,
        n_threads: int | None = None,
        progress: bool = False,
        extension: str = EXTENSION,
    ) -> ProtocolScores:
        """Score every utterance of a protocol into a score file; see `bulk.score_protocol`."""
        return bulk.score_protocol(
            self,
            protocol,
            audio_dir,
            output,
            shard=shard,
            resume=resume,
            n_threads=n_threads,
            progress=progress,
            extension=extension,
        )

    def timeline(
        self,
        audio: Waveform | str | os.PathLike[str],
        sample_rate: int = SAMPLE_RATE,
        *,
        window_s: float | None = None,
        hop_s: float = 1.0,
    ) -> timelines.Timeline:
        """Score audio of any length along time; see `timelines.timeline`."""
        return timelines.timeline(self, audio, sample_rate, window_s=window_s, hop_s=hop_s)

    def attention(
        self, waveform: Waveform, sample_rate: int = SAMPLE_RATE, *, start_s: float | None = None
    ) -> timelines.Attention:
        """Return the pooling weight of each frame of one crop; see `timelines.attention`."""
        return timelines.attention(self, waveform, sample_rate, start_s=start_s)

    def _prepare(self, waveform: Waveform, sample_rate: int) -> Utterance:
        rate = self.input.sample_rate
        samples = as_waveform(waveform, sample_rate, rate)
        resampled_from = None if sample_rate == rate else int(sample_rate)
        return take_crops(InMemory(samples), self.input, resampled_from=resampled_from)

    def _prepare_batch(
        self, waveforms: Iterable[Waveform], sample_rate: int | Sequence[int]
    ) -> Iterator[tuple[int, Utterance]]:
        rates: Iterable[int]
        if isinstance(sample_rate, Sequence):
            rates, waveforms = sample_rate, list(waveforms)
            if len(sample_rate) != len(waveforms):
                raise ValueError(
                    "`sample_rate` must be one rate, or one for each utterance; got "
                    f"{len(sample_rate)} rates for {len(waveforms)} utterances."
                )
        else:
            rates = itertools.repeat(sample_rate)
        for k, (waveform, rate) in enumerate(zip(waveforms, rates, strict=False)):
            try:
                yield k, self._prepare(waveform, rate)
            except (TypeError, ValueError) as error:  # noqa: PERF203 — it says which one
                raise type(error)(f"`waveforms[{k}]`: {error}") from error
