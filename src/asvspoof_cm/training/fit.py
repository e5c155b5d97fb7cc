"""`fit`: a run from the first epoch to the last, in a folder that can be resumed."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import filelock
import torch

from asvspoof_cm._util import peak_resident_bytes, write_text
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint, save_tensors
from asvspoof_cm.data.dataset import SpoofDataset
from asvspoof_cm.metrics import evaluate, within_sources
from asvspoof_cm.metrics.groups import has_sources
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.runs import (
    BEST_NAME,
    HISTORY_NAME,
    LAST_NAME,
    LOCK_NAME,
    STATE_NAME,
    check_unchanged,
)
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
"""From the scores of the development set to figures by name."""

Callback: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with the record of each epoch."""


_LIMITS = {"n_epochs", "decay_epochs", "patience"}
"""What of a recipe may differ when a run is resumed: how long it goes on."""
_N_SHOWN = 8
"""Figures of the development set in a line of the log."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Where a run stands when `fit` returns.

    Attributes:
        history: One record per epoch; see `fit`.
        best_epoch: The best epoch by the recipe's `select`, from 1.
        best_path: Its checkpoint.
        stopped_early: Whether patience ran out before the last epoch.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_path: Path
    stopped_early: bool


@dataclass
class EarlyStopping:
    """Stop when a value has not fallen significantly for `patience` epochs.

    `best` is the lowest value so far, `reference` the lowest that was a significant decrease, and
    `n_stale` counts the epochs since then.
    """

    patience: int = 15
    tolerance: float = 1e-4
    best: float = math.inf
    best_epoch: int = -1
    reference: float = math.inf
    n_stale: int = 0

    def update(self, epoch: int, value: float) -> bool:
        """Take in the value of an epoch; return whether it is the best so far."""
        if value < self.reference - self.tolerance:
            self.reference, self.n_stale = value, 0
        else:
            self.n_stale += 1
        if value < self.best:
            self.best, self.best_epoch = value, epoch
            return True
        return False

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out."""
        return self.n_stale >= self.patience


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
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> FitResult:
    """Train a model until it stops improving on Dev, and keep the best checkpoint.

    After each epoch `out` holds ``best.pt`` and ``last.pt``, checkpoints of the library,
    ``history.jsonl``, one record per epoch, and ``resume.pt``, from which the same call resumes
    after an interruption as if nothing had happened. A finished run returns at once; with a recipe
    of more epochs it goes on. One run at a time may write a folder.

    A record has ``epoch`` (from 1), ``lr`` (at its end), ``train`` (``loss`` and the metrics of
    Track 1, of the augmented crops while they were trained on), ``dev`` (what `measure` returned),
    ``train_s``, ``dev_s``, ``clips_per_s``, ``peak_memory_bytes``, ``cumulative_s`` (training and
    validation only, as the paper counts) and ``is_best``.

    Args:
        model: A model on the device to train on, whose `input` is that of the crops. Its `meta` is
            emptied: a calibration or a card belongs to the weights that training changes.
        train: Batches to train on: from `make_loader` with shuffling or an order, or any iterable
            of ``(waveform, label, index)`` that can be gone through once per epoch. What has
            ``sampler.set_epoch`` is told the epoch.
        dev: Batches to validate on: from `make_loader` without shuffling, or such an iterable.
        loss: ``loss(logits, labels) -> scalar``. With `forward`, ``loss(outputs, batch)``: what
            `forward` returned, and the `Batch`. The parameters of a module are trained too.
        out: The folder of the run.
        recipe: How to optimise; None takes the paper's.
        augment: ``augment(waveforms, labels, generator) -> (waveforms, labels)``, what is done to a
            training batch on the device. New rows stand after those that came. Labels of frames
            (batch, n_frames) may be returned third.
        forward: ``forward(model, waveform)``, for a loss that needs more than logits: a tuple whose
            first element is the logits. Validation calls the model itself.
        measure: From the `EpochResult` of the development set to figures by name, among them the
            recipe's `select`. None is the metrics of Track 1 and, where the protocol names sources,
            ``eer_within``, the mean EER within a source.
        seed: The seed of augmentation and dropout.
        known: What else the checkpoints say: ``system``, ``data`` or ``notes``, a dict of anything
            plain; see `save_checkpoint`.
        callbacks: Called with each epoch's record: for TensorBoard, a table, a service.
        progress: Show progress and log a line per epoch.

    Raises:
        FloatingPointError: The loss is not finite; names the rows of the batch.
        ValueError: The folder is another run's: one that is under way, has another model, recipe,
            seed or `known`, or is damaged.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import SpoofDataset, make_loader, write_miniature
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> folder = tempfile.mkdtemp()
        >>> paths = write_miniature(folder, n_train=8, n_dev=8)
        >>> train, dev = (
        ...     make_loader(
        ...         SpoofDataset(protocol, paths.audio_dir, n_samples=8000),
        ...         shuffle=shuffle, batch_size=4, n_workers=0,
        ...     )
        ...     for protocol, shuffle in ((paths.train_protocol, True), (paths.dev_protocol, False))
        ... )
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> result = fit(
        ...     model, train, dev, loss=focal_pairwise_loss, recipe=Recipe(n_epochs=2),
        ...     out=folder + "/run", progress=False,
        ... )
        >>> [record["epoch"] for record in result.history]
        [1, 2]
    """
    folder, recipe = Path(out), Recipe() if recipe is None else recipe
    model.meta = {}
    state = TrainingState(model, loss, recipe, forward=forward)
    measure = track1_of(dev) if measure is None else measure
    rank, n_processes = rank_and_size()
    progress = progress and rank == 0
    name, config = describe_model(model)
    settings: dict[str, Any] = {
        "model": {"name": name, "config": config, "input": asdict(model.input)},
        "recipe": {**asdict(recipe), "precision": state.precision},
        "seed": seed,
        "n_processes": n_processes,
        "known": dict(known or {}),
    }
    settings = json.loads(json.dumps(settings))
    stopping = EarlyStopping(recipe.patience, recipe.tolerance)
    history: list[dict[str, Any]] = []
    with _locked(folder):
        kept = _load_state(folder, settings)
        if kept is not None:
            state.load_state_dict(kept["training"])
            stopping = EarlyStopping(**{**kept["stopping"], "patience": recipe.patience})
            history = json.loads(kept["history"])
            if rank == 0:
                _write_history(folder, history)
                logger.info("%s: resuming after epoch %d", folder, len(history))
        for epoch in range(len(history), recipe.n_epochs):
            if stopping.should_stop:
                break
            set_epoch = getattr(getattr(train, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            trained = train_epoch(
                state, train, augment=augment, seed=seed, epoch=epoch, progress=progress
            )
            with state.averaged():
                validated = validate(model, dev, precision=state.precision, progress=progress)
                record = _record(epoch, trained, validated, state, measure)
                record["cumulative_s"] += history[-1]["cumulative_s"] if history else 0.0
                record["is_best"] = stopping.update(epoch + 1, _selected(record, recipe))
                history.append(record)
                if rank == 0:
                    _save_model(folder, model, record, settings, recipe)
            if rank == 0:
                # An interruption before the state is written loses the epoch, which is then run
                # again with the same result; one after it loses nothing.
                content = {
                    "settings": json.dumps(settings),
                    "training": state.state_dict(),
                    "stopping": asdict(stopping),
                    "history": json.dumps(history),
                }
                save_tensors(folder / STATE_NAME, content)
                _write_history(folder, history)
                for callback in callbacks:
                    callback(record)
            if progress:
                logger.info("%s", _line(record))
        wait_for_all()  # the others may read what the first has written
    return FitResult(
        history=history,
        best_epoch=stopping.best_epoch,
        best_path=folder / BEST_NAME,
        stopped_early=len(history) < recipe.n_epochs,
    )


def track1_of(dev: Iterable[Any]) -> Measure:
    """Return what measures a development set by default; see `fit`."""
    dataset, source = getattr(dev, "dataset", None), None
    if isinstance(dataset, SpoofDataset):
        protocol = dataset.protocol
        source = protocol.source if has_sources(protocol.label, protocol.source) else None

    def measure(result: EpochResult) -> dict[str, float]:
        with quietly():
            found = evaluate(result.scores, result.labels).values()
            if source is not None:
                within = within_sources(result.scores, result.labels, source[result.index])
                found["eer_within"] = within.mean_eer
        return found

    return measure


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings inside the block: a model in training may not have learned anything yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _record(
    epoch: int,
    trained: EpochResult,
    validated: EpochResult,
    state: TrainingState,
    measure: Measure,
) -> dict[str, Any]:
    if state.device.type == "cuda":
        peak_memory_bytes = torch.cuda.max_memory_allocated(state.device)
    else:
        peak_memory_bytes = peak_resident_bytes()
    labelled = trained.labels >= 0
    with quietly():
        of_train = evaluate(trained.scores[labelled], trained.labels[labelled]).values()
    return {
        "epoch": epoch + 1,
        "lr": state.optimizer.param_groups[0]["lr"],
        "train": {"loss": trained.loss, **of_train},
        "dev": dict(measure(validated)),
        "train_s": trained.seconds,
        "dev_s": validated.seconds,
        "clips_per_s": len(trained.scores) / trained.seconds,
        "peak_memory_bytes": peak_memory_bytes,
        "cumulative_s": trained.seconds + validated.seconds,
    }


def _selected(record: Mapping[str, Any], recipe: Recipe) -> float:
    if recipe.select not in record["dev"]:
        raise ValueError(
            f"`select` must be one of {', '.join(record['dev'])}, the figures of the development "
            f"set; got {recipe.select!r}."
        )
    return float(record["dev"][recipe.select])


def _line(record: Mapping[str, Any]) -> str:
    shown = list(record["dev"].items())[:_N_SHOWN]
    figures = ", ".join(f"{name} {value:.4f}" for name, value in shown)
    return (
        f"epoch {record['epoch']}: loss {record['train']['loss']:.4f}; Dev {figures}; "
        f"lr {record['lr']:.2e}, {record['clips_per_s']:.1f} clips/s, "
        f"{record['cumulative_s'] / 60:.1f} min{' (best)' if record['is_best'] else ''}"
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs from the folder inside the block; a process that dies frees it."""
    with contextlib.ExitStack() as stack:
        is_free = True
        if rank_and_size()[0] == 0:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(filelock.FileLock(folder / LOCK_NAME, timeout=0))
            except filelock.Timeout:
                is_free = False
        if not all(gather_objects(is_free)):
            raise ValueError(
                f"`out` {folder} is being trained in by another process. Wait for it, stop it, or "
                "choose another folder."
            )
        yield


def _load_state(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state to go on from, None at the beginning."""
    path = folder / STATE_NAME
    if rank_and_size()[0] == 0:
        for name in (STATE_NAME, HISTORY_NAME, BEST_NAME, LAST_NAME):
            for leftover in folder.glob(f".{name}.*.tmp"):
                leftover.unlink()
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = load_tensors(path)
        stored = json.loads(state["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`out` {folder} can't be resumed: {path.name} is damaged ({error}). Remove it to "
            "start over, or choose another folder; best.pt and last.pt are still there."
        ) from error
    lasting = [
        {**each, "recipe": {k: v for k, v in each["recipe"].items() if k not in _LIMITS}}
        for each in (stored, settings)
    ]
    check_unchanged(folder, *lasting)
    return state


def _save_model(
    folder: Path,
    model: Countermeasure,
    record: Mapping[str, Any],
    settings: Mapping[str, Any],
    recipe: Recipe,
) -> None:
    """Write ``last.pt`` and, where it is wanted, ``best.pt`` and one for the epoch."""
    names = [LAST_NAME]
    if record["is_best"]:
        names.append(BEST_NAME)
    if recipe.keep_epochs:
        names.append(f"epoch_{record['epoch']:03d}.pt")
    training = {name: value for name, value in settings.items() if name != "known"}
    known = {**settings["known"], "training": training, "epoch": record["epoch"]}
    for name in names:
        save_checkpoint(folder / name, model, **known, dev=record["dev"])


def _write_history(folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
    write_text(folder / HISTORY_NAME, "".join(json.dumps(record) + "\n" for record in history))
