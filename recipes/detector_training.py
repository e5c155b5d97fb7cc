"""What the training of the shipped detector does to a batch, minimises and measures.

A batch is made of pairs, as `matched_pairs` draws them; `Channels` adds rows for two more heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm import BONAFIDE, SPOOF
from asvspoof_cm.augmentation import Augmentation, Compose, RandomSpeed
from asvspoof_cm.augmentation.recipes import augmentation
from asvspoof_cm.data import Batch, Protocol
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.losses import focal_loss
from asvspoof_cm.metrics import eer
from asvspoof_cm.models import Countermeasure, Encoder
from asvspoof_cm.training import EpochResult
from splices import HOP, spliced_rows

NO_SPEECH, SPLICED = -1, -2
"""Labels of rows beside `SPOOF` and `BONAFIDE`."""


class Channels:
    """The hook of training: rows for the heads of frames and of speech, and channels.

    A pair is the k-th row of each class; in half of the batches both rows of a pair go through the
    same channel. After the rows that came there are `n_more` spliced ones, whose label is `SPLICED`
    and which no change of speed shifts against the labels of their frames, and as many of
    `sounds`, whose label is `NO_SPEECH`. All rows get dither, and some an offset.

    Args:
        share: Of the rows that go through a channel.
        sounds: Recordings without speech, which also serve as noise.
        n_more: Rows of each further kind.
    """

    def __init__(self, share: float, sounds: Sequence[Tensor] = (), n_more: int = 4) -> None:
        self.share, self.sounds = share, sounds
        self.n_spliced, self.n_silent = n_more, n_more if len(sounds) else 0
        made = augmentation("channels", noises=sounds)
        if not isinstance(made, Compose):
            raise TypeError(f"`channels` must be several augmentations; got {made}.")
        self.moving = made
        self.still = Compose([stage for stage in made.augmentations if not _is_speed(stage)])

    def __call__(
        self, waveforms: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return changed waveforms, the labels of rows, and those of their frames."""
        n, n_samples = waveforms.shape
        frames = labels[:, None].expand(-1, n_samples // HOP)
        spliced, of_spliced = spliced_rows(waveforms, labels, self.n_spliced, generator)
        silent = self._sounds(n_samples, generator)
        waveforms = torch.cat([waveforms, spliced, *silent])
        kinds = [SPLICED] * self.n_spliced + [NO_SPEECH] * len(silent)
        labels = torch.cat([labels, labels.new_tensor(kinds)])
        of_silent = frames.new_full((len(silent), frames.shape[1]), NO_SPEECH)
        frames = torch.cat([frames, of_spliced, of_silent])
        human, fake = (torch.nonzero(labels == label)[:, 0] for label in (BONAFIDE, SPOOF))
        chosen = _uniform(generator, len(human)) < self.share
        pairs = [human[chosen], fake[chosen]]
        if _uniform(generator, 1) >= 0.5:
            pairs = [torch.cat(pairs)]
        more = n + torch.nonzero(_uniform(generator, len(labels) - n) < self.share)[:, 0]
        seed = int(torch.randint(2**31, (), generator=generator))
        for rows in pairs:
            waveforms[rows] = _through(self.moving, waveforms[rows], seed)
        waveforms[more] = _through(self.still, waveforms[more], seed)
        return _dithered(waveforms, generator), labels, frames

    def _sounds(self, n_samples: int, generator: torch.Generator) -> list[Tensor]:
        """Return rows (1, n_samples) without speech."""
        rows = []
        for _ in range(self.n_silent):
            sound = self.sounds[int(torch.randint(len(self.sounds), (), generator=generator))]
            start = int(torch.randint(len(sound), (), generator=generator))
            rows.append(sound.roll(-start).repeat(-(-n_samples // len(sound)))[None, :n_samples])
        return rows


def _is_speed(stage: Augmentation) -> bool:
    """Return whether a stage changes the speed."""
    inner = getattr(stage, "augmentations", [])
    return isinstance(stage, RandomSpeed) or any(isinstance(each, RandomSpeed) for each in inner)


def _through(channel: Augmentation, waveforms: Tensor, seed: int) -> Tensor:
    """Return rows through a channel that the seed draws."""
    if not len(waveforms):
        return waveforms
    return channel(waveforms, generator=torch.Generator().manual_seed(seed))


def _dithered(waveforms: Tensor, generator: torch.Generator) -> Tensor:
    """Return waveforms with faint noise, a small offset and any sign."""
    n = len(waveforms)
    noise = torch.randn(waveforms.shape, generator=generator)
    offset = (_uniform(generator, n, 1) - 0.5) * 0.002 * (_uniform(generator, n, 1) < 0.3)
    waveforms = waveforms + noise * 10 ** (-4.5 - _uniform(generator, n, 1)) + offset
    return torch.where(_uniform(generator, n, 1) < 0.5, -waveforms, waveforms)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator)


class Heard(NamedTuple):
    """What the heads of an `Encoder` say; what a model has no head for is None."""

    logits: Tensor
    embedding: Tensor
    frames: Tensor | None = None
    speech_frames: Tensor | None = None
    speech: Tensor | None = None


def hear(model: Countermeasure, waveform: Tensor) -> Heard:
    """Return the outputs of all heads, from one pass."""
    if not isinstance(model, Encoder):
        embedding = model.embed(waveform)
        return Heard(model.classify(embedding), embedding)
    found = model.outputs(waveform)
    frames = (None, None) if found.frames is None else (found.frames[0], found.frames[2])
    return Heard(found.logits, found.embedding, *frames, found.speech_logits)


def objective(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of pairs: half cross-entropy, half focal; ranking in pairs and over all."""
    scores = logits[:, BONAFIDE] - logits[:, SPOOF]
    human, fake = scores[labels == BONAFIDE], scores[labels == SPOOF]
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


class DetectorLoss(nn.Module):
    """The loss of all heads: of the pairs' rows, of frames with a label, of speech and its absence.

    Args:
        teacher: A detector whose probabilities and utterance vectors to imitate.
        width: The length of the model's own utterance vectors, where there is a teacher.
    """

    def __init__(self, teacher: Countermeasure | None = None, width: int = 0) -> None:
        super().__init__()
        self._teacher = [teacher]  # in a list: it is neither trained nor stored
        self.to_teacher: nn.Linear | None = None
        if teacher is not None:
            teacher.eval().requires_grad_(False)
            self.to_teacher = nn.Linear(width, teacher.embed(torch.zeros(1, SAMPLE_RATE)).shape[1])

    def forward(self, heard: Heard, batch: Batch) -> Tensor:
        """Return the loss of what `hear` returned; faint frames of a clip do not count."""
        whole, is_speech = batch.label >= 0, (batch.label != NO_SPEECH).float()
        total = objective(heard.logits.float()[whole], batch.label[whole])
        bce = functional.binary_cross_entropy_with_logits
        if heard.speech is not None:
            total = total + 0.2 * bce(heard.speech.float(), is_speech)
        if heard.frames is not None and batch.frame_label is not None:
            n_frames = min(heard.frames.shape[1], batch.frame_label.shape[1])
            parts = batch.waveform[:, : n_frames * HOP].unflatten(1, (n_frames, HOP))
            power = parts.square().mean(dim=-1)
            loud = power > 1e-3 * power.amax(dim=1, keepdim=True)
            label = batch.frame_label[:, :n_frames]
            known = loud & (label >= 0)
            frames = heard.frames[:, :n_frames].float()
            total = total + 0.5 * bce(frames[known], label[known].float())
            if heard.speech_frames is not None:
                target = is_speech[:, None].expand(-1, n_frames)[loud]
                total = total + 0.1 * bce(heard.speech_frames[:, :n_frames].float()[loud], target)
        return total + self._of_teacher(heard, batch, whole)

    def _of_teacher(self, heard: Heard, batch: Batch, whole: Tensor) -> Tensor | float:
        """Return the distance to the teacher, if there is one."""
        teacher = self._teacher[0]
        if teacher is None or self.to_teacher is None:
            return 0.0
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            example = teacher.embed(batch.waveform)
            wanted = teacher.classify(example)
        likeness = resemblance(self.to_teacher(heard.embedding.float()), example.float())
        return likeness + imitation(heard.logits.float()[whole], wanted.float()[whole])


class DevFigures:
    """Figures of each development set: EER, pooled and within a source, and errors at a threshold.

    ``refused`` and ``passed`` are the shares of humans and fakes on the wrong side of `threshold`
    (LLR 0 of the first checkpoint); ``error`` is their mean at the one threshold, for all sets,
    where both are equal over all clips. ``clean`` and ``coded`` are means over sets of EERs and
    errors, ``mean`` is that of both, ``worst`` the highest error of a channel.
    """

    def __init__(self, protocol: Protocol, threshold: float = 0.0) -> None:
        self.protocol, self.threshold = protocol, threshold

    def __call__(self, result: EpochResult) -> dict[str, float]:
        """Return the figures by name, the most telling first."""
        score, rows = result.scores, self.protocol.select(result.index)
        human = rows.label == BONAFIDE
        common = eer(score[human], score[~human]).threshold
        found: dict[str, float] = {}
        for name in np.unique(rows.codec).tolist():
            found |= self._of_set(name, rows.codec == name, score, human, rows.source, common)
        telling: dict[bool, list[float]] = {False: [], True: []}
        for name, value in found.items():
            if name.endswith((".eer", ".within", ".error")):
                telling[name.startswith("dev_channels/")].append(value)
        means = {
            title: float(np.mean(telling[is_coded]))
            for title, is_coded in (("clean", False), ("coded", True))
            if telling[is_coded]
        }
        worst = [v for k, v in found.items() if k.endswith(".error")]
        summary = {
            "mean": float(np.mean(list(means.values()))),
            **means,
            "worst": max(worst),
            "refused": float((score[human] < self.threshold).mean()),
            "passed": float((score[~human] >= self.threshold).mean()),
        }
        return {**summary, **found}

    def _of_set(
        self, name: str, own: Any, score: Any, human: Any, source: Any, common: float
    ) -> dict[str, float]:
        """Return the figures of one set; a set may have one class only."""
        found: dict[str, float] = {}
        parts = score[own & human], score[own & ~human]
        if min(map(len, parts)):
            found["eer"] = eer(*parts).value
            found["error"] = float(((parts[0] < common).mean() + (parts[1] >= common).mean()) / 2)
        if len(parts[0]):
            found["refused"] = float((parts[0] < self.threshold).mean())
        if len(parts[1]):
            found["passed"] = float((parts[1] >= self.threshold).mean())
        within = [
            eer(score[here & human], score[here & ~human]).value
            for here in (own & (source == each) for each in np.unique(source[own]))
            if min((here & human).sum(), (here & ~human).sum()) >= 5
        ]
        if within:
            found["within"] = float(np.mean(within))
        return {f"{name}.{figure}": value for figure, value in found.items()}
