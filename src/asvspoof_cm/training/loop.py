"""The training loop and the pieces it is made of.

`fit` is a plain function over `Learner`, `train_epoch`, `validate` and `EarlyStopping`; use those
in a loop of your own where `fit` does not suit.

What is random in an epoch (order, crops, augmentation, dropout) follows from the seed and the epoch
alone, so a run that was interrupted and resumed is the run that was not. Nothing in a training step
waits for the device: losses and scores stay there until the epoch ends, and only every 32 steps is
a look taken at whether the loss is still finite.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from asvspoof_cm.checkpoint import load_trained, trained_state
from asvspoof_cm.data.dataset import derive_seed
from asvspoof_cm.data.loader import Batch
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics import Track1Result, evaluate
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.training.objective import BatchLoss
from asvspoof_cm.training.systems import Recipe
from asvspoof_cm.training.transforms import Transform
from asvspoof_cm.utils.checks import check_choice
from asvspoof_cm.utils.processes import (
    gather_batch,
    gather_objects,
    rank_and_size,
    resolve_precision,
    share_buffers,
)
from asvspoof_cm.utils.progress import Progress

__all__ = ["EpochResult", "Learner", "Loss", "summary", "train_epoch", "validate"]

Loss: TypeAlias = Callable[..., Tensor]
Names: TypeAlias = Sequence[str] | NDArray[np.str_]

_LOOK_EVERY = 32


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
    index: NDArray[np.int64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    seconds: float

    def metrics(self) -> Track1Result:
        """Return the Track 1 metrics, without the warnings meant for finished systems."""
        return evaluate_quietly(self.scores, self.labels)


def evaluate_quietly(scores: ArrayLike, labels: ArrayLike) -> Track1Result:
    """Return the Track 1 metrics of a system that may not have learned anything yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return evaluate(scores, labels)


def summary(result: Track1Result) -> dict[str, float]:
    """Return the four official metrics as plain numbers."""
    return {
        "eer": result.eer.value,
        "min_dcf": result.min_dcf.value,
        "act_dcf": result.act_dcf.value,
        "cllr": result.cllr,
    }


class Learner:
    """What learns: a model and its loss, with their optimiser and a moving average of the weights.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2), on the device to train on.
            `Countermeasure.parameter_groups` says what learns how fast. Under torchrun it is
            wrapped in DistributedDataParallel, with synchronised batch normalisation on CUDA.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar; a `BatchLoss` is given more.
            The parameters of a module are trained with the model's.
        recipe: How to optimise.
        optimizer: One of your own, of parameters of both; None makes the recipe's. Its learning
            rates follow the recipe's schedule, times a group's ``lr_scale``.

    Attributes:
        optimizer: Of the parameters of both.
        precision: What the recipe's "auto" stands for on this device.

    Example:
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> learner = Learner(model, focal_pairwise_loss, Recipe(lr=1e-3))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> train_epoch(learner, [batch]).scores.shape
        (4,)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        recipe: Recipe,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.recipe = recipe
        self.device = next(model.parameters()).device
        self.precision, self.precision_reason = resolve_precision(recipe.precision, self.device)
        if recipe.gradient_checkpointing:
            if not (isinstance(model, Countermeasure) and model.can_recompute):
                raise ValueError(
                    f"`gradient_checkpointing` must be False for {type(model).__name__}, which "
                    "does not call its layers through `recompute`."
                )
            model.gradient_checkpointing = True
        self.loss_parameters: list[Tensor] = []
        if isinstance(loss, nn.Module):
            loss.to(self.device)
            self.loss_parameters = [p for p in loss.parameters() if p.requires_grad]
        self.optimizer = self._make_optimizer() if optimizer is None else optimizer
        self.parameters: list[Tensor] = [
            p for group in self.optimizer.param_groups for p in group["params"]
        ]
        self.n_steps = 0
        self.average: list[Tensor] | None = None
        if recipe.ema_decay is not None:
            self.average = [p.detach().clone() for p in self.parameters]
        self.network = self._wrap()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        if isinstance(self.model, Countermeasure):
            groups = self.model.parameter_groups()
        else:
            groups = [{"params": [p for p in self.model.parameters() if p.requires_grad]}]
        if self.loss_parameters:
            groups = [*groups, {"params": self.loss_parameters}]
        kind = torch.optim.AdamW if self.recipe.optimizer == "adamw" else torch.optim.Adam
        return kind(
            [{"lr_scale": 1.0, **group} for group in groups],
            lr=self.recipe.lr,
            weight_decay=self.recipe.weight_decay,
        )

    def _wrap(self) -> nn.Module:
        network: nn.Module = _Network(self.model, "embedding" in needs(self.loss))
        if rank_and_size()[1] > 1:
            cuda = self.device.type == "cuda"
            if cuda:
                network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
            unused = isinstance(self.model, Countermeasure) and not self.model.all_parameters_used
            network = nn.parallel.DistributedDataParallel(
                network,
                device_ids=[self.device] if cuda else None,
                find_unused_parameters=unused,
            )
        if self.recipe.compile:
            network.compile()
        return network

    def set_learning_rate(self, epoch: float) -> None:
        """Set the learning rates of a point of training, in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(epoch) * group.get("lr_scale", 1.0)

    def step(self, *, scale: float = 1.0) -> None:
        """Change the weights by their gradients, multiplied by `scale`."""
        n_processes = rank_and_size()[1]
        # Each process has the whole gradient of the loss's own parameters, times their number.
        for parameters, factor in (
            (self.parameters, scale),
            (self.loss_parameters, 1.0 / n_processes),
        ):
            if factor != 1.0:
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.n_steps += 1
        if self.average is not None and self.recipe.ema_decay is not None:
            # Lower at first, when the weights that it began with are worth nothing.
            decay = min(self.recipe.ema_decay, (1 + self.n_steps) / (10 + self.n_steps))
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the moving average of its weights inside the block, if there is one."""
        if self.average is None:
            yield
            return
        kept = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training goes on from."""
        return {
            "model": _state(self.model),
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else {},
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        if isinstance(self.model, Countermeasure):
            load_trained(self.model, state["model"])
        else:
            self.model.load_state_dict(state["model"])
        if isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.n_steps = state["n_steps"]
        if self.average is not None:
            torch._foreach_copy_(self.average, [t.to(self.device) for t in state["average"]])


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return what training changes in a model; what is frozen is stored elsewhere."""
    return trained_state(model) if isinstance(model, Countermeasure) else model.state_dict()


class _Network(nn.Module):
    """A model whose logits come with the vectors they were made of, where a loss wants them."""

    def __init__(self, model: nn.Module, with_embedding: bool) -> None:
        super().__init__()
        self.model = model
        self.with_embedding = with_embedding

    def forward(self, waveform: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits (batch, 2), and vectors (batch, d) or None."""
        if not self.with_embedding:
            return self.model(waveform), None
        if not isinstance(self.model, Countermeasure):
            raise TypeError(
                "a loss on embeddings needs a Countermeasure, with `embed` and `classify`; got "
                f"{type(self.model).__name__}."
            )
        embedding = self.model.embed(waveform)
        return self.model.classify(embedding), embedding


def needs(loss: Loss | None) -> frozenset[str]:
    """Return what a loss wants beside logits and labels."""
    return loss.needs if isinstance(loss, BatchLoss) else frozenset()


def _loss_of(
    loss: Loss, logits: Tensor, labels: Tensor, embedding: Tensor | None, group: Tensor
) -> Tensor:
    given = {"embedding": embedding, "group": group}
    value: Tensor = loss(logits, labels, **{name: given[name] for name in needs(loss)})
    return value


def train_epoch(
    learner: Learner,
    batches: Iterable[Batch],
    *,
    transform: Transform | None = None,
    seed: int = 0,
    epoch: int = 0,
    names: Names | None = None,
    groups: ArrayLike | None = None,
    progress: bool = False,
) -> EpochResult:
    """Train for one pass over the batches.

    Under `torch.distributed` the loss is that of the global batch, all pairs across processes
    included, and the gradients are those of one process with that batch.

    Args:
        learner: What learns.
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields.
        transform: What is done to a batch on the device; see `Transform`.
        seed: The seed of the transform and of dropout.
        epoch: The number of this epoch, from 0.
        names: What to call the rows of `index` in an error.
        groups: The group of each row that `index` counts, integers, for losses that want groups.
        progress: Show progress.

    Returns:
        The mean loss, and scores and labels of what was trained on, as they were when trained on.

    Raises:
        FloatingPointError: The loss is not finite; names the utterances of the batch.
    """
    device, recipe = learner.device, learner.recipe
    rank, n_processes = rank_and_size()
    n_batches = len(batches) if isinstance(batches, Sized) else None
    collected = _Collector(names)
    group_of = None if groups is None else torch.as_tensor(np.asarray(groups, dtype=np.int64))
    if "group" in needs(learner.loss) and group_of is None:
        raise ValueError("`groups` must be given: the loss compares rows of one group.")
    start = time.perf_counter()
    learner.network.train()
    learner.optimizer.zero_grad(set_to_none=True)
    n_pending = 0
    with (
        _seeded(derive_seed(seed, epoch, rank), device),
        Progress(
            total=n_batches, description=f"epoch {epoch + 1}", unit="batch", enabled=progress
        ) as bar,
    ):
        for step, (waveform, label, index) in enumerate(batches):
            learner.set_learning_rate(epoch + (step / n_batches if n_batches else 0.0))
            check_labels(label, index, names)
            waveform = waveform.to(device, non_blocking=True)
            n_real = len(label)
            if transform is not None:
                generator = torch.Generator().manual_seed(derive_seed(seed, epoch, rank, step))
                waveform, label = transform(waveform, label, generator)
            group = torch.full((len(label),), -1)
            if group_of is not None:
                group[:n_real] = group_of[index.cpu()]
            label, group = (x.to(device, non_blocking=True) for x in (label, group))
            n_pending += 1
            is_last = n_pending == recipe.n_accumulate or (n_batches and step + 1 == n_batches)
            with _without_sync(learner.network, n_batches is not None and not is_last):
                with torch.autocast(
                    device.type, torch.bfloat16, enabled=learner.precision == "bf16"
                ):
                    logits, embedding = learner.network(waveform)
                rows = gather_batch(logits, label, group, embedding)
                value = _loss_of(learner.loss, rows[0], rows[1], rows[3], rows[2])
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
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    progress: bool = False,
) -> EpochResult:
    """Score a set with a model in evaluation mode, one crop per utterance.

    Under `torch.distributed` each process scores its share, and all get the whole result, each
    utterance once.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2). Its mode is restored afterwards.
        batches: ``(waveform, label, index)`` triples, as `make_loader` yields without shuffling.
        loss: Maps logits and labels to a scalar; None leaves the loss NaN. No row has a group.
        precision: "bf16" uses autocast.
        progress: Show progress.

    Example:
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> validate(model, [batch]).metrics().n_bonafide
        2
    """
    check_choice("precision", precision, ("fp32", "bf16"))
    network = _Network(model, "embedding" in needs(loss))
    device = next(model.parameters()).device
    n_batches = len(batches) if isinstance(batches, Sized) else None
    was_training = model.training
    collected = _Collector(None)
    start = time.perf_counter()
    model.eval()
    try:
        with Progress(
            total=n_batches, description="validation", unit="batch", enabled=progress
        ) as bar:
            for waveform, label, index in batches:
                check_labels(label, index, None)
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    logits, embedding = network(waveform.to(device, non_blocking=True))
                value = None
                if loss is not None:
                    group = torch.full((len(label),), -1, device=device)
                    on_device = label.to(device, non_blocking=True)
                    value = _loss_of(loss, logits, on_device, embedding, group)
                collected.add(logits, label, index, value)
                bar.update()
    finally:
        model.train(was_training)
    return collected.result(start)


class _Collector:
    """Scores and losses of an epoch, left on the device until they are looked at."""

    def __init__(self, names: Names | None) -> None:
        self.n_rows = 0
        self.loss_sum = 0.0
        self.n_weighed = 0
        self._names = names
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

    def look(self) -> None:
        """Wait for the losses that were added since the last look; raise if one is not finite."""
        if not self._losses:
            return
        values = torch.stack([value for value, _ in self._losses]).tolist()
        for value, (_, index) in zip(values, self._losses, strict=True):
            if not math.isfinite(value):
                names = _shown(index, self._names)
                raise FloatingPointError(
                    f"the loss is {value} on a batch of {len(index)} utterances: {names}. "
                    "Look at these files, lower the learning rate or set clip_norm."
                )
            self.loss_sum += value * len(index)
            self.n_weighed += len(index)
        self._losses.clear()

    def result(self, start: float) -> EpochResult:
        """Return what all processes collected; one of them may have had nothing."""
        if self._losses:
            values = torch.stack([value for value, _ in self._losses]).tolist()
            weights = [len(index) for _, index in self._losses]
            self.loss_sum += sum(v * n for v, n in zip(values, weights, strict=True))
            self.n_weighed += sum(weights)
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
        check_labels(torch.from_numpy(labels), torch.from_numpy(rows), self._names)
        order = np.argsort(rows, kind="stable")
        n_weighed = sum(share[2] for share in shares)
        return EpochResult(
            loss=sum(share[1] for share in shares) / n_weighed if n_weighed else math.nan,
            index=rows[order],
            scores=scores[order],
            labels=labels[order],
            seconds=time.perf_counter() - start,
        )


def check_labels(label: Tensor, index: Tensor, names: Names | None) -> None:
    """Raise unless labels on the CPU are 0 or 1; those elsewhere are checked as the epoch ends."""
    if label.device.type != "cpu":
        return
    wrong = (label != SPOOF) & (label != BONAFIDE)
    if wrong.any():
        raise ValueError(
            f"labels must be {SPOOF} (spoof) or {BONAFIDE} (bonafide); got "
            f"{label[wrong][0].item()} for {_shown(index.cpu()[wrong][:1], names)}."
        )


def _shown(index: Tensor, names: Names | None) -> str:
    rows = index.tolist()
    return ", ".join(f"row {row}" if names is None else str(names[row]) for row in rows)


@contextlib.contextmanager
def _without_sync(network: nn.Module, wanted: bool) -> Iterator[None]:
    """Leave gradients in this process inside the block, until a step needs those of all."""
    if wanted and isinstance(network, nn.parallel.DistributedDataParallel):
        with network.no_sync():
            yield
    else:
        yield


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
