"""The learning rate over time, and when to stop (section V-A of the TFPARN paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass


def warmup_cosine(
    epoch: float, *, base_lr: float, final_lr: float, warmup_epochs: float, n_epochs: float
) -> float:
    """Return the learning rate at a point of training, in epochs, fractions included.

    Linear from `final_lr` to `base_lr` over the warm-up, then half a cosine down to `final_lr`.

    Note:
        The paper warms up "from a small value"; `final_lr` is taken.
    """
    if epoch < warmup_epochs:
        return final_lr + (base_lr - final_lr) * epoch / warmup_epochs
    if n_epochs <= warmup_epochs:
        return base_lr
    done = min(1.0, (epoch - warmup_epochs) / (n_epochs - warmup_epochs))
    return final_lr + (base_lr - final_lr) * (1.0 + math.cos(math.pi * done)) / 2.0


def warmup_constant(
    epoch: float,
    *,
    base_lr: float,
    final_lr: float,
    warmup_epochs: float,
    decay_epochs: float,
    n_epochs: float,
) -> float:
    """Return the learning rate with the same warm-up, then constant, with a linear fall at the end.

    The fall to `final_lr` takes the last `decay_epochs`.
    """
    rise = epoch / warmup_epochs if epoch < warmup_epochs else 1.0
    left = n_epochs - epoch
    fall = max(0.0, left / decay_epochs) if left < decay_epochs else 1.0
    return final_lr + (base_lr - final_lr) * min(rise, fall)


def linear_scaling(lr: float, reference_batch_size: int, batch_size: int) -> float:
    """Return η = η_ref · B / B_ref, a recipe's learning rate at another batch size."""
    return lr * batch_size / reference_batch_size


@dataclass
class EarlyStopping:
    """Stop when a value has not fallen significantly for `patience` epochs.

    `best` is the lowest value so far, `reference` the lowest that was a significant decrease, and
    `n_stale` counts the epochs since then.
    """

    patience: int = 15
    tolerance: float = 1e-4
    best: float = math.inf
    best_epoch: int = -1
    reference: float = math.inf
    n_stale: int = 0

    def update(self, epoch: int, value: float) -> bool:
        """Take in the value of an epoch; return whether it is the best so far."""
        if value < self.reference - self.tolerance:
            self.reference, self.n_stale = value, 0
        else:
            self.n_stale += 1
        if value < self.best:
            self.best, self.best_epoch = value, epoch
            return True
        return False

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out."""
        return self.n_stale >= self.patience
