"""Write the predictions of a folder, for a public benchmark that keeps its labels.

    python examples/predictions.py FOLDER --out predictions.csv

The form is that of podonos/audio-dfd-benchmark: a row for each file, with its name, real or fake,
and the milliseconds from its path to its score. Reading m4a and WebM needs the extra ``av``. Such a
folder is for measuring alone: its audio belongs neither in training nor in the choice of a model or
a threshold.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asvspoof_cm import Scorer
from asvspoof_cm.audio import AUDIO_EXTENSIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Score every audio file of the folder; return how many could not be scored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("predictions.csv"))
    parser.add_argument("--checkpoint", help="another than the shipped one")
    parser.add_argument("--threshold", type=float, default=0.0, help="real from this LLR on (0)")
    args = parser.parse_args(arguments)
    own = args.checkpoint
    scorer = Scorer.from_checkpoint(own) if own else Scorer.from_pretrained()
    paths = sorted(p for p in args.folder.iterdir() if p.suffix.lower() in AUDIO_EXTENSIONS)
    n_failed = 0
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["filename", "label", "latency_ms"])
        for path in paths:
            start_s = time.perf_counter()
            try:
                score = scorer.score(path)
            except (OSError, ValueError) as error:
                n_failed += 1
                print(error, file=sys.stderr)
                continue
            latency_ms = 1000 * (time.perf_counter() - start_s)
            label = "real" if score >= args.threshold else "fake"
            writer.writerow([path.name, label, f"{latency_ms:.2f}"])
    print(f"{len(paths) - n_failed} of {len(paths)} files in {args.out}")
    return n_failed


if __name__ == "__main__":
    sys.exit(main() > 0)
