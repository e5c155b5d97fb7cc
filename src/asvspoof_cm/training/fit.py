"""`fit`: a run from the first epoch to the last."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asvspoof_cm.data.dataset import SpoofDataset
from asvspoof_cm.metrics import write_scores
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.training.distributed import rank_and_size, wait_for_all
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
from asvspoof_cm.training.run import Measure, Run, locked, track1_figures

logger = logging.getLogger(__name__)


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
    run, progress = Run(Path(out), state, seed, dict(known or {})), progress and rank == 0
    with locked(run.folder):
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


def track1_of(dev: Iterable[Any]) -> Measure:
    """Return the figures of a development set that `fit` measures by default."""
    dataset = getattr(dev, "dataset", None)
    source = dataset.protocol.source if isinstance(dataset, SpoofDataset) else None
    return lambda result: track1_figures(result, None if source is None else source[result.index])


def _line(record: Mapping[str, Any]) -> str:
    shown = list(record["dev"].items())[:8]
    figures = ", ".join(f"{name} {value:.4f}" for name, value in shown)
    return (
        f"epoch {record['epoch']}: loss {record['train']['loss']:.4f}; Dev {figures}; "
        f"lr {record['lr']:.2e}, {record['clips_per_s']:.1f} clips/s, "
        f"{record['cumulative_s'] / 60:.1f} min{' (best)' if record['is_best'] else ''}"
    )


def _write_dev_scores(folder: Path, dev: Iterable[Any], validated: EpochResult) -> None:
    """Write the scores of a protocol's utterances; other batches have no names."""
    dataset = getattr(dev, "dataset", None)
    if isinstance(dataset, SpoofDataset):
        names = dataset.protocol.utterance[validated.index]
        write_scores(folder / "dev_scores.tsv", names, validated.scores, column="log-odds")
