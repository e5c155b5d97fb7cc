"""One pass over a set: to train, or to validate.

What is random in an epoch (order, crops, augmentation, dropout) follows from the seed and the epoch
alone, so a run that was interrupted and resumed is the run that was not. On one
device nothing in a training step waits for it: losses and scores stay there until the epoch ends,
and only every 32 steps is it checked that the loss is still finite. Processes of one run wait for
each other in every step.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics import Track1Result, evaluate
from asvspoof_cm.training.batches import Batches
from asvspoof_cm.training.learner import Learner, Loss, Network, loss_of, needs
from asvspoof_cm.training.transforms import Transform
from asvspoof_cm.utils.checks import check_choice
from asvspoof_cm.utils.processes import (
    gather_batch,
    gather_objects,
    rank_and_size,
    share_buffers,
    share_gradients,
)
from asvspoof_cm.utils.progress import Progress
from asvspoof_cm.utils.seeds import derive_seed

logger = logging.getLogger(__name__)
_LOOK_EVERY = 32


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one pass over a set gave.

    Attributes:
        loss: The mean loss per utterance.
        index: Rows of the protocol, shape (n,), in ascending order.
        scores: z₁ − z₀ of each, shape (n,).
        labels: Their labels, shape (n,).
        seconds: The time it took.
    """

    loss: float
    index: NDArray[np.int64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    seconds: float

    def metrics(self) -> Track1Result:
        """Return the Track 1 metrics, without the warnings meant for finished systems."""
        with quietly():
            return evaluate(self.scores, self.labels)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings inside the block: a system in training may not have learned anything yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def train_epoch(
    learner: Learner,
    batches: Iterable[Any],
    *,
    transform: Transform | None = None,
    seed: int = 0,
    epoch: int = 0,
    progress: bool = False,
) -> EpochResult:
    """Train for one pass over the batches, and return its loss and scores.

    Under `torch.distributed` the loss is that of the global batch, all pairs across processes
    included, and the gradients are those of one process with that batch. A batch of one clip is
    left out, and logged, where the model has batch normalisation: one clip has no statistics. Under
    `torch.distributed` that holds for the last batch.

    Args:
        learner: What learns.
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields; see `Batches`.
        transform: What is done to a batch on the device; see `Transform`.
        seed: The seed of the transform and of dropout.
        epoch: The number of this epoch, from 0.
        progress: Show progress.

    Returns:
        The mean loss, and scores and labels of what was trained on, as they were when trained on.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.
    """
    batches = Batches.of(batches)
    device, recipe, is_half = learner.device, learner.recipe, learner.precision == "bf16"
    rank, n_processes = rank_and_size()
    n_batches = batches.n_batches
    collected = _Collector(batches)
    if "group" in needs(learner.loss) and batches.groups is None:
        raise ValueError(
            "`groups` must be given: the loss compares rows of one group. Name a column with "
            "make_loader(group_by=…), or pass Batches(…, groups=…)."
        )
    group_of = None
    if batches.groups is not None:
        group_of = torch.as_tensor(np.asarray(batches.groups, dtype=np.int64))
    start = time.perf_counter()
    learner.network.train()
    learner.optimizer.zero_grad(set_to_none=True)
    n_pending = n_largest = 0
    with (
        _seeded(derive_seed(seed, epoch, rank), device),
        Progress(
            total=n_batches, description=f"epoch {epoch + 1}", unit="batch", enabled=progress
        ) as bar,
    ):
        for step, (waveform, label, index) in enumerate(batches):
            learner.set_learning_rate(epoch + (step / n_batches if n_batches else 0.0))
            waveform = waveform.to(device, non_blocking=True)
            n_real = len(label)
            if transform is not None:
                generator = torch.Generator().manual_seed(derive_seed(seed, epoch, rank, step))
                waveform, label = transform(waveform, label, generator)
            is_last = n_batches is not None and step + 1 == n_batches
            n_largest = max(n_largest, len(label))
            may_be_one = learner.has_batch_norm and (is_last or n_processes == 1)
            # Processes go on, or leave out, together.
            if may_be_one and any(gather_objects(len(label) == 1 < n_largest)):
                logger.info("left out a batch of one clip, %s", batches.shown(index))
                if is_last and n_pending:
                    share_gradients(learner.model)
                continue
            group = torch.full((len(label),), -1)
            if group_of is not None:
                group[:n_real] = group_of[index.cpu()]
            label, group = (x.to(device, non_blocking=True) for x in (label, group))
            n_pending += 1
            is_step = n_pending == recipe.n_accumulate or is_last
            with learner.without_sync(n_batches is not None and not is_step):
                with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
                    logits, embedding = learner.network(waveform)
                value = loss_of(learner.loss, *gather_batch(logits, label, group, embedding))
                torch.autograd.backward(value * (n_processes / recipe.n_accumulate))
            collected.add(logits[:n_real], label[:n_real], index, value)
            if device.type == "cpu" or step % _LOOK_EVERY == _LOOK_EVERY - 1:
                collected.look()
            if n_pending == recipe.n_accumulate:
                learner.step()
                n_pending = 0
            bar.update(
                loss=collected.mean_loss,
                lr=learner.optimizer.param_groups[0]["lr"],
                clips_per_s=collected.n_rows * n_processes / (time.perf_counter() - start),
            )
        collected.look()
        if n_pending:
            learner.step(scale=recipe.n_accumulate / n_pending)
    share_buffers(learner.model)
    return collected.result(start)


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    progress: bool = False,
) -> EpochResult:
    """Return loss and scores of a set, with the model in evaluation mode, one crop per utterance.

    Under `torch.distributed` each process scores its share, and all get the whole result, each
    utterance once.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2). Its mode is restored afterwards.
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields without shuffling.
        loss: Maps logits and labels to a scalar; None leaves the loss NaN. No row has a group.
        precision: "bf16" uses autocast.
        progress: Show progress.

    Example:
        >>> from asvspoof_cm.data import Batch
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> validate(model, [batch]).metrics().n_bonafide
        2
    """
    check_choice("precision", precision, ("fp32", "bf16"))
    batches = Batches.of(batches)
    network = Network(model, loss)
    device = next(model.parameters()).device
    was_training = model.training
    collected = _Collector(batches)
    start = time.perf_counter()
    model.eval()
    try:
        with Progress(
            total=batches.n_batches, description="validation", unit="batch", enabled=progress
        ) as bar:
            for waveform, label, index in batches:
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    logits, embedding = network(waveform.to(device, non_blocking=True))
                value = None
                if loss is not None:
                    group = torch.full((len(label),), -1, device=device)
                    on_device = label.to(device, non_blocking=True)
                    value = loss_of(loss, logits, on_device, group, embedding)
                collected.add(logits, label, index, value)
                bar.update()
    finally:
        model.train(was_training)
    return collected.result(start)


class _Collector:
    """Scores and losses of an epoch, left on the device until they are looked at."""

    def __init__(self, batches: Batches) -> None:
        self.n_rows = 0
        self.loss_sum = 0.0
        self.n_weighed = 0
        self._batches = batches
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        self._losses: list[tuple[Tensor, Tensor]] = []

    @property
    def mean_loss(self) -> float:
        """The mean loss of the batches that were looked at."""
        return self.loss_sum / self.n_weighed if self.n_weighed else math.nan

    def add(self, logits: Tensor, label: Tensor, index: Tensor, loss: Tensor | None) -> None:
        scores = (logits[:, BONAFIDE] - logits[:, SPOOF]).detach()
        self._parts.append((scores, label, index))
        self.n_rows += len(label)
        if loss is not None:
            self._losses.append((loss.detach(), index))

    def look(self, *, must_be_finite: bool = True) -> None:
        """Wait for the losses that were added since the last look; raise if one is not finite."""
        if not self._losses:
            return
        values = torch.stack([value for value, _ in self._losses]).tolist()
        for value, (_, index) in zip(values, self._losses, strict=True):
            if must_be_finite and not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss is {value} on a batch of {len(index)} utterances: "
                    f"{self._batches.shown(index)}. Look at these files, lower the learning rate "
                    "or set clip_norm."
                )
            self.loss_sum += value * len(index)
            self.n_weighed += len(index)
        self._losses.clear()

    def result(self, start: float) -> EpochResult:
        """Return what all processes collected; one of them may have had nothing."""
        self.look(must_be_finite=False)
        own: list[tuple[NDArray[Any], ...]] = []
        if self._parts:
            columns = [torch.cat(column).cpu() for column in zip(*self._parts, strict=True)]
            own = [(columns[0].double().numpy(), columns[1].numpy(), columns[2].numpy())]
        shares = gather_objects((own, self.loss_sum, self.n_weighed))
        parts = [part for share in shares for part in share[0]]
        if not parts:
            raise ValueError(
                "`batches` must hold at least one batch each time it is gone through; got none. An "
                "iterator is used up after one epoch: pass something that can begin anew."
            )
        scores, labels, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._batches.check_labels(torch.from_numpy(labels), torch.from_numpy(rows))
        order = np.argsort(rows, kind="stable")
        n_weighed = sum(share[2] for share in shares)
        return EpochResult(
            loss=sum(share[1] for share in shares) / n_weighed if n_weighed else math.nan,
            index=rows[order],
            scores=scores[order],
            labels=labels[order],
            seconds=time.perf_counter() - start,
        )


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's own generators, which dropout draws from, and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield
