"""``asvspoof-cm models``: the trained models that come with the package."""

from __future__ import annotations

import argparse
import json
import sys

from asvspoof_cm.cli.options import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "List the trained models that come with the package: size, hash, errors (EER in %%, pooled "
        "over all clips of a set and as a mean within its sources), licence, and what each is for; "
        "or print what is known about one. Other commands take them with --model; the first is "
        "used where none is named."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print its card, as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list or the card."""
    from asvspoof_cm._hub import PRETRAINED
    from asvspoof_cm._tables import render

    if args.name is not None:
        card = load_model(args.name).meta.get("card", {})
        sys.stdout.write(json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        return 0
    rows = []
    for name, entry in PRETRAINED.items():
        errors = []
        for title, found in entry["figures"].items():
            rates = (found["eer"], found["within"])
            shown = (f"{100 * rate:.1f}" for rate in rates if rate is not None)
            errors.append(f"{title} {' / '.join(shown)}")
        size = f"{entry['n_bytes'] / 1e6:.1f} MB"
        about = ["; ".join(errors), entry["licence"], entry["use"]]
        rows.append([name, size, entry["sha256"][:12], *about])
    header = ("model", "size", "SHA-256", "EER % / within sources", "licence", "use")
    sys.stdout.write(render(header, rows, n_names=6) + "\n")
    return 0
