"""Augmentations made of augmentations: in turn, one of several, or on some rows only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from asvspoof_cm._util import check_between
from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside


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

    @property
    def min_samples(self) -> int:
        """The largest `min_samples` of its augmentations."""
        return max(augmentation.min_samples for augmentation in self.augmentations)

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

    def _select(self, drawn: Drawn, start: int, stop: int) -> Drawn:
        stages = zip(self.augmentations, drawn["stages"], strict=True)
        return {"stages": [stage.select(of_stage, start, stop) for stage, of_stage in stages]}


class _Branching(_Several):
    """Each row takes one augmentation: `choice` `(n_rows,)` numbers it, beyond the last is none.

    ``drawn["branches"]`` has what each augmentation that some row takes drew for those rows.
    """

    @abstractmethod
    def _choose(self, n_rows: int, generator: torch.Generator) -> Tensor: ...

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        choice = self._choose(n_rows, generator)
        branches = {
            k: augmentation.draw(n_chosen, n_samples, generator)
            for k, augmentation in enumerate(self.augmentations)
            if (n_chosen := int((choice == k).sum()))
        }
        return {"choice": choice, "branches": branches}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        branches: dict[int, Drawn] = drawn["branches"]
        if len(branches) == 1 and (drawn["choice"] < len(self.augmentations)).all():
            ((k, of_branch),) = branches.items()  # every row: nothing to gather
            return self.augmentations[k].apply(waveform, of_branch)
        output = waveform.clone()
        for k, of_branch in branches.items():
            rows = beside((drawn["choice"] == k).nonzero()[:, 0], waveform)
            output[rows] = self.augmentations[k].apply(waveform[rows], of_branch)
        return output

    def _select(self, drawn: Drawn, start: int, stop: int) -> Drawn:
        branches = {}
        for k, of_branch in drawn["branches"].items():
            first, last = (int((drawn["choice"][:end] == k).sum()) for end in (start, stop))
            if first < last:
                branches[k] = self.augmentations[k].select(of_branch, first, last)
        return {"choice": drawn["choice"][start:stop], "branches": branches}


class OneOf(_Branching):
    """Apply one of several augmentations to each row, chosen with `weights` (equal if None).

    Example:
        >>> from asvspoof_cm.augmentation import Gain, WhiteNoise
        >>> OneOf([Gain(), WhiteNoise()], weights=[1, 3]).draw(1000, 8)["choice"].unique()
        tensor([0, 1])
    """

    def __init__(
        self, augmentations: Sequence[Augmentation], *, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(augmentations)
        self.weights = (1.0,) * len(self.augmentations) if weights is None else tuple(weights)
        wrong = len(self.weights) != len(self.augmentations) or min(self.weights) < 0
        if wrong or sum(self.weights) <= 0:
            raise ValueError(
                f"`weights` must be {len(self.augmentations)} numbers >= 0, one per augmentation, "
                f"not all zero; got {self.weights}."
            )

    def _choose(self, n_rows: int, generator: torch.Generator) -> Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return torch.multinomial(weights, n_rows, replacement=True, generator=generator)

    def __repr__(self) -> str:
        return f"OneOf({list(self.augmentations)}, weights={list(self.weights)})"


class RandomApply(_Branching):
    """Apply an augmentation to each row with probability `p`; other rows stay as they are.

    Example:
        >>> from asvspoof_cm.augmentation import WhiteNoise
        >>> changed = (RandomApply(WhiteNoise(), p=0.5)(torch.ones(1000, 8)) != 1).any(dim=1)
        >>> bool(400 < changed.sum() < 600)
        True
    """

    def __init__(self, augmentation: Augmentation, p: float) -> None:
        check_between("p", p, 0, 1)
        super().__init__([augmentation])
        self.p = p

    def _choose(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return (torch.rand(n_rows, dtype=torch.float64, generator=generator) >= self.p).long()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.augmentations[0]}, p={self.p})"
