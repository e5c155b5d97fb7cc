"""Orders of drawing for `make_loader`: shuffled, balanced groups, and matched pairs.

Each function takes a protocol and returns an order, ``order(epoch, generator) -> rows``. It depends
on the generator alone, so processes that share an epoch draw the same rows and take their shares.
`n_rows` is how many an epoch has, None for one for each utterance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from asvspoof_cm._util import check_between
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import BONAFIDE, SPOOF

Order: TypeAlias = Callable[[int, Generator], Tensor | Sequence[int]]
"""What gives the rows of an epoch, shape (n,), from its number and a generator seeded for it."""

_N_PAIRS = 8  # in a block: first their bonafide rows, then their spoofs


def shuffled(protocol: Protocol, *, n_rows: int | None = None) -> Order:
    """Return an order in which every utterance comes once before any comes again.

    Example:
        >>> order = shuffled(Protocol.from_columns([*"abcd"]))
        >>> sorted(order(0, torch.Generator().manual_seed(0)).tolist())
        [0, 1, 2, 3]
    """
    n_total, n_drawn = len(protocol), _n_drawn(protocol, n_rows)

    def order(epoch: int, generator: Generator) -> Tensor:
        rounds = range(-(-n_drawn // n_total))
        return torch.cat([torch.randperm(n_total, generator=generator) for _ in rounds])[:n_drawn]

    return order


def group_balanced(protocol: Protocol, *, n_rows: int | None = None) -> Order:
    """Return an order that draws small groups more often than their size says.

    The groups of spoofs are attacks, those of bonafide utterances sources. Half of the draws are
    bonafide; a group is drawn, with replacement, by the root of its size.

    Example:
        >>> attack = ["-", "A1", "A1", "A1", "A1", "A2"]
        >>> protocol = Protocol.from_columns([*"abcdef"], [1, 0, 0, 0, 0, 0], attack=attack)
        >>> rows = group_balanced(protocol, n_rows=1000)(0, torch.Generator().manual_seed(0))
        >>> rows.bincount().div(1000).round(decimals=1)
        tensor([0.5000, 0.1000, 0.1000, 0.1000, 0.1000, 0.2000])
    """
    weights, n_drawn = torch.stack(_class_weights(protocol)).mean(0), _n_drawn(protocol, n_rows)

    def order(epoch: int, generator: Generator) -> Tensor:
        return torch.multinomial(weights, n_drawn, replacement=True, generator=generator)

    return order


def matched_pairs(
    protocol: Protocol, *, share: float = 0.8, parent_share: float = 0.0, n_rows: int | None = None
) -> Order:
    """Return an order of pairs: one bonafide and one spoofed utterance, mostly of one source.

    Utterances of one source share its rooms, codecs and habits, so what tells the two apart is the
    synthesis. Sources are drawn by the root of their size, what is not matched as `group_balanced`
    does. Rows come in blocks of 16: eight bonafide, then the eight spoofs of their pairs. A pair is
    in one batch, and on one of 2, 4 or 8 processes, if the (joint) batch size is a multiple of 16.

    Args:
        protocol: The utterances of the dataset, of both classes.
        share: The share of pairs that are matched.
        parent_share: The share of drawn copies (column `codec_seed`, or `parent`) whose bonafide
            partner is their own recording instead; `SpoofDataset` cuts both at the same place.
        n_rows: Draws per epoch, rounded up to whole blocks.

    Example:
        >>> protocol = Protocol.from_columns([*"abcd"], [1, 0, 1, 0], source=["x", "x", "y", "y"])
        >>> rows = matched_pairs(protocol, share=1.0)(0, torch.Generator().manual_seed(0))
        >>> rows.shape, bool((rows[8:] == rows[:8] + 1).all())
        (torch.Size([16]), True)
    """
    check_between("share", share, 0, 1)
    check_between("parent_share", parent_share, 0, 1)
    unmatched = _class_weights(protocol)
    n_pairs = -(-_n_drawn(protocol, n_rows) // (2 * _N_PAIRS)) * _N_PAIRS
    groups, codes = np.unique(protocol.clusters("source"), return_inverse=True)
    # For each class: its rows by group, where each group starts among them, and its size.
    members = []
    for label in (BONAFIDE, SPOOF):
        rows = np.flatnonzero(protocol.label == label)
        count = np.bincount(codes[rows], minlength=len(groups))
        members.append(
            (rows[np.argsort(codes[rows], kind="stable")], count.cumsum() - count, count)
        )
    (*_, n_bonafide), (*_, n_spoof) = members
    sizes = np.where((n_bonafide > 0) & (n_spoof > 0), n_bonafide + n_spoof, 0)
    if not sizes.any():
        raise ValueError(
            f"`protocol` must have a source with both classes; none of {len(groups)} has. Fill the "
            "column, or make copies of the bonafide utterances."
        )
    chance = torch.from_numpy(np.sqrt(sizes))
    parents = protocol.parents()
    has_own = (protocol.label == SPOOF) & (protocol.label[parents] == BONAFIDE)
    own_row = torch.from_numpy(np.where(has_own, parents, -1))

    def order(epoch: int, generator: Generator) -> Tensor:
        is_matched = torch.rand(n_pairs, generator=generator) < share
        group = torch.multinomial(chance, n_pairs, replacement=True, generator=generator)
        drawn = []
        for of_class, chances in zip(members, unmatched, strict=True):
            rows, starts, count = map(torch.from_numpy, of_class)
            place = torch.rand(n_pairs, generator=generator, dtype=torch.float64) * count[group]
            matched = rows[starts[group] + place.long()]
            other = torch.multinomial(chances, n_pairs, replacement=True, generator=generator)
            drawn.append(torch.where(is_matched, matched, other))
        bonafide, spoof = drawn
        own = own_row[spoof]
        takes_own = (torch.rand(n_pairs, generator=generator) < parent_share) & (own >= 0)
        pairs = (torch.where(takes_own, own, bonafide), spoof)
        return torch.cat([rows.view(-1, _N_PAIRS) for rows in pairs], dim=1).flatten()

    return order


def _class_weights(protocol: Protocol) -> list[Tensor]:
    """Return weights (n,) of bonafide and of spoofed rows, small groups more, each of sum 1."""
    found = []
    for label, column in ((BONAFIDE, protocol.source), (SPOOF, protocol.attack)):
        rows = np.flatnonzero(protocol.label == label)
        if not len(rows):
            raise ValueError(
                f"`protocol` must hold utterances of both classes; got {protocol.counts()}."
            )
        _, codes, counts = np.unique(column[rows], return_inverse=True, return_counts=True)
        weights = np.zeros(len(protocol))
        weights[rows] = counts[codes] ** -0.5
        found.append(torch.from_numpy(weights / weights.sum()))
    return found


def _n_drawn(protocol: Protocol, n_rows: int | None) -> int:
    if n_rows is None:
        return len(protocol)
    check_between("n_rows", n_rows, 1)
    return n_rows
