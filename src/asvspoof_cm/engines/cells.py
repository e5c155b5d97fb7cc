"""The audio in the cells of a table, as datasets and Ray hold it: opened and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from asvspoof_cm.audio import AudioFile, InMemory, OpenAudio, as_waveform
from asvspoof_cm.scorer.bulk import score_opened
from asvspoof_cm.scorer.scorer import Scorer


class ScoreCells:
    """Scores a column of a batch of rows; a class and not a closure, because engines pickle it."""

    def __init__(
        self, scorer: Scorer, column: str, opening: Callable[..., Any], n_threads: int | None
    ) -> None:
        self.scorer, self.column, self.n_threads = scorer, column, n_threads
        self.opening = partial(opening, sample_rate=scorer.input.sample_rate)

    def __call__(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
        """Return the scores, named by their unit, NaN where there is none, and `cm_error`."""
        if self.column not in batch:
            raise ValueError(f"`column` must be one of {[*batch]}; got {self.column!r}.")
        cells = batch[self.column]
        scored = score_opened(self.scorer, cells, self.opening, n_threads=self.n_threads)
        results = [result for _, result in scored]
        scores = [math.nan if isinstance(each, str) else each.score for each in results]
        return {
            self.scorer.unit: scores,
            "cm_error": [each if isinstance(each, str) else "" for each in results],
        }


def open_cell(cell: Any, sample_rate: int) -> AbstractContextManager[OpenAudio]:
    """Open the audio of one cell; see `score_batch_function`."""
    if isinstance(cell, bytes):
        return AudioFile(cell, sample_rate=sample_rate)
    if isinstance(cell, Mapping):
        if cell.get("array") is not None:
            rate = cell["sampling_rate"]
            waveform = as_waveform(np.asarray(cell["array"]), rate, sample_rate)
            return nullcontext(InMemory(waveform, int(rate)))
        name = None if cell.get("path") is None else str(cell["path"])
        if cell.get("bytes") is not None:
            return AudioFile(cell["bytes"], sample_rate=sample_rate, name=name)
        if name is not None:
            return AudioFile(name, sample_rate=sample_rate)
    raise ValueError(
        'audio must be bytes, {"array", "sampling_rate"} or {"bytes", "path"}; got '
        f"{type(cell).__name__}. Cast the column: dataset.cast_column(name, Audio(decode=False))."
    )
