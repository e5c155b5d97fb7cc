"""The run folder while it is written: one run at a time, whole files, and where it stands."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asvspoof_cm.checkpoint import load_tensors, save_checkpoint, save_tensors
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.runs import (
    BEST_NAME,
    HISTORY_NAME,
    LAST_NAME,
    LOCK_NAME,
    RUN_NAME,
    STATE_NAME,
    check_unchanged,
)
from asvspoof_cm.utils.files import exclusive, write_json, write_text
from asvspoof_cm.utils.processes import gather_objects, rank_and_size


class RunFolder:
    """The folder of a run, its seed, and what else its checkpoints say; for `fit`.

    Args:
        path: The folder.
        seed: The seed of the transform and of dropout.
        meta: Plain values to store in the checkpoints; a resumed run must have the same.

    Example:
        >>> RunFolder("runs/mine", seed=7).path.name
        'mine'
    """

    def __init__(
        self, path: str | os.PathLike[str], *, seed: int = 42, meta: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.seed = Path(path), seed
        self.meta = dict(meta or {})
        self._is_locked = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from the folder inside the block; a process that dies frees it."""
        if self._is_locked:
            yield
            return
        with contextlib.ExitStack() as stack:
            holder = None
            if rank_and_size()[0] == 0:
                self.path.mkdir(parents=True, exist_ok=True)
                holder = stack.enter_context(exclusive(self.path / LOCK_NAME))
            holder = gather_objects(holder)[0]
            if holder is not None:
                raise ValueError(
                    f"`out_dir` {self.path} is being trained in by {holder}. Wait for it, stop it, "
                    "or choose another folder."
                )
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    def write_description(self, about: Mapping[str, Any]) -> None:
        """Write ``run.json``, unless a run has begun, whose settings `load` compares."""
        path = self.path / RUN_NAME
        if rank_and_size()[0] == 0 and not (path.exists() and (self.path / STATE_NAME).exists()):
            write_json(path, about)

    def load(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the state to go on from, None at the beginning."""
        if rank_and_size()[0] == 0:
            for name in (STATE_NAME, HISTORY_NAME, BEST_NAME, LAST_NAME):
                for leftover in self.path.glob(f".{name}.*.tmp"):
                    leftover.unlink()
        path = self.path / STATE_NAME
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = load_tensors(path)
            stored = json.loads(state["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"`out_dir` {self.path} can't be resumed: {path.name} is damaged ({error}). Remove "
                "it to start over, or choose another folder; best.pt and last.pt are still there."
            ) from error
        check_unchanged(self.path, stored, settings)
        return state

    def save_model(
        self, model: Countermeasure, record: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        """Write ``last.pt`` and, where it is the best, ``best.pt``."""
        training = {name: value for name, value in settings.items() if name != "meta"}
        meta = {**settings["meta"], "training": training, "epoch": record["epoch"]}
        for name in (BEST_NAME, LAST_NAME) if record["is_best"] else (LAST_NAME,):
            save_checkpoint(self.path / name, model, **meta, dev=record["dev"])

    def save_state(self, state: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Write the state that makes the epoch count, then the history.

        An interruption before the state is written loses the epoch, which is then run again with
        the same result; one after it loses nothing, because the history is rewritten from it.
        """
        save_tensors(self.path / STATE_NAME, {**state, "history": json.dumps(history)})
        self.write_history(history)
        _write_scalars(self.path, history[-1])

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """Write ``history.jsonl``."""
        lines = [json.dumps(record) + "\n" for record in history]
        write_text(self.path / HISTORY_NAME, "".join(lines))


def _write_scalars(out: Path, record: Mapping[str, Any]) -> None:
    """Write an epoch's figures for TensorBoard, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    with SummaryWriter(str(out / "tensorboard")) as writer:
        for part in ("train", "dev"):
            for name, value in record[part].items():
                writer.add_scalar(f"{part}/{name}", value, record["epoch"])
        for name in ("lr", "clips_per_s"):
            writer.add_scalar(name, record[name], record["epoch"])
