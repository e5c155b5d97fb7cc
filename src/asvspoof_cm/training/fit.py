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
"""From the scores of the development set to figures by name."""

Callback: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with the record of each epoch."""


STATE_NAME = "resume.pt"
_LIMITS = {"n_epochs", "decay_epochs", "patience", "minutes"}
"""Fields of a recipe that may differ when a run is resumed: they say how long it goes on."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Where a run stands when `fit` returns.

    Attributes:
        history: One record per epoch; see `fit`.
        best_epoch: The best epoch by the recipe's `select`, from 1.
        best_path: Its checkpoint.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_path: Path


def early_stopping(values: Sequence[float], tolerance: float) -> tuple[int, int]:
    """Return the epoch of the lowest value, from 1, and the epochs since it fell significantly.

    A value that is no number counts as the worst.

    Example:
        >>> early_stopping([math.nan, 0.3, 0.29999, 0.4], tolerance=1e-4)
        (3, 2)
    """
    values = [math.inf if math.isnan(value) else value for value in values]
    reference, n_stale = math.inf, 0
    for value in values:
        n_stale += 1
        if value < reference - tolerance:
            reference, n_stale = value, 0
    return values.index(min(values)) + 1 if values else 0, n_stale


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
    ``dev_scores.tsv``, the scores of Dev by the former, ``history.jsonl``, one record per epoch,
    ``run.json``, the settings, and ``resume.pt``, from which the same call resumes after an
    interruption as if nothing had happened. A finished run returns at once; with a recipe of more
    epochs it goes on. One run at a time may write a folder.

    A record has ``epoch`` (from 1), ``lr`` (at its end), ``n_clips`` (trained on so far), ``train``
    (``loss`` and the metrics of Track 1, of the augmented crops while they were trained on),
    ``dev`` (what `measure` returned), ``n_dev``, ``train_s``, ``dev_s``, ``clips_per_s``,
    ``peak_memory_bytes`` and ``dev_peak_memory_bytes`` (see `EpochResult`), ``cumulative_s``
    (training and validation only, as the paper counts) and ``is_best``.

    Args:
        model: A model on the device to train on, whose `input` is that of the crops. Its `meta` is
            emptied: a calibration or a card belongs to the weights that training changes.
        train: Batches to train on: from `make_loader` with shuffling or an order, or any iterable
            of ``(waveform, label, index)`` that can be gone through once per epoch. What has
            ``sampler.set_epoch`` is told the epoch.
        dev: Batches to validate on: from `make_loader` without shuffling, or such an iterable. The
            paper validates with five crops of each utterance: ``SpoofDataset(…, n_crops=5)``.
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
        known: What else the checkpoints say: ``system``, ``data`` or ``notes``, a dict of anything
            plain; see `save_checkpoint`.
        callbacks: Called with each epoch's record: for TensorBoard, a table, a service.
        progress: Show progress and log a line per epoch.

    Raises:
        FloatingPointError: The loss is not finite; names the rows of the batch.
        ValueError: The folder is another run's: one that is under way, has another model, recipe,
            seed or `known`, or is damaged. Or several processes have a recipe with `minutes`, which
            each would measure by itself.

    Example:
        >>> model, loss, recipe, augment, about = system(6)  # doctest: +SKIP
        >>> fit(model, train, dev, loss=loss, out="runs/6").best_path  # doctest: +SKIP
        PosixPath('runs/6/best.pt')
    """
    folder, recipe = Path(out), Recipe() if recipe is None else recipe
    rank, n_processes = rank_and_size()
    if recipe.minutes is not None and n_processes > 1:
        raise ValueError(
            f"`recipe.minutes` must be None for several processes; got {recipe.minutes} and "
            f"{n_processes} processes."
        )
    model.meta = {}
    state = TrainingState(model, loss, recipe, forward=forward)
    measure = track1_of(dev) if measure is None else measure
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
    history: list[dict[str, Any]] = []
    with _locked(folder):
        kept = _load_state(folder, settings)
        if kept is not None:
            state.load_state_dict(kept["training"])
            history = json.loads(kept["history"])
            logger.info("%s: resuming after epoch %d", folder, len(history))
        if rank == 0:
            _write_records(folder, history, settings, state, _is_over(history, recipe))
        while not _is_over(history, recipe):
            epoch = len(history)
            sampler: Any = getattr(train, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            trained = train_epoch(
                state,
                train,
                augment=augment,
                seed=seed,
                epoch=epoch,
                spent_s=math.fsum(record["train_s"] for record in history),
                progress=progress,
            )
            with state.averaged():
                validated = validate(model, dev, precision=state.precision, progress=progress)
                record = _record(history, trained, validated, state, measure)
                history.append(record)
                record["is_best"] = _standing(history, recipe)[0] == epoch + 1
                if rank == 0:
                    _save_model(folder, model, record, settings, recipe)
            if rank == 0:
                if record["is_best"]:
                    _write_dev_scores(folder, dev, validated)
                # An interruption before the state is written loses the epoch, which is then run
                # again with the same result; one after it loses nothing.
                content = {
                    "settings": json.dumps(settings),
                    "training": state.state_dict(),
                    "history": json.dumps(history),
                }
                save_tensors(folder / STATE_NAME, content)
                _write_records(folder, history, settings, state, _is_over(history, recipe))
                for callback in callbacks:
                    callback(record)
            if progress:
                logger.info("%s", _line(record))
        wait_for_all()  # the others may read what the first has written
    best_epoch = _standing(history, recipe)[0]
    return FitResult(history=history, best_epoch=best_epoch, best_path=folder / "best.pt")


def _is_over(history: Sequence[Mapping[str, Any]], recipe: Recipe) -> bool:
    if recipe.minutes is not None:
        return math.fsum(record["train_s"] for record in history) >= 60 * recipe.minutes
    return len(history) >= recipe.n_epochs or _standing(history, recipe)[1] >= recipe.patience


def _standing(history: Sequence[Mapping[str, Any]], recipe: Recipe) -> tuple[int, int]:
    """Return the best epoch and the epochs without a significant decrease; see `early_stopping`."""
    for record in history:
        if recipe.select not in record["dev"]:
            raise ValueError(
                f"`select` must be one of {', '.join(record['dev'])}, the figures of the "
                f"development set; got {recipe.select!r}."
            )
    values = [float(record["dev"][recipe.select]) for record in history]
    return early_stopping(values, recipe.tolerance)


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


def _record(
    history: Sequence[Mapping[str, Any]],
    trained: EpochResult,
    validated: EpochResult,
    state: TrainingState,
    measure: Measure,
) -> dict[str, Any]:
    n_clips, spent_s = (history[-1][name] if history else 0 for name in ("n_clips", "cumulative_s"))
    return {
        "epoch": len(history) + 1,
        "lr": state.optimizer.param_groups[0]["lr"],
        "n_clips": n_clips + len(trained.scores),
        "train": {"loss": trained.loss, **_evaluated(trained)},
        "dev": dict(measure(validated)),
        "n_dev": len(validated.scores),
        "train_s": trained.seconds,
        "dev_s": validated.seconds,
        "clips_per_s": len(trained.scores) / trained.seconds,
        "peak_memory_bytes": trained.peak_memory_bytes,
        "dev_peak_memory_bytes": validated.peak_memory_bytes,
        "cumulative_s": spent_s + trained.seconds + validated.seconds,
    }


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
    with contextlib.ExitStack() as stack:
        is_free = True
        if rank_and_size()[0] == 0:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(filelock.FileLock(folder / "run.lock", timeout=0))
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
        for leftover in folder.glob(".*.tmp"):
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
    before, now = _flat(stored), _flat(settings)
    changes = [
        f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and name.removeprefix("recipe.") not in _LIMITS
    ]
    if changes:
        raise ValueError(
            f"`out` {folder} holds a run with other settings: {'; '.join(changes)}. Use the same "
            "ones to resume it, or another folder."
        )
    return state


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    if not isinstance(value, Mapping):
        return {name[1:]: value}
    parts = [_flat(item, f"{name}.{key}") for key, item in value.items()]
    return {key: item for part in parts for key, item in part.items()}


def _save_model(
    folder: Path,
    model: Countermeasure,
    record: Mapping[str, Any],
    settings: Mapping[str, Any],
    recipe: Recipe,
) -> None:
    """Write ``last.pt`` and, where it is wanted, ``best.pt`` and one for the epoch."""
    names = {
        "last.pt": True,
        "best.pt": record["is_best"],
        f"epoch_{record['epoch']:03d}.pt": recipe.keep_epochs,
    }
    training = {name: value for name, value in settings.items() if name != "known"}
    known = {**settings["known"], "training": training, "epoch": record["epoch"]}
    for name in (name for name, is_wanted in names.items() if is_wanted):
        save_checkpoint(folder / name, model, **known, dev=record["dev"])


def _write_records(
    folder: Path,
    history: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    state: TrainingState,
    is_finished: bool,
) -> None:
    """Write what can be read of a run without PyTorch: its settings and its history."""
    about = {
        **settings,
        "n_parameters": sum(p.numel() for p in state.model.parameters() if p.requires_grad),
        "environment": {
            "asvspoof-cm": version("asvspoof-cm"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": state.device.type,
        },
        "is_finished": is_finished,
    }
    write_text(folder / "history.jsonl", "".join(json.dumps(each) + "\n" for each in history))
    write_json(folder / "run.json", about)


def _write_dev_scores(folder: Path, dev: Iterable[Any], validated: EpochResult) -> None:
    """Write the scores of a protocol's utterances; other batches have no names."""
    dataset = getattr(dev, "dataset", None)
    if isinstance(dataset, SpoofDataset):
        names = dataset.protocol.utterance[validated.index]
        write_scores(folder / "dev_scores.tsv", names, validated.scores, column="log-odds")
