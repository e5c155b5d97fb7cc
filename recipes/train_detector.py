"""Train the shipped detector on what ``recipes/manyvoices`` builds.

    python recipes/train_detector.py RUN --data DIR --init encoder-manyvoices.pt --seed 1

DIR holds one folder per corpus, each with its table ``corpus.tsv``; ``DIR/dev_channels`` holds the
development sets through real coders, in the same form. A batch is made of pairs, a human and a fake
clip, mostly of one source; a copy often stands beside its own recording, at the same place and in
the same channel. The learning rate is constant; ``--decay N`` lets it fall to zero over the last N
epochs. The same command resumes a run that was killed. ``--teacher`` adds the scores and utterance
vectors of another detector as targets.

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
from typing import Any

import numpy as np
import soundfile
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
from splices import HOP, spliced_rows

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
    """Channels for a share of the pairs, and rows for the heads of frames and of speech.

    A pair is the k-th row of each class. In half of the batches both clips of a pair get the same
    channel. Rows without speech have the label -1; spliced rows have the label -2, and labels of
    their frames; there are `n_more` of each kind. All clips get dither, and some an offset.
    """

    def __init__(self, share: float, sounds: Sequence[Tensor] = (), n_more: int = 4) -> None:
        self.share, self.sounds = share, sounds
        self.n_spliced, self.n_silent = n_more, n_more if len(sounds) else 0
        self.channel = augmentation("channels", noises=sounds)

    def __call__(
        self, waveforms: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return changed waveforms, the labels of rows, and those of their frames."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator)

        n, n_samples = waveforms.shape
        frames = labels[:, None].expand(-1, n_samples // HOP)
        spliced, of_frames = spliced_rows(waveforms, labels, self.n_spliced, generator)
        silent = self._sounds(n_samples, generator)
        waveforms = torch.cat([waveforms, spliced, *silent])
        n_more = len(waveforms) - n - self.n_spliced
        labels = torch.cat([labels, labels.new_tensor([-2] * self.n_spliced + [-1] * n_more)])
        frames = torch.cat([frames, of_frames, frames.new_full((n_more, frames.shape[1]), -1)])
        human, fake = (torch.nonzero(labels == label)[:, 0] for label in (BONAFIDE, SPOOF))
        chosen = uniform(len(human)) < self.share
        parts = [human[chosen], fake[chosen]]
        if uniform(1) >= 0.5:
            parts = [torch.cat(parts)]
        parts.append(n + torch.nonzero(uniform(len(labels) - n) < self.share)[:, 0])
        seed = int(torch.randint(2**31, (), generator=generator))
        for part in parts:
            if len(part):
                own = torch.Generator().manual_seed(seed)
                waveforms[part] = self.channel(waveforms[part], generator=own)
        n = len(waveforms)
        dither = torch.randn(waveforms.shape, generator=generator) * 10 ** (-4.5 - uniform(n, 1))
        offset = (uniform(n, 1) - 0.5) * 0.002 * (uniform(n, 1) < 0.3)
        waveforms = torch.where(uniform(n, 1) < 0.5, -waveforms, waveforms) + dither + offset
        return waveforms, labels, frames

    def _sounds(self, n_samples: int, generator: torch.Generator) -> list[Tensor]:
        """Return rows (1, n_samples) without speech."""
        rows = []
        for _ in range(self.n_silent):
            drawn = int(torch.randint(len(self.sounds), (), generator=generator))
            sound = self.sounds[drawn]
            start = int(torch.randint(len(sound), (), generator=generator))
            rows.append(sound.roll(-start).repeat(-(-n_samples // len(sound)))[None, :n_samples])
        return rows


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


def all_heads(model: Encoder, waveform: Tensor) -> tuple[Tensor, ...]:
    """Return the logits, those of frames, of speech in them, and of speech."""
    outputs = model.outputs(waveform)
    found = outputs.frames
    if found is None or found.speech_logits is None or outputs.speech_logits is None:
        raise ValueError("`model` must have the heads of frames and of speech.")
    return outputs.logits, found.logits, found.speech_logits, outputs.speech_logits


def objective_of_heads(outputs: tuple[Tensor, ...], batch: Any) -> Tensor:
    """Return the objective of whole clips, and the cross-entropies of frames and of speech.

    Frames far below the loudest one of their clip say nothing.
    """
    logits, frames, frames_with_speech, speech = (part.float() for part in outputs)
    whole = batch.label >= 0
    n_frames = min(frames.shape[1], batch.frame_label.shape[1])
    frames, frames_with_speech = frames[:, :n_frames], frames_with_speech[:, :n_frames]
    label = batch.frame_label[:, :n_frames]
    power = batch.waveform[:, : n_frames * HOP].reshape(-1, n_frames, HOP).square().mean(dim=-1)
    loud = power > 1e-3 * power.amax(dim=1, keepdim=True)
    heard, is_speech = loud & (label >= 0), (batch.label != -1).float()
    bce = functional.binary_cross_entropy_with_logits
    of_frames = bce(frames[heard], label[heard].float())
    per_frame = is_speech[:, None].expand(-1, n_frames)
    return (
        objective(logits[whole], batch.label[whole])
        + 0.5 * of_frames
        + 0.2 * bce(speech, is_speech)
        + 0.1 * bce(frames_with_speech[loud], per_frame[loud])
    )


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
    parser.add_argument("--crop-s", type=float, nargs="+", default=[0.2 * k for k in range(6, 12)])
    parser.add_argument("--dropout", type=float, default=0.3, help="in the head")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--epoch-batches", type=int, default=150)
    parser.add_argument(
        "--decay", type=float, default=0, help="epochs in which the rate falls to 0"
    )
    parser.add_argument("--most-dev", type=int, default=10, help="dev clips per class and source")
    parser.add_argument(
        "--dev-channels", nargs="*", default=(), help="such as dev_channels/gsm/corpus.tsv"
    )
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
        if isinstance(model, Encoder):
            model.load_from(given)
        else:
            model.load_state_dict(given.state_dict())
        fitted = given.meta.get("calibration")
        threshold = -fitted["offset"] / fitted["scale"] if fitted else 0.0
    model.input = SETTINGS
    has_heads = isinstance(model, Encoder) and args.teacher is None
    loss, forward = (objective_of_heads, all_heads) if has_heads else (objective, None)
    if args.teacher is not None:
        forward = embed_and_classify
        width = model.eval().embed(torch.zeros(1, 16000)).shape[1]
        loss = Taught(load_checkpoint(args.teacher), width)

    protocol = read_tables(args.data, "train", "*/corpus.tsv", "channels/*/corpus.tsv")
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
    held_out = read_tables(args.data, "dev", "*/corpus.tsv", *args.dev_channels)
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
        augment=PairedChannel(args.augmented, read_sounds(args.data), 4 if has_heads else 0),
        recipe=recipe,
        measure=DevFigures(held_out, threshold),
        seed=args.seed,
        out=args.run,
    )


if __name__ == "__main__":
    main()
