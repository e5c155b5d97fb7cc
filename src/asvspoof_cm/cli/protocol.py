"""``asvspoof-cm protocol``: say what a protocol holds, and whether its audio is there."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from asvspoof_cm.data.protocol import OFFICIAL_COUNTS, Protocol, read_protocol
from asvspoof_cm.labels import ABSENT

SUMMARY = "say what a protocol holds"

_N_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Say which format a protocol has and what it holds. "
        "The exit code is 1 where audio files are missing."
    )
    parser.add_argument("path", metavar="PATH", help="the protocol")
    parser.add_argument(
        "--expect", choices=[*OFFICIAL_COUNTS], help="check the counts of this ASVspoof 5 subset"
    )
    parser.add_argument("--audio", metavar="DIR", help="look for the audio files in this folder")


def run(args: argparse.Namespace) -> int:
    """Print what the protocol holds."""
    protocol = read_protocol(args.path, expect=args.expect, require_labels=False)
    lines = [("format", protocol.format), ("utterances", f"{len(protocol):,}")]
    lines += [(name, f"{n:,}") for name, n in protocol.counts().items()]
    for name in ("speaker", "attack", "codec"):
        lines += _distinct(protocol, name)
    if args.expect:
        lines.append(("counts", f"those of the {args.expect} set of ASVspoof 5"))
    missing: list[int] = []
    if args.audio is not None:
        from asvspoof_cm.data.folder import AudioFolder

        folder = AudioFolder(protocol, args.audio)
        missing = folder.missing()
        names = [folder.path(row).name for row in missing[:_N_SHOWN]]
        shown = f": {', '.join(names)}{', …' if len(missing) > _N_SHOWN else ''}" if names else ""
        lines.append(("audio", str(folder.folder)))
        lines.append(("missing files", f"{len(missing):,}{shown}"))
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines))
    return 1 if missing else 0


def _distinct(protocol: Protocol, column: str) -> list[tuple[str, str]]:
    values = [value for value in np.unique(getattr(protocol, column)).tolist() if value != ABSENT]
    if not values:
        return []
    few = f" ({', '.join(values)})" if column != "speaker" and len(values) <= 40 else ""
    return [(f"{column}s", f"{len(values):,}{few}")]
