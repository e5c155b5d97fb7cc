"""The level of a waveform."""

from __future__ import annotations

import torch
from torch import Tensor

from asvspoof_cm.audio.input import Normalization
from asvspoof_cm.utils.checks import check_float


def peak_normalize(waveform: Tensor) -> Tensor:
    """Scale each waveform so that its largest magnitude is 1; silence stays silence.

    Args:
        waveform: Float tensor of shape (..., time).

    Example:
        >>> peak_normalize(torch.tensor([0.0, -0.5, 0.25]))
        tensor([ 0.0000, -1.0000,  0.5000])
    """
    check_float(waveform)
    if waveform.shape[-1] == 0:
        raise ValueError("`waveform` must hold at least one sample; got none.")
    return waveform / peak_or_one(waveform)


def peak_or_one(waveform: Tensor) -> Tensor:
    """Return what `peak_normalize` divides by: the largest magnitude (..., 1), 1 for silence."""
    peak = torch.maximum(waveform.amax(dim=-1, keepdim=True), -waveform.amin(dim=-1, keepdim=True))
    return torch.where(peak > 0, peak, torch.ones_like(peak))


def set_level(
    crops: Tensor,
    normalization: Normalization,
    peak: float | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return crops (..., time) of an utterance, divided as `normalization` says.

    Args:
        crops: Float tensor of shape (..., time).
        normalization: What to divide by.
        peak: The largest magnitude of the utterance; only "utterance" needs it.
        out: Where to write what is divided, such as `crops` itself; None is new memory.

    Example:
        >>> set_level(torch.tensor([0.0, 0.25]), "utterance", peak=0.5)
        tensor([0.0000, 0.5000])
    """
    if normalization == "crop":
        return torch.div(crops, peak_or_one(crops), out=out)
    if normalization == "none":
        return crops
    if peak is None:
        raise ValueError('`peak` must be that of the utterance with "utterance"; got None.')
    return torch.div(crops, peak, out=out) if peak > 0 else crops
