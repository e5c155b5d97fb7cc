"""Orders of drawing for `make_loader`: shuffled, balanced groups, and matched pairs.

Each function takes a protocol and returns an order, ``order(epoch, generator) -> rows``. It depends
on the generator alone, so processes that share an epoch draw the same rows and take their shares.
An epoch has `n_rows` draws, by default one for each utterance: of a large corpus a small number
makes epochs that are validated, saved and resumed often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from asvspoof_cm._util import check_between, check_inside_unit
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import BONAFIDE, SPOOF

N_PAIRS = 8
"""Pairs in a block: first their bonafide rows, then their spoofs."""


class Order(Interface):
    """What gives the rows of an epoch; see `make_loader`."""

    def __call__(self, epoch: int, generator: torch.Generator, /) -> Tensor | Sequence[int]:
        """Return the indices of an epoch in their order, shape (n,)."""


def shuffled(protocol: Protocol, *, n_rows: int | None = None) -> Order:
    """Return an order in which every utterance comes once before any comes again.

    Example:
        >>> order = shuffled(Protocol.from_columns([*"abcd"]))
        >>> sorted(order(0, torch.Generator().manual_seed(0)).tolist())
        [0, 1, 2, 3]
    """
    return _Shuffled(len(protocol), _check_n_rows(protocol, n_rows))


def group_balanced(
    protocol: Protocol, *, n_rows: int | None = None, power: float = 0.5, share: float = 0.5
) -> Order:
    """Return an order that draws small groups more often than their size says.

    The groups of spoofs are attacks, those of bonafide utterances sources. An utterance is drawn,
    with replacement, with a probability in proportion to size^-power of its group.

    Args:
        protocol: The utterances of the dataset, of both classes.
        n_rows: Draws per epoch; None is one for each utterance.
        power: 0 draws all utterances of a class alike, 1 all groups of a class alike.
        share: The share of bonafide utterances among the draws.

    Example:
        >>> attack = ["-", "A1", "A1", "A2"]
        >>> protocol = Protocol.from_columns([*"abcd"], [1, 0, 0, 0], attack=attack)
        >>> order = group_balanced(protocol, n_rows=1000, power=1.0)
        >>> rows = order(0, torch.Generator().manual_seed(0))
        >>> rows.bincount().div(1000).round(decimals=1)
        tensor([0.5000, 0.1000, 0.1000, 0.2000])
    """
    check_inside_unit(share=share)
    weights = _class_weights(protocol, power)
    human = torch.from_numpy(protocol.label == BONAFIDE)
    both = torch.where(human, share * weights, (1 - share) * weights)
    return _Weighted(both, _check_n_rows(protocol, n_rows))


def matched_pairs(
    protocol: Protocol,
    *,
    by: str = "source",
    share: float = 0.8,
    parent_share: float = 0.0,
    n_rows: int | None = None,
    power: float = 0.5,
) -> Order:
    """Return an order of pairs: one bonafide and one spoofed utterance, mostly of one source.

    Utterances of one source share its rooms, codecs and habits, so what tells the two apart is the
    synthesis. With a share of the pairs both come from one source, drawn with a probability in
    proportion to size^(1 − power); the others are drawn as `group_balanced` does. A copy shares
    most with its own recording, at the same place (`SpoofDataset` cuts it there): `parent_share`
    pairs them.

    Rows come in blocks of 16: eight bonafide, then the eight spoofs of their pairs. A pair is in
    one batch if the batch size is a multiple of 16. Where 2, 4 or 8 processes share an epoch, it is
    also on one process if the size of their joint batch is.

    Args:
        protocol: The utterances of the dataset, of both classes.
        by: The column that a pair shares, such as "source" or "speaker".
        share: The share of pairs that are matched.
        parent_share: The share of drawn copies (column `codec_seed`, or `parent`) whose bonafide
            partner is their own recording instead, where the protocol has it.
        n_rows: Draws per epoch, rounded up to whole blocks; None is one for each utterance.
        power: 0 draws sources by their size, 1 all alike; also for the pairs that are not matched.

    Example:
        >>> protocol = Protocol.from_columns([*"abcd"], [1, 0, 1, 0], source=["x", "x", "y", "y"])
        >>> rows = matched_pairs(protocol, share=1.0)(0, torch.Generator().manual_seed(0))
        >>> rows.shape, bool((rows[8:] == rows[:8] + 1).all())
        (torch.Size([16]), True)
    """
    check_between("share", share, 0, 1)
    check_between("parent_share", parent_share, 0, 1)
    weights = _class_weights(protocol, power)
    groups, codes = np.unique(protocol.clusters(by), return_inverse=True)
    members = []
    for label in (BONAFIDE, SPOOF):
        rows = np.flatnonzero(protocol.label == label)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        counts = np.bincount(codes[rows], minlength=len(groups))
        members.append((rows, np.cumsum(counts) - counts, counts))
    sizes = np.where((members[0][2] > 0) & (members[1][2] > 0), members[0][2] + members[1][2], 0)
    if not sizes.any():
        raise ValueError(
            f"`protocol` must have a {by} with both classes; none of {len(groups)} has. Name "
            "another column with `by`, or make copies of the bonafide utterances."
        )
    parents = protocol.parents()
    has_own = (protocol.label == SPOOF) & (protocol.label[parents] == BONAFIDE)
    human = torch.from_numpy(protocol.label == BONAFIDE)
    return _Pairs(
        tables=[tuple(torch.from_numpy(array) for array in part) for part in members],
        chance=torch.from_numpy(np.where(sizes > 0, np.maximum(sizes, 1.0) ** (1 - power), 0.0)),
        unmatched=[torch.where(human == is_human, weights, 0.0) for is_human in (True, False)],
        share=share,
        parents=torch.from_numpy(np.where(has_own, parents, -1)),
        parent_share=parent_share,
        n_blocks=-(-_check_n_rows(protocol, n_rows) // (2 * N_PAIRS)),
    )


@dataclass(frozen=True, eq=False)
class _Shuffled:
    n_total: int
    n_rows: int

    def __call__(self, epoch: int, generator: torch.Generator) -> Tensor:
        rounds = range(-(-self.n_rows // self.n_total))
        rows = [torch.randperm(self.n_total, generator=generator) for _ in rounds]
        return torch.cat(rows)[: self.n_rows]


@dataclass(frozen=True, eq=False)
class _Weighted:
    weights: Tensor
    n_rows: int

    def __call__(self, epoch: int, generator: torch.Generator) -> Tensor:
        return torch.multinomial(self.weights, self.n_rows, replacement=True, generator=generator)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Pairs:
    """Rows, first places and counts of each group, for both classes, and the rates of drawing."""

    tables: list[tuple[Tensor, ...]]
    chance: Tensor
    unmatched: list[Tensor]
    share: float
    parents: Tensor
    parent_share: float
    n_blocks: int

    def __call__(self, epoch: int, generator: torch.Generator) -> Tensor:
        n_pairs = self.n_blocks * N_PAIRS
        is_matched = torch.rand(n_pairs, generator=generator) < self.share
        group = torch.multinomial(self.chance, n_pairs, replacement=True, generator=generator)
        drawn = []
        for (rows, starts, counts), weights in zip(self.tables, self.unmatched, strict=True):
            place = torch.rand(n_pairs, generator=generator, dtype=torch.float64) * counts[group]
            matched = rows[starts[group] + place.long()]
            other = torch.multinomial(weights, n_pairs, replacement=True, generator=generator)
            drawn.append(torch.where(is_matched, matched, other))
        bonafide, spoof = drawn
        own = self.parents[spoof]
        takes_own = (torch.rand(n_pairs, generator=generator) < self.parent_share) & (own >= 0)
        pairs = (torch.where(takes_own, own, bonafide), spoof)
        return torch.cat([rows.view(-1, N_PAIRS) for rows in pairs], dim=1).flatten()


def _class_weights(protocol: Protocol, power: float) -> Tensor:
    """Return weights of shape (n,) that sum to 1 over each class, by size^-power of its groups."""
    check_between("power", power, 0, 1)
    weights = np.zeros(len(protocol))
    for label, column in ((BONAFIDE, protocol.source), (SPOOF, protocol.attack)):
        rows = np.flatnonzero(protocol.label == label)
        if not len(rows):
            raise ValueError(
                f"`protocol` must hold utterances of both classes; got {protocol.counts()}."
            )
        _, codes, counts = np.unique(column[rows], return_inverse=True, return_counts=True)
        weights[rows] = counts[codes] ** -power
        weights[rows] /= weights[rows].sum()
    return torch.from_numpy(weights)


def _check_n_rows(protocol: Protocol, n_rows: int | None) -> int:
    if n_rows is not None:
        check_between("n_rows", n_rows, 1)
    return len(protocol) if n_rows is None else n_rows
