"""Options that several subcommands share, and the models that they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asvspoof_cm.models import Countermeasure
    from asvspoof_cm.scorer import Scorer


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    text = "auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1, mps"
    parser.add_argument("--device", default="auto", help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``."""
    text = (
        "a checkpoint (.pt), an exported model (.onnx), owner/name or owner/name@COMMIT on the "
        "Hugging Face hub, or a model of the package by its name (default: the first that `models` "
        "lists)"
    )
    parser.add_argument("--model", metavar="M", help=text)


def load_model(name: str | None) -> Countermeasure:
    """Return the model that ``--model`` names."""
    from asvspoof_cm.checkpoint import load_checkpoint, load_pretrained

    if name is not None and is_file(name):
        return load_checkpoint(name)
    name, _, revision = (name or "").partition("@")
    return load_pretrained(name or None, revision=revision or None)


def load_scorer(name: str | None, **options: Any) -> Scorer:
    """Return a scorer of the model that ``--model`` names; PyTorch is not imported for ONNX."""
    from asvspoof_cm.scorer import Scorer

    if name is not None and name.lower().endswith(".onnx"):
        return Scorer.from_onnx(name, **options)
    return Scorer(load_model(name), **options)


def is_file(text: str) -> bool:
    """Whether ``--model`` names a file and not a model of the package or of the hub."""
    return Path(text).exists() or Path(text).suffix in (".pt", ".onnx")
