"""``asvspoof-cm models``: the trained models that come with the package."""

from __future__ import annotations

import argparse
import json
import sys

SUMMARY = "list the trained models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "List the trained models that come with the package: size, errors, licence, and what each "
        "is for; or print what is known about one. Other commands take them with --model; the "
        "first is used where none is named."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print its card, as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list or the card."""
    from asvspoof_cm import pretrained

    if args.name is None:
        text = pretrained.overview()
    else:
        text = json.dumps(pretrained.card(args.name), indent=1, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")
    return 0
