"""``asvspoof-cm export``: write a checkpoint as ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "write a checkpoint as ONNX"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Write a checkpoint as ONNX: waveform (batch, time) in, logits (batch, 2) out."
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        type=Path,
        help="(default: the one that comes with the package)",
    )
    parser.add_argument("--out", metavar="ONNX", type=Path, required=True, help="file to write")
    parser.add_argument("--int8", action="store_true", help="quantise linear layers to int8")


def run(args: argparse.Namespace) -> int:
    """Write the ONNX file."""
    from asvspoof_cm.checkpoint import load_checkpoint
    from asvspoof_cm.export import export_onnx
    from asvspoof_cm.pretrained import load_pretrained

    model = load_pretrained() if args.checkpoint is None else load_checkpoint(args.checkpoint)
    export_onnx(model, args.out, int8=args.int8)
    return 0
