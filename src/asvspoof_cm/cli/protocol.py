"""``asvspoof-cm protocol``: say what a protocol holds, and whether its audio is there."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from asvspoof_cm.data.protocol import OFFICIAL_COUNTS, Protocol, read_protocol, write_protocol
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
    protocol = read_protocol(
        args.path,
        expect=args.expect,
        require_labels=False,
        columns=dict(args.columns),
        labels=dict(args.labels),
    )
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
        names = ", ".join(folder.path(row).name for row in missing[:_N_SHOWN])
        more = ", …" if len(missing) > _N_SHOWN else ""
        lines.append(("audio", str(folder.folder)))
        lines.append(("missing files", f"{len(missing):,}{': ' if names else ''}{names}{more}"))
    if args.out is not None:
        write_protocol(args.out, protocol)
        lines.append(("written to", args.out))
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines))
    return 1 if missing else 0


def _distinct(protocol: Protocol, column: str) -> list[tuple[str, str]]:
    values = [value for value in np.unique(getattr(protocol, column)).tolist() if value != ABSENT]
    if not values:
        return []
    few = f" ({', '.join(values)})" if column != "speaker" and len(values) <= 40 else ""
    return [(f"{column}s", f"{len(values):,}{few}")]
