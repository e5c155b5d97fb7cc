"""The run folder of a training: its files, settings, history and results. No torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Run", "read_run"]

RUN_NAME = "run.json"
HISTORY_NAME = "history.jsonl"
BEST_NAME = "best.pt"
LAST_NAME = "last.pt"
STATE_NAME = "resume.pt"
FINAL_NAME = "final.json"
LOCK_NAME = "run.lock"

RECORDED_METRICS = ("min_dcf", "eer", "cllr", "act_dcf")
"""The metrics of every record, in the order of the paper's figure."""

SPLITS = ("train", "dev")
"""The sets of a record."""

COSTS = ("peak_memory_bytes", "ms_per_utterance")
"""What `profile_run` adds to the final evaluation."""

FINAL_SPLITS = ("dev", "eval")
"""The sets that the final evaluation may have."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of one system with one seed.

    Attributes:
        path: The folder.
        system: The settings, as `training.System` has them.
        seed: The seed.
        n_parameters: Trainable parameters.
        data: What it was trained on.
        history: One record per epoch; see `training.fit`.
        final: The evaluation of the best checkpoint, None while the run is unfinished.
    """

    path: Path
    system: Mapping[str, Any]
    seed: int
    n_parameters: int
    data: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    final: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The name of the system."""
        return str(self.system["name"])

    @property
    def is_finished(self) -> bool:
        """Whether a final evaluation is there."""
        return self.final is not None and any(split in self.final for split in FINAL_SPLITS)

    @property
    def best(self) -> Mapping[str, Any]:
        """The record of ``best.pt``: the last that was better than those before it."""
        return [record for record in self.history if record.get("is_best")][-1]

    @property
    def mean_train_s(self) -> float:
        """Seconds of training per epoch, without validation."""
        return math.fsum(record["train_s"] for record in self.history) / len(self.history)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Return the training run that a folder holds.

    A folder without ``final.json`` is an unfinished run; it may have no epoch yet.

    Args:
        path: A folder with ``run.json``, ``history.jsonl`` and, once finished, ``final.json``.

    Raises:
        FileNotFoundError: Names the file that is missing.
        ValueError: Names the file, the line and the field that is wrong.
    """
    folder = Path(path)
    about = _parse(folder / RUN_NAME, _read(folder / RUN_NAME))
    final_path = folder / FINAL_NAME
    final = _parse(final_path, _read(final_path)) if final_path.exists() else None
    history = [] if final is None and not (folder / HISTORY_NAME).exists() else read_history(folder)
    _check_history(folder / HISTORY_NAME, history)
    if final is not None:
        if not history:
            raise ValueError(f"{folder / HISTORY_NAME} must hold an epoch: the run is finished.")
        splits = [split for split in FINAL_SPLITS if split in final]
        names = [f"{split}.{metric}" for split in splits for metric in RECORDED_METRICS]
        measured = [name for name in COSTS if name in final]
        _check_numbers(final_path, final, [*names, *measured])
    system = about.get("system")
    if not isinstance(system, dict) or not isinstance(system.get("name"), str):
        raise ValueError(
            f"{folder / RUN_NAME}: `system` must be an object with a `name`; got {system!r}."
        )
    for name in ("seed", "n_parameters"):
        if type(about.get(name)) is not int:
            raise ValueError(
                f"{folder / RUN_NAME}: `{name}` must be a whole number; got {about.get(name)!r}."
            )
    return Run(
        path=folder,
        system=system,
        seed=about["seed"],
        n_parameters=about["n_parameters"],
        data=about.get("data", {}),
        history=tuple(history),
        final=final,
    )


def read_history(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a run folder, one per epoch; record i stands in line i + 1.

    Raises:
        FileNotFoundError: The folder has no history.
        ValueError: A line is not a JSON object; gives its number.
    """
    path = Path(run) / HISTORY_NAME
    lines = enumerate(_read(path).splitlines(), start=1)
    return [_parse(f"{path}, line {number}", line) for number, line in lines]


def read_final(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a run folder's ``final.json``; empty where there is none yet."""
    path = Path(run) / FINAL_NAME
    return _parse(path, _read(path)) if path.exists() else {}


def check_unchanged(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise unless the settings of a run folder are those of this run, and name what differs."""
    changes = [
        f"{name} was {old!r}, now {new!r}"
        for name, old, new in changed_settings(before, json.loads(json.dumps(now)))
    ]
    if changes:
        raise ValueError(
            f"`out_dir` {folder} holds a run with other settings: {'; '.join(changes)}. "
            "Use the same ones to resume it, or another folder."
        )


def group_by_system(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each system, in the order in which they come.

    Raises:
        ValueError: There is no run; a seed of a system comes twice; runs of one name have other
            settings or data, so that their mean would mean nothing.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.name, [])
        if group:
            _check_same_system(group[0], run)
        for other in group:
            if other.seed == run.seed:
                raise ValueError(
                    f"`runs` must have each seed of a system once; {other.path} and {run.path} "
                    f"both are {run.name!r} with seed {run.seed}. Leave one out."
                )
        group.append(run)
    if not groups:
        raise ValueError("`runs` must hold at least one run; got none.")
    return groups


def changed_settings(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, old value, new value) of each setting that differs, by name."""
    old, new = _flatten(before), _flatten(now)
    names = sorted(old.keys() | new.keys())
    return [(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_same_system(first: Run, run: Run) -> None:
    before, now = ({**r.system, "data": r.data} for r in (first, run))
    changed = [f"{name} ({old!r}, {new!r})" for name, old, new in changed_settings(before, now)]
    if changed:
        raise ValueError(
            f"`runs` of one system must differ in their seed only; {first.path} and {run.path} "
            f"both are {run.name!r} but differ in {', '.join(changed)}. "
            "Report them one at a time, or give one another name in its run.json."
        )


def _read(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(
            f"`run` must be the folder of a training run; {path} does not exist."
        )
    return path.read_text(encoding="utf-8")


def _parse(where: Path | str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a JSON object; got {text[:40]!r}.")
    return content


def _check_history(path: Path, history: list[dict[str, Any]]) -> None:
    names = [f"{split}.{metric}" for split in SPLITS for metric in RECORDED_METRICS]
    time_s = 0.0
    for number, record in enumerate(history, start=1):
        where = f"{path}, line {number}"
        _check_numbers(where, record, [*names, "train_s", "cumulative_s"])
        if not record["cumulative_s"] > time_s:
            raise ValueError(
                f"{where}: `cumulative_s` must grow from epoch to epoch, from above 0; "
                f"got {record['cumulative_s']} after {time_s}."
            )
        time_s = record["cumulative_s"]
    if history and not any(record.get("is_best") is True for record in history):
        raise ValueError(f"{path}: `is_best` must be true in the record of the best epoch.")


def _check_numbers(where: Path | str, record: Mapping[str, Any], names: Iterable[str]) -> None:
    values = _flatten(record)
    for name in names:
        value = values.get(name)
        if not isinstance(value, int | float) or type(value) is bool or not math.isfinite(value):
            raise ValueError(f"{where}: `{name}` must be a finite number; got {value!r}.")
