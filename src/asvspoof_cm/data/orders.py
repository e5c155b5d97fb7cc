"""Orders of drawing for `make_loader`: balanced groups, and matched pairs.

Each function takes a protocol and returns an order, ``order(epoch, generator) -> rows``. It depends
on the generator alone, so processes that share an epoch draw the same rows and take their shares.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import BONAFIDE, SPOOF

Draw: TypeAlias = Callable[[int, torch.Generator], Tensor]

N_PAIRS = 8
"""Pairs in a block: first their bonafide rows, then their spoofs."""


def group_balanced(
    protocol: Protocol, *, n_rows: int | None = None, power: float = 0.5, share: float = 0.5
) -> Draw:
    """Return an order that draws small groups more often than their size says.

    The groups of spoofs are attacks, those of bonafide utterances sources. An utterance is drawn,
    with replacement, with a probability in proportion to size^-power of its group.

    Args:
        protocol: The utterances of the dataset, of both classes.
        n_rows: Draws of an epoch; None is one for each utterance.
        power: 0 draws all utterances of a class alike, 1 all groups of a class alike.
        share: Of bonafide utterances among the draws.

    Example:
        >>> attack = ["-", "A1", "A1", "A2"]
        >>> protocol = Protocol.from_columns([*"abcd"], [1, 0, 0, 0], attack=attack)
        >>> order = group_balanced(protocol, n_rows=1000, power=1.0)
        >>> rows = order(0, torch.Generator().manual_seed(0))
        >>> rows.bincount().div(1000).round(decimals=1)
        tensor([0.5000, 0.1000, 0.1000, 0.2000])
    """
    if not 0 < share < 1:
        raise ValueError(f"`share` must lie between 0 and 1, excluded; got {share}.")
    weights = _class_weights(protocol, power)
    human = torch.from_numpy(protocol.label == BONAFIDE)
    both = torch.where(human, share * weights, (1 - share) * weights)
    return functools.partial(_draw_weighted, both, _check_n_rows(protocol, n_rows))


def matched_pairs(
    protocol: Protocol,
    *,
    by: str = "source",
    share: float = 0.8,
    n_rows: int | None = None,
    power: float = 0.5,
) -> Draw:
    """Return an order of pairs, a bonafide and a spoofed utterance that share more than others do.

    Utterances of one source share its rooms, codecs and habits, so what tells the two apart is the
    synthesis. With a share of the pairs both come from one source, drawn with a probability in
    proportion to size^power; the others are drawn as `group_balanced` does.

    Rows come in blocks of 16: eight bonafide, then the eight spoofs of their pairs. A pair is so in
    one batch if its size is a multiple of 16. Where 2, 4 or 8 processes share an epoch, it is also
    on one process if the size of their joint batch is.

    Args:
        protocol: The utterances of the dataset, of both classes.
        by: The column that a pair shares: "source", "speaker", or "codec_seed" to pair a recording
            with its own copies.
        share: Of the pairs that are matched.
        n_rows: Draws of an epoch, rounded up to whole blocks; None is one for each utterance.
        power: See above; also for the pairs that are not matched.

    Example:
        >>> protocol = Protocol.from_columns([*"abcd"], [1, 0, 1, 0], source=["x", "x", "y", "y"])
        >>> rows = matched_pairs(protocol, share=1.0)(0, torch.Generator().manual_seed(0))
        >>> rows.shape, bool((rows[8:] == rows[:8] + 1).all())
        (torch.Size([16]), True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must lie between 0 and 1; got {share}.")
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
    chance = torch.from_numpy(np.where(sizes > 0, np.maximum(sizes, 1.0) ** power, 0.0))
    human = torch.from_numpy(protocol.label == BONAFIDE)
    unmatched = [torch.where(human == is_human, weights, 0.0) for is_human in (True, False)]
    n_blocks = -(-_check_n_rows(protocol, n_rows) // (2 * N_PAIRS))
    tables = [tuple(torch.from_numpy(array) for array in part) for part in members]
    return functools.partial(_draw_pairs, tables, chance, unmatched, share, n_blocks)


def _draw_weighted(weights: Tensor, n_rows: int, epoch: int, generator: torch.Generator) -> Tensor:
    return torch.multinomial(weights, n_rows, replacement=True, generator=generator)


def _draw_pairs(
    tables: list[tuple[Tensor, ...]],
    chance: Tensor,
    unmatched: list[Tensor],
    share: float,
    n_blocks: int,
    epoch: int,
    generator: torch.Generator,
) -> Tensor:
    n_pairs = n_blocks * N_PAIRS
    is_matched = torch.rand(n_pairs, generator=generator) < share
    group = torch.multinomial(chance, n_pairs, replacement=True, generator=generator)
    columns = []
    for (rows, starts, counts), weights in zip(tables, unmatched, strict=True):
        place = torch.rand(n_pairs, generator=generator, dtype=torch.float64) * counts[group]
        matched = rows[starts[group] + place.long()]
        other = torch.multinomial(weights, n_pairs, replacement=True, generator=generator)
        columns.append(torch.where(is_matched, matched, other).view(n_blocks, N_PAIRS))
    return torch.cat(columns, dim=1).flatten()


def _class_weights(protocol: Protocol, power: float) -> Tensor:
    """Return weights of shape (n,) that sum to 1 over each class, by size^-power of its groups."""
    if not 0 <= power <= 1:
        raise ValueError(f"`power` must lie between 0 and 1; got {power}.")
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
    if n_rows is None:
        return len(protocol)
    if n_rows < 1:
        raise ValueError(f"`n_rows` must be at least 1; got {n_rows}.")
    return n_rows
