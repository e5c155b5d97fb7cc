"""The audio in the cells of a table, as datasets and Ray hold it: opened and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from asvspoof_cm.audio import AudioFile
from asvspoof_cm.audio.arrays import as_waveform
from asvspoof_cm.data.formats import OpenAudio
from asvspoof_cm.scorer.bulk import score_opened
from asvspoof_cm.scorer.scorer import Scorer
from asvspoof_cm.scorer.utterances import InMemory


def score_cells(
    scorer: Scorer, cells: Iterable[Any], open_cell: Callable[..., Any], n_threads: int | None
) -> dict[str, list[Any]]:
    """Return the columns `cm_score`, NaN where there is none, and `cm_error`, else empty."""
    opened = partial(open_cell, sample_rate=scorer.input.sample_rate)
    scores: list[float] = []
    errors: list[str] = []
    for _, result in score_opened(scorer, cells, opened, n_threads=n_threads):
        if isinstance(result, str):
            scores.append(math.nan)
            errors.append(result)
        else:
            scores.append(result.score)
            errors.append("")
    return {"cm_score": scores, "cm_error": errors}


def open_cell(cell: Any, sample_rate: int) -> AbstractContextManager[OpenAudio]:
    """Open the audio of one cell; see `score_batch_function`."""
    if isinstance(cell, bytes):
        return AudioFile(cell, sample_rate=sample_rate)
    if isinstance(cell, Mapping):
        if cell.get("array") is not None:
            samples = np.asarray(cell["array"])
            return nullcontext(_Array(samples, cell["sampling_rate"], sample_rate))
        name = None if cell.get("path") is None else str(cell["path"])
        if cell.get("bytes") is not None:
            return AudioFile(cell["bytes"], sample_rate=sample_rate, name=name)
        if name is not None:
            return AudioFile(name, sample_rate=sample_rate)
    raise ValueError(
        'audio must be bytes, {"array", "sampling_rate"} or {"bytes", "path"}; got '
        f"{type(cell).__name__}. Cast the column: dataset.cast_column(name, Audio(decode=False))."
    )


class _Array(InMemory):
    """A waveform in memory that remembers its rate."""

    def __init__(self, samples: np.ndarray[Any, Any], native_rate: int, sample_rate: int) -> None:
        super().__init__(as_waveform(samples, native_rate, sample_rate))
        self.native_rate = native_rate
