"""Changed copies of bona fide rows as additional spoof examples of a training batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, beside
from asvspoof_cm.augmentation.segments import ShuffleSegments
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.utils.checks import as_generator, check_between


def as_extra_spoof(
    waveforms: Tensor,
    labels: Tensor,
    generator: torch.Generator | None = None,
    *,
    fraction: float = 0.5,
    augment: Augmentation | None = None,
) -> tuple[Tensor, Tensor]:
    """Append changed copies of bona fide rows to a training batch, labelled spoof.

    Args:
        waveforms: `(batch, time)`, at least ``augment.min_samples`` long.
        labels: `(batch,)`, `SPOOF` or `BONAFIDE`, on the CPU: how many rows are added depends on
            them, and nothing here waits for another device.
        generator: Chooses the rows and changes them; None takes a fresh seed.
        fraction: How many rows to add for each bona fide row, 0 to 1. What isn't a whole number
            of rows is rounded up or down at random, so that the average is exact.
        augment: What makes a spoof of every bona fide row: `CopySynthesis`, or the published
            `ShuffleSegments` (B12), which None takes. Not `RandomApply`, which leaves rows as they
            are.

    Returns:
        `(batch + extra, time)` and `(batch + extra,)`. A batch without bona fide gains nothing.

    Example:
        >>> x, y = torch.randn(3, 16000), torch.tensor([BONAFIDE, SPOOF, BONAFIDE])
        >>> more_x, more_y = as_extra_spoof(x, y, fraction=1.0)
        >>> more_x.shape, more_y.tolist()
        (torch.Size([5, 16000]), [1, 0, 1, 0, 0])
    """
    augment = ShuffleSegments() if augment is None else augment
    if waveforms.dim() != 2 or labels.shape != waveforms.shape[:1]:
        raise ValueError(
            "`waveforms` must have shape (batch, time) and `labels` (batch,); got "
            f"{tuple(waveforms.shape)} and {tuple(labels.shape)}."
        )
    if waveforms.shape[1] < augment.min_samples:
        raise ValueError(
            f"`waveforms` must be at least {augment.min_samples} samples long, or "
            f"{type(augment).__name__} can't change them as meant; got {waveforms.shape[1]}. "
            "Use longer crops."
        )
    if labels.device.type != "cpu":
        raise ValueError(
            f"`labels` must be on the CPU, where a loader leaves them; got {labels.device}, which "
            "would have to be waited for. Pass labels.cpu()."
        )
    check_between("fraction", fraction, 0, 1)
    generator = as_generator(generator)
    bonafide = (labels == BONAFIDE).nonzero()[:, 0]
    spare = torch.rand(1, dtype=torch.float64, generator=generator).item()
    n_extra = math.floor(fraction * len(bonafide) + spare)
    if n_extra == 0:
        return waveforms, labels
    chosen = torch.randperm(len(bonafide), generator=generator)[:n_extra].sort().values
    extra = augment(waveforms[beside(bonafide[chosen], waveforms)], generator=generator)
    return torch.cat((waveforms, extra)), torch.cat((labels, labels.new_full((n_extra,), SPOOF)))
