"""``asvspoof-cm train``: a model or one of the paper's systems, from protocol to checkpoint.

The options of the recipe are the plain fields of `Recipe`, `Augmented` and `System`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asvspoof_cm.cli.options import (
    add_device,
    add_fields,
    add_seed,
    find_checkpoint,
    given_fields,
)

if TYPE_CHECKING:
    from asvspoof_cm.training import System

# Fields of a system that other options choose.
_CHOSEN_OTHERWISE = ("name", "model", "objective")

SUMMARY = "train a model, or one of the paper's systems"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    from asvspoof_cm.training import MODELS

    parser.description = (
        "Train a system of the paper: 1 AASIST, 2 RawNet2, 3 TFPARN with cross-entropy, "
        "4 + pairwise ranking, 5 + focal loss, 6 + attention pooling; or, with --model, "
        "another model with the objective of system 6 (aasist and rawnet2: systems 1 and 2); or, "
        "with --from, a trained model further. The same command resumes a run after an "
        "interruption. Several GPUs: torchrun --nproc-per-node N -m asvspoof_cm train …"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--system", type=int, choices=range(1, 7), default=6, help="default: 6")
    which.add_argument("--model", metavar="NAME", help=", ".join(MODELS))
    which.add_argument(
        "--from",
        dest="start",
        metavar="MODEL",
        help="train further, gently: a trained model that `models` lists, or a checkpoint",
    )
    parser.add_argument(
        "--loss",
        metavar="TEXT",
        help='what to minimise, such as "focal + 0.3 * listwise"; docs/losses.md has the names',
    )
    encoder = parser.add_argument_group("--model encoder")
    encoder.add_argument(
        "--encoder",
        nargs="+",
        metavar="NAME",
        help="distillmos, whisper-base, … or a transformers model; several share a head",
    )
    encoder.add_argument("--layers", nargs="+", type=int, metavar="N", help="of each encoder")
    encoder.add_argument(
        "--freeze", nargs="+", metavar="N", help="none, all or the lowest stages, of each encoder"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the run")
    add_seed(parser)
    add_training(parser)


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``train`` and ``study`` share; the recipe's are those of its fields."""
    from asvspoof_cm.augmentation.recipes import AUGMENTATIONS, EXTRA_SPOOF
    from asvspoof_cm.training import Augmented, Recipe, System

    data = parser.add_argument_group("data")
    for name, metavar, text in (
        ("--train-protocol", "FILE", "what to train on"),
        ("--dev-protocol", "FILE", "what to validate on"),
        ("--protocol", "FILE", "in their place, a table whose column split says train or dev"),
        ("--audio", "DIR", "audio, or a packed folder (default: the folder of --protocol)"),
        ("--dev-audio", "DIR", "audio of the dev set, if elsewhere"),
        ("--eval-protocol", "FILE", "also evaluate the best checkpoint on this set"),
        ("--eval-audio", "DIR", "audio of that set, if elsewhere"),
        ("--start-from", "FILE", "checkpoint whose weights to begin with"),
    ):
        data.add_argument(name, metavar=metavar, help=text)
    for name, text in (
        ("--expect", "check the official ASVspoof 5 trial counts"),
        ("--skip-unreadable", "report unreadable files and continue"),
    ):
        data.add_argument(name, action="store_true", help=text)
    data.add_argument(
        "--order",
        choices=("shuffled", "balanced", "matched"),
        default="shuffled",
        help="balanced draws generators and sources evenly; matched also puts a human and a fake "
        "clip of one source side by side (default: shuffled)",
    )
    for name, kind, default, text in (
        ("--epoch-clips", int, None, "clips per epoch; with few, a run is saved often"),
        ("--parent-share", float, None, "share of copies that matched pairs with their recording"),
        (
            "--crops",
            int,
            None,
            "crops per file at the end; 0: none of dev (default: the model's, else 5)",
        ),
        ("--workers", int, None, "processes that read ahead"),
    ):
        data.add_argument(name, type=kind, default=default, metavar="X", help=text)
    recipe = parser.add_argument_group("recipe (the paper's; with --from, that of `fine_tuning`)")
    texts = {
        "lr": "learning rate after the warm-up (default: the system's, scaled to the batch size)",
        "weight_decay": "weight decay (default: the system's)",
        "augmentation": f"none, or some of {', '.join(AUGMENTATIONS)}, joined by +",
        "extra_spoof_kind": f"how they are changed: {', '.join(EXTRA_SPOOF)}",
    }
    for fields_of in (Recipe, Augmented, System):
        add_fields(recipe, fields_of, texts, skip=_CHOSEN_OTHERWISE)
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Train and say where the best checkpoint is."""
    from asvspoof_cm._util import resolve_device
    from asvspoof_cm.training import process_group

    prepare(args)
    with process_group(resolve_device(args.device)):
        train(args, _chosen(args), args.seed, args.out)
    return 0


def _chosen(args: argparse.Namespace) -> System:
    """Return the system that ``--system``, ``--model`` or ``--from`` names."""
    from asvspoof_cm.checkpoint import load_checkpoint
    from asvspoof_cm.training import fine_tuning, model_system, system

    given = {"encoder": args.encoder, "n_layers": args.layers, "freeze": args.freeze}
    config: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if config.keys() - ({"freeze"} if args.start else set()) and args.model != "encoder":
        raise ValueError(
            "--encoder, --layers and --freeze belong to --model encoder; --freeze also to --from."
        )
    if "freeze" in config:
        config["freeze"] = [int(n) if n.isdecimal() else n for n in args.freeze]
    config = {name: value[0] if len(value) == 1 else value for name, value in config.items()}
    if args.start is not None:
        if args.start_from is not None:
            raise ValueError("--from and --start-from exclude each other: give one.")
        args.start_from = find_checkpoint(args.start)
        model = load_checkpoint(args.start_from)
        chosen = fine_tuning(model, batch_size=args.batch_size or 16, **config)
    elif args.model is not None:
        chosen = model_system(args.model, batch_size=args.batch_size or 64, **config)
    else:
        chosen = system(args.system, batch_size=args.batch_size or 64)
    return chosen if args.loss is None else _with_loss(chosen, args.loss)


def _with_loss(chosen: System, text: str) -> System:
    """Return a system with another objective, and the head that a loss with margins needs."""
    from asvspoof_cm.training import Objective

    changes: dict[str, Any] = {"objective": text}
    objective = Objective(text)
    if objective.is_of_cosines:
        head = chosen.model_config
        if chosen.model != "CosineHead":
            head = {"model": chosen.model, "model_config": chosen.model_config}
        changes["model"] = "CosineHead"
        changes["model_config"] = {**head, **objective.head}
    return replace(chosen, name=f"{chosen.name} with {objective.text}", **changes)


def prepare(args: argparse.Namespace) -> None:
    """Show what is logged, and check what can be checked before hours of training."""
    from asvspoof_cm.data import read_protocol

    if not args.quiet:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if args.workers is not None and args.workers < 0:
        raise ValueError(f"--workers must not be negative; got {args.workers}.")
    if args.protocol is not None:
        if args.train_protocol or args.dev_protocol:
            raise ValueError(
                "--protocol stands for --train-protocol and --dev-protocol: give it or them."
            )
        table = read_protocol(args.protocol)
        parts = [table.select(table.split == split) for split in ("train", "dev")]
        if not all(len(part) for part in parts):
            raise ValueError(
                f"--protocol: {args.protocol} must have a column split, with rows of train and dev."
            )
        args.train_protocol, args.dev_protocol = parts
        args.audio = args.audio or str(Path(args.protocol).parent)
    for name in ("train_protocol", "dev_protocol", "audio"):
        if getattr(args, name) is None:
            raise ValueError(
                "give --protocol, or --train-protocol, --dev-protocol and --audio; "
                f"--{name.replace('_', '-')} is missing."
            )
    if args.expect:
        read_protocol(args.train_protocol, expect="train")
        read_protocol(args.dev_protocol, expect="dev")


def train(args: argparse.Namespace, chosen: System, seed: int, out: str) -> None:
    """Train a system with the options of `add_training`."""
    from asvspoof_cm.data import group_balanced, matched_pairs, shuffled
    from asvspoof_cm.training import (
        Augmented,
        Corpus,
        Recipe,
        System,
        evaluate_run,
        rank_and_size,
        train_system,
    )

    orders = {"shuffled": shuffled, "balanced": group_balanced, "matched": matched_pairs}
    drawn: dict[str, Any] = {"n_rows": args.epoch_clips}
    if args.parent_share is not None:
        if args.order != "matched":
            raise ValueError(f"--parent-share belongs to --order matched; got {args.order}.")
        drawn["parent_share"] = args.parent_share
    changes = given_fields(args, Recipe, Augmented, System, skip=_CHOSEN_OTHERWISE)
    result = train_system(
        chosen.with_changes(**changes),
        Corpus(
            train_protocol=args.train_protocol,
            dev_protocol=args.dev_protocol,
            audio_dir=args.audio,
            dev_audio_dir=args.dev_audio,
            make_order=partial(orders[args.order], **drawn),
            on_error="skip" if args.skip_unreadable else "raise",
            n_workers=args.workers,
        ),
        out,
        seed=seed,
        device=args.device,
        start_from=args.start_from,
        n_crops=args.crops,
        progress=not args.quiet,
    )
    if args.eval_protocol is not None:
        evaluate_run(
            out,
            args.eval_protocol,
            args.eval_audio or args.audio,
            split="eval",
            n_crops=args.crops or None,
            device=args.device,
            progress=not args.quiet,
        )
    if rank_and_size()[0] != 0:
        return
    best = result.history[result.best_epoch - 1]["dev"]
    sys.stdout.write(
        f"{chosen.name}, seed {seed}: epoch {result.best_epoch} of {len(result.history)} is best, "
        f"Dev minDCF {best['min_dcf']:.4f} (EER {100 * best['eer']:.2f} %): {result.best_path}\n"
    )
