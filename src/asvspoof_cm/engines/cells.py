"""The audio in the cells of a table, as datasets and Ray hold it: opened and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from asvspoof_cm.data.folder import Entry
from asvspoof_cm.scorer.files import score_entries
from asvspoof_cm.scorer.scorer import Scorer


class ScoreCells:
    """Scores a column of a batch of rows; a class and not a closure, because engines pickle it."""

    def __init__(
        self,
        scorer: Scorer,
        column: str,
        as_entry: Callable[[Any], Entry],
        n_threads: int | None,
    ) -> None:
        self.scorer, self.column, self.n_threads = scorer, column, n_threads
        self.as_entry = as_entry

    def __call__(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
        """Return the scores, named by their unit, NaN where there is none, and `cm_error`."""
        if self.column not in batch:
            raise ValueError(f"`column` must be one of {[*batch]}; got {self.column!r}.")
        entries = map(self.as_entry, batch[self.column])
        scored = [*score_entries(self.scorer, entries, n_threads=self.n_threads)]
        return {
            self.scorer.unit: [math.nan if each.score is None else each.score for each in scored],
            "cm_error": [each.error or "" for each in scored],
        }


def cell_entry(cell: Any) -> Entry:
    """Return the audio of one cell as something to score; see `score_batch_function`."""
    if isinstance(cell, bytes):
        return Entry("the audio", cell)
    if isinstance(cell, Mapping):
        if cell.get("array") is not None:
            return Entry("the audio", np.asarray(cell["array"]), cell["sampling_rate"])
        name = None if cell.get("path") is None else str(cell["path"])
        if cell.get("bytes") is not None:
            return Entry(name or "the audio", cell["bytes"])
        if name is not None:
            return Entry(name, name)
    wrong = ValueError(
        'audio must be bytes, {"array", "sampling_rate"} or {"bytes", "path"}; got '
        f"{type(cell).__name__}. Cast the column: dataset.cast_column(name, Audio(decode=False))."
    )
    return Entry("the audio", wrong)
