"""Augmentations made of augmentations: in turn, one of several, or on some rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Parameters
from asvspoof_cm.utils.checks import check_between

__all__ = ["Branch", "Branches", "Compose", "OneOf", "RandomApply", "Stages"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stages(Parameters):
    """The parameters of each stage of a `Compose`."""

    stages: tuple[Parameters, ...]

    def select(self, start: int, stop: int) -> Stages:
        """Return the parameters of the rows from `start` to `stop`, which is excluded."""
        stages = tuple(stage.select(start, stop) for stage in self.stages)
        return Stages(n_rows=stages[0].n_rows, stages=stages)


@dataclass(frozen=True, kw_only=True, eq=False)
class Branch(Parameters):
    """The rows that take the augmentation number `choice`, and its parameters for them.

    Attributes:
        rows: `(n_rows,)`, indices into the batch, ascending.
    """

    choice: int
    rows: Tensor
    parameters: Parameters

    def select(self, start: int, stop: int) -> Branch:
        """Return the branch's part of the batch's rows from `start` to `stop`."""
        first, last = torch.searchsorted(self.rows, torch.tensor([start, stop])).tolist()
        return Branch(
            n_rows=last - first,
            choice=self.choice,
            rows=self.rows[first:last] - start,
            parameters=self.parameters.select(first, last),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Branches(Parameters):
    """Which rows of the batch take which augmentation; a row in no branch is left as it is."""

    branches: tuple[Branch, ...]

    def select(self, start: int, stop: int) -> Branches:
        """Return the parameters of the rows from `start` to `stop`, which is excluded."""
        n_rows = len(range(self.n_rows)[start:stop])
        branches = (branch.select(start, stop) for branch in self.branches)
        return Branches(n_rows=n_rows, branches=tuple(b for b in branches if b.n_rows))


class Compose(Augmentation[Stages]):
    """Apply several augmentations in turn.

    Example:
        >>> import torch
        >>> from asvspoof_cm.augmentation import Gain, WhiteNoise
        >>> augment = Compose([Gain(), WhiteNoise()])
        >>> augment(torch.ones(2, 100), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 100])
    """

    parameters_type: ClassVar[type[Parameters]] = Stages

    def __init__(self, augmentations: Sequence[Augmentation[Any]]) -> None:
        self.augmentations = _checked(augmentations)

    @property
    def min_samples(self) -> int:
        """That of the augmentation that needs the most."""
        return max(augmentation.min_samples for augmentation in self.augmentations)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Stages:
        stages = (stage.draw(n_rows, n_samples, generator) for stage in self.augmentations)
        return Stages(n_rows=n_rows, stages=tuple(stages))

    def _apply(self, waveform: Tensor, parameters: Stages) -> Tensor:
        for stage, drawn in zip(self.augmentations, parameters.stages, strict=True):
            waveform = stage.apply(waveform, drawn)
        return waveform

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.augmentations)})"


class OneOf(Augmentation[Branches]):
    """Apply one of several augmentations to each row, chosen with `weights` (equal if None).

    Example:
        >>> import torch
        >>> from asvspoof_cm.augmentation import Gain, WhiteNoise
        >>> augment = OneOf([Gain(), WhiteNoise()], weights=[1, 3])
        >>> drawn = augment.draw(1000, 8, torch.Generator().manual_seed(0))
        >>> sum(branch.n_rows for branch in drawn.branches)
        1000
    """

    parameters_type: ClassVar[type[Parameters]] = Branches

    def __init__(
        self,
        augmentations: Sequence[Augmentation[Any]],
        *,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.augmentations = _checked(augmentations)
        self.weights = (1.0,) * len(self.augmentations) if weights is None else tuple(weights)
        wrong = len(self.weights) != len(self.augmentations) or min(self.weights) < 0
        if wrong or sum(self.weights) <= 0:
            raise ValueError(
                f"`weights` must be {len(self.augmentations)} numbers >= 0, one an augmentation, "
                f"not all zero; got {self.weights}."
            )

    @property
    def min_samples(self) -> int:
        """That of the augmentation that needs the most."""
        return max(augmentation.min_samples for augmentation in self.augmentations)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Branches:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        choices = torch.multinomial(weights, n_rows, replacement=True, generator=generator)
        return draw_branches(self.augmentations, choices, n_samples, generator)

    def _apply(self, waveform: Tensor, parameters: Branches) -> Tensor:
        return apply_branches(self.augmentations, waveform, parameters)

    def __repr__(self) -> str:
        return f"OneOf({list(self.augmentations)}, weights={list(self.weights)})"


class RandomApply(Augmentation[Branches]):
    """Apply an augmentation to each row with probability `p`; other rows stay as they are.

    Example:
        >>> import torch
        >>> from asvspoof_cm.augmentation import WhiteNoise
        >>> augment, waveform = RandomApply(WhiteNoise(), p=0.5), torch.ones(64, 8)
        >>> drawn = augment.draw(64, 8, torch.Generator().manual_seed(0))
        >>> changed = (augment.apply(waveform, drawn) != waveform).any(dim=1).nonzero()[:, 0]
        >>> torch.equal(changed, drawn.branches[0].rows)
        True
    """

    parameters_type: ClassVar[type[Parameters]] = Branches

    def __init__(self, augmentation: Augmentation[Any], p: float) -> None:
        check_between("p", p, 0, 1)
        (self.augmentation,) = _checked([augmentation])
        self.p = p

    @property
    def min_samples(self) -> int:
        """That of the augmentation."""
        return self.augmentation.min_samples

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Branches:
        chosen = torch.rand(n_rows, dtype=torch.float64, generator=generator) < self.p
        return draw_branches([self.augmentation], (~chosen).long(), n_samples, generator)

    def _apply(self, waveform: Tensor, parameters: Branches) -> Tensor:
        return apply_branches([self.augmentation], waveform, parameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.augmentation}, p={self.p})"


def draw_branches(
    augmentations: Sequence[Augmentation[Any]],
    choices: Tensor,
    n_samples: int,
    generator: torch.Generator,
) -> Branches:
    """Draw for each row from the augmentation that `choices` numbers; beyond the last: none."""
    branches = []
    for choice, augmentation in enumerate(augmentations):
        rows = (choices == choice).nonzero()[:, 0]
        if len(rows):
            drawn = augmentation.draw(len(rows), n_samples, generator)
            branches.append(Branch(n_rows=len(rows), choice=choice, rows=rows, parameters=drawn))
    return Branches(n_rows=len(choices), branches=tuple(branches))


def apply_branches(
    augmentations: Sequence[Augmentation[Any]], waveform: Tensor, parameters: Branches
) -> Tensor:
    """Return `waveform` `(n_rows, time)` with the rows of each branch augmented."""
    if len(parameters.branches) == 1 and parameters.branches[0].n_rows == len(waveform):
        (branch,) = parameters.branches  # every row: nothing to gather
        return augmentations[branch.choice].apply(waveform, branch.parameters)
    output = waveform.clone()
    for branch in parameters.branches:
        rows = branch.rows.to(waveform.device)
        output[rows] = augmentations[branch.choice].apply(waveform[rows], branch.parameters)
    return output


def _checked(augmentations: Sequence[Augmentation[Any]]) -> tuple[Augmentation[Any], ...]:
    augmentations = tuple(augmentations)
    if not augmentations:
        raise ValueError("`augmentations` must hold at least one augmentation; got none.")
    for augmentation in augmentations:
        if not isinstance(augmentation, Augmentation):
            raise TypeError(
                f"`augmentations` must hold Augmentation objects; got "
                f"{type(augmentation).__name__}. A class needs its parentheses: Gain()."
            )
    return augmentations
