"""Scoring files: decoded in threads ahead of the model, each either a score or an error."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import soundfile

from asvspoof_cm.audio import AudioFile
from asvspoof_cm.data.formats import OpenAudio
from asvspoof_cm.scorer.inputs import Utterance, take_crops
from asvspoof_cm.scorer.packing import map_ahead
from asvspoof_cm.scorer.results import FileScore, ScoreResult
from asvspoof_cm.utils.progress import track

if TYPE_CHECKING:
    from asvspoof_cm.scorer.scorer import Scorer

__all__ = ["score_files", "score_opened"]

MAX_THREADS = 4
BAD_AUDIO = (OSError, ValueError, soundfile.SoundFileError)
"""What a bad file can raise. It must not stop the others; an error in the code must."""
T = TypeVar("T")


def score_files(
    scorer: Scorer,
    paths: Iterable[str | os.PathLike[str]],
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> Iterator[FileScore]:
    """Score audio files, yielding a `FileScore` for each, in order; see `Scorer.score_files`."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"`paths` must be several files; got {paths!r}. Wrap it in a list.")
    open_file = partial(AudioFile, sample_rate=scorer.input.sample_rate)
    scored = score_opened(scorer, map(Path, paths), open_file, n_threads=n_threads)
    results = itertools.starmap(_file_score, scored)
    total = len(paths) if isinstance(paths, Sized) else None
    return track(results, total=total, description="scoring", unit="file", enabled=progress)


def score_opened(
    scorer: Scorer,
    tags: Iterable[T],
    open_tag: Callable[[T], AbstractContextManager[OpenAudio]],
    *,
    n_threads: int | None = None,
) -> Iterator[tuple[T, ScoreResult | str]]:
    """Score what `open_tag` opens for each tag, yielding the tag with a result or an error."""
    if n_threads is None:
        n_threads = min(MAX_THREADS, os.cpu_count() or 1)
    elif n_threads < 1:
        raise ValueError(f"`n_threads` must be at least 1; got {n_threads}.")

    def decode(tag: T) -> tuple[T, Utterance | str]:
        try:
            with open_tag(tag) as source:
                rate = getattr(source, "native_rate", scorer.input.sample_rate)
                resampled_from = None if rate == scorer.input.sample_rate else rate
                return tag, take_crops(source, scorer.input, resampled_from=resampled_from)
        except BAD_AUDIO as error:
            return tag, one_line(error)

    n_in_batch = -(-scorer.batch_size // scorer.input.n_crops)
    decoded = map_ahead(decode, tags, n_threads=n_threads, n_ahead=max(n_threads, 2 * n_in_batch))
    return scorer.score_utterances(decoded)


def _file_score(path: Path, result: ScoreResult | str) -> FileScore:
    if not isinstance(result, str):
        return FileScore(path=path, result=result)
    return FileScore(path=path, error=result if str(path) in result else f"{path}: {result}")


def one_line(error: BaseException) -> str:
    """Return an error's message, or its type where it has none, without line breaks or tabs."""
    return " ".join(str(error).split()) or type(error).__name__
