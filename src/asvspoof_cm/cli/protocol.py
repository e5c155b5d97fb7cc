"""``asvspoof-cm protocol``: say what a protocol holds, and whether its audio is there."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from asvspoof_cm.data.protocol import OFFICIAL_COUNTS, read_protocol, write_protocol
from asvspoof_cm.labels import ABSENT

_N_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Say which format a protocol has and what it holds. A table of one's own is read with "
        "--columns and --labels, and --out writes it as a CSV that every command reads. "
        "The exit code is 1 where audio files are missing."
    )
    add = parser.add_argument
    add("path", metavar="PATH", help="the protocol")
    add("--expect", choices=[*OFFICIAL_COUNTS], help="check it against this ASVspoof 5 subset")
    add("--audio", metavar="DIR", help="look for the audio files in this folder")
    pairs: Any = {"nargs": "+", "type": _pair, "default": []}
    text = "what the table calls its columns, such as path=file label=is_real"
    add("--columns", metavar="FIELD=NAME", help=text, **pairs)
    text = "what its labels mean, such as real=bonafide fake=spoof"
    add("--labels", metavar="WORD=LABEL", help=text, **pairs)
    add("--out", metavar="FILE.csv", help="write the protocol here")


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE; got {text!r}.")
    return name, value


def run(args: argparse.Namespace) -> int:
    """Print what the protocol holds."""
    named: Any = {"columns": dict(args.columns), "labels": dict(args.labels)}
    protocol = read_protocol(args.path, expect=args.expect, require_labels=False, **named)
    lines = {"format": protocol.format, "utterances": f"{len(protocol):,}"}
    lines |= {name: f"{n:,}" for name, n in protocol.counts().items()}
    for name in ("speaker", "attack", "codec"):
        values = [v for v in np.unique(protocol.column(name)).tolist() if v != ABSENT]
        few = f" ({', '.join(values)})" if name != "speaker" and len(values) <= 40 else ""
        lines |= {f"{name}s": f"{len(values):,}{few}"} if values else {}
    if args.expect:
        lines["counts"] = f"those of the {args.expect} set of ASVspoof 5"
    missing: list[int] = []
    if args.audio is not None:
        from asvspoof_cm.data.folder import AudioFolder

        folder = AudioFolder(protocol, args.audio)
        missing = [row for row in range(len(folder)) if not folder.path(row).is_file()]
        names = [folder.path(row).name for row in missing[:_N_SHOWN]]
        names += ["…"] if len(missing) > _N_SHOWN else []
        lines["audio"] = str(folder.folder)
        lines["missing files"] = f"{len(missing):,}{': ' if names else ''}{', '.join(names)}"
    if args.out is not None:
        write_protocol(args.out, protocol)
        lines["written to"] = args.out
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines.items()))
    return 1 if missing else 0
