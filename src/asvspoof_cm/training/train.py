"""A system from protocols to a finished run folder, and the evaluation of its best checkpoint."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from asvspoof_cm._util import resolve_device, sha256, write_json
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data import Protocol, SpoofDataset, make_loader, read_protocol
from asvspoof_cm.data.orders import Order
from asvspoof_cm.metrics import METRICS, evaluate, read_scores
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.runs import BEST_NAME, FINAL_NAME, RUN_NAME, STATE_NAME, read_final
from asvspoof_cm.scorer import Scorer
from asvspoof_cm.training.distributed import process_group, rank_and_size, wait_for_all
from asvspoof_cm.training.fit import FitResult, fit, quietly
from asvspoof_cm.training.objective import Objective
from asvspoof_cm.training.systems import System


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Where the training and development sets are.

    Attributes:
        train_protocol: What to train on: a `Protocol`, or the file of one.
        dev_protocol: What to validate on.
        audio_dir: The folder of the audio of both, or a folder that `pack` wrote.
        dev_audio_dir: That of the development set, where it is another.
        make_order: From the training protocol to the order of its rows: `matched_pairs`, or
            ``functools.partial(matched_pairs, n_rows=3200)`` for short epochs; None shuffles it.
        n_workers: Processes that read audio ahead; None chooses.
    """

    train_protocol: Protocol | str | os.PathLike[str]
    dev_protocol: Protocol | str | os.PathLike[str]
    audio_dir: str | os.PathLike[str]
    dev_audio_dir: str | os.PathLike[str] | None = None
    make_order: Callable[[Protocol], Order] | None = None
    n_workers: int | None = None


def train_system(
    system: System,
    corpus: Corpus,
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 42,
    device: str = "auto",
    start_from: str | os.PathLike[str] | None = None,
    n_crops: int | None = None,
    progress: bool = True,
) -> FitResult:
    """Train a system, evaluate its best checkpoint, and return what `fit` does.

    The folder gets what `fit` and `evaluate_run` write, and ``run.json``: the system, the seed, the
    data and the versions. Under torchrun the processes share the work. The same call resumes a run
    that was interrupted, and returns at once for one that is finished; with another `n_crops` it
    evaluates that one again.

    Args:
        system: The model, objective and recipe.
        corpus: The data.
        out_dir: The folder of the run.
        seed: The seed of weights, order, crops, augmentation and dropout.
        device: "auto" is CUDA where it is available, then MPS, then the CPU.
        start_from: A checkpoint of the same model whose weights to begin with, such as the shipped
            one; None draws them from `seed`.
        n_crops: Crops of each utterance when the development set is evaluated at the end; the
            checkpoint keeps the number. None is that of `start_from`, else five, as in the paper. 0
            leaves the evaluation out.
        progress: Show progress and log a line per epoch.

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
        ...     n_workers=0,
        ... )
        >>> small = system(6, batch_size=4).with_changes(n_epochs=1, crop_s=0.5)
        >>> result = train_system(small, corpus, folder / "run", progress=False)
        >>> result.best_path.name
        'best.pt'
    """
    out = Path(out_dir)
    train, dev = read_protocol(corpus.train_protocol), read_protocol(corpus.dev_protocol)
    for name, protocol in (("train_protocol", train), ("dev_protocol", dev)):
        if min(protocol.counts().values()) == 0:
            where = protocol.path or "it"
            raise ValueError(
                f"`{name}` must hold both bonafide and spoof; {where} has one class only."
            )
    with process_group(resolve_device(device)) as place:
        size = rank_and_size()[1]
        if system.batch_size % size:
            raise ValueError(
                f"`batch_size` must be a multiple of the {size} processes; got {system.batch_size}."
            )
        model = system.build(seed, published=start_from is None)
        description = _describe(system, seed, model, train, dev, place)
        if start_from is not None:
            if system.residual_scale != 1.0:
                raise ValueError(
                    "`residual_scale` must be 1 with `start_from`, whose weights replace the "
                    f"scaled ones; got {system.residual_scale}."
                )
            description["data"]["start_from"] = _start(model, start_from)
        if n_crops:
            model.input = replace(model.input, n_crops=n_crops)
        model.to(place)

        def loader(
            protocol: Protocol, audio_dir: str | os.PathLike[str], training: bool
        ) -> DataLoader[Any]:
            dataset = SpoofDataset(
                protocol,
                audio_dir,
                crop="random" if training else "center",
                input=model.input,
                seed=seed,
            )
            make_order = corpus.make_order if training else None
            order = None if make_order is None else make_order(protocol)
            return make_loader(
                dataset,
                shuffle=training and order is None,
                order=order,
                batch_size=system.batch_size // size,
                seed=seed,
                n_workers=corpus.n_workers,
                device=place,
            )

        if rank_and_size()[0] == 0 and not (out / STATE_NAME).exists():
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / RUN_NAME, description)
        dev_audio_dir = corpus.dev_audio_dir or corpus.audio_dir
        result = fit(
            model,
            loader(train, corpus.audio_dir, True),
            loader(dev, dev_audio_dir, False),
            loss=Objective(system.objective),
            recipe=system.recipe,
            augment=system.transform,
            out=out,
            seed=seed,
            known={"system": asdict(system), "data": description["data"]},
            progress=progress,
        )
        if n_crops != 0:
            evaluate_run(out, dev, dev_audio_dir, n_crops=n_crops, device=place, progress=progress)
        wait_for_all()
        return result


def evaluate_run(
    run: str | os.PathLike[str],
    protocol: Protocol | str | os.PathLike[str],
    audio_dir: str | os.PathLike[str],
    *,
    split: Literal["dev", "eval"] = "dev",
    n_crops: int | None = None,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Return the metrics of a set, scored with the best checkpoint of a run folder.

    Writes ``<split>_scores.tsv``, a table of scores, and ``final.json``: the metrics of each split
    that was evaluated. Returns at once where the set has been evaluated with this checkpoint and as
    many crops; under `torch.distributed` the first process scores.

    Args:
        run: The folder that `fit` wrote.
        protocol: The utterances, with labels.
        audio_dir: Their audio.
        split: What to call the set.
        n_crops: Crops of each utterance; None is what the checkpoint says.
        device: Where to score.
        progress: Show progress.

    Returns:
        The content of ``final.json``; empty in other processes than the first.
    """
    out = Path(run)
    is_first = rank_and_size()[0] == 0
    if not (out / BEST_NAME).is_file():
        raise FileNotFoundError(
            f"`run` must be the folder of a run with at least one epoch; {out} has no {BEST_NAME}. "
            "Train it first: a run that was interrupted in its first epoch begins anew."
        )
    protocol = read_protocol(protocol)
    scorer = Scorer(load_checkpoint(out / BEST_NAME), device=device, n_crops=n_crops)
    about = {
        "n_crops": scorer.input.n_crops,
        "weights_sha256": scorer.settings()["sha256"],
        "protocol_sha256": protocol.sha256(),
    }
    final = read_final(out)
    before = final.get(split, {})
    if about.items() <= before.items() and METRICS.keys() <= before.keys():
        return final if is_first else {}
    if not is_first:
        return {}
    table = out / f"{split}_scores.tsv"
    table.unlink(missing_ok=True)
    done = scorer.score_protocol(protocol, audio_dir, table, progress=progress)
    scores = read_scores(done.output)
    label_of = dict(zip(protocol.utterance.tolist(), protocol.label.tolist(), strict=True))
    labels = np.array([label_of[name] for name in scores.filename.tolist()])
    with quietly():
        result = evaluate(scores.cm if scores.cm is not None else [], labels)
    final[split] = {
        **about,
        "n_bonafide": result.n_bonafide,
        "n_spoof": result.n_spoof,
        "n_failed": done.n_failed,
        "min_cllr": result.min_cllr,
        "auc": result.auc,
        **result.values(),
    }
    final = {"checkpoint": BEST_NAME, **final}
    write_json(out / FINAL_NAME, final)
    return final


def _describe(
    system: System,
    seed: int,
    model: Countermeasure,
    train: Protocol,
    dev: Protocol,
    place: torch.device,
) -> dict[str, Any]:
    def of_protocol(protocol: Protocol) -> dict[str, Any]:
        return {
            "protocol": None if protocol.path is None else protocol.path.name,
            "format": protocol.format,
            "sha256": protocol.sha256(),
            **protocol.counts(),
        }

    return {
        "system": asdict(system),
        "seed": seed,
        "n_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "data": {"train": of_protocol(train), "dev": of_protocol(dev)},
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
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (given, model)]
    if type(given) is not type(model) or shapes[0] != shapes[1]:
        raise ValueError(
            f"`start_from` must hold a {type(model).__name__} with {model.config}; {path} holds a "
            f"{type(given).__name__} with {given.config}."
        )
    model.load_state_dict(given.state_dict())
    model.input = replace(given.input, crop_s=model.input.crop_s)
    return {"file": Path(path).name, "sha256": sha256(path)}
