"""One pass over a set: to train, or to validate.

What is random in an epoch (order, crops, augmentation, dropout) follows from the seed and the epoch
alone, so a run that was interrupted and resumed is the run that was not. Nothing in a training step
waits for the device: losses and scores stay there until the epoch ends, and only every 32 steps is
it checked that the loss is still finite.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm._util import derive_seed, track
from asvspoof_cm.augmentation import Augmentation
from asvspoof_cm.data.dataset import Batch
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.scorer.scorer import Precision, run_rows
from asvspoof_cm.training.distributed import gather_batch, gather_objects, rank_and_size
from asvspoof_cm.training.recipe import Recipe

Loss: TypeAlias = Callable[..., Tensor]
Forward: TypeAlias = Callable[[nn.Module, Tensor], Any]
Augment: TypeAlias = Augmentation | Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, ...]]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """The result of one pass over a set.

    Attributes:
        loss: The mean loss per utterance; NaN of a validation.
        index: Rows of the protocol, shape (n,), in ascending order.
        scores: z₁ − z₀ of each, shape (n,).
        labels: Their labels, shape (n,).
        seconds: The time it took.
        peak_memory_bytes: The most memory meanwhile: on CUDA that of PyTorch's allocator, elsewhere
            that of the process.
    """

    loss: float
    index: NDArray[np.int64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    seconds: float
    peak_memory_bytes: int = 0


class TrainingState:
    """A model and its loss in training, their optimiser and a moving average of the weights.

    Args:
        model: A model on the device to train on; its `parameter_groups` say what learns how fast.
        loss: See `fit`. The parameters of a module are trained with the model's.
        recipe: How to optimise.
        forward: See `fit`.

    Example:
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> state = TrainingState(model, focal_pairwise_loss, Recipe(lr=1e-3))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> train_epoch(state, [batch]).scores.shape, validate(model, [batch]).labels.tolist()
        ((4,), [0, 1, 0, 1])
    """

    def __init__(
        self, model: Countermeasure, loss: Loss, recipe: Recipe, *, forward: Forward | None = None
    ) -> None:
        self.model, self.loss, self.recipe = model, loss, recipe
        self.has_forward = forward is not None
        self.device = next(model.parameters()).device
        self.precision = resolve_precision(recipe.precision, self.device)
        groups = model.parameter_groups()
        self.loss_parameters: list[Tensor] = []
        if isinstance(loss, nn.Module):
            loss.to(self.device)
            self.loss_parameters = [p for p in loss.parameters() if p.requires_grad]
        if self.loss_parameters:
            groups = [*groups, {"params": self.loss_parameters}]
        kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
        self.optimizer = kind(
            [{"lr_scale": 1.0, **group} for group in groups],
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
        )
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.n_steps = 0
        # What an average is taken of: the weights, and the statistics of batch normalisation.
        self._moving = [*self.parameters, *(b for b in model.buffers() if b.is_floating_point())]
        self._average: list[Tensor] | None = None
        if recipe.ema_decay is not None:
            self._average = [t.detach().clone() for t in self._moving]
        self.network: nn.Module = _Network(model, forward or nn.Module.__call__)
        if rank_and_size()[1] > 1:
            is_cuda = self.device.type == "cuda"
            if is_cuda:
                self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
            self.network = nn.parallel.DistributedDataParallel(
                self.network,
                device_ids=[self.device] if is_cuda else None,
                find_unused_parameters=not model.all_parameters_used,
            )

    def loss_of(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, of all processes together."""
        if not self.has_forward:
            return self.loss(*gather_batch((outputs, batch.label)))
        outputs, columns = gather_batch((outputs, vars(batch)))
        return self.loss(outputs, Batch(**columns))

    def step(self, epoch: float) -> None:
        """Change the weights by their gradients, at a point of training in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(epoch) * group["lr_scale"]
        # Each process has the whole gradient of the loss's own parameters, times their number.
        for parameter in self.loss_parameters:
            if parameter.grad is not None:
                parameter.grad.div_(rank_and_size()[1])
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.n_steps += 1
        if self._average is not None and self.recipe.ema_decay is not None:
            # Lower at first, when the weights that it began with are worth nothing.
            decay = min(self.recipe.ema_decay, (1 + self.n_steps) / (10 + self.n_steps))
            with torch.no_grad():
                torch._foreach_lerp_(self._average, self._moving, 1 - decay)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the moving average of its weights inside the block, if there is one."""
        if self._average is None:
            yield
            return
        kept = [t.detach().clone() for t in self._moving]
        with torch.no_grad():
            torch._foreach_copy_(self._moving, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._moving, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training goes on from."""
        return {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else {},
            "optimizer": self.optimizer.state_dict(),
            "average": self._average,
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        if isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.n_steps = state["n_steps"]
        if self._average is not None:
            torch._foreach_copy_(self._average, [t.to(self.device) for t in state["average"]])


class _Network(nn.Module):
    """A model as DistributedDataParallel wants it: one call that returns what the loss needs."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    def forward(self, waveform: Tensor) -> Any:
        return self._forward(self.model, waveform)


def train_epoch(
    state: TrainingState,
    batches: Iterable[Any],
    *,
    augment: Augment | None = None,
    seed: int = 0,
    epoch: int = 0,
    spent_s: float = 0.0,
    progress: bool = False,
) -> EpochResult:
    """Train for one pass over the batches; return the loss and the scores as they were then.

    Under `torch.distributed` the loss is that of the global batch, all pairs across processes
    included, and the gradients are those of one process with that batch.

    Args:
        state: What is trained.
        batches: `Batch` objects, as `make_loader` yields, or ``(waveform, label, index)`` triples.
        augment: What is done to a batch on the device; see `fit`.
        seed: The seed of the augmentation and of dropout.
        epoch: The number of this epoch, from 0.
        spent_s: Seconds of training before this epoch, for a recipe with `minutes`, whose time may
            end within the pass.
        progress: Show progress.

    Raises:
        FloatingPointError: The loss is not finite; names the rows of the batch.
    """
    device, recipe = state.device, state.recipe
    rank, n_processes = rank_and_size()
    n_batches = len(batches) if isinstance(batches, Sized) else None
    shown: Any = {"description": f"epoch {epoch + 1}", "unit": "batch", "enabled": progress}
    collected = _Collector(device)
    state.network.train()
    state.optimizer.zero_grad(set_to_none=True)
    bar = track(batches, total=n_batches, **shown)
    with _seeded(derive_seed(seed, epoch, rank), device):
        for step, given in enumerate(bar):
            batch = as_batch(given).to(device)
            n_given = len(batch)
            if augment is not None:
                generator = torch.Generator().manual_seed(derive_seed(seed, epoch, rank, step))
                batch = augmented(batch, augment, generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=state.precision == "bf16"):
                outputs = state.network(batch.waveform)
            value = state.loss_of(outputs, batch)
            torch.autograd.backward(value * n_processes)
            point, is_over = epoch + step / (n_batches or math.inf), False
            if recipe.minutes is not None:
                share = (spent_s + collected.seconds) / (60 * recipe.minutes)
                point, is_over = recipe.n_epochs * min(1.0, share), share >= 1.0
            state.step(point)
            collected.add(logits_of(outputs)[:n_given], batch, value)
            if device.type == "cpu" or step % 32 == 31:
                collected.look()
            bar.set_postfix(
                loss=collected.mean_loss,
                lr=state.optimizer.param_groups[0]["lr"],
                clips_per_s=collected.n_rows * n_processes / collected.seconds,
                refresh=False,
            )
            if is_over:
                break
        collected.look()
    if n_processes > 1:  # batch statistics have drifted apart
        for buffer in state.model.buffers():
            dist.broadcast(buffer, 0)
    return collected.result()


def validate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    precision: Precision = "fp32",
    progress: bool = False,
) -> EpochResult:
    """Return the scores of a set, with the model in evaluation mode.

    A batch of several crops, (batch, n_crops, time), is scored by its mean logits. Under
    `torch.distributed` each process scores its share, and all get the whole result, each utterance
    once.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2). Its mode is restored afterwards.
        batches: As for `train_epoch`, without shuffling.
        precision: "bf16" uses autocast.
        progress: Show progress.
    """
    device = next(model.parameters()).device
    was_training, collected = model.training, _Collector(device)
    shown = track(batches, description="validation", unit="batch", enabled=progress)
    items = ((batch, batch.waveform) for batch in map(as_batch, shown))

    def mean_logits(waveform: Tensor) -> dict[str, Tensor]:
        logits: Tensor = model(waveform.flatten(0, -2))
        return {"logits": logits.view(len(waveform), -1, 2).float().mean(dim=1)}

    model.eval()
    options: Any = {"device": device, "precision": precision, "batch_size": None}
    try:
        for batch, rows in run_rows(mean_logits, items, **options):
            collected.add(torch.stack([row["logits"] for row in rows]), batch)
    finally:
        model.train(was_training)
    return collected.result()


def as_batch(columns: Any) -> Batch:
    """Return a batch whose shapes are right, of a `Batch` or its columns."""
    rule = "a batch must be a Batch, or (waveform (batch, time), label (batch,), index (batch,))"
    given = [*vars(columns).values()] if isinstance(columns, Batch) else columns
    if not isinstance(given, tuple | list) or len(given) not in (3, 4):
        raise TypeError(f"{rule}; got a {type(columns).__name__}.")
    if not all(isinstance(x, Tensor | None) for x in given):
        raise TypeError(f"{rule}, of tensors; got {[type(x).__name__ for x in given]}.")
    batch = Batch(*given)
    shapes = [tuple(x.shape) for x in (batch.waveform, batch.label, batch.index)]
    if len(shapes[0]) not in (2, 3) or not shapes[0][0] or shapes[1:] != [shapes[0][:1]] * 2:
        raise ValueError(f"{rule}; got shapes {', '.join(map(str, shapes))}.")
    return replace(batch, label=batch.label.long())


def augmented(batch: Batch, augment: Augment, generator: torch.Generator) -> Batch:
    """Return a batch with what `augment` made of it; rows that it added have index -1."""
    if isinstance(augment, Augmentation):
        return replace(batch, waveform=augment(batch.waveform, generator=generator))
    waveform, label, *others = augment(batch.waveform, batch.label, generator)
    label = label.to(waveform.device)
    added = batch.index.new_full((len(label) - len(batch),), -1)
    frame_label = others[0].to(waveform.device) if others else batch.frame_label
    return Batch(waveform, label, torch.cat([batch.index, added]), frame_label)


def logits_of(outputs: Any) -> Tensor:
    """Return the logits among the outputs of a model: all, or the first of a tuple."""
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] != 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"a model must return logits (batch, 2), of spoof and bonafide; got {came}."
        )
    return logits


class _Collector:
    """Scores and losses of an epoch, left on the device until they are looked at."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._start_s = device, time.perf_counter()
        reset_peak_memory(device)
        self.n_rows, self.n_weighed, self.loss_sum = 0, 0, 0.0
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        self._losses: list[tuple[Tensor, Tensor]] = []

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start_s

    @property
    def mean_loss(self) -> float:
        """The mean loss of the batches that were looked at."""
        return self.loss_sum / self.n_weighed if self.n_weighed else math.nan

    def add(self, logits: Tensor, batch: Batch, loss: Tensor | None = None) -> None:
        """Take in the rows of a batch that have logits: the first ones."""
        n_rows = len(logits)
        scores = (logits[:, BONAFIDE] - logits[:, SPOOF]).detach()
        self._parts.append((scores, batch.label[:n_rows], batch.index[:n_rows]))
        self.n_rows += n_rows
        if loss is not None:
            self._losses.append((loss.detach(), batch.index[:n_rows]))

    def look(self) -> None:
        """Wait for the losses that were added since the last look; raise if one is not finite."""
        values = torch.stack([value for value, _ in self._losses]).tolist() if self._losses else []
        for value, (_, index) in zip(values, self._losses, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss is {value} on the batch of rows {index.tolist()}. Look at their "
                    "files, lower the learning rate or set clip_norm."
                )
            self.loss_sum += value * len(index)
            self.n_weighed += len(index)
        self._losses.clear()

    def result(self) -> EpochResult:
        """Return what all processes collected; one of them may have had nothing."""
        columns = [torch.cat(column).cpu() for column in zip(*self._parts, strict=True)]
        columns[:1] = [scores.double() for scores in columns[:1]]
        shares = gather_objects(([c.numpy() for c in columns], self.loss_sum, self.n_weighed))
        parts = [part for part, _, _ in shares if part]
        if not parts:
            raise ValueError(
                "`batches` must hold at least one batch each time it is gone through; got none. An "
                "iterator is used up after one epoch: pass something that can begin anew."
            )
        scores, labels, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        n_weighed = sum(share[2] for share in shares)
        return EpochResult(
            loss=sum(share[1] for share in shares) / n_weighed if n_weighed else math.nan,
            index=rows[order],
            scores=scores[order],
            labels=labels[order],
            seconds=self.seconds,
            peak_memory_bytes=peak_memory_bytes(self.device),
        )


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's own generators, which dropout draws from, and restore them afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def resolve_precision(precision: str, device: torch.device) -> Literal["fp32", "bf16"]:
    """Return the precision that a name stands for; "auto" is bf16 where it is faster."""
    if precision == "auto" and device.type == "cuda":
        is_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    elif precision == "auto" and device.type == "cpu" and _CPUINFO.exists():
        # Without these instructions bf16 is emulated, several times slower than fp32.
        is_bf16 = bool({"avx512_bf16", "amx_bf16"} & set(_CPUINFO.read_text().split()))
    else:
        is_bf16 = precision == "bf16"
    return "bf16" if is_bf16 else "fp32"


def reset_peak_memory(device: torch.device) -> None:
    """Restart the count of `peak_memory_bytes`, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.exists():
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that PyTorch had on CUDA, or else this process; 0 on Windows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
