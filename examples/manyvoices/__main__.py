"""``PYTHONPATH=examples python -m manyvoices``: build the corpus, a step at a time."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from manyvoices.copies import make_copies, plan
from manyvoices.table import TABLE, Row, read_table
from manyvoices.voices import make_voices, plan_voices


def main() -> int:
    """Run the step that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="manyvoices", description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")
    for name, run, about in (
        ("copies", _copies, "copies of the human clips of corpora"),
        ("voices", _voices, "new voices in the channels of their human clips"),
    ):
        step = steps.add_parser(name, help=about)
        step.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
        step.add_argument("--out", type=Path, required=True)
        step.add_argument("--weights", type=Path, required=True)
        step.add_argument("--seed", type=int, default=5)
        step.set_defaults(run=run)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    arguments.run(arguments)
    return 0


def _tables(corpora: Sequence[Path]) -> list[tuple[Path, list[Row]]]:
    return [(corpus, read_table(corpus / TABLE)) for corpus in corpora]


def _copies(arguments: argparse.Namespace) -> None:
    jobs = plan(_tables(arguments.corpora), seed=arguments.seed)
    print(f"{len(jobs)} copies: {dict(Counter(job.row.generator for job in jobs))}")
    rows = make_copies(jobs, arguments.out, arguments.weights, seed=arguments.seed)
    print(f"{len(rows)} copies in {arguments.out}")


def _voices(arguments: argparse.Namespace) -> None:
    parts = plan_voices(_tables(arguments.corpora), seed=arguments.seed)
    print(f"{sum(len(part.rows) for part in parts)} clips of new voices")
    rows = make_voices(parts, arguments.out, arguments.weights, seed=arguments.seed)
    print(f"{len(rows)} clips of new voices in {arguments.out}")


if __name__ == "__main__":
    sys.exit(main())
