r"""Fine-tuning on recordings of one's own: the error before and after, on voices held out.

    PYTHONPATH=recipes python recipes/finetune.py CORPUS --source NAME --weights DIR --work DIR

CORPUS is a folder that ``manyvoices gather`` made; the human clips of one of its sources stand for
a user's own. Four of their speakers are trained on, with copies; a fifth is for validation; the
others are held out, with copies by a vocoder that training did not hear. The work is that of
docs/own_recordings.md: ``copies``, ``join``, ``asvspoof-cm train --from``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asvspoof_cm import BONAFIDE, Scorer
from asvspoof_cm.cli import main as command_line
from asvspoof_cm.data import read_protocol
from asvspoof_cm.metrics import bootstrap, read_scores
from manyvoices.copies import Shares, make_copies, plan
from manyvoices.table import TABLE, Row, join, read_table, write_table
from manyvoices.vocoders import available

N_TRAIN, N_VALIDATION = 4, 1  # speakers, those with most clips first


def divide(rows: Sequence[Row], source: str) -> list[Row]:
    """Return the human clips of a source, their speakers divided into train, dev and eval."""
    own = [row for row in rows if row.source == source and row.is_human]
    speakers = [name for name, _ in Counter(row.speaker for row in own).most_common()]
    if len(speakers) <= N_TRAIN + N_VALIDATION:
        raise SystemExit(f"`source` must have {N_TRAIN + N_VALIDATION + 1} speakers; got {source}.")
    split = dict.fromkeys(speakers, "eval") | dict.fromkeys(speakers[:N_TRAIN], "train")
    split |= dict.fromkeys(speakers[N_TRAIN : N_TRAIN + N_VALIDATION], "dev")
    return [replace(row, split=split[row.speaker]) for row in own]


def prepare(args: argparse.Namespace) -> None:
    """Write the tables train.tsv, dev.tsv and eval.tsv of the clips and their copies."""
    own = args.work / "own"
    own.mkdir(parents=True, exist_ok=True)
    if not (own / "audio").exists():
        (own / "audio").symlink_to((args.corpus / "audio").resolve())
    rows = divide(read_table(args.corpus / TABLE), args.source)
    write_table(own / TABLE, rows)
    copiers, held_out, _ = available(args.weights)
    # The planner knows train and dev: the speakers held out get copies as those of dev do.
    as_dev = [replace(row, split="dev") if row.split == "eval" else row for row in rows]
    jobs = plan(
        [(own, as_dev)],
        shares=Shares(dev=1.0, most_per_dev_source=1000),
        copiers=copiers,
        held_out=held_out,
    )
    split = {row.utterance: row.split for row in rows}
    jobs = [replace(job, row=replace(job.row, split=split[job.row.parent])) for job in jobs]
    make_copies(jobs, args.work / "copies", args.weights)
    join(args.work, [own, args.work / "copies"])


def measure(model: str, args: argparse.Namespace) -> str:
    """Return the EER of a model on the speakers held out, with its interval over clips."""
    protocol = read_protocol(args.work / "eval.tsv")
    output = args.work / f"scores_{Path(model).stem}.tsv"
    load = Scorer.from_checkpoint if Path(model).exists() else Scorer.from_pretrained
    load(model).score_protocol(protocol, args.work, output)
    scores, human = read_scores(output).cm, protocol.label == BONAFIDE
    interval = bootstrap("eer", scores[human], scores[~human], 1000)
    return (
        f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}], "
        f"{human.sum()} + {(~human).sum()} clips"
    )


def main() -> None:
    """Prepare, measure, train, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--weights", type=Path, required=True, help="of the vocoders")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default="encoder-manyvoices")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    prepare(args)
    print("before:", measure(args.model, args), flush=True)
    start_s = time.perf_counter()
    run = args.work / "run"
    command = f"train --from {args.model} --train-protocol {args.work}/train.tsv "
    command += f"--dev-protocol {args.work}/dev.tsv --audio {args.work} --out {run} --quiet "
    command += "--order matched --parent-share 0.5 --augmentation robust --pairs-alike 0.5 "
    command += f"--batch-size 16 --crop-s 3 --epochs {args.epochs} --warmup-epochs 1 "
    command += "--freeze 3 1 --precision auto --crops 1 --workers 0"
    if command_line(command.split()):
        sys.exit(1)
    print(f"trained in {time.perf_counter() - start_s:.0f} s")
    print("after:", measure(str(run / "last.pt"), args))


if __name__ == "__main__":
    main()
