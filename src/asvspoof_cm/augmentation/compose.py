"""Augmentations made of augmentations: in turn, one of several, or on some rows only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asvspoof_cm._util import check_between
from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, select_rows


class _Several(Augmentation):
    def __init__(self, augmentations: Sequence[Augmentation]) -> None:
        self.augmentations = tuple(augmentations)
        if not self.augmentations:
            raise ValueError("`augmentations` must hold at least one augmentation; got none.")
        for augmentation in self.augmentations:
            if not isinstance(augmentation, Augmentation):
                raise TypeError(
                    f"`augmentations` must hold Augmentation objects; got "
                    f"{type(augmentation).__name__}. A class needs its parentheses: Gain()."
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.augmentations)})"


class Compose(_Several):
    """Apply several augmentations in turn.

    Example:
        >>> from asvspoof_cm.augmentation import Gain, WhiteNoise
        >>> Compose([Gain(), WhiteNoise()])(torch.ones(2, 100)).shape
        torch.Size([2, 100])
    """

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"stages": [a.draw(n_rows, n_samples, generator) for a in self.augmentations]}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        for stage, of_stage in zip(self.augmentations, drawn["stages"], strict=True):
            waveform = stage.apply(waveform, of_stage)
        return waveform


class OneOf(_Several):
    """Apply one of several augmentations to each row.

    Args:
        augmentations: What there is to choose from.
        weights: How often each is chosen, relative to the others; None for equally often.
        p: Probability that a row is changed at all.

    Example:
        >>> from asvspoof_cm.augmentation import Gain, WhiteNoise
        >>> OneOf([Gain(), WhiteNoise()], weights=[1, 3]).draw(1000, 8)["choice"].unique()
        tensor([0, 1])
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        *,
        weights: Sequence[float] | None = None,
        p: float = 1.0,
    ) -> None:
        super().__init__(augmentations)
        check_between("p", p, 0, 1)
        self.weights = (1.0,) * len(self.augmentations) if weights is None else tuple(weights)
        self.p = p
        wrong = len(self.weights) != len(self.augmentations) or min(self.weights) < 0
        if wrong or sum(self.weights) <= 0:
            raise ValueError(
                f"`weights` must be {len(self.augmentations)} numbers >= 0, one per augmentation, "
                f"not all zero; got {self.weights}."
            )

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        total = sum(self.weights)
        shares = [self.p * weight / total for weight in self.weights] + [1 - self.p]
        weights = torch.tensor(shares, dtype=torch.float64)
        # Of rows that stay as they are, the choice is one too high.
        choice = torch.multinomial(weights, n_rows, replacement=True, generator=generator)
        branches = [a.draw(n_rows, n_samples, generator) for a in self.augmentations]
        return {"choice": choice, "branches": branches}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        output = waveform.clone()
        branches = zip(self.augmentations, drawn["branches"], strict=True)
        for k, (augmentation, of_branch) in enumerate(branches):
            rows = (drawn["choice"] == k).nonzero()[:, 0]
            if len(rows) == len(waveform):  # nothing to gather
                return augmentation.apply(waveform, of_branch)
            if len(rows):
                chosen = beside(rows, waveform)
                output[chosen] = augmentation.apply(waveform[chosen], select_rows(of_branch, rows))
        return output

    def __repr__(self) -> str:
        several = list(self.augmentations)
        return f"{type(self).__name__}({several}, weights={list(self.weights)}, p={self.p})"


class RandomApply(OneOf):
    """Apply an augmentation to each row with probability `p`; other rows stay as they are.

    Example:
        >>> from asvspoof_cm.augmentation import WhiteNoise
        >>> changed = (RandomApply(WhiteNoise(), p=0.5)(torch.ones(1000, 8)) != 1).any(dim=1)
        >>> bool(400 < changed.sum() < 600)
        True
    """

    def __init__(self, augmentation: Augmentation, p: float) -> None:
        super().__init__([augmentation], p=p)
