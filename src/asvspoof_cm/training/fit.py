"""`fit`: a run from the first epoch to the last, in a folder that can be resumed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol as Interface, runtime_checkable

import torch
from numpy.typing import ArrayLike

from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.data.loader import Batch, Loader
from asvspoof_cm.data.protocol import UNLABELLED
from asvspoof_cm.models import Countermeasure, describe_model
from asvspoof_cm.runs import (
    BEST_NAME,
    HISTORY_NAME,
    LAST_NAME,
    STATE_NAME,
    check_unchanged,
)
from asvspoof_cm.training.loop import (
    EpochResult,
    Learner,
    Loss,
    Names,
    summary,
    train_epoch,
    validate,
)
from asvspoof_cm.training.schedule import EarlyStopping
from asvspoof_cm.training.systems import Recipe
from asvspoof_cm.training.transforms import Transform
from asvspoof_cm.utils.files import atomic_path
from asvspoof_cm.utils.processes import peak_resident_bytes, rank_and_size, wait_for_all
from asvspoof_cm.utils.settings import describe, digest

__all__ = ["FitResult", "fit"]

logger = logging.getLogger(__name__)


@runtime_checkable
class _InEpochs(Interface):
    """Batches that differ from epoch to epoch."""

    def set_epoch(self, epoch: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Where a run stands when `fit` returns.

    Attributes:
        history: One record per epoch; see `fit`.
        best_epoch: The epoch of the lowest Dev minDCF, from 1.
        best_path: Its checkpoint.
        stopped_early: Whether patience ran out before the last epoch.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_path: Path
    stopped_early: bool


def fit(
    model: Countermeasure,
    train: Iterable[Batch],
    dev: Iterable[Batch],
    *,
    loss: Loss,
    out_dir: str | os.PathLike[str],
    recipe: Recipe | None = None,
    transform: Transform | None = None,
    seed: int = 42,
    names: Names | None = None,
    groups: ArrayLike | None = None,
    resume: Literal["auto", "never"] = "auto",
    progress: bool = True,
    meta: Mapping[str, Any] | None = None,
) -> FitResult:
    """Train a model until Dev minDCF stops falling, and keep the best checkpoint.

    After each epoch `out_dir` holds ``best.pt`` and ``last.pt``, checkpoints of the library,
    ``history.jsonl``, one record per epoch, and ``resume.pt``, from which the same call resumes
    after an interruption as if nothing had happened. A finished run returns at once. Where
    TensorBoard is installed, its scalars go to ``tensorboard/``.

    A record has ``epoch`` (from 1), ``lr`` (at its end), ``train`` and ``dev`` (``loss``, ``eer``,
    ``min_dcf``, ``act_dcf``, ``cllr``), ``train_s``, ``dev_s``, ``clips_per_s``,
    ``peak_memory_bytes``, ``cumulative_s`` (training and validation only, as the paper counts) and
    ``is_best``. Training metrics are those of the transformed crops while they were trained on.

    The checkpoints say what ran: ``meta["training"]`` describes the recipe, the loss, the transform
    and both sets as the objects have them. A loader also sets ``model.input``, so that the model is
    later scored on crops like those that it learned from; with other batches, set it beforehand.

    Args:
        model: A model on the device to train on; see `Learner`. Its `meta` is emptied.
        train: Batches to train on: from `make_loader` with shuffling or an order, or any iterable
            of ``(waveform, label, index)`` that can be gone through once per epoch.
        dev: Batches to validate on, from `make_loader` without, or such an iterable.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar: a function, an `Objective`, a
            module whose parameters are trained too.
        out_dir: The folder of the run.
        recipe: How to optimise; None takes the paper's.
        transform: What is done to training batches on the device; see `Transform`.
        seed: The seed of the transform and of dropout.
        names: What to call the rows of `train` in an error; a loader knows them.
        groups: The group of each row of `train`, integers, for losses that want groups.
        resume: "auto" resumes the folder's run; "never" refuses such a folder.
        progress: Show progress and log a line per epoch.
        meta: Plain values to store in the checkpoints; a resumed run must have the same.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.
        ValueError: The folder holds a run with another model, recipe, loss, transform, data, seed
            or `meta`, or one that is damaged.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import SpoofDataset, make_loader, read_protocol, write_miniature
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> folder = tempfile.mkdtemp()
        >>> paths = write_miniature(folder, n_train=8, n_dev=8)
        >>> train, dev = (
        ...     make_loader(
        ...         SpoofDataset(read_protocol(path), paths.audio_dir, n_samples=8000),
        ...         shuffle=shuffle, batch_size=4, n_workers=0,
        ...     )
        ...     for path, shuffle in ((paths.train_protocol, True), (paths.dev_protocol, False))
        ... )
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> result = fit(
        ...     model, train, dev, loss=focal_pairwise_loss, recipe=Recipe(n_epochs=2),
        ...     out_dir=folder + "/run", progress=False,
        ... )
        >>> [record["epoch"] for record in result.history], model.input.crop_s
        ([1, 2], 0.5)
    """
    out = Path(out_dir)
    rank, size = rank_and_size()
    recipe = Recipe() if recipe is None else recipe
    for name, batches in (("train", train), ("dev", dev)):
        _check_labelled(name, batches)
    model.meta = {}  # a calibration or a card is that of the weights which training changes
    if isinstance(train, Loader):
        model.input = replace(train.dataset.input, n_crops=model.input.n_crops)
        names = train.dataset.protocol.utterance if names is None else names
    learner = Learner(model, loss, recipe)
    name, config = describe_model(model)
    settings = _as_json(
        {
            "model": {"name": name, "config": config},
            "input": {k: v for k, v in asdict(model.input).items() if k != "n_crops"},
            "recipe": {**asdict(recipe), "precision": learner.precision},
            "loss": describe(loss),
            "transform": describe(transform),
            "train": _describe_batches(train, names),
            "dev": _describe_batches(dev, None),
            "groups": None if groups is None else digest(groups)[:16],
            "seed": seed,
            "n_processes": size,
            "meta": dict(meta or {}),
        }
    )
    stopping = EarlyStopping(recipe.patience, recipe.tolerance)
    history: list[dict[str, Any]] = []
    state = _load_state(out, resume, settings)
    if rank == 0:
        _remove_leftovers(out)
        if recipe.precision == "auto":
            logger.info("precision: %s, because %s", learner.precision, learner.precision_reason)
    if state is not None:
        learner.load_state_dict(state["learner"])
        stopping = EarlyStopping(**state["stopping"])
        history = json.loads(state["history"])
        if rank == 0:
            _write_history(out, history)
            logger.info("%s: resuming after epoch %d", out, len(history))
    for epoch in range(len(history), recipe.n_epochs):
        if stopping.should_stop:
            break
        if isinstance(train, _InEpochs):
            train.set_epoch(epoch)
        trained = train_epoch(
            learner,
            train,
            transform=transform,
            seed=seed,
            epoch=epoch,
            names=names,
            groups=groups,
            progress=progress and rank == 0,
        )
        with learner.averaged():
            validated = validate(
                model,
                dev,
                loss=loss,
                precision=learner.precision,
                progress=progress and rank == 0,
            )
            record = _record(epoch, trained, validated, learner, history)
            record["is_best"] = stopping.update(epoch + 1, record["dev"]["min_dcf"])
            history.append(record)
            if rank == 0:
                _save_checkpoints(out, model, history[-1], settings)
        if rank == 0:
            _save_state(out, learner, stopping, history, settings)
            _write_scalars(out, record)
            if progress:
                logger.info("%s", _line(record))
    wait_for_all()  # the others may read what the first has written
    return FitResult(
        history=history,
        best_epoch=stopping.best_epoch,
        best_path=out / BEST_NAME,
        stopped_early=len(history) < recipe.n_epochs,
    )


def _check_labelled(name: str, batches: Iterable[Batch]) -> None:
    if isinstance(batches, Loader):
        protocol = batches.dataset.protocol
        unlabelled = protocol.utterance[protocol.label == UNLABELLED]
        if len(unlabelled):
            raise ValueError(
                f"`{name}` must have labels; {len(unlabelled)} of its {len(protocol)} utterances "
                f"have none, such as {unlabelled[0]}."
            )
    elif iter(batches) is batches:
        raise TypeError(
            f"`{name}` must be an iterable that can be gone through once per epoch; got a "
            f"{type(batches).__name__}, which is used up after one. Pass a list or a loader."
        )


def _describe_batches(batches: Iterable[Batch], names: Names | None) -> dict[str, Any]:
    """Return what a set is: its utterances and labels as a hash, and how they are served."""
    if not isinstance(batches, Loader):
        known = {} if names is None else {"names": digest(names)[:16]}
        return {"type": describe(type(batches)), **known}
    dataset, protocol = batches.dataset, batches.dataset.protocol
    return {
        "protocol": {"sha256": protocol.sha256(), **protocol.counts()},
        "batch_size": batches.batch_size,
        "order": describe(batches.order),
        "crop": dataset.crop,
        "augment": describe(dataset.augment),
        "seed": [batches.seed, dataset.seed],
    }


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(settings))
    return content


def _record(
    epoch: int,
    trained: EpochResult,
    validated: EpochResult,
    learner: Learner,
    history: list[dict[str, Any]],
) -> dict[str, Any]:
    seconds = trained.seconds + validated.seconds
    if learner.device.type == "cuda":
        peak_memory_bytes = torch.cuda.max_memory_allocated(learner.device)
    else:
        peak_memory_bytes = peak_resident_bytes()
    return {
        "epoch": epoch + 1,
        "lr": learner.optimizer.param_groups[0]["lr"],
        "train": {"loss": trained.loss, **summary(trained.metrics())},
        "dev": {"loss": validated.loss, **summary(validated.metrics())},
        "train_s": trained.seconds,
        "dev_s": validated.seconds,
        "clips_per_s": len(trained.scores) / trained.seconds,
        "peak_memory_bytes": peak_memory_bytes,
        "cumulative_s": seconds + (history[-1]["cumulative_s"] if history else 0.0),
    }


def _line(record: dict[str, Any]) -> str:
    dev = record["dev"]
    return (
        f"epoch {record['epoch']}: loss {record['train']['loss']:.4f} / {dev['loss']:.4f}, "
        f"Dev minDCF {dev['min_dcf']:.4f}, EER {100 * dev['eer']:.2f} %, Cllr {dev['cllr']:.4f}, "
        f"actDCF {dev['act_dcf']:.4f}, lr {record['lr']:.2e}, {record['clips_per_s']:.1f} clips/s, "
        f"{record['cumulative_s'] / 60:.1f} min{' (best)' if record['is_best'] else ''}"
    )


def _save_checkpoints(
    out: Path, model: Countermeasure, record: dict[str, Any], settings: dict[str, Any]
) -> None:
    training = {name: value for name, value in settings.items() if name != "meta"}
    meta = {**settings["meta"], "training": training, "epoch": record["epoch"]}
    for name in (BEST_NAME, LAST_NAME) if record["is_best"] else (LAST_NAME,):
        save_checkpoint(out / name, model, frozen_apart=True, **meta, dev=record["dev"])


def _save_state(
    out: Path,
    learner: Learner,
    stopping: EarlyStopping,
    history: list[dict[str, Any]],
    settings: dict[str, Any],
) -> None:
    """Write the state that makes the epoch count, then the history.

    An interruption before the state is written loses the epoch, which is then run again with the
    same result; one after it loses nothing, because the history is rewritten from the state.
    """
    state = {
        "settings": json.dumps(settings),
        "learner": learner.state_dict(),
        "stopping": asdict(stopping),
        "history": json.dumps(history),
    }
    with atomic_path(out / STATE_NAME) as temporary:
        torch.save(state, temporary)
    _write_history(out, history)


def _write_scalars(out: Path, record: dict[str, Any]) -> None:
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


def _write_history(out: Path, history: list[dict[str, Any]]) -> None:
    with atomic_path(out / HISTORY_NAME) as temporary:
        temporary.write_text("".join(json.dumps(record) + "\n" for record in history))


def _load_state(
    out: Path, resume: Literal["auto", "never"], settings: dict[str, Any]
) -> dict[str, Any] | None:
    path = out / STATE_NAME
    if resume not in ("auto", "never"):
        raise ValueError(f'`resume` must be "auto" or "never"; got {resume!r}.')
    if not path.exists():
        return None
    if resume == "never":
        raise FileExistsError(
            f'`out_dir` {out} holds a run already, and resume="never". Choose another folder.'
        )
    try:
        state: dict[str, Any] = load_tensors(path)
        stored = json.loads(state["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`out_dir` {out} can't be resumed: {path.name} is damaged ({error}). Remove it to "
            "start over, or choose another folder; best.pt and last.pt are still there."
        ) from error
    check_unchanged(out, stored, settings)
    return state


def _remove_leftovers(out: Path) -> None:
    """Remove the temporary files that an interruption in the middle of writing left."""
    for name in (STATE_NAME, HISTORY_NAME, BEST_NAME, LAST_NAME):
        for path in out.glob(f".{name}.*.tmp"):
            path.unlink()
