"""Layers that more than one model uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.utils.checks import as_generator, check_between


@dataclass(frozen=True, kw_only=True)
class LogMelMask:
    """Random masks over mel bands and over frames, drawn for each row (SpecAugment, 2019).

    A mask's width is uniform from 0 to its maximum, its start uniform over the places where it
    fits; inside, features are the row's mean. The defaults are SpecAugment's policy "LibriSpeech
    double", for 80 bands, with 0.2 as the bound on the share of time.

    Args:
        n_mel_masks: Masks over bands.
        max_mels: Their largest width.
        n_frame_masks: Masks over frames.
        max_frames: Their largest width.
        max_share: No mask over frames is wider than this share of them.

    Note:
        SpecAugment sets what is masked to 0 after the features' mean was subtracted; here the
        features need no preparation.

    Example:
        >>> LogMelMask()(torch.randn(2, 80, 400)).shape
        torch.Size([2, 80, 400])
    """

    n_mel_masks: int = 2
    max_mels: int = 27
    n_frame_masks: int = 2
    max_frames: int = 100
    max_share: float = 0.2

    def __post_init__(self) -> None:
        for name in ("n_mel_masks", "max_mels", "n_frame_masks", "max_frames"):
            check_between(name, getattr(self, name), 0)
        check_between("max_share", self.max_share, 0, 1)

    def draw(
        self, n_rows: int, n_mels: int, n_frames: int, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return the masks for `n_rows` features of `n_mels` bands and `n_frames`."""
        drawn: dict[str, Tensor] = {}
        generator = as_generator(generator)
        widest_frames = min(self.max_frames, int(self.max_share * n_frames))
        for name, n_masks, widest, n in (
            ("mel", self.n_mel_masks, min(self.max_mels, n_mels), n_mels),
            ("frame", self.n_frame_masks, widest_frames, n_frames),
        ):
            u, v = torch.rand(2, n_rows, n_masks, dtype=torch.float64, generator=generator)
            width = (u * (widest + 1)).long()
            drawn |= {f"{name}_start": (v * (n - width + 1)).long(), f"{name}_width": width}
        return drawn

    def apply(self, log_mel: Tensor, drawn: dict[str, Tensor]) -> Tensor:
        """Return `(n_mels, n_frames)` or `(batch, n_mels, n_frames)` masked."""
        rows, n_rows = _as_batch(log_mel), len(drawn["mel_start"])
        if len(rows) != n_rows:
            raise ValueError(f"`drawn` is for {n_rows} rows; `log_mel` has {len(rows)}.")
        mels, frames = (
            _covered(drawn[f"{name}_start"], drawn[f"{name}_width"], n)
            for name, n in zip(("mel", "frame"), rows.shape[1:], strict=True)
        )
        masked = (mels[:, :, None] | frames[:, None, :]).to(rows.device)
        mean = rows.mean(dim=(-2, -1), keepdim=True)
        return torch.where(masked, mean, rows).reshape(log_mel.shape)

    def __call__(self, log_mel: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw and apply; without a generator, each call takes a fresh seed."""
        n_rows, n_mels, n_frames = _as_batch(log_mel).shape
        return self.apply(log_mel, self.draw(n_rows, n_mels, n_frames, generator))


def _covered(start: Tensor, width: Tensor, n: int) -> Tensor:
    place = torch.arange(n)
    inside = (place >= start[..., None]) & (place < (start + width)[..., None])
    return inside.any(dim=1)


def _as_batch(log_mel: Tensor) -> Tensor:
    if log_mel.dim() not in (2, 3) or not log_mel.is_floating_point():
        raise ValueError(
            "`log_mel` must be real of shape (n_mels, n_frames) or (batch, n_mels, n_frames); "
            f"got {tuple(log_mel.shape)} of {log_mel.dtype}."
        )
    return log_mel if log_mel.dim() == 3 else log_mel[None]
