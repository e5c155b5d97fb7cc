"""Train the shipped detector on what ``recipes/manyvoices`` builds.

    python recipes/train_detector.py run-a --data DIR --seed 1 --peer run-b [--init best.pt]
    python recipes/train_detector.py run-b --data DIR --seed 2 --peer run-a [--init best.pt]

DIR holds one folder per corpus, each with its table ``corpus.tsv``; what is added to it is taken up
while the run goes on. A batch is made of pairs, a human and a fake clip, mostly of one source; a
copy often stands beside its own recording, at the same place and in the same channel. Two runs
that name each other as ``--peer`` exchange weights every 50 steps: each goes on from the mean, so
that two cores learn one model. The learning rate is constant; ``--steps N --decay M`` lets it fall
to zero over the last M of N steps. The same command resumes a run that was killed. ``--model``
and ``--without`` train other candidates, for comparison; ``--teacher best.pt`` adds the scores and
the utterance vectors of another detector as targets.

Every 200 steps the moving average of the weights is measured on the development sets, one crop of
3 s from at most 20 clips per class and source, and kept as ``average_NNNNN.pt``.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm import BONAFIDE, SPOOF, load_checkpoint
from asvspoof_cm.augmentation.recipes import augmentation
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.labels import LABEL_NAMES, SAMPLE_RATE
from asvspoof_cm.losses import focal_loss
from asvspoof_cm.metrics import eer
from asvspoof_cm.models import (
    TFPARN,
    Countermeasure,
    Encoder,
    EncoderConfig,
    ResNet,
    ResNetConfig,
)
from asvspoof_cm.utils.files import atomic_path

CONFIG = EncoderConfig(encoder=("distillmos", "whisper-base"), n_layers=(0, 3), freeze=(3, 1))
DISTILLMOS = EncoderConfig(encoder="distillmos", freeze=3)
WHISPER = EncoderConfig(encoder="whisper-base", n_layers=3, freeze=1)
RESNET = ResNetConfig.resnet34(scale="linear", attention="channel", pooling="attentive")
MODELS: dict[str, Callable[[], Countermeasure]] = {
    "both": lambda: Encoder(CONFIG),
    "distillmos": lambda: Encoder(DISTILLMOS),
    "whisper-base": lambda: Encoder(WHISPER),
    "resnet34": lambda: ResNet(RESNET),
    "tfparn": TFPARN,
}
DEV_SETS = ("demopages", "corpus")
DEV_CROP = 3 * SAMPLE_RATE
EXCHANGE_EVERY, MEASURE_EVERY = 50, 200
Array = np.ndarray[Any, Any]
Row = dict[str, str]


def rows_of(data: Path, folder: str, split: str) -> list[Row]:
    """Return the rows of a corpus's table, each with the file of its clip."""
    with (data / folder / "corpus.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        {**row, "file": str(data / folder / row["path"])} for row in rows if row["split"] == split
    ]


def is_human(row: Row) -> bool:
    """Return whether a person spoke."""
    return row["label"] == LABEL_NAMES[BONAFIDE]


def crop(waveform: Array, place: float, n_samples: int) -> Array:
    """Return `n_samples`, from `place` in [0, 1) of what is possible; short clips are repeated."""
    if len(waveform) < n_samples:
        return np.tile(waveform, -(-n_samples // len(waveform)))[:n_samples]
    start = int(place * (len(waveform) - n_samples + 1))
    return waveform[start : start + n_samples]


def as_tensor(crops: Sequence[Array]) -> Tensor:
    """Return 16-bit crops as (batch, time) in [-1, 1]."""
    return torch.from_numpy(np.stack(crops).astype(np.float32) / 32768)


class Clips:
    """All training clips in memory, and pairs of them, without copies or matching where told."""

    def __init__(self, data: Path, without: Sequence[str] = ()) -> None:
        self.data, self.without = data, without
        self.matched, self.beside = (0.0, 0.0) if "pairs" in without else (0.8, 0.6)
        self.audio: dict[str, Array] = {}
        self.load()

    def load(self) -> None:
        """Read the tables, and the clips that are new in them."""
        folders = sorted(path.parent.name for path in self.data.glob("*/corpus.tsv"))
        self.rows = [row for name in folders for row in rows_of(self.data, name, "train")]
        if "copies" in self.without:
            self.rows = [row for row in self.rows if row.get("parent", "-") == "-"]
        for row in self.rows:
            if row["file"] not in self.audio:
                self.audio[row["file"]] = soundfile.read(row["file"], dtype="int16")[0]
        self.by_name = {row["utterance"]: row for row in self.rows}
        human = [row for row in self.rows if is_human(row)]
        fake = [row for row in self.rows if not is_human(row)]
        self.humans, self.fakes = _groups(human, "source"), _groups(fake, "generator")
        sources = {name: ([], []) for name in {row["source"] for row in self.rows}}
        for row in self.rows:
            sources[row["source"]][0 if is_human(row) else 1].append(row)
        self.both = _weighted([pair for _, pair in sorted(sources.items()) if all(pair)])

    def pairs(self, n_pairs: int, n_samples: int, rng: np.random.Generator) -> Tensor:
        """Return human crops, then the fake ones of their pairs: (2 · n_pairs, n_samples)."""
        crops: tuple[list[Array], list[Array]] = ([], [])
        for _ in range(n_pairs):
            if rng.random() < self.matched:
                human, fake = (_one(part, rng) for part in _draw(self.both, rng))
            else:
                human, fake = (_one(_draw(part, rng), rng) for part in (self.humans, self.fakes))
            places = rng.random(2)
            parent = self.by_name.get(fake["parent"])
            if fake["generator"].startswith("copy") and parent and rng.random() < self.beside:
                human, places = parent, places[[0, 0]]
            for row, place, part in zip((human, fake), places, crops, strict=True):
                part.append(crop(self.audio[row["file"]], place, n_samples))
        return as_tensor([*crops[0], *crops[1]])


def _groups(rows: Iterable[Row], column: str) -> tuple[list[Any], Array]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return _weighted([group for _, group in sorted(groups.items())])


def _weighted(groups: list[Any]) -> tuple[list[Any], Array]:
    """Return groups and their chances, in proportion to the square root of their sizes."""
    sizes = [sum(map(len, g)) if isinstance(g, tuple) else len(g) for g in groups]
    return groups, np.sqrt(sizes) / np.sqrt(sizes).sum()


def _draw(groups: tuple[list[Any], Array], rng: np.random.Generator) -> Any:
    return groups[0][rng.choice(len(groups[0]), p=groups[1])]


def _one(rows: Sequence[Row], rng: np.random.Generator) -> Row:
    return rows[rng.integers(len(rows))]


def change(waveforms: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return pairs with dither, offset and sign changed, a share of them augmented.

    In half of the batches both clips of a pair get the same changes of channel.
    """
    n = len(waveforms)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    dither = torch.randn(waveforms.shape, generator=generator) * 10 ** (-4.5 - uniform(n, 1))
    offset = (uniform(n, 1) - 0.5) * 0.002 * (uniform(n, 1) < 0.3)
    waveforms = waveforms + dither + offset
    chosen = (uniform(n // 2) < share).repeat(2)
    if chosen.any():
        augment = augmentation("robust")
        if uniform(1) < 0.5:
            seed = int(torch.randint(2**31, (), generator=generator))
            halves = waveforms[chosen].chunk(2)
            changed = [augment(h, generator=torch.Generator().manual_seed(seed)) for h in halves]
            waveforms[chosen] = torch.cat(changed)
        else:
            waveforms[chosen] = augment(waveforms[chosen], generator=generator)
    return torch.where(uniform(n, 1) < 0.5, -waveforms, waveforms)


def objective(logits: Tensor) -> Tensor:
    """Return the loss of pairs: half cross-entropy, half focal; ranking in pairs and over all."""
    n_pairs = len(logits) // 2
    labels = torch.tensor([BONAFIDE] * n_pairs + [SPOOF] * n_pairs)
    scores = logits[:, BONAFIDE] - logits[:, SPOOF]
    human, fake = scores[:n_pairs], scores[n_pairs:]
    return (
        0.5 * functional.cross_entropy(logits, labels)
        + focal_loss(logits, labels)  # its class weights are a half each
        + 0.3 * functional.softplus(1 - (human - fake)).mean()
        + 0.2 * functional.softplus(1 - (human[:, None] - fake)).mean()
    )


def imitation(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with another detector's probabilities, at twice the temperature."""
    scores, targets = ((z[:, BONAFIDE] - z[:, SPOOF]) / 2 for z in (logits, teacher))
    return 4 * functional.binary_cross_entropy_with_logits(scores, targets.sigmoid())


def resemblance(own: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared distance from utterance vectors, each dimension standardised."""
    return functional.mse_loss(own, functional.batch_norm(teacher, None, None, training=True))


class Dev:
    """A sample of the development sets, one crop per clip."""

    def __init__(self, data: Path, most: int = 20) -> None:
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for folder in DEV_SETS:
            for row in rows_of(data, folder, "dev"):
                groups.setdefault((folder, row["source"], row["label"]), []).append(row)
        self.rows: list[tuple[str, Row]] = []
        for (folder, *_), rows in groups.items():
            rows.sort(key=lambda row: hashlib.md5(row["utterance"].encode()).hexdigest())
            self.rows += [(folder, row) for row in rows[:most]]
        self.crops = [
            crop(soundfile.read(row["file"], dtype="int16")[0], 0.5, DEV_CROP)
            for _, row in self.rows
        ]

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, tuple[float, float]]:
        """Return the EER of each set in %, pooled and as a mean within sources."""
        model.eval()
        scores = []
        for start in range(0, len(self.crops), 32):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(as_tensor(self.crops[start : start + 32])).float()
            scores.append((logits[:, BONAFIDE] - logits[:, SPOOF]).numpy())
        model.train()
        score, result = np.concatenate(scores), {}
        for name in DEV_SETS:
            chosen = np.array([folder == name for folder, _ in self.rows])
            source = np.array([row["source"] for _, row in self.rows])
            human = np.array([is_human(row) for _, row in self.rows])
            within = []
            for each in np.unique(source[chosen]):
                own = chosen & (source == each)
                parts = score[own & human], score[own & ~human]
                if min(map(len, parts)) >= 5:
                    within.append(eer(*parts).value)
            pooled = eer(score[chosen & human], score[chosen & ~human]).value
            result[name] = (100 * pooled, 100 * float(np.mean(within)))
        return result


class Run:
    """A model, its optimiser and the moving average of its weights, in a folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder = args, args.run
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model = MODELS[args.model]()
        if args.init is None:
            self.model.load_published()
        else:
            self.model.load_state_dict(load_checkpoint(args.init).state_dict())
        self.model.train()
        self.teacher = load_checkpoint(args.teacher).eval() if args.teacher else None
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = args.dropout
        groups = [
            {**group, "share": args.encoder_lr if "lr_scale" in group else 1.0}
            for group in self.model.parameter_groups()
        ]
        if self.teacher is not None:
            silence = torch.zeros(1, SAMPLE_RATE)
            with torch.no_grad():
                sizes = [m.eval().embed(silence).shape[1] for m in (self.model, self.teacher)]
            self.model.train()
            torch.manual_seed(args.seed)
            self.to_teacher = nn.Linear(*sizes)
            groups.append({"params": list(self.to_teacher.parameters()), "share": 1.0})
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, weight_decay=1e-2)
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.step, self.peer_step = 0, -1
        if (self.folder / "resume.pt").exists():
            state = load_tensors(self.folder / "resume.pt")
            self.model.load_state_dict(state["model"])
            if self.teacher is not None:
                self.to_teacher.load_state_dict(state["to_teacher"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.average, self.step = state["average"], state["step"]

    def train(self, waveforms: Tensor) -> float:
        """Make a step, and return its loss."""
        args = self.args
        scale = min(1.0, (self.step + 1) / 100)
        if args.decay:
            scale *= min(1.0, (args.steps - self.step) / args.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = args.lr * scale * group["share"]
        with torch.autocast("cpu", torch.bfloat16):
            embedding = self.model.embed(waveforms)
            logits = self.model.classify(embedding)
        loss = objective(logits.float())
        if self.teacher is not None:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                example = self.teacher.embed(waveforms)
                targets = self.teacher.classify(example)
            loss = loss + imitation(logits.float(), targets.float())
            loss = loss + resemblance(self.to_teacher(embedding.float()), example.float())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        decay = min(0.998, (1 + self.step) / (10 + self.step))
        _approach(self.average, self.model.state_dict(), 1 - decay)
        return loss.item()

    def exchange(self) -> None:
        """Keep the state, and go on from the mean of this run's weights and its peer's."""
        weights = self.model.state_dict()
        state = {"model": weights, "average": self.average, "step": self.step}
        if self.teacher is not None:
            state["to_teacher"] = self.to_teacher.state_dict()
        with atomic_path(self.folder / "resume.pt") as temporary:
            torch.save({**state, "optimizer": self.optimizer.state_dict()}, temporary)
        peer = self.args.peer / "resume.pt" if self.args.peer else None
        if peer is not None and peer.exists():
            other = load_tensors(peer)
            if other["step"] > self.peer_step:
                self.peer_step = other["step"]
                _approach(weights, other["model"], 0.5)

    def measure(self, dev: Dev) -> str:
        """Measure and keep the averaged weights."""
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        found = dev.measure(self.model)
        save_checkpoint(self.folder / f"average_{self.step:05d}.pt", self.model)
        self.model.load_state_dict(own)
        cells = [f"{name} {pooled:.1f} / {within:.1f}" for name, (pooled, within) in found.items()]
        mean = np.mean(list(found.values()))
        return f"step {self.step}: EER %, pooled / within: {', '.join(cells)}; mean {mean:.2f}"


def _approach(values: Mapping[str, Tensor], others: Mapping[str, Tensor], share: float) -> None:
    for name, value in values.items():
        if value.is_floating_point():
            value.lerp_(others[name], share)
        else:
            value.copy_(others[name])


def main() -> None:
    """Train until the last step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="both")
    parser.add_argument(
        "--without",
        nargs="*",
        choices=("copies", "pairs"),
        default=(),
        help="copies: all that was made from human clips, voices too",
    )
    parser.add_argument("--init", type=Path, help="checkpoint to begin with")
    parser.add_argument("--teacher", type=Path, help="checkpoint to imitate")
    parser.add_argument("--peer", type=Path, help="folder of the run to exchange weights with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-4, help="of the head")
    parser.add_argument("--encoder-lr", type=float, default=0.2, help="as a share of it")
    parser.add_argument("--augmented", type=float, default=0.5, help="share of the pairs")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--crop-s", type=float, nargs=2, default=(1.2, 2.8), help="drawn per batch")
    parser.add_argument("--dropout", type=float, default=0.3, help="in the head")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--decay", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run, clips, dev = Run(args), Clips(args.data, args.without), Dev(args.data)
    losses: list[float] = []
    start_s = time.perf_counter()
    while run.step < args.steps:
        rng = np.random.default_rng([args.seed, run.step])
        generator = torch.Generator().manual_seed(args.seed * 10**6 + run.step)
        # Few lengths: PyTorch keeps what it prepared for each.
        n_samples = round(5 * rng.uniform(*args.crop_s)) * SAMPLE_RATE // 5
        waveforms = clips.pairs(args.pairs, n_samples, rng)
        torch.manual_seed(args.seed * 10**6 + run.step)  # of dropout
        losses.append(run.train(change(waveforms, args.augmented, generator)))
        if run.step % EXCHANGE_EVERY == 0:
            per_s = 2 * args.pairs * len(losses) / (time.perf_counter() - start_s)
            print(f"step {run.step}: loss {np.mean(losses):.3f}, {per_s:.1f} clips/s", flush=True)
            run.exchange()
            clips.load()
            losses, start_s = [], time.perf_counter()
        if run.step % MEASURE_EVERY == 0 or run.step == args.steps:
            print(run.measure(dev), flush=True)
    run.exchange()


if __name__ == "__main__":
    main()
