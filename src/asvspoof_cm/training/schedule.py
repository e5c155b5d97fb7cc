"""When to take which step, and when to stop (section V-A of the TFPARN paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["EarlyStopping", "linear_scaling", "warmup_cosine"]


def warmup_cosine(
    epoch: float,
    *,
    base_lr: float = 1e-4,
    final_lr: float = 1e-6,
    warmup_epochs: float = 5.0,
    n_epochs: float = 100.0,
) -> float:
    """Return the learning rate at a point of training, in epochs, fractions included.

    Linear from `final_lr` to `base_lr` over the warm-up, then half a cosine down to `final_lr`.

    Note:
        The paper warms up "from a small value"; `final_lr` is taken.

    Example:
        >>> [f"{warmup_cosine(epoch):.2e}" for epoch in (0, 5, 52.5, 100)]
        ['1.00e-06', '1.00e-04', '5.05e-05', '1.00e-06']
    """
    if epoch < warmup_epochs:
        return final_lr + (base_lr - final_lr) * epoch / warmup_epochs
    if n_epochs <= warmup_epochs:
        return base_lr
    done = min(1.0, (epoch - warmup_epochs) / (n_epochs - warmup_epochs))
    return final_lr + (base_lr - final_lr) * (1.0 + math.cos(math.pi * done)) / 2.0


def linear_scaling(lr: float, reference_batch_size: int, batch_size: int = 64) -> float:
    """Return η = η_ref · B / B_ref, a recipe's learning rate at another batch size.

    Example:
        >>> round(linear_scaling(1e-4, 24), 7)
        0.0002667
    """
    return lr * batch_size / reference_batch_size


@dataclass
class EarlyStopping:
    """Stop when a value has not fallen significantly for `patience` epochs.

    Attributes:
        best: The lowest value so far.
        best_epoch: Its epoch.
        reference: The lowest value that was a significant decrease.
        n_stale: Epochs since then.

    Example:
        >>> stopping = EarlyStopping(patience=2, tolerance=0.01)
        >>> [stopping.update(epoch, value) for epoch, value in enumerate([0.5, 0.4, 0.395, 0.41])]
        [True, True, True, False]
        >>> stopping.should_stop, stopping.best_epoch
        (True, 2)
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
