"""``asvspoof-cm merge``: one score file of the shards that ``score --shard`` left."""

from __future__ import annotations

import argparse
import sys

SUMMARY = "join the shards of a scored protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Join what score --shard K/N wrote beside OUT into OUT, in the order of the protocol, and "
        "remove it. Every utterance must be there once, and all shards must have had one model "
        "and settings. The exit code is 1 where any utterance could not be scored."
    )
    parser.add_argument("--protocol", required=True, metavar="P", help="as for score")
    parser.add_argument("--out", required=True, metavar="TSV", help="as for score")


def run(args: argparse.Namespace) -> int:
    """Merge, and say what came out."""
    from asvspoof_cm.scorer import merge_scores

    done = merge_scores(args.protocol, args.out)
    sys.stderr.write(f"{done}\n")
    return 1 if done.n_failed else 0
