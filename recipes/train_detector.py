"""Train the shipped detector on what ``recipes/manyvoices`` builds.

    PYTHONPATH=recipes python recipes/train_detector.py RUN --data DIR --init MODEL.pt --seed 1

DIR holds one folder per corpus, each with its table ``corpus.tsv``; ``DIR/dev_channels`` holds the
development sets through real coders, in the same form. A batch is made of pairs, a human and a fake
clip, mostly of one source; a copy often stands beside its own recording, at the same place and in
the same channel. The learning rate is constant; ``--decay N`` lets it fall to zero over the last N
epochs. The same command resumes a run that was killed; with more epochs it goes on with one that
has finished. ``--teacher`` adds the scores and utterance vectors of another detector as targets.

Three heads learn together: the utterance's, that of frames, from rows spliced of two clips
(``splices.py``), and that of speech, from clips without any. ``DIR/channels`` holds the clips
through real coders, ``DIR/nospeech`` what is no speech; it also serves as noise.

After every epoch of 150 batches the moving average of the weights is measured on the development
sets, one crop of 3 s from a few clips per class and source, and kept as ``epoch_NNN.pt``.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import soundfile
import torch
from torch import Tensor

from asvspoof_cm import fit, load_checkpoint, make_loader
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.data import Protocol, SpoofDataset, matched_pairs
from asvspoof_cm.labels import LABELS, SAMPLE_RATE
from asvspoof_cm.models import TFPARN, Countermeasure, Encoder, EncoderConfig, ResNet, ResNetConfig
from asvspoof_cm.training import Recipe
from detector_training import Channels, DetectorLoss, DevFigures, hear

ENCODERS = EncoderConfig(
    encoder=("distillmos", "whisper-base"),
    n_layers=(0, 3),
    freeze=(3, 1),
    encoder_lr=0.2,
    frame_head=True,
    speech_head=True,
)
RESNET = ResNetConfig.resnet34(scale="linear", attention="channel", pooling="attentive")
MODELS: dict[str, Callable[[float], Countermeasure]] = {
    "both": lambda dropout: Encoder(replace(ENCODERS, dropout=dropout)),
    "resnet34": lambda dropout: ResNet(RESNET),
    "tfparn": lambda dropout: TFPARN(),
}
SETTINGS = InputSettings(crop_s=3.0, n_crops=3, normalization="none")
Row = dict[str, str]


def read_tables(data: Path, split: str, *patterns: str, most: int | None = None) -> Protocol:
    """Return the rows of one split of all tables below a folder; `codec` is the table's folder.

    With `most` at most so many rows, the same ones every time, of each table, source and class.
    """
    rows: list[tuple[str, Row]] = []
    for table in sorted(path for pattern in patterns for path in data.glob(pattern)):
        folder = table.parent.relative_to(data).as_posix()
        with table.open(encoding="utf-8", newline="") as file:
            found = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            own = [row for row in found if row["split"] == split and row["label"] in LABELS]
        rows += [(folder, row) for row in (own if most is None else _sample(own, most))]
    name_of = {row["utterance"]: f"{folder}/{row['utterance']}" for folder, row in rows}
    return Protocol.from_columns(
        [f"{folder}/{row['utterance']}" for folder, row in rows],
        [row["label"] for _, row in rows],
        file=[f"{folder}/{row['path']}" for folder, row in rows],
        codec=[folder for folder, _ in rows],
        codec_seed=[name_of.get(row.get("parent", "-"), "-") for _, row in rows],
        attack=[row["generator"] for _, row in rows],
        source=[row["source"] for _, row in rows],
    )


def _sample(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most so many rows of each source and class; a clip in all channels or in none."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["source"], row["label"]), []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: hashlib.md5(_original(row).encode()).hexdigest())
    return [row for group in groups.values() for row in group[:most]]


def _original(row: Row) -> str:
    return row.get("original") or row["utterance"]


def read_sounds(data: Path) -> list[Tensor]:
    """Return the training clips without speech."""
    sounds = []
    for table in sorted(data.glob("nospeech/**/corpus.tsv")):
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                if row["split"] == "train":
                    read = soundfile.read(table.parent / row["path"], dtype="float32")[0]
                    sounds.append(torch.from_numpy(read))
    return sounds


def start(args: argparse.Namespace) -> tuple[Countermeasure, float]:
    """Return the model to begin with, and where its calibration has LLR 0, in log-odds."""
    torch.manual_seed(args.seed)
    model, threshold = MODELS[args.model](args.dropout), 0.0
    model.input = SETTINGS
    if args.init is None:
        model.load_published()
        return model, threshold
    given = load_checkpoint(args.init)
    if isinstance(model, Encoder) and isinstance(given, Encoder):
        model.load_from(given)
    else:
        model.load_state_dict(given.state_dict())
    fitted = given.meta.get("calibration")
    return model, -fitted["offset"] / fitted["scale"] if fitted else threshold


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the last epoch."""
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    model, threshold = start(args)
    loss = DetectorLoss()
    if args.teacher is not None:
        width = model.eval().embed(torch.zeros(1, SAMPLE_RATE)).shape[1]
        loss = DetectorLoss(load_checkpoint(args.teacher), width)
    train = read_tables(args.data, "train", "*/corpus.tsv", "channels/*/corpus.tsv")
    dev = read_tables(args.data, "dev", "*/corpus.tsv", *args.dev_channels, most=args.most_dev)
    clips = SpoofDataset(
        train, args.data, crop="random", input=SETTINGS, seed=args.seed, in_memory=True
    )
    n_rows = args.epoch_batches * args.batch_size
    fit(
        model,
        make_loader(
            clips,
            order=matched_pairs(train, parent_share=0.6, n_rows=n_rows),
            batch_size=args.batch_size,
            crop_s=args.crop_s,
            seed=args.seed,
            n_workers=0,
        ),
        make_loader(
            SpoofDataset(dev, args.data, input=SETTINGS, in_memory=True), batch_size=32, n_workers=0
        ),
        loss=loss,
        forward=hear,
        augment=Channels(
            args.augmented, read_sounds(args.data), 4 if isinstance(model, Encoder) else 0
        ),
        recipe=Recipe(
            n_epochs=args.epochs,
            lr=args.lr,
            final_lr=0.0,
            warmup_epochs=0.5,
            warmup_start=0.0,
            schedule="constant",
            decay_epochs=args.decay,
            clip_norm=5.0,
            precision="bf16",
            ema_decay=0.998,
            patience=args.epochs,
            select="mean",
            keep_epochs=True,
        ),
        measure=DevFigures(dev, threshold),
        seed=args.seed,
        out=args.run,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="both")
    parser.add_argument("--init", type=Path, help="checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="checkpoint to imitate")
    for name, default, text in (
        ("--seed", 1, "of everything random"),
        ("--lr", 5e-4, "learning rate of the heads"),
        ("--dropout", 0.3, "in the heads"),
        ("--augmented", 0.5, "share of the pairs that go through a channel"),
        ("--batch-size", 32, "clips of the pairs, a multiple of 16"),
        ("--epochs", 25, "passes of --epoch-batches"),
        ("--epoch-batches", 150, "batches from one measuring to the next"),
        ("--decay", 0.0, "epochs in which the learning rate falls to 0 at the end"),
        ("--most-dev", 10, "development clips per class and source"),
    ):
        parser.add_argument(name, type=type(default), default=default, help=f"{text} ({default})")
    lengths = [round(0.2 * k, 1) for k in range(6, 12)]
    parser.add_argument("--crop-s", type=float, nargs="+", default=lengths, help="drawn per batch")
    parser.add_argument(
        "--dev-channels", nargs="*", default=(), help="such as dev_channels/gsm/corpus.tsv"
    )
    return parser


if __name__ == "__main__":
    main()
