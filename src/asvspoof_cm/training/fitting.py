"""`fit`: a run from the first epoch to the last, in a folder that can be resumed."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from asvspoof_cm.augmentation import LogMelMask
from asvspoof_cm.augmentation.recipes import extra_spoof
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.data.dataset import Augment
from asvspoof_cm.data.loader import Loader
from asvspoof_cm.models import Countermeasure, describe_model
from asvspoof_cm.runs import BEST_NAME, HISTORY_NAME, changed_settings
from asvspoof_cm.training.loop import EpochResult, Loss, summary, train_epoch, validate
from asvspoof_cm.training.schedule import EarlyStopping, warmup_cosine
from asvspoof_cm.training.systems import Recipe
from asvspoof_cm.utils.files import atomic_path
from asvspoof_cm.utils.processes import (
    peak_resident_bytes,
    rank_and_size,
    share_buffers,
    wait_for_all,
)

__all__ = ["FitResult", "fit"]

logger = logging.getLogger(__name__)

_STATE = "resume.pt"


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Where a run stands when `fit` returns.

    Attributes:
        history: One record an epoch; see `fit`.
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
    train: Loader,
    dev: Loader,
    *,
    loss: Loss,
    config: Recipe,
    out_dir: str | os.PathLike[str],
    resume: Literal["auto", "never"] = "auto",
    augment: Augment | None = None,
    seed: int = 42,
    progress: bool = True,
    meta: dict[str, Any] | None = None,
) -> FitResult:
    """Train a model until Dev minDCF stops falling, and keep the best checkpoint.

    After each epoch `out_dir` holds ``best.pt`` and ``last.pt``, checkpoints of the library,
    ``history.jsonl``, a record an epoch, and ``resume.pt``, from which the same call goes on after
    a kill as if nothing had happened. A finished run returns at once. Where TensorBoard is
    installed, its scalars go to ``tensorboard/``.

    A record has ``epoch`` (from 1), ``lr`` (at its end), ``train`` and ``dev`` (``loss``, ``eer``,
    ``min_dcf``, ``act_dcf``, ``cllr``), ``train_s``, ``dev_s``, ``clips_per_s``,
    ``peak_memory_bytes``, ``cumulative_s`` (training and validation only, as the paper counts) and
    ``is_best``. Training metrics are those of the augmented crops while they were trained on.

    Args:
        model: A model on the device to train on. Under torchrun it is wrapped in
            DistributedDataParallel, with synchronised batch normalisation on CUDA.
        train: Batches to train on, from `make_loader` with shuffling.
        dev: Batches to validate on, from `make_loader` without.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar.
        config: The recipe. `batch_size`, `crop_s` and `augmentation` are what the loaders and
            `augment` were made with; here they are only recorded.
        out_dir: The folder of the run.
        resume: "auto" goes on where the folder's run stopped; "never" refuses such a folder.
        augment: Applied to training batches on the device.
        seed: The seed of augmentation and dropout.
        progress: Show bars and log a line an epoch.
        meta: Plain values to store in the checkpoints, such as the data; a resumed run must have
            the same.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.
        ValueError: The folder holds a run with another model, recipe, seed or `meta`, or one that
            is damaged.

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
        ...     model, train, dev, loss=focal_pairwise_loss, config=Recipe(n_epochs=2),
        ...     out_dir=folder + "/run", progress=False,
        ... )
        >>> [record["epoch"] for record in result.history]
        [1, 2]
    """
    out = Path(out_dir)
    rank, size = rank_and_size()
    model.input = replace(train.dataset.input, n_crops=model.input.n_crops)
    settings = {
        "recipe": asdict(config),
        "seed": seed,
        "n_processes": size,
        "model": dict(zip(("name", "config"), describe_model(model), strict=True)),
        "meta": meta or {},
    }
    stopping = EarlyStopping(config.patience, config.tolerance)
    optimizer = config.make_optimizer(model)
    history: list[dict[str, Any]] = []
    state = _load_state(out, resume, settings)
    if rank == 0:
        _remove_leftovers(out)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stopping = EarlyStopping(**state["stopping"])
        history = json.loads(state["history"])
        if rank == 0:
            _write_history(out, history)
            logger.info("%s: resuming after epoch %d", out, len(history))
    learning_rate = partial(
        warmup_cosine,
        base_lr=config.lr,
        final_lr=config.final_lr,
        warmup_epochs=config.warmup_epochs,
        n_epochs=config.n_epochs,
    )
    network = _prepare(model, config)
    for epoch in range(len(history), config.n_epochs):
        if stopping.should_stop:
            break
        train.set_epoch(epoch)
        trained = train_epoch(
            network,
            train,
            optimizer,
            loss=loss,
            learning_rate=learning_rate,
            augment=augment,
            extra_spoof=config.extra_spoof,
            extra_spoof_augment=extra_spoof(config.extra_spoof_kind),
            mask=LogMelMask() if config.mask else None,
            seed=seed,
            epoch=epoch,
            precision=config.precision,
            n_accumulate=config.n_accumulate,
            clip_norm=config.clip_norm,
            progress=progress and rank == 0,
            names=train.dataset.protocol.utterance,
        )
        share_buffers(model)
        validated = validate(
            network, dev, loss=loss, precision=config.precision, progress=progress and rank == 0
        )
        lr = optimizer.param_groups[0]["lr"]
        record = _record(epoch, trained, validated, lr, history, _peak_memory(model))
        record["is_best"] = stopping.update(epoch + 1, record["dev"]["min_dcf"])
        history.append(record)
        if rank == 0:
            _save(out, model, optimizer, stopping, history, settings)
            _write_scalars(out, record)
            if progress:
                logger.info("%s", _line(record))
    wait_for_all()  # the others may read what the first has written
    return FitResult(
        history=history,
        best_epoch=stopping.best_epoch,
        best_path=out / BEST_NAME,
        stopped_early=len(history) < config.n_epochs,
    )


def _prepare(model: Countermeasure, config: Recipe) -> nn.Module:
    network: nn.Module = model
    device = next(model.parameters()).device
    if rank_and_size()[1] > 1:
        if device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        network = nn.parallel.DistributedDataParallel(
            network,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=not model.all_parameters_used,
        )
    if config.compile:
        network.compile()
    return network


def _record(
    epoch: int,
    trained: EpochResult,
    validated: EpochResult,
    lr: float,
    history: list[dict[str, Any]],
    peak_memory_bytes: int,
) -> dict[str, Any]:
    seconds = trained.seconds + validated.seconds
    return {
        "epoch": epoch + 1,
        "lr": lr,
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


def _peak_memory(model: Countermeasure) -> int:
    """Return the most memory used so far: CUDA's allocator's, else this process's."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()


def _save(
    out: Path,
    model: Countermeasure,
    optimizer: torch.optim.Optimizer,
    stopping: EarlyStopping,
    history: list[dict[str, Any]],
    settings: dict[str, Any],
) -> None:
    """Write the checkpoints, then the state that makes the epoch count, then the history.

    A kill before the state is written loses the epoch, which is then run again with the same
    result; one after it loses nothing, because the history is rewritten from the state.
    """
    meta = {
        **settings["meta"],
        **{name: settings[name] for name in ("recipe", "seed", "n_processes")},
        **{name: history[-1][name] for name in ("epoch", "dev")},
    }
    if history[-1]["is_best"]:
        save_checkpoint(out / BEST_NAME, model, **meta)
    save_checkpoint(out / "last.pt", model, **meta)
    state = {
        "settings": json.dumps(settings),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "stopping": asdict(stopping),
        "history": json.dumps(history),
    }
    with atomic_path(out / _STATE) as temporary:
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
    path = out / _STATE
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


def check_unchanged(out: Path, stored: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise unless a run folder's settings are those of this run, and name what differs."""
    now = json.loads(json.dumps(settings))
    changes = [
        f"{name} was {old!r}, now {new!r}" for name, old, new in changed_settings(stored, now)
    ]
    if changes:
        raise ValueError(
            f"`out_dir` {out} holds a run with other settings: {'; '.join(changes)}. "
            "Use the same ones to resume it, or another folder."
        )


def _remove_leftovers(out: Path) -> None:
    """Remove the temporary files that a kill in the middle of writing left."""
    for name in (_STATE, HISTORY_NAME, BEST_NAME, "last.pt"):
        for path in out.glob(f".{name}.*.tmp"):
            path.unlink()
