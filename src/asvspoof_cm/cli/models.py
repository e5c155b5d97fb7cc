"""``asvspoof-cm models``: the trained models that come with the package."""

from __future__ import annotations

import argparse
import json
import sys

from asvspoof_cm.cli.options import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "List the trained models that come with the package: size, hash, errors, licence, and what "
        "each is for; or print what is known about one. Other commands take them with --model; the "
        "first is used where none is named."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print its card, as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list or the card."""
    if args.name is None:
        text = overview()
    else:
        card = load_model(args.name).meta.get("card", {})
        text = json.dumps(card, indent=1, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")
    return 0


def overview() -> str:
    """Return a table of the models: size, hash, errors, licence, and what each is for.

    The errors are EERs in %, pooled over all clips of a set and as a mean within its sources.
    """
    from asvspoof_cm._hub import PRETRAINED
    from asvspoof_cm._tables import render

    rows = []
    for name, entry in PRETRAINED.items():
        errors = "; ".join(
            f"{title} {100 * found['eer']:.1f}"
            + ("" if found["within"] is None else f" / {100 * found['within']:.1f}")
            for title, found in entry["figures"].items()
        )
        size = f"{entry['n_bytes'] / 1e6:.1f} MB"
        rows.append([name, size, entry["sha256"][:12], errors, entry["licence"], entry["use"]])
    header = ("model", "size", "SHA-256", "EER % / within sources", "licence", "use")
    return render(header, rows, n_names=6)
