"""``asvspoof-cm train``: a model or one of the paper's systems, from protocols to a run folder."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asvspoof_cm._util import check_between, check_choice, digest
from asvspoof_cm.cli.options import add_device, load_model
from asvspoof_cm.labels import SPOOF

if TYPE_CHECKING:
    from asvspoof_cm.data import Protocol
    from asvspoof_cm.training import FitResult, System

ORDERS = ("shuffled", "balanced", "matched")
IN_CONFIG = ("dev_clips", "model_config", "name", "parent_share", "recipe")
"""Settings that a file may have beside those of the options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Train a system of the paper: 1 AASIST, 2 RawNet2, 3 TFPARN with cross-entropy, "
        "4 + pairwise ranking, 5 + focal loss, 6 + attention pooling; or another model by its "
        "name; or a trained model further. Defaults stand in brackets. The same command resumes a "
        "run after an interruption. "
        "Several GPUs: torchrun --nproc-per-node N -m asvspoof_cm train …"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--system", type=int, metavar="N", help="system of the paper, 1 to 6 (6)")
    which.add_argument("--model", metavar="M", help="a model by name, or a trained one")
    add = parser.add_argument
    add(
        "--version", metavar="V", help="of the system: text (the paper's) or authors (their code's)"
    )
    add("--loss", metavar="L", help="name of a loss; docs/training.md has them (the system's)")
    add("--augment", metavar="A", help="none, or names joined by + (the system's)")
    add("--config", type=Path, metavar="FILE", help="JSON or TOML; an option overrides it")
    add("--out", metavar="DIR", help="folder of the run")
    add("--seed", type=int, metavar="N", help="seed of everything random (42)")
    add = parser.add_argument_group("data").add_argument
    add("--train-protocol", metavar="FILE", help="what to train on")
    add("--dev-protocol", metavar="FILE", help="what to validate on")
    add("--protocol", metavar="FILE", help="instead, a table whose column split says train or dev")
    add("--audio", metavar="DIR", help="root of the audio (the folder of --protocol)")
    add("--order", choices=ORDERS, help="order of the clips (shuffled)")
    add("--epoch-clips", type=int, metavar="N", help="clips per epoch (all)")
    add("--workers", type=int, metavar="N", help="processes that read ahead")
    add = parser.add_argument_group("recipe; --config may hold any field of it").add_argument
    add("--epochs", type=int, metavar="N", help="epochs at most (100)")
    add("--minutes", type=float, metavar="X", help="train so long instead")
    add("--lr", type=float, metavar="X", help="learning rate (the system's)")
    add("--batch-size", type=int, metavar="N", help="clips per step (64)")
    add("--crop-s", type=float, metavar="S", help="seconds of a crop (the model's, else 4)")
    add("--crops", type=int, metavar="N", help="crops of each dev clip (the model's, else 5)")
    add("--precision", metavar="P", help="fp32, bf16 or auto (fp32)")
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Train, and say where the best checkpoint is."""
    settings = read_settings(args.config) if args.config is not None else {}
    own = ("command", "config", "device", "quiet")
    given = {k: v for k, v in vars(args).items() if v is not None and k not in own}
    # An option takes the place of the file's model or system, with all that describes it.
    which, is_other = {"model", "system"}, settings.get("model") != given.get("model")
    if is_other and which & settings.keys() and which & given.keys():
        which |= {"version", "model_config"}
        settings = {k: v for k, v in settings.items() if k not in which}
    if not args.quiet:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    result = train(settings | given, device=args.device, progress=not args.quiet)
    if result is not None:
        best = result.history[result.best_epoch - 1]["dev"]
        figures = ", ".join(f"{name} {value:.4f}" for name, value in [*best.items()][:4])
        sys.stdout.write(
            f"epoch {result.best_epoch} of {len(result.history)} is best, Dev {figures}: "
            f"{result.best_path}\n"
        )
    return 0


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON or TOML file, named like the options of the command."""
    text = path.read_text(encoding="utf-8")
    try:
        content = dict(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"--config: {path} is neither JSON nor TOML ({error}).") from None
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    known = {action.dest for action in parser._actions} - {"config", "device", "quiet"}
    known |= {*IN_CONFIG}
    settings = {name.replace("-", "_"): value for name, value in content.items()}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"--config: {path} has unknown settings {', '.join(unknown)}; it may have "
            f"{', '.join(sorted(known))}."
        )
    return settings


def train(
    settings: Mapping[str, Any], *, device: str = "auto", progress: bool = True
) -> FitResult | None:
    """Train what the settings say; None in other processes than the first.

    Args:
        settings: Values by the names of the options, and those of `IN_CONFIG`: ``recipe`` and
            ``model_config`` are dicts of fields, ``dev_clips`` limits the development set to a
            sample that is always the same, ``parent_share`` is that of `matched_pairs`, ``name``
            the system's in the tables.
        device: Where to train.
        progress: Show progress and log a line per epoch.
    """
    from asvspoof_cm._util import resolve_device
    from asvspoof_cm.data import SpoofDataset, group_balanced, make_loader, matched_pairs, shuffled
    from asvspoof_cm.training import fit, process_group
    from asvspoof_cm.training.distributed import rank_and_size

    seed, order = settings.get("seed", 42), settings.get("order", "shuffled")
    check_choice("order", order, ORDERS)
    check_between("workers", settings.get("workers") or 0, 0)
    if "out" not in settings:
        raise ValueError("give --out, the folder of the run.")
    train_set, dev_set, audio_dir = _protocols(settings)
    with process_group(resolve_device(device)) as place:
        chosen, batch_size = _choose(settings, seed, train_set)
        rank, n_processes = rank_and_size()
        if batch_size % n_processes:
            raise ValueError(
                f"`batch_size` must be a multiple of the {n_processes} processes; got {batch_size}."
            )
        model = chosen.model.to(place)
        sizes = {"crop_s": settings.get("crop_s"), "n_crops": settings.get("crops")}
        model.input = replace(model.input, **{k: v for k, v in sizes.items() if v is not None})
        drawn = {"n_rows": settings.get("epoch_clips")}
        if order == "matched":
            drawn["parent_share"] = settings.get("parent_share", 0.0)
        orders: Any = dict(zip(ORDERS, (shuffled, group_balanced, matched_pairs), strict=True))
        load: Any = {"batch_size": batch_size // n_processes, "seed": seed, "device": place}
        load["n_workers"] = settings.get("workers")
        of_both: Any = {"input": model.input, "seed": seed}
        train_clips = SpoofDataset(train_set, audio_dir, crop="random", **of_both)
        dev_clips = SpoofDataset(dev_set, audio_dir, n_crops=model.input.n_crops, **of_both)
        result = fit(
            model,
            make_loader(train_clips, order=orders[order](train_set, **drawn), **load),
            make_loader(dev_clips, **load),
            loss=chosen.loss,
            recipe=chosen.recipe,
            augment=chosen.augment,
            out=settings["out"],
            seed=seed,
            known={
                "system": {**chosen.about, "batch_size": batch_size, "order": order, **drawn},
                "data": {"train": _described(train_set), "dev": _described(dev_set)},
            },
            progress=progress,
        )
        return result if rank == 0 else None


def _choose(settings: Mapping[str, Any], seed: int, train_set: Protocol) -> tuple[System, int]:
    """Return what the settings name, with their changes to it, and the batch size."""
    from asvspoof_cm.augmentation import augmentation
    from asvspoof_cm.losses import LOSSES
    from asvspoof_cm.models.base import model_names
    from asvspoof_cm.training import MODELS, model_system, system

    model, loss = settings.get("model"), settings.get("loss")
    is_new = model is None or model in (*MODELS, *model_names())
    batch_size = settings.get("batch_size", 64 if is_new else 16)
    options: Any = {"config": settings.get("model_config"), "seed": seed, "batch_size": batch_size}
    if model is None:
        version, counts = settings.get("version", "text"), train_set.counts()
        chosen = system(settings.get("system", 6), version=version, counts=counts, **options)
        if loss is not None:
            check_choice("loss", loss, tuple(LOSSES))
            chosen = chosen._replace(loss=LOSSES[loss])
    elif "version" in settings:
        raise ValueError("--version belongs to --system; leave it out with --model.")
    else:
        begun = model if is_new else load_model(model)
        chosen = model_system(begun, loss=loss or "focal_pairwise", **options)
    if "augment" in settings:
        chosen = chosen._replace(augment=augmentation(settings["augment"]))
    about = {k: settings[k] for k in ("loss", "augment", "name") if k in settings}
    changes = dict(settings.get("recipe", {}))
    names = {"epochs": "n_epochs", "minutes": "minutes", "lr": "lr", "precision": "precision"}
    changes |= {name: settings[option] for option, name in names.items() if option in settings}
    try:
        recipe = replace(chosen.recipe, **changes)
    except TypeError as error:
        raise ValueError(f"`recipe` must have fields of Recipe: {error}.") from None
    return chosen._replace(recipe=recipe, about={**chosen.about, **about}), batch_size


def _protocols(settings: Mapping[str, Any]) -> tuple[Protocol, Protocol, str]:
    """Return the training and the development set, and the root of their audio."""
    from asvspoof_cm.data import read_protocol

    names = ("train_protocol", "dev_protocol", "audio")
    table, (train_path, dev_path, audio_dir) = settings.get("protocol"), map(settings.get, names)
    if table is not None and (train_path or dev_path):
        raise ValueError(
            "--protocol stands for --train-protocol and --dev-protocol: give it or them."
        )
    if table is not None:
        whole = read_protocol(table)
        train_set, dev_set = (whole.select(whole.split == part) for part in ("train", "dev"))
        audio_dir = audio_dir or str(Path(table).parent)
    elif missing := [name for name in names if settings.get(name) is None]:
        raise ValueError(
            "give --protocol, or --train-protocol, --dev-protocol and --audio; "
            f"--{missing[0].replace('_', '-')} is missing."
        )
    else:
        train_set, dev_set = read_protocol(str(train_path)), read_protocol(str(dev_path))
    for part, protocol in (("train", train_set), ("dev", dev_set)):
        if min(protocol.counts().values()) == 0:
            option = "--protocol" if table else f"--{part}-protocol"
            where = f"of {table} whose column split says {part}" if table else f"of {protocol.path}"
            raise ValueError(
                f"{option} must hold both bonafide and spoof for {part}; the rows {where} hold "
                f"{protocol.counts()}."
            )
    most = settings.get("dev_clips")
    return train_set, dev_set if most is None else _sample(dev_set, most), str(audio_dir)


def _sample(protocol: Protocol, most: int) -> Protocol:
    """Return at most so many rows, always the same ones, with the shares of the classes kept."""
    import numpy as np

    check_between("dev_clips", most, 2)
    chosen = []
    for label in np.unique(protocol.label):
        rows = np.flatnonzero(protocol.label == label)
        n_rows = max(1, min(len(rows), round(most * len(rows) / len(protocol))))
        chosen.append(np.random.default_rng(0).permutation(rows)[:n_rows])
    return protocol.select(np.sort(np.concatenate(chosen)))


def _described(protocol: Protocol) -> dict[str, Any]:
    return {
        "protocol": None if protocol.path is None else protocol.path.name,
        "format": protocol.format,
        "sha256": digest([*protocol.utterance.tolist(), *map(str, protocol.label.tolist())]),
        **protocol.counts(),
        "speakers": len(set(protocol.speaker.tolist())),
        "attacks": len(set(protocol.attack[protocol.label == SPOOF].tolist())),
    }
