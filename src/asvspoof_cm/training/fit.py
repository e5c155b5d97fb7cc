"""`fit`: a run from the first epoch to the last, in a folder that can be resumed."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asvspoof_cm.metrics import within_sources
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.runs import BEST_NAME
from asvspoof_cm.training.batches import Batches
from asvspoof_cm.training.learner import Learner, Loss
from asvspoof_cm.training.loop import EpochResult, quietly, train_epoch, validate
from asvspoof_cm.training.recipe import Recipe
from asvspoof_cm.training.run_folder import RunFolder
from asvspoof_cm.training.transforms import Transform
from asvspoof_cm.utils.processes import peak_resident_bytes, rank_and_size, wait_for_all
from asvspoof_cm.utils.settings import describe

logger = logging.getLogger(__name__)


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
    out_dir: str | os.PathLike[str] | RunFolder,
    recipe: Recipe | None = None,
    transform: Transform | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a model until it stops improving on Dev, and keep the best checkpoint.

    After each epoch `out_dir` holds ``best.pt`` and ``last.pt``, checkpoints of the library,
    ``history.jsonl``, one record per epoch, and ``resume.pt``, from which the same call resumes
    after an interruption as if nothing had happened. A finished run returns at once. One run at a
    time may write a folder. Where TensorBoard is installed, its scalars go to ``tensorboard/``.

    A record has ``epoch`` (from 1), ``lr`` (at its end), ``train`` and ``dev`` (``loss``, ``eer``,
    ``min_dcf``, ``act_dcf``, ``cllr``; ``dev`` also ``eer_within``, the mean EER within a source,
    where it has sources with both classes), ``train_s``, ``dev_s``, ``clips_per_s``,
    ``peak_memory_bytes``, ``cumulative_s`` (training and validation only, as the paper counts) and
    ``is_best``. Training metrics are those of the transformed crops while they were trained on.

    The checkpoints say what ran: ``meta["training"]`` describes the recipe, the loss, the transform
    and both sets as the objects have them. A loader also sets ``model.input``, so that the model is
    later scored on crops like those that it learned from; with other batches, set it beforehand.

    Args:
        model: A model on the device to train on; see `Learner`. Its `meta` is emptied.
        train: Batches to train on: from `make_loader` with shuffling or an order, from a DataLoader
            of a `SpoofDataset`, or any iterable of ``(waveform, label, index)`` that can be gone
            through once per epoch. `Batches` adds names and groups to it.
        dev: Batches to validate on: from `make_loader` without shuffling, or such an iterable.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar: a function, an `Objective`, a
            module whose parameters are trained too.
        out_dir: The folder of the run; a `RunFolder` where it has another seed or says more.
        recipe: How to optimise; None takes the paper's.
        transform: What is done to training batches on the device; see `Transform`.
        progress: Show progress and log a line per epoch.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.
        ValueError: The folder is another run's: one that is under way, has another model, recipe,
            loss, transform, data, seed or `meta`, or is damaged.

    Note:
        A DataLoader draws its order from the global generator, so a run with one is resumed, but
        not bit for bit; `make_loader` draws it from the seed and the epoch.

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
        ...     out_dir=folder + "/run", progress=False,
        ... )
        >>> [record["epoch"] for record in result.history], model.input.crop_s
        ([1, 2], 0.5)
    """
    folder = out_dir if isinstance(out_dir, RunFolder) else RunFolder(out_dir)
    recipe = Recipe() if recipe is None else recipe
    train, dev = Batches.of(train), Batches.of(dev)
    train.check("train")
    dev.check("dev")
    if recipe.select == "eer_mean" and dev.sources is None:
        raise ValueError(
            '`select` must be "min_dcf" where no source of `dev` has both classes; got "eer_mean".'
        )
    model.meta = {}  # a calibration or a card is that of the weights which training changes
    if train.dataset is not None:
        model.input = replace(train.dataset.input, n_crops=model.input.n_crops)
    learner = Learner(model, loss, recipe)
    rank, n_processes = rank_and_size()
    progress = progress and rank == 0
    name, config = describe_model(model)
    settings: dict[str, Any] = {
        "model": {"name": name, "config": config},
        "input": {k: v for k, v in asdict(model.input).items() if k != "n_crops"},
        "recipe": {**asdict(recipe), "precision": learner.precision},
        "loss": describe(loss),
        "transform": describe(transform),
        "train": train.describe(),
        "dev": dev.describe(),
        "seed": folder.seed,
        "n_processes": n_processes,
        "meta": folder.meta,
    }
    settings = json.loads(json.dumps(settings))
    stopping = EarlyStopping(recipe.patience, recipe.tolerance)
    history: list[dict[str, Any]] = []
    with folder.locked():
        state = folder.load(settings)
        if rank == 0 and recipe.precision == "auto":
            logger.info("precision: %s, because %s", learner.precision, learner.precision_reason)
        if state is not None:
            learner.load_state_dict(state["learner"])
            stopping = EarlyStopping(**state["stopping"])
            history = json.loads(state["history"])
            if rank == 0:
                folder.write_history(history)
                logger.info("%s: resuming after epoch %d", folder.path, len(history))
        for epoch in range(len(history), recipe.n_epochs):
            if stopping.should_stop:
                break
            train.set_epoch(epoch)
            trained = train_epoch(
                learner,
                train,
                transform=transform,
                seed=folder.seed,
                epoch=epoch,
                progress=progress,
            )
            with learner.averaged():
                validated = validate(
                    model, dev, loss=loss, precision=learner.precision, progress=progress
                )
                record = _record(epoch, trained, validated, learner, dev)
                record["cumulative_s"] += history[-1]["cumulative_s"] if history else 0.0
                value = record["dev"]["min_dcf"]
                if recipe.select == "eer_mean":
                    value = (record["dev"]["eer"] + record["dev"]["eer_within"]) / 2
                record["is_best"] = stopping.update(epoch + 1, value)
                history.append(record)
                if rank == 0:
                    folder.save_model(model, record, settings)
            if rank == 0:
                state = {
                    "settings": json.dumps(settings),
                    "learner": learner.state_dict(),
                    "stopping": asdict(stopping),
                }
                folder.save_state(state, history)
            if progress:
                logger.info("%s", _line(record))
        wait_for_all()  # the others may read what the first has written
    return FitResult(
        history=history,
        best_epoch=stopping.best_epoch,
        best_path=folder.path / BEST_NAME,
        stopped_early=len(history) < recipe.n_epochs,
    )


def _record(
    epoch: int, trained: EpochResult, validated: EpochResult, learner: Learner, dev: Batches
) -> dict[str, Any]:
    if learner.device.type == "cuda":
        peak_memory_bytes = torch.cuda.max_memory_allocated(learner.device)
    else:
        peak_memory_bytes = peak_resident_bytes()
    return {
        "epoch": epoch + 1,
        "lr": learner.optimizer.param_groups[0]["lr"],
        "train": {"loss": trained.loss, **trained.metrics().values()},
        "dev": {"loss": validated.loss, **validated.metrics().values(), **_within(validated, dev)},
        "train_s": trained.seconds,
        "dev_s": validated.seconds,
        "clips_per_s": len(trained.scores) / trained.seconds,
        "peak_memory_bytes": peak_memory_bytes,
        "cumulative_s": trained.seconds + validated.seconds,
    }


def _within(validated: EpochResult, dev: Batches) -> dict[str, float]:
    """Return the mean EER within a source, where there are sources."""
    if dev.sources is None:
        return {}
    sources = dev.sources[validated.index]
    with quietly():
        result = within_sources(validated.scores, validated.labels, sources)
    return {"eer_within": result.mean_eer}


def _line(record: dict[str, Any]) -> str:
    dev = record["dev"]
    within = f" (within {100 * dev['eer_within']:.2f} %)" if "eer_within" in dev else ""
    return (
        f"epoch {record['epoch']}: loss {record['train']['loss']:.4f} / {dev['loss']:.4f}, "
        f"Dev minDCF {dev['min_dcf']:.4f}, EER {100 * dev['eer']:.2f} %{within}, "
        f"Cllr {dev['cllr']:.4f}, actDCF {dev['act_dcf']:.4f}, lr {record['lr']:.2e}, "
        f"{record['clips_per_s']:.1f} clips/s, {record['cumulative_s'] / 60:.1f} min"
        f"{' (best)' if record['is_best'] else ''}"
    )
