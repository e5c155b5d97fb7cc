"""``asvspoof-cm merge``: one table of those that ``score --shard`` wrote, or a submission."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Join the tables that score --shard K/N wrote into one, or, with an --out that ends in "
        ".zip, into a submission to the challenge. All shards must be there, finished, and of one "
        "model, settings and list. The exit code is 1 where any utterance could not be scored."
    )
    add = parser.add_argument
    add("parts", nargs="+", metavar="TABLE", help="what score --out wrote")
    add("--out", dest="output", required=True, metavar="PATH", help=".tsv or .zip to write")


def run(args: argparse.Namespace) -> int:
    """Merge, and say what came out."""
    from asvspoof_cm.scorer import merge_scores

    done = merge_scores(args.parts, args.output)
    sys.stderr.write(f"{done}\n")
    return 1 if done.n_failed else 0
