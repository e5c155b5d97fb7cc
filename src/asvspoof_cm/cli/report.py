"""``asvspoof-cm report``: the paper's tables from run folders."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asvspoof_cm._util import write_text

SUMMARY = "make the paper's tables from run folders"

_SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Print the main table (EER, minDCF, Cllr, actDCF) and the efficiency table of run "
        "folders, one row per system, mean ± sample standard deviation over its seeds. "
        "Unfinished runs are counted and named, but not averaged."
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that train or study wrote")
    add("--format", choices=[*_SUFFIXES], default="markdown", help="default: markdown")
    add("--split", choices=("dev", "eval"), default="dev", help="of the main table (default: dev)")
    add("--out", type=Path, metavar="DIR", help="write the tables there instead of printing them")


def run(args: argparse.Namespace) -> int:
    """Read the folders; write the tables."""
    from asvspoof_cm.report import summarize
    from asvspoof_cm.runs import read_run

    runs = [read_run(path) for path in args.runs]
    summary = summarize(runs, split=args.split)
    for unfinished in summary.unfinished:
        sys.stderr.write(
            f"asvspoof-cm report: {unfinished.path} is unfinished "
            f"(epochs: {len(unfinished.history)}); it is not in the means.\n"
        )
    tables = {"main": summary.main, "efficiency": summary.efficiency}
    texts = {name: getattr(table, args.format)() + "\n" for name, table in tables.items()}
    if args.out is None:
        sys.stdout.write("\n".join(texts.values()))
    else:
        for name, text in texts.items():
            path = args.out / f"{name}.{_SUFFIXES[args.format]}"
            write_text(path, text)
            sys.stdout.write(f"{path}\n")
    return 0
