"""``asvspoof-cm models``: the trained models that come with the package."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "List the trained models that come with the package: size, hash, errors (EER in %, pooled "
        "over all clips of a set and as a mean within its sources), licence, and what each is for. "
        "Other commands take them with --model; the first is used where none is named."
    )


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from asvspoof_cm._hub import PRETRAINED
    from asvspoof_cm._tables import render

    rows = []
    for name, entry in PRETRAINED.items():
        errors = []
        for title, found in entry["figures"].items():
            rates = (found["eer"], found["within"])
            shown = (f"{100 * rate:.1f}" for rate in rates if rate is not None)
            errors.append(f"{title} {' / '.join(shown)}")
        size = f"{entry['n_bytes'] / 1e6:.1f} MB"
        about = ["; ".join(errors), entry["licence"], entry["use"]]
        rows.append([name, size, entry["sha256"], *about])
    header = ("model", "size", "SHA-256", "EER % / within sources", "licence", "use")
    sys.stdout.write(render(header, rows, n_names=6) + "\n")
    return 0
