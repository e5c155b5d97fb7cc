"""Scoring inside ``dataset.map`` of Hugging Face datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from asvspoof_cm.data.folder import Entry
from asvspoof_cm.scorer.files import score_entries
from asvspoof_cm.scorer.scorer import Scorer


def score_batch_function(
    scorer: Scorer, *, column: str = "audio", n_threads: int | None = None
) -> Callable[[Mapping[str, Iterable[Any]]], dict[str, list[Any]]]:
    """Return the function to give to ``dataset.map(…, batched=True)``.

    It adds two columns: the score, named by its unit (``scorer.unit``: `llr`, `log-odds` or
    `bonafide-logit`), and `cm_error`, empty where all is well.
    Audio that can't be scored has the score NaN, which no metric takes for a score, and the error
    says why; the rest goes on. Streaming datasets and several processes (``num_proc=``) work too.

    Args:
        scorer: The scorer.
        column: The column of the audio. Its values are ``{"array": …, "sampling_rate": …}``;
            ``{"bytes": …, "path": …}`` as ``Audio(decode=False)`` gives them, which needs no codec
            package; bytes; or paths.
        n_threads: Threads that decode; None is one for each core, up to four.

    Example:
        >>> import math
        >>> import numpy as np
        >>> from asvspoof_cm.models import TFPARN
        >>> score = score_batch_function(Scorer(TFPARN(), device="cpu"))
        >>> batch = score({"audio": [{"array": np.zeros(16000), "sampling_rate": 16000}, b"?"]})
        >>> math.isnan(batch["log-odds"][1]), batch["cm_error"][0]
        (True, '')
        >>> batch["cm_error"][1].startswith("the audio is not an audio file")
        True
    """
    return ScoreCells(scorer, column, n_threads)


class ScoreCells:
    """Scores a column of a batch of rows; a class and not a closure, because engines pickle it."""

    def __init__(self, scorer: Scorer, column: str, n_threads: int | None) -> None:
        self.scorer, self.column, self.n_threads = scorer, column, n_threads

    def __call__(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
        """Return the scores, named by their unit, NaN where there is none, and `cm_error`."""
        if self.column not in batch:
            raise ValueError(f"`column` must be one of {[*batch]}; got {self.column!r}.")
        entries = map(_entry, batch[self.column])
        scored = [*score_entries(self.scorer, entries, n_threads=self.n_threads)]
        return {
            self.scorer.unit: [math.nan if each.score is None else each.score for each in scored],
            "cm_error": [each.error or "" for each in scored],
        }


def _entry(cell: Any) -> Entry:
    """Return the audio of one cell as something to score."""
    if isinstance(cell, bytes):
        return Entry("the audio", cell)
    if isinstance(cell, str):
        return Entry(cell, cell)
    if isinstance(cell, Mapping):
        if cell.get("array") is not None:
            return Entry("the audio", np.asarray(cell["array"]), cell["sampling_rate"])
        name = None if cell.get("path") is None else str(cell["path"])
        audio = name if cell.get("bytes") is None else cell["bytes"]
        if audio is not None:
            return Entry(name or "the audio", audio)
    wrong = ValueError(
        'audio must be bytes, a path, {"array", "sampling_rate"} or {"bytes", "path"}; got '
        f"{type(cell).__name__}. Cast the column: dataset.cast_column(name, Audio(decode=False))."
    )
    return Entry("the audio", wrong)
