"""``asvspoof-cm study``: systems × seeds, skipping what is finished."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asvspoof_cm.cli.train import add_training, prepare, train

SUMMARY = "train several systems with several seeds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Train systems × seeds into DIR/SYSTEM-SEED, one after another. Finished runs are "
        "skipped and interrupted ones resumed, so the same command can be given again."
    )
    parser.add_argument(
        "--systems", type=int, nargs="+", choices=range(1, 7), default=[1, 2, 3, 4, 5, 6]
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="the paper's: 42 63 2026")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the run folders")
    add_training(parser)


def run(args: argparse.Namespace) -> int:
    """Train each pair in turn; a run that fails is reported and the rest goes on."""
    from asvspoof_cm._util import resolve_device
    from asvspoof_cm.training import process_group, system
    from asvspoof_cm.training.systems import SEEDS

    prepare(args)
    failures = []
    with process_group(resolve_device(args.device)):
        for number in args.systems:
            for seed in args.seeds or SEEDS:
                out = str(Path(args.out) / f"{number}-{seed}")
                try:
                    train(args, system(number, batch_size=args.batch_size or 64), seed, out)
                except (ValueError, OSError, ArithmeticError) as error:
                    failures.append(out)
                    sys.stderr.write(f"asvspoof-cm study: {out} failed: {error}\n")
    if failures:
        sys.stderr.write(f"asvspoof-cm study: {len(failures)} failed: {', '.join(failures)}\n")
    return 1 if failures else 0
