"""A system from protocol files to a finished run folder."""

from __future__ import annotations

import json
import logging
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.augmentation.recipes import augmentation
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data import Protocol, SpoofDataset, make_loader, read_protocol
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.runs import RUN_NAME
from asvspoof_cm.training.evaluation import evaluate_run, read_final
from asvspoof_cm.training.fitting import FitResult, check_unchanged, fit
from asvspoof_cm.training.objective import Objective
from asvspoof_cm.training.systems import System
from asvspoof_cm.utils.files import atomic_path, sha256
from asvspoof_cm.utils.processes import process_group, rank_and_size, resolve_device, wait_for_all

__all__ = ["Corpus", "train_system"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Where the training and development sets are.

    Attributes:
        train_protocol: The protocol to train on.
        dev_protocol: The protocol to validate on.
        audio_dir: The folder of the audio of both, or a folder that `pack` wrote.
        dev_audio_dir: That of the development set, where it is another.
        on_error: What to do with a training or development file that can't be read: "raise", or
            "skip" and report it at the end of the epoch.
    """

    train_protocol: str | os.PathLike[str]
    dev_protocol: str | os.PathLike[str]
    audio_dir: str | os.PathLike[str]
    dev_audio_dir: str | os.PathLike[str] | None = None
    on_error: Literal["raise", "skip"] = "raise"


def train_system(
    system: System,
    corpus: Corpus,
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 42,
    device: str = "auto",
    n_workers: int | None = None,
    start_from: str | os.PathLike[str] | None = None,
    evaluate: bool = True,
    n_crops: int = 5,
    progress: bool = True,
) -> FitResult:
    """Train a system from protocol files, with its best checkpoint evaluated at the end.

    The folder gets what `fit` and `evaluate_run` write, and ``run.json``: the system, the seed, the
    data and the versions. Under torchrun the processes share the work. The same call goes on with
    a run that was killed, and returns at once for one that is finished.

    Args:
        system: The model, objective and recipe.
        corpus: The data.
        out_dir: The folder of the run.
        seed: The seed of weights, order, crops, augmentation and dropout.
        device: "auto" is CUDA where it is available, then MPS, then the CPU.
        n_workers: Processes that read audio ahead; None chooses.
        start_from: A checkpoint of the same model whose weights to begin with, such as the shipped
            one; None draws them from `seed`.
        evaluate: Score the development set with the best checkpoint at the end, and measure what
            that costs; see `evaluate_run`.
        n_crops: Crops of each utterance in that evaluation; the paper takes five.
        progress: Show bars and log a line an epoch.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> from asvspoof_cm.training import system
        >>> folder = Path(tempfile.mkdtemp())
        >>> paths = write_miniature(folder, n_train=8, n_dev=8)
        >>> corpus = Corpus(
        ...     train_protocol=paths.train_protocol,
        ...     dev_protocol=paths.dev_protocol,
        ...     audio_dir=paths.audio_dir,
        ... )
        >>> small = system(6, batch_size=4).with_recipe(n_epochs=1, crop_s=0.5)
        >>> result = train_system(small, corpus, folder / "run", n_workers=0, progress=False)
        >>> result.best_path.name
        'best.pt'
    """
    out = Path(out_dir)
    train, dev = read_protocol(corpus.train_protocol), read_protocol(corpus.dev_protocol)
    for name, protocol in (("train_protocol", train), ("dev_protocol", dev)):
        if len(set(protocol.label.tolist())) < 2:
            raise ValueError(
                f"`{name}` must hold both bonafide and spoof; {protocol.path} has one class only."
            )
    with process_group(resolve_device(device)) as place:
        rank, size = rank_and_size()
        recipe = system.recipe
        if recipe.batch_size % size:
            raise ValueError(
                f"`batch_size` must be a multiple of the {size} processes; got {recipe.batch_size}."
            )
        model = system.build(seed)
        description = _describe(system, seed, model, train, dev, place)
        if start_from is not None:
            if recipe.residual_scale != 1.0:
                raise ValueError(
                    "`residual_scale` must be 1 with `start_from`, whose weights replace the "
                    f"scaled ones; got {recipe.residual_scale}."
                )
            description["data"]["start_from"] = _start(model, start_from)
        model.to(place)
        if (out / RUN_NAME).exists():
            stored = json.loads((out / RUN_NAME).read_text())
            kept = ("system", "seed", "data")
            check_unchanged(out, {k: stored[k] for k in kept}, {k: description[k] for k in kept})
        elif rank == 0:
            with atomic_path(out / RUN_NAME) as temporary:
                temporary.write_text(json.dumps(description, indent=1) + "\n")

        def loader(protocol: Protocol, audio_dir: str | os.PathLike[str], training: bool) -> Any:
            dataset = SpoofDataset(
                protocol,
                audio_dir,
                crop="random" if training else "center",
                n_samples=round(recipe.crop_s * SAMPLE_RATE),
                seed=seed,
                on_error=corpus.on_error,
            )
            return make_loader(
                dataset,
                shuffle=training,
                batch_size=recipe.batch_size // size,
                seed=seed,
                n_workers=n_workers,
                device=place,
            )

        dev_audio_dir = corpus.dev_audio_dir or corpus.audio_dir
        result = fit(
            model,
            loader(train, corpus.audio_dir, True),
            loader(dev, dev_audio_dir, False),
            loss=Objective(system.objective),
            config=recipe,
            out_dir=out,
            augment=augmentation(recipe.augmentation),
            seed=seed,
            progress=progress,
            meta={"system": asdict(system), "data": description["data"]},
        )
        if evaluate and "dev" not in read_final(out):
            evaluate_run(out, dev, dev_audio_dir, n_crops=n_crops, device=place, progress=progress)
        wait_for_all()
        return result


def _describe(
    system: System,
    seed: int,
    model: Countermeasure,
    train: Protocol,
    dev: Protocol,
    place: torch.device,
) -> dict[str, Any]:
    def describe(protocol: Protocol) -> dict[str, Any]:
        return {
            "protocol": Path(str(protocol.path)).name,
            "format": protocol.format,
            **protocol.counts(),
        }

    return {
        "system": asdict(system),
        "seed": seed,
        "n_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "data": {"train": describe(train), "dev": describe(dev)},
        "environment": {
            "asvspoof-cm": version("asvspoof-cm"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": place.type,
        },
    }


def _start(model: Countermeasure, path: str | os.PathLike[str]) -> dict[str, str]:
    """Give the model the weights of a checkpoint, and say which file that was."""
    given = load_checkpoint(path)
    if given.config != model.config or type(given) is not type(model):
        raise ValueError(
            f"`start_from` must hold a {type(model).__name__} with {model.config}; {path} holds a "
            f"{type(given).__name__} with {given.config}."
        )
    model.load_state_dict(given.state_dict())
    return {"file": Path(path).name, "sha256": sha256(path)}
