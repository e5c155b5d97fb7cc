r"""The paper's study: systems times seeds, one after another, then its tables and its figure.

    python examples/paper/study.py --miniature --out runs
    python examples/paper/study.py --out runs --audio ASVspoof5 \
        --train ASVspoof5/ASVspoof5.train.tsv --dev ASVspoof5/ASVspoof5.dev.track_1.tsv

Each run is a folder of its own, such as ``runs/6-42`` or ``runs/6-authors-42``. Finished runs are
skipped and interrupted ones resumed, so the same command can be given again. A run that fails is
reported, and the rest goes on. ``--minutes`` gives each run the same time of training instead of a
number of epochs. Several GPUs: ``torchrun --nproc-per-node N examples/paper/study.py …``.

An ablation of one's own is a row of the same tables: ``--name`` is its name, ``--config`` a file of
settings as ``asvspoof-cm train --config`` takes them, ``--import`` a module that defines what they
name: a model (a subclass of `Countermeasure`), a loss (``LOSSES["mine"] = …``) or an augmentation
(``AUGMENTATIONS["mine"] = …``)::

    python examples/paper/study.py … --name "top-k pooling" --config top_k.json
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figure import write_figure
from tables import find_runs, write_tables

from asvspoof_cm._util import resolve_device
from asvspoof_cm.cli.train import read_settings, train
from asvspoof_cm.data import write_miniature
from asvspoof_cm.training import process_group
from asvspoof_cm.training.distributed import rank_and_size, wait_for_all
from asvspoof_cm.training.systems import SEEDS

MINIATURE = {"epochs": 3, "batch_size": 8, "crop_s": 1.0, "recipe": {"warmup_epochs": 1.0}}
"""Settings with which the generated corpus takes minutes: they show the way, not the result."""


OPTIONS = ("minutes", "epochs", "epoch_clips", "dev_clips", "crop_s", "batch_size", "workers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, then write the tables and the figure of all runs."""
    args = _parser().parse_args(arguments)
    if not args.quiet:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.path.insert(0, str(Path.cwd()))
    for module in args.modules:
        importlib.import_module(module)
    failures = []
    with process_group(resolve_device(args.device)):
        is_first = rank_and_size()[0] == 0
        settings = _settings(args, is_first)
        for folder, changes in _runs(args):
            out = args.out / folder
            try:
                train(
                    {**settings, **changes, "out": out}, device=args.device, progress=not args.quiet
                )
            except (ValueError, OSError, ArithmeticError) as error:
                failures.append(folder)
                sys.stderr.write(f"study: {out} failed: {error}\n")
    if is_first:
        runs = find_runs(args.out)
        for path in [*write_tables(runs, args.out), write_figure(runs, args.out / "figure.pdf")]:
            sys.stdout.write(f"{path}\n")
    return 1 if failures else 0


def _settings(args: argparse.Namespace, is_first: bool) -> dict[str, Any]:
    """Return what all runs share: the file's settings, over them those of the options."""
    settings: dict[str, Any] = dict(MINIATURE) if args.miniature else {}
    settings.update(read_settings(args.config) if args.config is not None else {})
    settings.update({name: vars(args)[name] for name in OPTIONS if vars(args)[name] is not None})
    if args.miniature:
        args.audio = args.out / "miniature"
        args.train = args.audio / "ASVspoof5.train.tsv"
        args.dev = args.audio / "ASVspoof5.dev.track_1.tsv"
        if is_first and not args.dev.exists():  # which is written last
            write_miniature(args.audio, n_train=48, n_dev=24)
        wait_for_all()
    data = {"train_protocol": args.train, "dev_protocol": args.dev, "audio": args.audio}
    return {**settings, **{name: str(value) for name, value in data.items() if value is not None}}


def _runs(args: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return the folder of each run and the settings that are its own."""
    if args.name is not None:
        stem = "".join(c if c.isalnum() else "_" for c in args.name)
        return [(f"{stem}-{seed}", {"name": args.name, "seed": seed}) for seed in args.seeds]
    return [
        (
            f"{number}-{seed}" if version == "text" else f"{number}-{version}-{seed}",
            {"system": number, "version": version, "seed": seed},
        )
        for version in args.versions
        for number in args.systems
        for seed in args.seeds
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the runs, the tables and the figure")
    add("--train", help="protocol to train on")
    add("--dev", help="protocol to validate on")
    add("--audio", help="root of the audio of both")
    add("--miniature", action="store_true", help="a small generated corpus, to try all this")
    add("--systems", type=int, nargs="+", choices=range(1, 7), default=[*range(1, 7)])
    add("--versions", nargs="+", choices=("text", "authors"), default=["text"])
    add("--seeds", type=int, nargs="+", default=[*SEEDS])
    add("--name", help="a system of one's own in place of the six, which --config describes")
    add("--config", type=Path, help="settings of all runs, JSON or TOML")
    add("--import", dest="modules", nargs="+", default=[], metavar="MODULE")
    add("--minutes", type=float, help="time of training of each run")
    add("--epochs", type=int, help="epochs at most, instead")
    add("--epoch-clips", type=int, help="clips from one validation to the next (default: all)")
    add("--dev-clips", type=int, help="validate on so many clips, always the same (default: all)")
    add("--crop-s", type=float, help="seconds of a crop (default: 4)")
    add("--batch-size", type=int, help="clips per step (default: 64)")
    add("--workers", type=int, help="processes that read ahead")
    add("--device", default="auto")
    add("--quiet", action="store_true", help="no progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
