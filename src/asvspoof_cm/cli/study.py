"""``asvspoof-cm study``: systems × seeds, skipping what is finished."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from asvspoof_cm.cli.train import add_training, train

__all__ = ["add_parser", "run"]

_SEEDS = (42, 63, 2026)


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "study",
        help="train several systems with several seeds",
        description=(
            "Train systems × seeds into DIR/SYSTEM-SEED, one after another. Finished runs are "
            "skipped and killed ones resumed, so the same command can be given again."
        ),
    )
    parser.add_argument(
        "--systems", type=int, nargs="+", choices=range(1, 7), default=[1, 2, 3, 4, 5, 6]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(_SEEDS))
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the run folders")
    add_training(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train each pair in turn."""
    for number in args.systems:
        for seed in args.seeds:
            train(args, number, seed, str(Path(args.out) / f"{number}-{seed}"))
    return 0
