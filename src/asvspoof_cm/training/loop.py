"""The training loop and the pieces it is made of.

`fit` is a plain function over `train_epoch`, `validate`, `warmup_cosine` and `EarlyStopping`; use
those in a loop of your own where `fit` does not suit.

What is random in an epoch (order, crops, augmentation, dropout) follows from the seed and the epoch
alone, so a run that was killed and resumed is the run that was not.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from asvspoof_cm.augmentation import Augmentation, LogMelMask, as_extra_spoof
from asvspoof_cm.data.dataset import Augment, derive_seed
from asvspoof_cm.data.loader import Batch
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics import Track1Result, evaluate
from asvspoof_cm.utils.checks import check_choice
from asvspoof_cm.utils.processes import gather_batch, gather_objects, rank_and_size
from asvspoof_cm.utils.progress import Progress

__all__ = ["EpochResult", "Loss", "Precision", "summary", "train_epoch", "validate"]

Loss = Callable[[Tensor, Tensor], Tensor]
Precision = Literal["fp32", "bf16"]
Names = Sequence[str] | np.ndarray[Any, np.dtype[np.str_]]


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one pass over a set gave.

    Attributes:
        loss: The mean loss of an utterance.
        index: Rows of the protocol, shape (n,), in ascending order.
        scores: z₁ − z₀ of each, shape (n,).
        labels: Of each, shape (n,).
        seconds: The time it took.
    """

    loss: float
    index: np.ndarray[Any, np.dtype[np.int64]]
    scores: np.ndarray[Any, np.dtype[np.float64]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    seconds: float

    def metrics(self) -> Track1Result:
        """Return the Track 1 metrics, without the warnings meant for finished systems."""
        return evaluate_quietly(self.scores, self.labels)


def evaluate_quietly(scores: ArrayLike, labels: ArrayLike) -> Track1Result:
    """Return the Track 1 metrics of a system that may not have learned anything yet.

    Example:
        >>> evaluate_quietly([2.0, 1.0, -1.0, -2.0], [0, 0, 1, 1]).eer.value
        1.0
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return evaluate(scores, labels)


def summary(result: Track1Result) -> dict[str, float]:
    """Return the four official metrics as plain numbers.

    Example:
        >>> summary(evaluate([2.0, 1.0, -1.0, -2.0], [1, 1, 0, 0]))["eer"]
        0.0
    """
    return {
        "eer": result.eer.value,
        "min_dcf": result.min_dcf.value,
        "act_dcf": result.act_dcf.value,
        "cllr": result.cllr,
    }


def train_epoch(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    loss: Loss,
    learning_rate: Callable[[float], float] | None = None,
    augment: Augment | None = None,
    extra_spoof: float = 0.0,
    extra_spoof_augment: Augmentation | None = None,
    mask: LogMelMask | None = None,
    seed: int = 0,
    epoch: int = 0,
    precision: Precision = "fp32",
    n_accumulate: int = 1,
    clip_norm: float | None = None,
    progress: bool = False,
    names: Names | None = None,
) -> EpochResult:
    """Train a model for one pass over the batches.

    Under `torch.distributed` the loss is that of the global batch, all pairs across processes
    included, and the gradients are those of one process with that batch.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2).
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields.
        optimizer: Steps the parameters.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar.
        learning_rate: Maps the point in training, in epochs, to the learning rate; None leaves the
            optimiser's.
        augment: Called with each batch (batch, time) on the model's device, and a generator.
        extra_spoof: Changed copies to add as spoof, a bona fide row; see `as_extra_spoof`.
        extra_spoof_augment: What changes them; None shuffles segments.
        mask: Masks over the features of a model with `log_mel`, as a TFPARN has.
        seed: The seed of augmentation and dropout.
        epoch: The number of this epoch, from 0.
        precision: "bf16" uses autocast.
        n_accumulate: Batches whose gradients are averaged before a step; the last step of an epoch
            may have fewer.
        clip_norm: The largest norm of the gradient; None leaves it.
        progress: Show a bar.
        names: What to call the rows of `index` in an error.

    Returns:
        The mean loss, and scores and labels of what was trained on, as they were when trained on.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.

    Example:
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> result = train_epoch(model, [batch], optimizer, loss=focal_pairwise_loss)
        >>> result.scores.shape
        (4,)
    """
    check_choice("precision", precision, ("fp32", "bf16"))
    if n_accumulate < 1:
        raise ValueError(f"`n_accumulate` must be at least 1; got {n_accumulate}.")
    device = next(model.parameters()).device
    rank, n_processes = rank_and_size()
    n_batches = len(batches) if isinstance(batches, Sized) else None
    collected = _Collector()
    start = time.perf_counter()
    model.train()
    optimizer.zero_grad(set_to_none=True)
    n_pending = 0
    with (
        _seeded(derive_seed(seed, epoch, rank), device),
        _masked(model, mask, derive_seed(seed, epoch, rank)),
        Progress(
            total=n_batches, description=f"epoch {epoch + 1}", unit="batch", enabled=progress
        ) as bar,
    ):
        for step, (waveform, label, index) in enumerate(batches):
            if learning_rate is not None:
                done = epoch + (step / n_batches if n_batches else 0.0)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(done)
            waveform, label = waveform.to(device), label.to(device)
            generator = torch.Generator().manual_seed(derive_seed(seed, epoch, rank, step))
            n_real = len(label)
            if extra_spoof:
                waveform, label = as_extra_spoof(
                    waveform, label, generator, fraction=extra_spoof, augment=extra_spoof_augment
                )
            if augment is not None:
                waveform = augment(waveform, generator=generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                logits = model(waveform)
            value = loss(*gather_batch(logits, label))
            _check_finite(value, index, names)
            torch.autograd.backward(value * (n_processes / n_accumulate))
            n_pending += 1
            if n_pending == n_accumulate:
                _step(optimizer, clip_norm)
                n_pending = 0
            collected.add(logits[:n_real], label[:n_real], index, value)
            rate = collected.n_rows / (time.perf_counter() - start)
            bar.update(
                loss=collected.mean_loss,
                lr=optimizer.param_groups[0]["lr"],
                clips_per_s=rate * n_processes,
            )
        if n_pending:
            _step(optimizer, clip_norm, scale=n_accumulate / n_pending)
    return collected.result(start)


def _step(optimizer: torch.optim.Optimizer, clip_norm: float | None, *, scale: float = 1.0) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if scale != 1.0:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    precision: Precision = "fp32",
    progress: bool = False,
) -> EpochResult:
    """Score a set with a model in evaluation mode, one crop an utterance.

    Under `torch.distributed` each process scores its share, and all get the whole result, each
    utterance once.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2). Its mode is restored afterwards.
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields without shuffling.
        loss: Maps logits and labels to a scalar; None leaves the loss NaN.
        precision: "bf16" uses autocast.
        progress: Show a bar.

    Example:
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> validate(model, [batch]).metrics().n_bonafide
        2
    """
    check_choice("precision", precision, ("fp32", "bf16"))
    module = _replica(model)  # processes may have different numbers of batches
    device = next(module.parameters()).device
    n_batches = len(batches) if isinstance(batches, Sized) else None
    was_training = module.training
    collected = _Collector()
    start = time.perf_counter()
    module.eval()
    try:
        with Progress(
            total=n_batches, description="validation", unit="batch", enabled=progress
        ) as bar:
            for waveform, label, index in batches:
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    logits = module(waveform.to(device))
                value = None if loss is None else loss(logits, label.to(device))
                collected.add(logits, label, index, value)
                bar.update()
    finally:
        module.train(was_training)
    return collected.result(start)


class _Collector:
    """Scores of an epoch, batch by batch."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.loss_sum = 0.0
        self.n_weighed = 0
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / self.n_weighed if self.n_weighed else math.nan

    def add(self, logits: Tensor, label: Tensor, index: Tensor, loss: Tensor | None) -> None:
        # To the CPU first: MPS has no float64.
        scores = (logits[:, BONAFIDE] - logits[:, SPOOF]).detach().cpu().double()
        self._parts.append((scores, label.cpu(), index.cpu()))
        self.n_rows += len(label)
        if loss is not None:
            self.loss_sum += loss.item() * len(label)
            self.n_weighed += len(label)

    def result(self, start: float) -> EpochResult:
        """Return what all processes collected; one of them may have had nothing."""
        own = [tuple(column.numpy() for column in part) for part in self._parts]
        shares = gather_objects((own, self.loss_sum, self.n_weighed))
        parts = [part for share in shares for part in share[0]]
        if not parts:
            raise ValueError("`batches` must hold at least one batch; got none.")
        scores, labels, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        n_weighed = sum(share[2] for share in shares)
        return EpochResult(
            loss=sum(share[1] for share in shares) / n_weighed if n_weighed else math.nan,
            index=rows[order],
            scores=scores[order],
            labels=labels[order],
            seconds=time.perf_counter() - start,
        )


def _check_finite(value: Tensor, index: Tensor, names: Names | None) -> None:
    if torch.isfinite(value):
        return
    rows = index.tolist()
    shown = [str(names[row]) for row in rows] if names is not None else [f"row {r}" for r in rows]
    raise FloatingPointError(
        f"the loss is {value.item()} on a batch of {len(rows)} utterances: {', '.join(shown)}. "
        "Look at these files, lower the learning rate or set clip_norm."
    )


@contextlib.contextmanager
def _masked(model: nn.Module, mask: LogMelMask | None, seed: int) -> Iterator[None]:
    """Pass what `model.log_mel` returns through masks drawn from `seed`."""
    if mask is None:
        yield
        return
    log_mel = getattr(_replica(model), "log_mel", None)
    if not isinstance(log_mel, nn.Module):
        raise TypeError(
            "`mask` needs a model with log-Mel features, such as a TFPARN; got a "
            f"{type(_replica(model)).__name__}."
        )
    generator = torch.Generator().manual_seed(seed)

    def cover(module: nn.Module, inputs: Any, features: Tensor) -> Tensor:
        return mask(features, generator=generator)

    hook = log_mel.register_forward_hook(cover)
    try:
        yield
    finally:
        hook.remove()


def _replica(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


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
