"""The folder of a run: its settings, records and checkpoints, and how it resumes from them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import filelock
import torch

from asvspoof_cm._util import write_json, write_text
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint, save_tensors
from asvspoof_cm.metrics import evaluate, within_sources
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.training.distributed import gather_objects, rank_and_size
from asvspoof_cm.training.loop import EpochResult, TrainingState

logger = logging.getLogger(__name__)

Measure: TypeAlias = Callable[[EpochResult], Mapping[str, float]]

_MAY_DIFFER = {"recipe.n_epochs", "recipe.decay_epochs", "recipe.patience", "recipe.minutes"}
"""Settings that may differ when a run is resumed: they say how long it goes on."""


class Run:
    """The folder of a run, what identifies it, and how far it has come."""

    def __init__(
        self, folder: Path, state: TrainingState, seed: int, known: dict[str, Any]
    ) -> None:
        self.folder, self.state, self.recipe = folder, state, state.recipe
        self.history: list[dict[str, Any]] = []
        name, config = describe_model(state.model)
        settings = {
            "model": {"name": name, "config": config, "input": asdict(state.model.input)},
            "recipe": {**asdict(self.recipe), "precision": state.precision},
            "seed": seed,
            "n_processes": rank_and_size()[1],
            "known": known,
        }
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))

    @property
    def spent_s(self) -> float:
        """Seconds of training so far."""
        return math.fsum(record["train_s"] for record in self.history)

    @property
    def standing(self) -> tuple[int, int]:
        """The best epoch and the epochs without a significant decrease; see `early_stopping`."""
        values = [float(record["dev"][self.recipe.select]) for record in self.history]
        return early_stopping(values, self.recipe.tolerance)

    @property
    def is_over(self) -> bool:
        """Whether the time is up, the last epoch done, or the patience at its end."""
        if self.recipe.minutes is not None:
            return self.spent_s >= 60 * self.recipe.minutes
        is_done = len(self.history) >= self.recipe.n_epochs
        return is_done or self.standing[1] >= self.recipe.patience

    def add(self, trained: EpochResult, validated: EpochResult, measure: Measure) -> dict[str, Any]:
        """Add the record of an epoch to the history and return it."""
        figures, select = dict(measure(validated)), self.recipe.select
        if select not in figures:
            raise ValueError(
                f"`select` must be one of {', '.join(figures)}, the figures of the development "
                f"set; got {select!r}."
            )
        last = self.history[-1] if self.history else {"n_clips": 0, "cumulative_s": 0.0}
        record = {
            "epoch": len(self.history) + 1,
            "lr": self.state.optimizer.param_groups[0]["lr"],
            "n_clips": last["n_clips"] + len(trained.scores),
            "train": {"loss": trained.loss, **track1_figures(trained)},
            "dev": figures,
            "n_dev": len(validated.scores),
            "train_s": trained.seconds,
            "dev_s": validated.seconds,
            "clips_per_s": len(trained.scores) / trained.seconds,
            "peak_memory_bytes": trained.peak_memory_bytes,
            "dev_peak_memory_bytes": validated.peak_memory_bytes,
            "cumulative_s": last["cumulative_s"] + trained.seconds + validated.seconds,
        }
        self.history.append(record)
        record["is_best"] = self.standing[0] == record["epoch"]
        return record

    def resume(self) -> None:
        """Go on from the state in the folder, if there is one."""
        path = self.folder / "resume.pt"
        if path.exists():
            try:
                kept = load_tensors(path)
                before, now = _flat(json.loads(kept["settings"])), _flat(self.settings)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"`out` {self.folder} can't be resumed: {path.name} is damaged ({error}). "
                    "Remove it to start over, or choose another folder; best.pt and last.pt are "
                    "still there."
                ) from error
            changes = [
                f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
                for name in sorted(before.keys() | now.keys())
                if before.get(name) != now.get(name) and name not in _MAY_DIFFER
            ]
            if changes:
                raise ValueError(
                    f"`out` {self.folder} holds a run with other settings: {'; '.join(changes)}. "
                    "Use the same ones to resume it, or another folder."
                )
            self.state.load_state_dict(kept["training"])
            self.history = json.loads(kept["history"])
            logger.info("%s: resuming after epoch %d", self.folder, len(self.history))
        if rank_and_size()[0] == 0:
            self._write_records()

    def save_model(self, record: Mapping[str, Any]) -> None:
        """Write ``last.pt`` and, where it is wanted, ``best.pt`` and one for the epoch."""
        training = {name: value for name, value in self.settings.items() if name != "known"}
        known = {**self.settings["known"], "training": training, "epoch": record["epoch"]}
        for name, is_wanted in (
            ("last", True),
            ("best", record["is_best"]),
            (f"epoch_{record['epoch']:03d}", self.recipe.keep_epochs),
        ):
            if is_wanted:
                path = self.folder / f"{name}.pt"
                save_checkpoint(path, self.state.model, **known, dev=record["dev"])

    def save_state(self) -> None:
        """Write what the run resumes from, then what people read.

        An interruption before loses the epoch, which is then run again with the same result.
        """
        content = {
            "settings": json.dumps(self.settings),
            "training": self.state.state_dict(),
            "history": json.dumps(self.history),
        }
        save_tensors(self.folder / "resume.pt", content)
        self._write_records()

    def _write_records(self) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in self.history)
        write_text(self.folder / "history.jsonl", lines)
        parameters = self.state.model.parameters()
        about = {
            **self.settings,
            "n_parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "environment": {
                "asvspoof-cm": version("asvspoof-cm"),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "device": self.state.device.type,
            },
            "is_finished": self.is_over,
        }
        write_json(self.folder / "run.json", about)


def early_stopping(values: Sequence[float], tolerance: float) -> tuple[int, int]:
    """Return the epoch of the lowest value, from 1, and the epochs since it fell significantly."""
    values = [math.inf if math.isnan(value) else value for value in values]
    reference, n_stale = math.inf, 0
    for value in values:
        n_stale += 1
        if value < reference - tolerance:
            reference, n_stale = value, 0
    return values.index(min(values)) + 1 if values else 0, n_stale


def track1_figures(result: EpochResult, source: Any = None) -> dict[str, float]:
    """Return figures of Track 1; a model in training may not have learned anything yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = evaluate(result.scores, result.labels).values()
    within = None if source is None else within_sources(result.scores, result.labels, source)
    if within is not None and within.mean is not None:
        found["eer_within"] = float(within.mean.values["eer"])
    return found


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other runs from the folder inside the block; a process that dies frees it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, is_free = filelock.FileLock(folder / "run.lock", timeout=0), True
    if rank_and_size()[0] == 0:
        try:
            lock.acquire()
        except filelock.Timeout:
            is_free = False
    if not all(gather_objects(is_free)):
        raise ValueError(
            f"`out` {folder} is being trained in by another process. Wait for it, stop it, or "
            "choose another folder."
        )
    try:
        yield
    finally:
        lock.release()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    if not isinstance(value, Mapping):
        return {name[1:]: value}
    parts = [_flat(item, f"{name}.{key}") for key, item in value.items()]
    return {key: item for part in parts for key, item in part.items()}
