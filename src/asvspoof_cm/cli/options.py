"""Options that several subcommands share."""

from __future__ import annotations

import argparse


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device", default="auto", help="auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1, mps"
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add ``--seed``."""
    parser.add_argument("--seed", type=int, default=42, help="seed of everything random (42)")
