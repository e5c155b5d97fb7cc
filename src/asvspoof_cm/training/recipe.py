"""How to optimise, and the learning rate over time (section V-A of the TFPARN paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from asvspoof_cm._util import (
    check_between,
    check_inside_unit,
    check_not_negative,
    check_positive_finite,
)
from asvspoof_cm.models.base import check_config


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to optimise; the defaults are the paper's (section V-A).

    Attributes:
        n_epochs: Maximum number of epochs.
        minutes: Minutes of training instead, over which the schedule runs, without early stopping.
        optimizer: "adamw" or "adam" (weight decay added to the gradient).
        lr: Learning rate after the warm-up.
        weight_decay: Weight decay.
        warmup_epochs: Epochs of linear warm-up.
        warmup_start: Where the warm-up begins, a share of `lr`: the paper's "small value".
        schedule: "cosine" falls after the warm-up, "constant" over the last `decay_epochs` only.
        decay_epochs: Epochs of the linear fall at the end of a constant schedule.
        final_lr: Learning rate at the end.
        by_epoch: Set the rate once per epoch, as the authors' code does: the full rate in the first
            epoch, then the warm-up from 0.
        select: The figure of the development set that picks the best epoch, lowest first.
        patience: Epochs without a significant decrease of it before stopping.
        tolerance: The least decrease that counts as significant.
        clip_norm: Largest norm of the gradient; None for no limit.
        precision: "fp32", "bf16" for autocast, or "auto": bf16 where the device is faster with it.
        ema_decay: Validate and keep a moving average of the weights with this decay; None for none.
        keep_epochs: Keep a checkpoint of every epoch, to average some of them.
    """

    n_epochs: int = 100
    minutes: float | None = None
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: float = 1e-4
    weight_decay: float = 1e-2
    warmup_epochs: float = 5.0
    warmup_start: float = 0.2
    schedule: Literal["cosine", "constant"] = "cosine"
    decay_epochs: float = 0.0
    final_lr: float = 1e-6
    by_epoch: bool = False
    select: str = "min_dcf"
    patience: int = 15
    tolerance: float = 1e-4
    clip_norm: float | None = None
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    ema_decay: float | None = None
    keep_epochs: bool = False

    def __post_init__(self) -> None:
        check_config(self)
        positive = {name: getattr(self, name) for name in ("lr", "clip_norm", "minutes")}
        check_positive_finite(**{name: v for name, v in positive.items() if v is not None})
        not_negative = ("weight_decay", "warmup_epochs", "decay_epochs", "final_lr", "tolerance")
        check_not_negative(**{name: getattr(self, name) for name in not_negative})
        check_between("warmup_start", self.warmup_start, 0, 1)
        if self.ema_decay is not None:
            check_inside_unit(ema_decay=self.ema_decay)
        if self.lr < self.final_lr:
            raise ValueError(
                f"`lr` must not be below `final_lr`; got {self.lr} and {self.final_lr}."
            )
        if self.decay_epochs and self.schedule == "cosine":
            raise ValueError(
                f'`decay_epochs` must be 0 with schedule="cosine"; got {self.decay_epochs}.'
            )

    def learning_rate(self, epoch: float) -> float:
        """Return the learning rate at a point of training, in epochs, fractions included.

        Example:
            >>> recipe = Recipe(n_epochs=15, lr=1.0, final_lr=0.5, warmup_epochs=5)
            >>> [recipe.learning_rate(epoch) for epoch in (0, 5, 10, 15)]
            [0.2, 1.0, 0.75, 0.5]
        """
        start = self.warmup_start
        if self.by_epoch:
            epoch, start = math.floor(epoch), 0.0
            if epoch == 0:
                return self.lr
        left, share = self.n_epochs - epoch, 1.0
        if self.schedule == "constant":
            if left < self.decay_epochs:
                share = max(0.0, left / self.decay_epochs)
        elif epoch >= self.warmup_epochs and self.n_epochs > self.warmup_epochs:
            done = min(1.0, 1.0 - left / (self.n_epochs - self.warmup_epochs))
            share = (1.0 + math.cos(math.pi * done)) / 2.0
        rate = self.final_lr + (self.lr - self.final_lr) * share
        if epoch < self.warmup_epochs:
            rate = min(rate, self.lr * (start + (1.0 - start) * epoch / self.warmup_epochs))
        return rate
