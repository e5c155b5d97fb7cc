"""Run folders, read and checked without torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asvspoof_cm.history import FINAL_NAME, HISTORY_NAME, RUN_NAME, read_history

__all__ = ["Run", "group_by_system", "read_run"]

METRICS = ("min_dcf", "eer", "cllr", "act_dcf")
"""The metrics of a record, in the order of the paper's figure."""

SPLITS = ("train", "dev")
"""The sets of a record."""

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
        history: One record an epoch; see `training.fit`.
        final: The evaluation of the best checkpoint, None while the run is unfinished.

    Example:
        >>> values = {1: 0.5, 2: 0.3, 3: 0.4}
        >>> records = [{"epoch": k, "dev": {"min_dcf": v}} for k, v in values.items()]
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=1, data={},
        ...           history=tuple(records), final=None)
        >>> run.name, run.is_finished, run.best["epoch"]
        ('6', False, 2)
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
        """Whether the final evaluation is there."""
        return self.final is not None

    @property
    def best(self) -> Mapping[str, Any]:
        """The record with the lowest Dev minDCF, the first of equals: that of ``best.pt``."""
        return min(self.history, key=lambda record: float(record["dev"]["min_dcf"]))

    @property
    def mean_train_s(self) -> float:
        """Seconds of training an epoch, without validation."""
        return math.fsum(record["train_s"] for record in self.history) / len(self.history)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the folder of a training run.

    A folder without ``final.json`` is an unfinished run; it may have no epoch yet.

    Args:
        path: A folder with ``run.json``, ``history.jsonl`` and, once finished, ``final.json``.

    Raises:
        FileNotFoundError: Names the file that is missing.
        ValueError: Names the file, the line and the field that is wrong.

    Example:
        >>> read_run("no such run")
        Traceback (most recent call last):
        FileNotFoundError: `path` must be the folder of a training run; no such run/run.json ...
    """
    folder = Path(path)
    about = _read_object(folder / RUN_NAME)
    final_path = folder / FINAL_NAME
    final = _read_object(final_path) if final_path.exists() else None
    history = [] if final is None and not (folder / HISTORY_NAME).exists() else read_history(folder)
    _check_history(folder / HISTORY_NAME, history)
    if final is not None:
        if not history:
            raise ValueError(f"{folder / HISTORY_NAME} must hold an epoch: the run is finished.")
        _check_final(final_path, final)
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


def _check_same_system(first: Run, run: Run) -> None:
    before, now = (_flatten({**r.system, "data": r.data}) for r in (first, run))
    changed = [
        f"{name} ({before.get(name)!r}, {now.get(name)!r})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"`runs` of one system must differ in their seed only; {first.path} and {run.path} "
            f"both are {run.name!r} but differ in {', '.join(changed)}. "
            "Report them one at a time, or give one another name in its run.json."
        )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be the folder of a training run; {path} does not exist."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold a JSON object; got {type(content).__name__}.")
    return content


def _check_history(path: Path, history: list[dict[str, Any]]) -> None:
    names = [f"{split}.{metric}" for split in SPLITS for metric in METRICS]
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


def _check_final(path: Path, final: dict[str, Any]) -> None:
    splits = [split for split in FINAL_SPLITS if split == "dev" or split in final]
    names = [f"{split}.{metric}" for split in splits for metric in METRICS]
    _check_numbers(str(path), final, [*names, "peak_memory_bytes", "ms_per_utterance"])


def _check_numbers(where: str, record: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise ValueError(f"{where}: `{name}` must be a finite number; got {value!r}.")
