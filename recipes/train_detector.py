"""Train the shipped detector on what ``recipes/manyvoices`` builds.

    python recipes/train_detector.py RUN --data DIR --init encoder-manyvoices.pt --seed 1

DIR holds one folder per corpus, each with its table ``corpus.tsv``; ``DIR/dev_channels`` holds the
development sets through real coders, in the same form. A batch is made of pairs, a human and a fake
clip, mostly of one source; a copy often stands beside its own recording, at the same place and in
the same channel. The learning rate is constant; ``--decay N`` lets it fall to zero over the last N
epochs. The same command resumes a run that was killed. ``--teacher`` adds the scores and utterance
vectors of another detector as targets.

After every epoch of 200 batches the moving average of the weights is measured on the development
sets, one crop of 3 s from at most 20 clips per class and source, and kept as ``epoch_NNN.pt``.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm import BONAFIDE, SPOOF, fit, load_checkpoint, make_loader
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.augmentation.recipes import augmentation
from asvspoof_cm.data import Protocol, SpoofDataset, matched_pairs
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.losses import focal_loss
from asvspoof_cm.metrics import eer
from asvspoof_cm.models import TFPARN, Countermeasure, Encoder, EncoderConfig, ResNet, ResNetConfig
from asvspoof_cm.training import EpochResult, Recipe

ENCODERS = EncoderConfig(
    encoder=("distillmos", "whisper-base"), n_layers=(0, 3), freeze=(3, 1), encoder_lr=0.2
)
RESNET = ResNetConfig.resnet34(scale="linear", attention="channel", pooling="attentive")
MODELS: dict[str, Callable[[float], Countermeasure]] = {
    "both": lambda dropout: Encoder(replace(ENCODERS, dropout=dropout)),
    "resnet34": lambda dropout: ResNet(RESNET),
    "tfparn": lambda dropout: TFPARN(),
}
COLUMNS = {"attack": "generator", "speaker": "speaker", "source": "source"}
SETTINGS = InputSettings(crop_s=3.0, n_crops=3, normalization="none")


def read_tables(data: Path, split: str, *patterns: str) -> Protocol:
    """Return the rows of one split of all tables below a folder; `codec` is the table's folder."""
    rows = []
    for table in sorted(path for pattern in patterns for path in data.glob(pattern)):
        folder = table.parent.relative_to(data).as_posix()
        with table.open(encoding="utf-8", newline="") as file:
            found = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            wanted = (r for r in found if r["split"] == split and r["label"] in LABEL_NAMES)
            rows.extend((folder, row) for row in wanted)
    return Protocol.from_columns(
        [f"{folder}/{row['utterance']}" for folder, row in rows],
        [row["label"] for _, row in rows],
        file=[f"{folder}/{row['path']}" for folder, row in rows],
        codec=[folder for folder, _ in rows],
        codec_seed=[
            "-" if row.get("parent", "-") == "-" else f"{folder}/{row['parent']}"
            for folder, row in rows
        ],
        **{name: [row[column] for _, row in rows] for name, column in COLUMNS.items()},
    )


def sample(protocol: Protocol, most: int) -> Protocol:
    """Return at most so many rows of each table, source and class, the same ones every time."""
    groups: dict[tuple[str, str, int], list[tuple[str, int]]] = {}
    for row, name in enumerate(protocol.utterance.tolist()):
        key = (str(protocol.codec[row]), str(protocol.source[row]), int(protocol.label[row]))
        own = name.rpartition("/")[2]  # a clip is chosen in all channels, or in none
        groups.setdefault(key, []).append((hashlib.md5(own.encode()).hexdigest(), row))
    return protocol.select(
        sorted(row for group in groups.values() for _, row in sorted(group)[:most])
    )


class PairedChannel:
    """Dither, offset and sign for all clips, and an augmentation for a share of the pairs.

    A pair is the k-th row of each class. In half of the batches both clips of a pair get the same.
    """

    def __init__(self, share: float) -> None:
        self.share, self.channel = share, augmentation("robust")

    def __call__(
        self, waveforms: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return changed waveforms, with their labels."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator)

        n = len(waveforms)
        dither = torch.randn(waveforms.shape, generator=generator) * 10 ** (-4.5 - uniform(n, 1))
        offset = (uniform(n, 1) - 0.5) * 0.002 * (uniform(n, 1) < 0.3)
        waveforms = waveforms + dither + offset
        human, fake = (torch.nonzero(labels == label)[:, 0] for label in (BONAFIDE, SPOOF))
        chosen = uniform(len(human)) < self.share
        if chosen.any():
            parts = [human[chosen], fake[chosen]]
            if uniform(1) >= 0.5:
                parts = [torch.cat(parts)]
            seed = int(torch.randint(2**31, (), generator=generator))
            for part in parts:
                own = torch.Generator().manual_seed(seed)
                waveforms[part] = self.channel(waveforms[part], generator=own)
        return torch.where(uniform(n, 1) < 0.5, -waveforms, waveforms), labels


def objective(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of pairs: half cross-entropy, half focal; ranking in pairs and over all."""
    logits = logits.float()
    scores = logits[:, BONAFIDE] - logits[:, SPOOF]
    human, fake = scores[labels == BONAFIDE], scores[labels == SPOOF]
    return (
        0.5 * functional.cross_entropy(logits, labels)
        + focal_loss(logits, labels)  # its class weights are a half each
        + 0.3 * functional.softplus(1 - (human - fake)).mean()
        + 0.2 * functional.softplus(1 - (human[:, None] - fake)).mean()
    )


def embed_and_classify(model: Countermeasure, waveform: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and the utterance vectors that they are made of."""
    embedding = model.embed(waveform)
    return model.classify(embedding), embedding


class Taught(nn.Module):
    """The objective, and the distance to another detector's probabilities and utterance vectors."""

    def __init__(self, teacher: Countermeasure, width: int) -> None:
        super().__init__()
        self._teacher = [teacher.eval()]  # in a list: it is neither trained nor stored
        self.to_teacher = nn.Linear(width, teacher.embed(torch.zeros(1, 16000)).shape[1])

    def forward(self, outputs: tuple[Tensor, Tensor], batch: Any) -> Tensor:
        """Return the loss of `embed_and_classify`."""
        logits, embedding = (part.float() for part in outputs)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            wanted, example = embed_and_classify(self._teacher[0], batch.waveform)
        scores, targets = ((z[:, BONAFIDE] - z[:, SPOOF]) / 2 for z in (logits, wanted.float()))
        standardised = functional.batch_norm(example.float(), None, None, training=True)
        return (
            objective(logits, batch.label)
            + 4 * functional.binary_cross_entropy_with_logits(scores, targets.sigmoid())
            + functional.mse_loss(self.to_teacher(embedding), standardised)
        )


class DevFigures:
    """Figures of each development set: EER, pooled and within a source, and errors at a threshold.

    ``refused`` and ``passed`` are the shares of humans and fakes on the wrong side of `threshold`
    (LLR 0 of the first checkpoint); ``error`` is their mean at the one threshold, for all sets,
    where both are equal over all clips. ``mean`` averages what a choice of epochs should look at.
    """

    def __init__(self, protocol: Protocol, threshold: float) -> None:
        self.protocol, self.threshold = protocol, threshold

    def __call__(self, result: EpochResult) -> dict[str, float]:
        """Return the figures by name."""
        score, rows = result.scores, self.protocol.select(result.index)
        human = rows.label == BONAFIDE
        common = eer(score[human], score[~human]).threshold
        found: dict[str, float] = {}
        for name in np.unique(rows.codec).tolist():
            own = rows.codec == name
            parts = score[own & human], score[own & ~human]
            if min(map(len, parts)):
                found[f"{name}.eer"] = eer(*parts).value
                errors = (parts[0] < common).mean() + (parts[1] >= common).mean()
                found[f"{name}.error"] = float(errors / 2)
            for kind, wrong in (
                ("refused", parts[0] < self.threshold),
                ("passed", parts[1] >= self.threshold),
            ):
                if len(wrong):
                    found[f"{name}.{kind}"] = float(wrong.mean())
            within = [
                eer(score[here & human], score[here & ~human]).value
                for here in (own & (rows.source == each) for each in np.unique(rows.source[own]))
                if min((here & human).sum(), (here & ~human).sum()) >= 5
            ]
            if within:
                found[f"{name}.within"] = float(np.mean(within))
        counted = [v for k, v in found.items() if k.endswith((".eer", ".within", ".error"))]
        return {**found, "mean": float(np.mean(counted))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the last epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="both")
    parser.add_argument("--init", type=Path, help="checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="checkpoint to imitate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-4, help="of the head")
    parser.add_argument("--augmented", type=float, default=0.5, help="share of the pairs")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--crop-s", type=float, nargs="+", default=[0.2 * k for k in range(6, 15)])
    parser.add_argument("--dropout", type=float, default=0.3, help="in the head")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--epoch-batches", type=int, default=200)
    parser.add_argument(
        "--decay", type=float, default=0, help="epochs in which the rate falls to 0"
    )
    parser.add_argument("--most-dev", type=int, default=20, help="dev clips per class and source")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    model = MODELS[args.model](args.dropout)
    threshold = 0.0
    if args.init is None:
        model.load_published()
    else:
        given = load_checkpoint(args.init)
        model.load_state_dict(given.state_dict())
        fitted = given.meta.get("calibration")
        threshold = -fitted["offset"] / fitted["scale"] if fitted else 0.0
    model.input = SETTINGS
    loss, forward = objective, None
    if args.teacher is not None:
        forward = embed_and_classify
        width = model.eval().embed(torch.zeros(1, 16000)).shape[1]
        loss = Taught(load_checkpoint(args.teacher), width)

    protocol = read_tables(args.data, "train", "*/corpus.tsv")
    order = matched_pairs(protocol, parent_share=0.6, n_rows=args.epoch_batches * args.batch_size)
    train = make_loader(
        SpoofDataset(
            protocol, args.data, crop="random", input=SETTINGS, seed=args.seed, in_memory=True
        ),
        order=order,
        batch_size=args.batch_size,
        crop_s=args.crop_s,
        seed=args.seed,
        n_workers=0,
    )
    held_out = read_tables(args.data, "dev", "*/corpus.tsv", "dev_channels/*/corpus.tsv")
    held_out = sample(held_out, args.most_dev)
    dev = make_loader(
        SpoofDataset(held_out, args.data, input=SETTINGS, in_memory=True),
        batch_size=32,
        n_workers=0,
    )
    recipe = Recipe(
        n_epochs=args.epochs,
        lr=args.lr,
        final_lr=0.0,
        warmup_epochs=0.5,
        schedule="constant",
        decay_epochs=args.decay,
        clip_norm=5.0,
        precision="bf16",
        ema_decay=0.998,
        patience=args.epochs,
        select="mean",
        keep_epochs=True,
    )
    fit(
        model,
        train,
        dev,
        loss=loss,
        forward=forward,
        augment=PairedChannel(args.augmented),
        recipe=recipe,
        measure=DevFigures(held_out, threshold),
        seed=args.seed,
        out=args.run,
    )


if __name__ == "__main__":
    main()
