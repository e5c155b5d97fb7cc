"""What is done to a training batch: changed copies added as spoof, then augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol as Interface

import torch
from torch import Tensor

from asvspoof_cm._util import check_between
from asvspoof_cm.augmentation import Augmentation, as_extra_spoof
from asvspoof_cm.augmentation.recipes import augmentation, extra_spoof
from asvspoof_cm.labels import BONAFIDE, SPOOF


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
        pairs_alike: Probability that the pairs of a batch are augmented alike: its first bonafide
            row and its first spoof with one draw, and so on, as `matched_pairs` puts them.

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
    pairs_alike: float = 0.0

    def __post_init__(self) -> None:
        augmentation(self.augmentation)
        extra_spoof(self.extra_spoof_kind)
        check_between("extra_spoof", self.extra_spoof, 0, 1)
        check_between("pairs_alike", self.pairs_alike, 0, 1)

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
        if augment is None:
            return waveforms, labels
        if self.pairs_alike and torch.rand((), generator=generator) < self.pairs_alike:
            return _alike(augment, waveforms, labels, generator), labels
        return augment(waveforms, generator=generator), labels


def _alike(
    augment: Augmentation, waveforms: Tensor, labels: Tensor, generator: torch.Generator
) -> Tensor:
    """Augment the k-th row of each class with one draw; rows without a partner by themselves."""
    rows = [torch.nonzero(labels.cpu() == label)[:, 0] for label in (BONAFIDE, SPOOF)]
    n_pairs = min(map(len, rows))
    alone = torch.cat([part[n_pairs:] for part in rows])
    seed = int(torch.randint(2**62, (), generator=generator))
    changed = waveforms.clone()
    for part in (rows[0][:n_pairs], rows[1][:n_pairs], alone):
        if len(part):
            own = torch.Generator().manual_seed(seed + (part is alone))
            part_of = part.to(waveforms.device)
            changed[part_of] = augment(waveforms[part_of], generator=own)
    return changed
