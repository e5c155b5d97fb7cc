"""What is done to a training batch: changed copies added as spoof, then augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol as Interface

import torch
from torch import Tensor

from asvspoof_cm.augmentation import as_extra_spoof
from asvspoof_cm.augmentation.recipes import augmentation, extra_spoof

__all__ = ["Augmented", "Transform"]


class Transform(Interface):
    """The one hook for everything done to a training batch, on the device of the model."""

    def __call__(
        self, waveforms: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return changed waveforms and labels; new rows stand after those that came."""


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """The transform of the named recipes, plain values that survive JSON.

    Attributes:
        augmentation: A name that `asvspoof_cm.augmentation.recipes` knows, several joined by "+",
            or "none".
        extra_spoof: Changed copies to add as spoof for each bona fide row, 0 to 1.
        extra_spoof_kind: How they are changed: "segments", "vocoder" or "both".

    Example:
        >>> transform = Augmented(augmentation="tfparn", extra_spoof=1.0)
        >>> waveforms, labels = torch.randn(2, 16000), torch.tensor([0, 1])
        >>> changed, labels = transform(waveforms, labels, torch.Generator().manual_seed(0))
        >>> changed.shape, labels.tolist()
        (torch.Size([3, 16000]), [0, 1, 0])
    """

    augmentation: str = "tfparn"
    extra_spoof: float = 0.0
    extra_spoof_kind: str = "segments"

    def __post_init__(self) -> None:
        augmentation(self.augmentation)
        extra_spoof(self.extra_spoof_kind)
        if not 0 <= self.extra_spoof <= 1:
            raise ValueError(f"`extra_spoof` must lie in [0, 1]; got {self.extra_spoof}.")

    def __call__(
        self, waveforms: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return waveforms and labels with copies added, everything augmented."""
        if self.extra_spoof:
            made = extra_spoof(self.extra_spoof_kind)
            waveforms, labels = as_extra_spoof(
                waveforms, labels, generator, fraction=self.extra_spoof, augment=made
            )
        augment = augmentation(self.augmentation)
        if augment is not None:
            waveforms = augment(waveforms, generator=generator)
        return waveforms, labels
