"""``asvspoof-cm export``: write a checkpoint as ONNX."""

from __future__ import annotations

import argparse

from asvspoof_cm.cli.options import add_model, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Write a checkpoint as ONNX: waveform (batch, time) in, logits (batch, 2) out."
    )
    add_model(parser)
    parser.add_argument("--out", dest="path", metavar="ONNX", required=True, help="file to write")


def run(args: argparse.Namespace) -> int:
    """Write the ONNX file."""
    from asvspoof_cm.export import export_onnx

    export_onnx(load_model(args.model), args.path)
    return 0
