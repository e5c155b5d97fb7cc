"""The scorer: one object from audio of any kind to scores, and the one loop that runs a model.

PyTorch is imported where a model needs it: an ONNX file is scored without.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

import numpy as np

from asvspoof_cm._util import (
    FloatArray,
    check_between,
    check_choice,
    check_positive,
    heads_of,
    resolve_device,
)
from asvspoof_cm.audio import (
    MAX_CROPS,
    NOTHING_TO_JUDGE,
    Array,
    InMemory,
    InputSettings,
    OpenAudio,
    Utterance,
    Waveform,
    audio_name,
    cut,
    open_audio,
    set_level,
    take_crops,
)
from asvspoof_cm.calibration import Calibration, Verdict, adapt_calibration, decide, probability
from asvspoof_cm.data.folder import Audio, Item, find_audio
from asvspoof_cm.data.segments import Segment
from asvspoof_cm.labels import BONAFIDE, LABEL_NAMES, SAMPLE_RATE, SPOOF, UNITS, Unit
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts
from asvspoof_cm.scorer import files, timeline as along
from asvspoof_cm.scorer.files import FileScore, ScoreSummary, Shard
from asvspoof_cm.scorer.timeline import Cells, Explanation, SegmentSettings, Window, Windows

if TYPE_CHECKING:
    import torch

    from asvspoof_cm.data import Protocol

Precision = Literal["fp32", "bf16", "fp16"]
Row: TypeAlias = dict[str, Any]
"""What a model makes of one waveform, by name."""
T = TypeVar("T")

GPU_BATCH, CPU_BATCH = 32, 5  # a CPU gains nothing from more, and they take memory


# The forward loop


def run_rows(
    function: Callable[[Any], Row],
    items: Iterable[tuple[T, Any]],
    *,
    device: str | torch.device | None,
    precision: Precision,
    batch_size: int | None,
) -> Iterator[tuple[T, list[Row]]]:
    """Yield each tag with the results of `function` for its waveforms: the one forward loop.

    An item is a tag and any number of waveforms (time,), arrays or tensors; None for `batch_size`
    makes each item a batch, else they share batches. The function maps waveforms (batch, time) on
    `device` (None: arrays) to arrays whose first axis is the batch, and to plain numbers, by name.
    A batch's results, float32, are fetched while the device works on the next one and `items`
    prepares what follows.
    """
    waiting: deque[tuple[T, int]] = deque()
    rows: list[Any] = []
    started: deque[Callable[[], list[Row]]] = deque()
    done: deque[Row] = deque()

    def finished(n_running: int) -> Iterator[tuple[T, list[Row]]]:
        while len(started) > n_running:
            done.extend(started.popleft()())
        while waiting and waiting[0][1] <= len(done):
            tag, n_rows = waiting.popleft()
            yield tag, [done.popleft() for _ in range(n_rows)]

    for tag, new_rows in items:
        waiting.append((tag, len(new_rows)))
        rows.extend(new_rows)
        while rows and len(rows) >= (batch_size or 1):
            n_rows = batch_size or len(rows)
            started.append(_start(function, rows[:n_rows], device, precision))
            del rows[:n_rows]
        yield from finished(1)
    if rows:
        started.append(_start(function, rows, device, precision))
    yield from finished(0)


_IMPORTED_BY = os.getpid()


def _start(
    function: Callable[[Any], Row], rows: list[Any], device: Any, precision: Precision
) -> Callable[[], list[Row]]:
    """Start a batch on the device; the function that is returned waits for its rows' results."""
    global _IMPORTED_BY
    event: Any = None
    if device is None:
        found = function(np.stack(rows))
    else:
        import torch

        if os.getpid() != _IMPORTED_BY:
            # The pool of threads stays behind in the parent of a forked process.
            _IMPORTED_BY = os.getpid()
            torch.set_num_threads(1)
        place = torch.device(device)
        is_cuda = place.type == "cuda"
        arrays = isinstance(rows[0], np.ndarray)
        batch = torch.from_numpy(np.stack(rows)) if arrays else torch.stack(rows)
        batch = (batch.pin_memory() if is_cuda else batch).to(place, non_blocking=is_cuda)
        lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        with torch.no_grad(), torch.autocast(place.type, dtype=lower, enabled=lower is not None):
            found = function(batch)
        for name, part in found.items():
            if isinstance(part, torch.Tensor):
                found[name] = part.float().to("cpu", non_blocking=is_cuda)
        if is_cuda:
            event = torch.Event(place)
            event.record()

    def wait() -> list[Row]:
        if event is not None:
            event.synchronize()
        return [
            {name: part[k] if getattr(part, "ndim", 0) else part for name, part in found.items()}
            for k in range(len(rows))
        ]

    return wait


# What comes out


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """The score of one utterance, and what to know about it.

    Attributes:
        score: Higher means bonafide.
        unit: "llr", the calibrated log-likelihood ratio of bonafide against spoof; or "log-odds",
            the logit difference z1 − z0.
        crop_scores: The score of each crop on its own; `score` is that of their averaged logits.
        llr: The calibrated log-likelihood ratio; None without a calibration.
        lowest_llr: That of the worst second where the model has a frame head, else of the worst
            crop; None without a calibration.
        duration_s: How long the utterance is.
        resampled_from: Its sampling rate in Hz where that was not the model's, else None.
        warnings: What may make the score mean little; docs/scoring.md lists them.

    Example:
        >>> result = ScoreResult(score=0.0, unit="llr", llr=0.0, crop_scores=(0.0,), duration_s=3.0)
        >>> round(result.probability(prior=0.05), 2), result.verdict()
        (0.95, <Verdict.BONAFIDE: 'bonafide'>)
    """

    score: float
    unit: Unit
    crop_scores: tuple[float, ...]
    duration_s: float
    llr: float | None = None
    lowest_llr: float | None = None
    resampled_from: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def has_speech(self) -> bool:
        """Whether there is speech to judge: no silence, constant or music, nor less than 0.5 s."""
        return NOTHING_TO_JUDGE not in self.warnings

    def probability(self, prior: float = ASVSPOOF5.p_spoof) -> float:
        """Return the probability of bonafide; without speech to judge, what the prior says."""
        llr = _calibrated(self.llr)
        return float(probability(llr if self.has_speech else 0.0, prior))

    def verdict(self, costs: DetectionCosts = ASVSPOOF5, *, worst: bool = False) -> Verdict:
        """Return the cheapest verdict, given costs and prior; it abstains without speech to judge.

        `worst` decides by `lowest_llr`: one synthetic passage makes a recording a spoof.
        """
        llr = _calibrated(self.lowest_llr if worst else self.llr)
        return Verdict(LABEL_NAMES[int(decide(llr, costs))]) if self.has_speech else Verdict.ABSTAIN

    def as_dict(self, costs: DetectionCosts = ASVSPOOF5, *, worst: bool = False) -> dict[str, Any]:
        """Return plain values for JSON, with what follows from the costs; None if uncalibrated."""
        is_calibrated = self.llr is not None
        found = {
            **asdict(self),
            "prior": costs.p_spoof,
            "probability": self.probability(costs.p_spoof) if is_calibrated else None,
            "threshold": costs.threshold,
            "verdict": str(self.verdict(costs, worst=worst)) if is_calibrated else None,
        }
        found["crop_scores"] = [round(score, 6) for score in self.crop_scores]
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}


@dataclass(frozen=True, kw_only=True)
class WindowScore(ScoreResult):
    """The score of the audio from `start_s` to `end_s`, and what to know about it."""

    start_s: float
    end_s: float


def _calibrated(llr: float | None) -> float:
    if llr is None:
        raise ValueError(
            "a probability or a verdict needs a calibrated score; build the scorer with "
            "Scorer(…, calibration=fit_calibration(scores, labels))."
        )
    return llr


# The scorer


class Scorer:
    """A countermeasure ready for use: audio of any kind in, scores out; higher means bonafide.

    Every utterance is brought to one channel and the model's rate, freed of digital silence at its
    ends and cut into evenly spaced crops at the model's level; the score is that of their averaged
    logits (sections III-B.1 and III-C of the TFPARN paper). Identical crops are computed once, and
    crops of many utterances share batches: neither changes a score by more than rounding.

    A scorer works on its own copy of the model, in evaluation mode, and keeps nothing between
    calls: threads may share it. A process that was forked after PyTorch had computed something uses
    one thread, because the threads of its parent's pool do not exist in it.

    Wherever a method takes `audio`, that is a path, an open binary file, the bytes of a file, or a
    waveform: an array or tensor of shape (time,) or (channels, time), of which signed integers are
    divided by their full range and uint8 is 128 ± 128 as in WAV files. `sample_rate` is that of a
    waveform, in Hz; a file knows its own. A file is read in blocks: its length costs no memory.

    Args:
        model: A `Countermeasure`; what `load_onnx` returns; or anything that maps float32 waveforms
            (batch, time) on the CPU to logits (batch, 2), which is used as it is, not copied.
        device: "auto" is CUDA, else MPS, else the CPU; under torchrun each process takes the CUDA
            device of its local rank.
        n_crops: Crops of each utterance, K in the paper; 1 is the centre crop. None is the model's.
        crop_s: Their length in seconds. None is the model's, the length that it was trained on.
        batch_size: Crops in a batch; None is 32 on a GPU and 5 on a CPU.
        score: The unit of scores, "llr" or "log-odds"; None is "llr" where there is a calibration.
        precision: "bf16" and "fp16" run the model under autocast: faster where the hardware has
            it. Scores change in about the third digit and then depend on the batch as well.
        calibration: The map from log-odds to log-likelihood ratios; "model" is the one that the
            model brings along, if it does, None is none. Where it was fitted on scores of other
            crops or another precision, a warning says so.
        channel: What of several channels is scored: their "mix", the average; one, counted from 0;
            or "each" on its own, with `score_files` only.

    Attributes:
        input: Rate, crops and level in use.
        unit: The unit of scores in use.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> scorer = Scorer(TFPARN(), device="cpu")
        >>> scorer
        Scorer(TFPARN on cpu, 5 crops of 4 s, score: log-odds)
        >>> result = scorer.score_file(np.zeros((2, 22050), np.int16), sample_rate=44100)
        >>> len(result.crop_scores), result.duration_s, result.resampled_from, result.warnings
        (5, 0.5, 44100, ('no speech to judge', 'silent', 'shorter than 1 s'))
    """

    def __init__(
        self,
        model: Callable[[Any], Any],
        *,
        device: str | torch.device = "auto",
        n_crops: int | None = None,
        crop_s: float | None = None,
        batch_size: int | None = None,
        score: Unit | None = None,
        precision: Precision = "fp32",
        calibration: Calibration | Literal["model"] | None = "model",
        channel: int | Literal["mix", "each"] = "mix",
    ) -> None:
        changes: dict[str, Any] = {"n_crops": n_crops, "crop_s": crop_s}
        own: InputSettings = getattr(model, "input", InputSettings())
        self.input = replace(own, **{k: v for k, v in changes.items() if v is not None})
        check_choice("precision", precision, ("fp32", "bf16", "fp16"))
        self.precision: Precision = precision
        self.calibration = _stored_calibration(model) if calibration == "model" else calibration
        self.unit: Unit = score or ("log-odds" if self.calibration is None else "llr")
        check_choice("score", self.unit, UNITS)
        if self.unit == "llr" and self.calibration is None:
            raise ValueError(
                '`calibration` must be given with score="llr"; the model brings none along.'
            )
        if self.calibration is not None:
            self._check_calibration(self.calibration)
        if channel not in ("mix", "each") and (type(channel) is not int or channel < 0):
            raise ValueError(
                f'`channel` must be "mix", "each" or a number from 0; got {channel!r}.'
            )
        self.channel = channel
        self.segment_settings = SegmentSettings.of(model)
        if isinstance(calibration, Calibration) and "segments" in getattr(model, "meta", {}):
            stored = _stored_calibration(model) or calibration
            self.segment_settings = self.segment_settings.moved(stored, calibration)
        self.model: Any = model
        self.device: str | torch.device | None = "cpu"
        if _is_module(self.model):
            self.device = resolve_device(device)
            self.model = copy.deepcopy(model).to(self.device).eval()  # type: ignore[attr-defined]
        elif str(device) not in ("auto", "cpu") or precision != "fp32":
            raise ValueError(
                '`device` must be "auto" or "cpu" and `precision` "fp32" for a model that is not '
                f"a torch module; got {str(device)!r} and {precision!r}."
            )
        elif getattr(model, "takes_arrays", False):
            self.device = None
        most = CPU_BATCH if str(self.device or "cpu").startswith("cpu") else GPU_BATCH
        self.batch_size: int = most if batch_size is None else batch_size
        check_positive(self, "batch_size")

    def __repr__(self) -> str:
        crops = f"{self.input.n_crops} crops of {self.input.crop_s:g} s"
        name, place = type(self.model).__name__, self.device or "cpu"
        return f"{type(self).__name__}({name} on {place}, {crops}, score: {self.unit})"

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Return a scorer of a file of `save_checkpoint`; the options are those of `Scorer`."""
        from asvspoof_cm.checkpoint import load_checkpoint

        return cls(load_checkpoint(path), **options)

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        revision: str | None = None,
        sha256: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a scorer of a model that comes with the package or lies on the Hugging Face hub.

        Args:
            name: One of `asvspoof_cm.checkpoint.PRETRAINED`; ``owner/name`` on the hub; or a folder
                in its layout. None takes the default and logs once which that is.
            revision: The commit of a repository; None is the newest.
            sha256: The hash that the model must have; that of the package's own is known.
            **options: The other arguments of `Scorer`.

        Example:
            >>> result = Scorer.from_pretrained(device="cpu").score_file(np.zeros(16000))
            >>> result.unit, result.verdict(), result.warnings
            ('llr', <Verdict.ABSTAIN: 'abstain'>, ('no speech to judge', 'silent'))
        """
        from asvspoof_cm.checkpoint import load_pretrained

        return cls(load_pretrained(name, revision=revision, sha256=sha256), **options)

    @classmethod
    def from_onnx(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Return a scorer of a file that `export_onnx` wrote, on the CPU, without PyTorch."""
        from asvspoof_cm.export import load_onnx

        return cls(load_onnx(path), **options)

    # One utterance and many

    def score(self, audio: Audio | OpenAudio, sample_rate: int = SAMPLE_RATE) -> float:
        """Return the score of one utterance, a file or a waveform; see `Scorer`.

        Raises:
            OSError: There is no such file.
            ValueError: It can't be decoded or scored; the message says why.
        """
        return self.score_file(audio, sample_rate).score

    def score_file(self, audio: Audio | OpenAudio, sample_rate: int = SAMPLE_RATE) -> ScoreResult:
        """Return the score of one utterance with all that is known about it, as `score` does."""
        with self.open(audio, sample_rate) as source:
            utterance = take_crops(source, self.input)
        ((_, result),) = self.score_utterances([(None, utterance)])
        if isinstance(result, str):
            raise ValueError(f"{audio_name(audio)} can't be scored: {result}")
        return result

    def score_batch(
        self, waveforms: Iterable[Waveform], sample_rate: int = SAMPLE_RATE
    ) -> FloatArray:
        """Return the scores (n,) of many mono waveforms of any length; a 2-D array is a batch."""
        scores = []
        given = enumerate(waveforms)
        for scored in self.score_files((f"`waveforms[{k}]`", w, sample_rate) for k, w in given):
            if scored.result is None:
                raise ValueError(scored.error)
            scores.append(scored.result.score)
        return np.array(scores, dtype=np.float64)

    def score_files(
        self,
        audio: Iterable[Item],
        *,
        root: str | os.PathLike[str] | None = None,
        n_threads: int | None = None,
        progress: bool = False,
    ) -> Iterator[FileScore]:
        """Yield a `FileScore` for each file, in order; one that can't be scored has its `error`.

        Files are decoded in threads ahead of the model: memory does not grow with their number.

        Args:
            audio: Files; folders, for the audio files at any depth; lists of files (.txt, a path on
                each line; .csv and .tsv with a column ``path``); and pairs (name, audio) or triples
                (name, waveform, sample_rate).
            root: Where the files of lists must lie, and relative names start; None is the list's
                folder.
            n_threads: Threads that decode; None is one for each core, up to four.
            progress: Show progress on standard error.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> scorer = Scorer(TFPARN(), device="cpu")
            >>> for scored in scorer.score_files(["no.wav", ("zeros", np.zeros(16000))]):
            ...     print(scored.name, scored.error, scored.score is None)
            no.wav no.wav: No such file or directory. True
            zeros None False
        """
        entries = find_audio(audio, root=root, each_channel=self.channel == "each")
        return files.score_entries(self, entries, n_threads=n_threads, progress=progress)

    def score_protocol(
        self,
        protocol: Protocol | str | os.PathLike[str],
        audio_dir: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        shard: Shard = (0, 1),
        progress: bool = False,
    ) -> ScoreSummary:
        r"""Append the score of every utterance of a protocol to a table, and return what was done.

        A row has the name, the score in a column named by the unit, the verdict at the challenge's
        costs, and warnings. What can't be scored goes to ``OUTPUT.errors.tsv``, and
        ``OUTPUT.run.json`` says what the scores depend on. After an interruption the same call
        scores what is missing. `merge_scores` joins the tables of shards.

        Args:
            protocol: The utterances, or the file that lists them; labels are not needed.
            audio_dir: The folder of their files.
            output: The table, ``.tsv``; what is there is kept.
            shard: Score part k of n only, (k, n) with k from 0: a slice of the protocol.
            progress: Show progress on standard error.

        Raises:
            ValueError: `output` was begun with another model, other settings or another protocol,
                or is being written by another process; or nothing could be scored.
        """
        entries = files.protocol_entries(protocol, audio_dir)
        return files.write_table(self, entries, Path(output), shard=shard, progress=progress)

    # Along time

    def timeline(
        self,
        audio: Audio | OpenAudio,
        sample_rate: int = SAMPLE_RATE,
        *,
        window_s: float | None = None,
        hop_s: float = 1.0,
    ) -> list[WindowScore]:
        """Return the scores of audio of any length in windows along time.

        Each window of `window_s` (None is a crop's length), `hop_s` after the one before, is scored
        as an utterance of its own with one crop, so that a loud passage doesn't hide a quiet one.
        Where the last whole window ends before the audio does, one more holds what is left.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> windows = Scorer(TFPARN(), device="cpu").timeline(np.zeros(16000 * 5 + 8000))
            >>> [(window.start_s, window.end_s, window.has_speech) for window in windows]
            [(0.0, 4.0, False), (1.0, 5.0, False), (2.0, 5.5, False)]
        """
        cutter = Windows(self.input, window_s, hop_s)
        with self.open(audio, sample_rate) as source:
            return [*self.score_windows(cutter.cut_all(source), cutter.settings)]

    def segments(self, audio: Audio | OpenAudio, sample_rate: int = SAMPLE_RATE) -> list[Segment]:
        """Return the stretches of a recording that are human, synthetic, or without speech.

        They follow each other from 0 to the end. A score for each frame, from the model's frame
        head or, where it has none, from windows of 1 s, is smoothed and cut with hysteresis; how
        is in ``scorer.segment_settings``. It needs a calibration.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> scorer = Scorer(TFPARN(), device="cpu", calibration=Calibration())
            >>> scorer.segments(np.zeros(32000))
            [Segment(start_s=0.0, end_s=2.0, label=2, llr=None)]
        """
        self._need_calibration("segments")
        with self.open(audio, sample_rate) as source:
            duration_s = source.n_samples / self.input.sample_rate
            return along.find_segments(self.cells(source), self.segment_settings, duration_s)

    def explain(
        self,
        audio: Audio | OpenAudio,
        sample_rate: int = SAMPLE_RATE,
        *,
        stretch_s: float = 0.5,
        n_bands: int = 0,
    ) -> Explanation:
        """Return how the score changes where parts of the audio are masked, whatever the model.

        A part whose masking raises the score is what made the audio look synthetic.

        Args:
            audio: As in `score`, but no longer than 1000 crops.
            sample_rate: As in `score`.
            stretch_s: The length of the stretches of time that are masked, one at a time.
            n_bands: Mask bands of each stretch too, this many, equally wide on the Mel scale: as
                many scores as a picture of time and band has cells.

        Example:
            >>> from asvspoof_cm.models import TFPARN
            >>> noise = np.random.default_rng(0).standard_normal(32000)
            >>> scorer = Scorer(TFPARN(), device="cpu", n_crops=1)
            >>> scorer.explain(noise, n_bands=2).of_band.shape
            (2, 4)
        """
        rate = self.input.sample_rate
        least_s, most_s = along.N_FFT / rate, MAX_CROPS * self.input.crop_s
        check_between("stretch_s", stretch_s, least_s)
        check_between("n_bands", n_bands, 0, 64)
        with self.open(audio, sample_rate) as source:
            duration_s = source.n_samples / rate
            if not least_s <= duration_s <= most_s:
                raise ValueError(
                    f"`audio` must last from {least_s:g} to {most_s:g} s to be explained; it lasts "
                    f"{duration_s:g} s. Cut out what is in question."
                )
            samples = source.read()
        starts = range(0, len(samples), round(stretch_s * rate))
        mel = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), max(n_bands, 1) + 1)
        edges_hz = 700 * (10 ** (mel / 2595) - 1)
        n_covering = min(MAX_CROPS, -(-len(samples) // self.input.n_samples))
        settings = replace(self.input, n_crops=max(self.input.n_crops, n_covering))
        parts = along.masked(samples, rate, starts.step, edges_hz if n_bands else ())
        heard = (take_crops(InMemory(part, rate), settings) for part in parts)
        rows = self._run((utterance, utterance.crops) for utterance in heard)
        scores = self._in_unit(np.array([_log_odds(*each).mean() for each in rows]))
        change = (scores[1:] - scores[0]).reshape(len(starts), 1 + n_bands)
        return Explanation(
            edges_s=np.array([*starts, len(samples)]) / rate,
            edges_hz=edges_hz,
            of_time=change[:, 0],
            of_band=change[:, 1:].T,
            score=float(scores[0]),
        )

    # Other uses of the model

    def embed(self, audio: Audio | OpenAudio, sample_rate: int = SAMPLE_RATE) -> Array:
        """Return the model's utterance vector (d,), averaged over the crops of `audio`."""
        if not hasattr(self.model, "embed"):
            raise ValueError(
                f"the model must have `embed`; {type(self.model).__name__} gives logits only."
            )
        with self.open(audio, sample_rate) as source:
            utterance = take_crops(source, self.input)
        embed: Any = self.model.embed
        ((_, rows),) = self._run([(None, utterance.crops)], lambda x: {"vector": embed(x)})
        mean: Array = np.mean([np.asarray(rows[k]["vector"]) for k in utterance.which], axis=0)
        return mean

    def logits(self, waveforms: Iterable[Array]) -> Array:
        """Return the model's logits (n, 2) of waveforms (n, time) at its rate, length and level."""
        ((_, rows),) = self._run([(None, [*waveforms])])
        return np.array([row["logits"] for row in rows], dtype=np.float32).reshape(-1, 2)

    def adapt(self, human: Iterable[Item], fake: Iterable[Item] = ()) -> Self:
        """Return a scorer whose threshold fits a channel of which a few clips are known.

        Its log-likelihood ratios are those of this one, moved by a constant; how far is
        `adapt_calibration`'s choice. The ranking of recordings stays what it is.

        Args:
            human: Recordings of people, as `score_files` takes them, made as those to be scored.
            fake: Synthetic speech that came the same way, the more kinds the better. Without it the
                ratios can rise only: people alone can show that they are refused too often.

        Raises:
            ValueError: A clip can't be scored or holds no speech, or there is no calibration.
        """
        calibration = self._need_calibration("adapting")
        found: list[list[float]] = []
        for clips in (human, fake):
            results = []
            for scored in self.score_files(clips):
                if scored.result is None or not scored.result.has_speech:
                    raise ValueError(scored.error or f"{scored.name}: {NOTHING_TO_JUDGE}.")
                results.append(float(scored.result.llr or 0.0))
            found.append(results)
        adapted = copy.copy(self)
        adapted.calibration = adapt_calibration(calibration, *found)
        adapted.segment_settings = self.segment_settings.moved(calibration, adapted.calibration)
        return adapted

    def _need_calibration(self, what: str) -> Calibration:
        if self.calibration is None:
            raise ValueError(
                f"`calibration` must be there for {what}; the scorer has none. Fit one on labelled "
                "scores: Scorer(model, calibration=fit_calibration(scores, labels))."
            )
        return self.calibration

    def conditions(self) -> dict[str, Any]:
        """Return how scores are made, for `fit_calibration`: unit, crops, precision."""
        return {"score": self.unit, **asdict(self.input), "precision": self.precision}

    def settings(self) -> dict[str, Any]:
        """Return what scores depend on, the model as its checkpoint's hash, as plain values."""
        return {
            "model": type(self.model).__name__,
            "sha256": _digest(self.model),
            **self.conditions(),
            "channel": self.channel,
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
        }

    # Audio to crops, crops to results

    def open(
        self, audio: Audio | OpenAudio, sample_rate: int = SAMPLE_RATE
    ) -> AbstractContextManager[OpenAudio]:
        """Return audio of any kind as a context whose value is read at the model's rate."""
        rate = self.input.sample_rate
        return open_audio(audio, sample_rate, rate, channel=self.one_channel())

    def one_channel(self) -> int | None:
        """Return the channel to read; None is their average."""
        if self.channel == "each":
            raise ValueError('`channel`: "each" gives several scores; use score_files.')
        return None if self.channel == "mix" else self.channel

    def score_utterances(
        self, utterances: Iterable[tuple[T, Utterance | str]]
    ) -> Iterator[tuple[T, ScoreResult | str]]:
        """Yield the result of each prepared utterance, in order; error messages pass through."""
        items = (
            ((tag, found), () if isinstance(found, str) else found.crops)
            for tag, found in utterances
        )
        for (tag, found), rows in self._run(items):
            yield tag, found if isinstance(found, str) else self._result(found, rows)

    def score_windows(
        self, windows: Iterable[Window], settings: InputSettings
    ) -> Iterator[WindowScore]:
        """Score windows in full batches, each as an utterance of its own with one crop."""
        rate = settings.sample_rate
        prepared = (
            ((start / rate, stop / rate), take_crops(InMemory(samples, rate), settings))
            for start, stop, samples in windows
        )
        for (start_s, end_s), result in self.score_utterances(prepared):
            if isinstance(result, str):
                raise ValueError(f"from {start_s} s to {end_s} s, {result}")
            yield WindowScore(**vars(result), start_s=start_s, end_s=end_s)

    def cells(self, source: OpenAudio) -> Cells:
        """Return the LLR of equally long cells of time: frames, or parts of windows of 1 s."""
        has_frames = bool(getattr(self.model, "frame_head", None))
        parts = (self._frames if has_frames else self._quarters)(source)
        return along.join_cells(parts, source.n_samples / self.input.sample_rate)

    def _quarters(self, source: OpenAudio) -> Iterator[tuple[float, float, Any, Any]]:
        """Yield the cells of windows of 1 s, which all have the window's LLR."""
        cutter, cell_s = Windows(self.input, along.SECOND_S, along.CELL_S), along.CELL_S
        for window in self.score_windows(cutter.cut_all(source), cutter.settings):
            n = math.ceil(window.end_s / cell_s) - round(window.start_s / cell_s)
            yield window.start_s, cell_s, np.full(n, window.llr), np.full(n, window.has_speech)

    def _frames(self, source: OpenAudio) -> Iterator[tuple[float, float, Any, Any]]:
        """Yield the frames of overlapping crops; those at a crop's edge have less context."""
        rate, crop_s, kept = self.input.sample_rate, self.input.crop_s, self.segment_settings
        cutter = Windows(self.input, crop_s, max(crop_s / 2, crop_s - along.SECOND_S))

        def crops() -> Iterator[tuple[tuple[float, float], Array]]:
            for start, stop, samples in cutter.cut_all(source):
                peak = float(np.abs(samples).max())
                crop = cut(samples, 0, cutter.settings.n_samples)[None]
                place = start / rate, stop / rate
                yield place, set_level(crop, self.input.normalization, peak)

        for (start_s, end_s), (row,) in self._run(crops()):
            n = math.ceil((end_s - start_s) / row["hop_s"])
            llr = kept.scale * np.asarray(row["frames"], dtype=np.float64)[:n] + kept.offset
            speech = np.asarray(row.get("frame_speech", np.zeros(len(llr))))[:n]
            yield start_s, row["hop_s"], llr, speech >= 0

    def _run(
        self, items: Iterable[tuple[T, Any]], function: Callable[[Any], Row] | None = None
    ) -> Iterator[tuple[T, list[Row]]]:
        """Yield each tag with what the model's heads, or a function, make of its waveforms."""
        options: Any = {"device": self.device, "precision": self.precision}
        return run_rows(function or self._heads, items, batch_size=self.batch_size, **options)

    def _heads(self, waveforms: Any) -> Row:
        heads, shape = heads_of(self.model, waveforms), (len(waveforms), 2)
        logits = heads["logits"]
        if type(logits) is not type(waveforms) or logits.shape != shape:
            came = tuple(logits.shape) if type(logits) is type(waveforms) else type(logits).__name__
            raise TypeError(
                f"`model` must map waveforms (batch, time) to logits (batch, 2), a "
                f"{type(waveforms).__name__} of shape {shape} here; got {came}. Wrap it in a "
                "function that returns these alone."
            )
        return heads

    def _result(self, utterance: Utterance, rows: Sequence[Row]) -> ScoreResult | str:
        of_crop = _log_odds(utterance, rows)
        if not np.isfinite(of_crop).all():
            return "the model's logits are not finite."
        mean, notes, settings = of_crop.mean(), utterance.warnings, self.segment_settings
        if "speech" in rows[0] and max(float(row["speech"]) for row in rows) < 0:
            notes = tuple(dict.fromkeys((NOTHING_TO_JUDGE, *notes)))
        llr = lowest = None
        if self.calibration is not None:
            llr = float(self.calibration.apply(mean))
            lowest = along.worst_second(rows, settings)
            if lowest is None:
                lowest = float(self.calibration.apply(of_crop).min())
            if lowest < settings.warn_below and lowest < llr - settings.warn_gap:
                notes += (f"parts differ: the worst has an LLR of {lowest:.1f}, see segments",)
        return ScoreResult(
            score=float(self._in_unit(mean)),
            unit=self.unit,
            crop_scores=tuple(self._in_unit(of_crop).tolist()),
            llr=llr,
            lowest_llr=lowest,
            duration_s=utterance.duration_s,
            resampled_from=utterance.resampled_from,
            warnings=notes,
        )

    def _in_unit(self, log_odds: Any) -> Any:
        if self.unit == "log-odds" or self.calibration is None:
            return log_odds
        return self.calibration.apply(log_odds)

    def _check_calibration(self, calibration: Calibration) -> None:
        now, fitted = {**self.conditions(), "score": "log-odds"}, calibration.fitted_for
        changed = [
            f"{name} {fitted[name]!r}, not {now[name]!r}"
            for name in now
            if name in fitted and fitted[name] != now[name]
        ]
        if changed:
            warnings.warn(
                f"the calibration was fitted for {'; '.join(changed)}: log-likelihood ratios, "
                "probabilities and verdicts may be off. Fit one on log-odds of this scorer.",
                stacklevel=3,
            )


def _log_odds(utterance: Utterance, rows: Sequence[Row]) -> FloatArray:
    """Return the log-odds (n_crops,) of all crops of the test-time augmentation."""
    logits = np.stack([np.asarray(row["logits"], dtype=np.float64) for row in rows])
    with np.errstate(invalid="ignore"):  # of infinite logits
        return np.asarray((logits[:, BONAFIDE] - logits[:, SPOOF])[[*utterance.which]])


def _is_module(model: object) -> bool:
    """Whether a model is a torch module; then PyTorch has been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _stored_calibration(model: Any) -> Calibration | None:
    """Return the calibration that a model brings along, one of log-odds."""
    stored = getattr(model, "meta", {}).get("calibration")
    if stored is None:
        return None
    try:
        calibration = Calibration.from_dict(stored)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f'`model.meta["calibration"]` is not a calibration ({error}). Pass calibration=None, '
            "or one that fit_calibration made."
        ) from error
    own = calibration.fitted_for or {**asdict(model.input), "precision": "fp32"}
    return replace(calibration, fitted_for=own)


def _digest(model: Any) -> str | None:
    """Return the hash of a model, which its checkpoint has too, or of its file."""
    if not _is_module(model):
        return getattr(model, "sha256", None)
    from asvspoof_cm.checkpoint import content_hash, hash_tensors
    from asvspoof_cm.models import Countermeasure

    is_ours = isinstance(model, Countermeasure)
    return content_hash(model) if is_ours else hash_tensors(model.state_dict())
