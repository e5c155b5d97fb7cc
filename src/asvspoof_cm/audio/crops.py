"""From a waveform of any length to crops of one (sections III-B.1 and III-C of the paper)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asvspoof_cm.utils.checks import check_between, check_one_waveform

CROP_SAMPLES = 64000


def fix_length(
    waveform: Tensor,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return exactly `n_samples` samples of a waveform of any length (section III-B.1).

    Args:
        waveform: Tensor of shape (time,).
        n_samples: The length of the crop.
        crop: "center" for evaluation, "random" for training.
        generator: The source of the random start; required by ``crop="random"``.

    Returns:
        A tensor of shape (n_samples,), a view of `waveform` where that is long enough.

    Example:
        >>> fix_length(torch.arange(10.0), 4)
        tensor([3., 4., 5., 6.])
        >>> fix_length(torch.tensor([1.0, 2.0, 3.0]), 4)
        tensor([2., 3., 1., 2.])
    """
    check_one_waveform(waveform)
    start = crop_start(len(waveform), n_samples, crop=crop, generator=generator)
    return cut(waveform, start, n_samples)


def tta_crops(waveform: Tensor, n_crops: int = 5, n_samples: int = CROP_SAMPLES) -> Tensor:
    """Cut evenly spaced crops for test-time augmentation (section III-C).

    The first crop starts with the waveform, the last one ends with it. A waveform shorter than a
    crop is repeated until it exceeds the crop before it is cut. One crop is the centre crop.

    Args:
        waveform: Tensor of shape (time,).
        n_crops: The number of crops, K in the paper.
        n_samples: The length of each crop.

    Returns:
        Crops of shape (n_crops, n_samples).

    Example:
        >>> tta_crops(torch.randn(96000)).shape
        torch.Size([5, 64000])
    """
    check_one_waveform(waveform)
    starts = crop_starts(len(waveform), n_crops, n_samples)
    return torch.stack([cut(waveform, start, n_samples) for start in starts])


def crop_starts(
    n_total: int,
    n_crops: int = 5,
    n_samples: int = CROP_SAMPLES,
    *,
    one_crop: Literal["center", "start"] = "center",
) -> list[int]:
    """Return where crops start, modulo `n_total` samples: equal starts mean equal crops."""
    check_between("n_crops", n_crops, 1)
    last = last_start(n_total, n_samples)
    if n_crops == 1:
        return [0 if one_crop == "start" else last // 2 % n_total]
    return [last * k // (n_crops - 1) % n_total for k in range(n_crops)]


def crop_start(
    n_total: int,
    n_samples: int = CROP_SAMPLES,
    *,
    crop: Literal["center", "random"] = "center",
    generator: torch.Generator | None = None,
) -> int:
    """Return where the crop of `fix_length` starts in a waveform of `n_total` samples."""
    last = last_start(n_total, n_samples)
    if crop == "center":
        return last // 2
    if crop != "random":
        raise ValueError(f'`crop` must be "center" or "random"; got {crop!r}.')
    if generator is None:
        raise ValueError('`generator` must be a torch.Generator when crop="random"; got None.')
    # A fraction, so that one draw means one place in recordings of nearly one length.
    return int(torch.rand((), generator=generator, dtype=torch.float64) * (last + 1))


def last_start(n_total: int, n_samples: int) -> int:
    """Return the last valid start of a crop, in the waveform repeated where it is too short."""
    check_between("n_samples", n_samples, 1)
    if n_total >= n_samples:
        return n_total - n_samples
    return (n_samples // n_total + 1) * n_total - n_samples


def cut(waveform: Tensor, start: int, n_samples: int) -> Tensor:
    """Return `n_samples` from `start` of a (time,) waveform repeated endlessly."""
    n_total = len(waveform)
    if start + n_samples <= n_total:
        return waveform[start : start + n_samples]
    start %= n_total
    n_repeats = -(-(start + n_samples) // n_total)
    return waveform.repeat(n_repeats)[start : start + n_samples]
