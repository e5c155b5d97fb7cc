"""The files of a training run, and its history: one JSON record an epoch. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["BEST_NAME", "FINAL_NAME", "HISTORY_NAME", "RUN_NAME", "read_history"]

RUN_NAME = "run.json"
HISTORY_NAME = "history.jsonl"
BEST_NAME = "best.pt"
FINAL_NAME = "final.json"


def read_history(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a run folder, one an epoch; record i stands in line i + 1.

    Raises:
        FileNotFoundError: The folder has no history.
        ValueError: A line is not a JSON object; gives its number.

    Example:
        >>> read_history("no such run")
        Traceback (most recent call last):
        FileNotFoundError: `run` must be the folder of a training run; no such run/history.jsonl ...
    """
    path = Path(run) / HISTORY_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"`run` must be the folder of a training run; {path} does not exist."
        )
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}).") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: must be a JSON object; got {line[:40]!r}.")
        records.append(record)
    return records
