"""`fit`: a run from the first epoch to the last, in a folder that can be resumed."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import filelock
import torch

from asvspoof_cm._util import write_json, write_text
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint, save_tensors
from asvspoof_cm.data.dataset import SpoofDataset
from asvspoof_cm.metrics import evaluate, within_sources, write_scores
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.training.distributed import gather_objects, rank_and_size, wait_for_all
from asvspoof_cm.training.loop import (
    Augment,
    EpochResult,
    Forward,
    Loss,
    TrainingState,
    train_epoch,
    validate,
)
from asvspoof_cm.training.recipe import Recipe

logger = logging.getLogger(__name__)

Measure: TypeAlias = Callable[[EpochResult], Mapping[str, float]]

_LIMITS = {"recipe.n_epochs", "recipe.decay_epochs", "recipe.patience", "recipe.minutes"}
"""Settings that may differ when a run is resumed: they say how long it goes on."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Where a run stands when `fit` returns.

    Attributes:
        history: One record per epoch.
        best_epoch: The best epoch by the recipe's `select`, from 1.
        best_path: Its checkpoint.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_path: Path


def fit(
    model: Countermeasure,
    train: Iterable[Any],
    dev: Iterable[Any],
    *,
    loss: Loss,
    out: str | os.PathLike[str],
    recipe: Recipe | None = None,
    augment: Augment | None = None,
    forward: Forward | None = None,
    measure: Measure | None = None,
    seed: int = 42,
    known: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callable[[Mapping[str, Any]], None]] = (),
    progress: bool = True,
) -> FitResult:
    """Train a model until it stops improving on Dev, and keep the best checkpoint.

    The guide on training lists the files of the folder `out` and the fields of an epoch's record.
    The same call resumes an interrupted run as if nothing had happened; a finished run returns at
    once, or goes on with a recipe of more epochs. One run at a time may write a folder.

    Args:
        model: A model on the device to train on, whose `input` is that of the crops. Its `meta` is
            emptied: a calibration or a card belongs to the weights that training changes.
        train: Batches to train on: from `make_loader`, or any iterable of ``(waveform, label,
            index)`` that can be gone through once per epoch. What has ``sampler.set_epoch`` is told
            the epoch.
        dev: Such batches to validate on, in a fixed order. The paper validates with five crops of
            each utterance: ``SpoofDataset(…, n_crops=5)``.
        loss: ``loss(logits, labels) -> scalar``. With `forward`, ``loss(outputs, batch)``: what
            `forward` returned, and the `Batch`. The parameters of a module are trained too.
        out: The folder of the run.
        recipe: How to optimise; None takes the paper's.
        augment: An `Augmentation`, or ``augment(waveforms, labels, generator) -> (waveforms,
            labels)``: what is done to a training batch on the device. New rows stand after those
            that came. Labels of frames (batch, n_frames) may be returned third.
        forward: ``forward(model, waveform)``, for a loss that needs more than logits: a tuple whose
            first element is the logits. Validation calls the model itself.
        measure: From the `EpochResult` of the development set to figures by name, among them the
            recipe's `select`. None is the metrics of Track 1 and, where the protocol names sources,
            ``eer_within``, the mean EER within a source.
        seed: The seed of augmentation and dropout.
        known: What else the checkpoints say: ``system``, ``data`` or ``notes``; see
            `save_checkpoint`.
        callbacks: Called with each epoch's record: for TensorBoard, a table, a service.
        progress: Show progress and log a line per epoch.

    Raises:
        FloatingPointError: The loss is not finite; names the rows of the batch.
        ValueError: The folder is another run's: one that is under way, has other settings, or is
            damaged. Or several processes have a recipe with `minutes`.

    Example:
        >>> model, loss, recipe, augment, about = system(6)  # doctest: +SKIP
        >>> fit(model, train, dev, loss=loss, out="runs/6").best_path  # doctest: +SKIP
        PosixPath('runs/6/best.pt')
    """
    recipe = Recipe() if recipe is None else recipe
    rank, n_processes = rank_and_size()
    if recipe.minutes is not None and n_processes > 1:
        raise ValueError(
            f"`recipe.minutes` must be None for several processes; got {recipe.minutes} and "
            f"{n_processes} processes."
        )
    model.meta = {}
    state = TrainingState(model, loss, recipe, forward=forward)
    measure = track1_of(dev) if measure is None else measure
    run, progress = _Run(Path(out), state, seed, dict(known or {})), progress and rank == 0
    with _locked(run.folder):
        run.resume()
        while not run.is_over:
            epoch = len(run.history)
            sampler: Any = getattr(train, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            trained = train_epoch(
                state,
                train,
                augment=augment,
                seed=seed,
                epoch=epoch,
                spent_s=run.spent_s,
                progress=progress,
            )
            with state.averaged():
                validated = validate(model, dev, precision=state.precision, progress=progress)
                record = run.add(trained, validated, measure)
                if rank == 0:
                    run.save_model(record)
            if rank == 0:
                if record["is_best"]:
                    _write_dev_scores(run.folder, dev, validated)
                run.save_state()
                for callback in callbacks:
                    callback(record)
            if progress:
                logger.info("%s", _line(record))
        wait_for_all()  # the others may read what the first has written
    best = run.standing[0]
    return FitResult(history=run.history, best_epoch=best, best_path=run.folder / "best.pt")


class _Run:
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
        return math.fsum(record["train_s"] for record in self.history)

    @property
    def standing(self) -> tuple[int, int]:
        """The best epoch and the epochs without a significant decrease; see `early_stopping`."""
        values = [float(record["dev"][self.recipe.select]) for record in self.history]
        return early_stopping(values, self.recipe.tolerance)

    @property
    def is_over(self) -> bool:
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
            "train": {"loss": trained.loss, **_evaluated(trained)},
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
                if before.get(name) != now.get(name) and name not in _LIMITS
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


def track1_of(dev: Iterable[Any]) -> Measure:
    """Return the figures of a development set that `fit` measures by default."""
    dataset = getattr(dev, "dataset", None)
    source = dataset.protocol.source if isinstance(dataset, SpoofDataset) else None
    return lambda result: _evaluated(result, None if source is None else source[result.index])


def _evaluated(result: EpochResult, source: Any = None) -> dict[str, float]:
    """Return figures of Track 1; a model in training may not have learned anything yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = evaluate(result.scores, result.labels).values()
    within = None if source is None else within_sources(result.scores, result.labels, source)
    if within is not None and within.mean is not None:
        found["eer_within"] = float(within.mean.values["eer"])
    return found


def _line(record: Mapping[str, Any]) -> str:
    shown = list(record["dev"].items())[:8]
    figures = ", ".join(f"{name} {value:.4f}" for name, value in shown)
    return (
        f"epoch {record['epoch']}: loss {record['train']['loss']:.4f}; Dev {figures}; "
        f"lr {record['lr']:.2e}, {record['clips_per_s']:.1f} clips/s, "
        f"{record['cumulative_s'] / 60:.1f} min{' (best)' if record['is_best'] else ''}"
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
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


def _write_dev_scores(folder: Path, dev: Iterable[Any], validated: EpochResult) -> None:
    """Write the scores of a protocol's utterances; other batches have no names."""
    dataset = getattr(dev, "dataset", None)
    if isinstance(dataset, SpoofDataset):
        names = dataset.protocol.utterance[validated.index]
        write_scores(folder / "dev_scores.tsv", names, validated.scores, column="log-odds")
