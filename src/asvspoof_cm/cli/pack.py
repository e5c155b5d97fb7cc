"""``asvspoof-cm pack``: decode a corpus once, so that training reads it quickly."""

from __future__ import annotations

import argparse
import sys

from asvspoof_cm.data.protocol import read_protocol

_N_SHOWN = 5


SUMMARY = "decode a corpus once, for fast training"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Decode the audio of a protocol into a folder that --audio of the other "
        "commands takes in its place. It resumes after an interruption. "
        "The exit code is 1 where utterances could not be decoded; the others are packed."
    )
    parser.add_argument("--protocol", required=True, metavar="PATH", help="the utterances")
    parser.add_argument("--audio", required=True, metavar="DIR", help="where their files are")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--sample-rate", type=int, default=16000, metavar="HZ", help="resample to (default: 16000)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="files to decode at a time (default: one per core)"
    )


def run(args: argparse.Namespace) -> int:
    """Pack, and print what came out."""
    from asvspoof_cm.data.packed import pack

    protocol = read_protocol(args.protocol, require_labels=False)
    packed = pack(
        protocol,
        args.audio,
        args.out,
        sample_rate=args.sample_rate,
        n_threads=args.threads,
        progress=True,
    )
    n_errors = len(packed.errors)
    sys.stdout.write(f"packed {len(packed) - n_errors:,} of {len(packed):,} utterances\n")
    for name, why in [*packed.errors.items()][:_N_SHOWN]:
        sys.stderr.write(f"{name}: {why}\n")
    if n_errors > _N_SHOWN:
        sys.stderr.write(f"… and {n_errors - _N_SHOWN:,} more\n")
    return 1 if n_errors else 0
