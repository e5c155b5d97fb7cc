"""Batches of a dataset: in parallel, in a reproducible order, on one process or several."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from asvspoof_cm.data.dataset import Failure, Item, SpoofDataset
from asvspoof_cm.data.orders import Order, shuffled
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.utils.checks import check_between
from asvspoof_cm.utils.processes import n_cores, rank_and_size
from asvspoof_cm.utils.seeds import derive_seed

logger = logging.getLogger(__name__)
_MAX_WORKERS = 8


class Batch(NamedTuple):
    """Several utterances; `label` and `index` stay on the CPU, where looking at them is free."""

    waveform: Tensor
    """Crops of shape (batch, n_samples)."""
    label: Tensor
    """Labels of shape (batch,), int64."""
    index: Tensor  # type: ignore[assignment]
    """Rows of the protocol of shape (batch,), int64."""


def make_loader(
    dataset: SpoofDataset,
    *,
    shuffle: bool = False,
    order: Order | None = None,
    batch_size: int = 64,
    seed: int = 0,
    n_workers: int | None = None,
    device: torch.device | str | None = None,
    group_by: str | None = None,
) -> Loader:
    """Return an iterable of `Batch` over a dataset.

    Where a process group of `torch.distributed` is up, each process gets its share, every
    ``world_size``-th utterance, so that batch k of all processes together is batch k of one
    process with the joint batch size. With `shuffle` or `order`, shares are equal: up to
    ``world_size − 1`` utterances, others in each epoch, are left out. Without, each utterance is in
    one share exactly, and a process may have one batch more than another.

    Args:
        dataset: The utterances.
        shuffle: True for training, False for evaluation.
        order: The rows of each epoch in another order than a random one: called with the epoch and
            a generator seeded for it, it returns indices into the protocol, of any number, any of
            them repeated or left out. Instead of `shuffle`.
        batch_size: The size of a batch of this process; the last one may be smaller.
        seed: The seed of the order; an epoch's order follows from it and the epoch alone.
        n_workers: Processes that read ahead; None for one per core less one, at most 8, divided by
            the processes on this machine. 0 reads in this process.
        device: Where to put the waveforms; None leaves them on the CPU. Memory is pinned
            for CUDA only.
        group_by: The column of the protocol that losses over groups take for groups.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=6, n_dev=2)
        >>> dataset = SpoofDataset(paths.train_protocol, paths.audio_dir)
        >>> loader = make_loader(dataset, shuffle=True, batch_size=4, n_workers=0)
        >>> for epoch in range(2):
        ...     loader.set_epoch(epoch)
        ...     [waveform.shape for waveform, label, index in loader]
        [torch.Size([4, 64000]), torch.Size([2, 64000])]
        [torch.Size([4, 64000]), torch.Size([2, 64000])]
    """
    check_between("batch_size", batch_size, 1)
    rank, world_size = rank_and_size()
    if shuffle and order is not None:
        raise ValueError("`shuffle` must be False where `order` is given.")
    if shuffle:
        order = shuffled(dataset.protocol)
    sampler = _ShareSampler(len(dataset), order, seed, rank, world_size)
    if len(dataset) < (world_size if order else 1):
        raise ValueError(
            f"`dataset` must hold an utterance for each of {world_size} processes; "
            f"it holds {len(dataset)}."
        )
    if n_workers is None:
        n_workers = min(_default_workers(world_size), -(-len(sampler) // batch_size))
    device = None if device is None else torch.device(device)
    batches: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=n_workers,
        collate_fn=collate,
        pin_memory=device is not None and device.type == "cuda",
        persistent_workers=n_workers > 0,
        # Else torch would draw the workers' seed from the global generator.
        generator=torch.Generator().manual_seed(derive_seed(seed)),
    )
    groups = None if group_by is None else _numbers(dataset.protocol, group_by)
    return Loader(batches, dataset, sampler, device, groups)


def _numbers(protocol: Protocol, column: str) -> NDArray[np.int64]:
    """Return a number for each value of a column, -1 where the protocol says nothing."""
    values = protocol.column(column)
    groups = np.unique(values, return_inverse=True)[1].astype(np.int64)
    groups[values == ABSENT] = -1
    return groups


class Loader:
    """What `make_loader` returns: batches of the epoch chosen with `set_epoch`.

    Attributes:
        dataset: The dataset.
        batch_size: The size of a batch of this process.
        order: The order of the rows; None is that of the protocol.
        seed: The seed of the order.
        failures: The utterances of the newest epoch that could not be read; only with
            ``on_error="skip"``. A warning is logged at the end of an epoch that has any.
        groups: The number of each row's group, -1 for none; None without `group_by`.
    """

    def __init__(
        self,
        batches: DataLoader[Any],
        dataset: SpoofDataset,
        sampler: _ShareSampler,
        device: torch.device | None,
        groups: NDArray[np.int64] | None,
    ) -> None:
        self.dataset = dataset
        self.groups = groups
        self.failures: list[Failure] = []
        self.batch_size = batches.batch_size
        self.order = sampler.order
        self.seed = sampler.seed
        self._batches = batches
        self._sampler = sampler
        self._device = device

    def set_epoch(self, epoch: int) -> None:
        """Choose the order, the crops and the augmentation of the next epoch."""
        self.dataset.set_epoch(epoch)
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches of an epoch in which every utterance can be read."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        self.failures = []
        n_read = 0
        for batch, failures in self._batches:
            self.failures += failures
            if batch is None:
                # Processes that train together must see as many batches as each other.
                n_processes = self._sampler.world_size
                if n_processes > 1 and self.order is not None:
                    raise ValueError(
                        f"no utterance of a batch could be read, and {n_processes} processes "
                        f"share the epoch. The first: {_describe(failures[0])}"
                    )
                continue
            n_read += len(batch.index)
            if self._device is not None:
                batch = batch._replace(waveform=batch.waveform.to(self._device, non_blocking=True))
            yield batch
        if not self.failures:
            return
        first = _describe(self.failures[0])
        if n_read == 0:
            raise ValueError(f"none of {len(self.failures)} utterances could be read: {first}")
        logger.warning(
            "epoch %d: skipped %d of %d utterances that could not be read, such as %s",
            self._sampler.epoch + 1,
            len(self.failures),
            len(self.failures) + n_read,
            first,
        )


def collate(items: Sequence[Item | Failure]) -> tuple[Batch | None, list[Failure]]:
    """Put items into a batch, None where there is none, and failures into a list."""
    failures = [item for item in items if isinstance(item, Failure)]
    read = [tuple(item) for item in items if isinstance(item, Item)]
    return (Batch(*default_collate(read)) if read else None), failures


@dataclass(eq=False)
class _ShareSampler(Sampler[int]):
    """One process's share of a dataset's indices, in the order of the epoch."""

    n_items: int
    order: Order | None
    seed: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if self.order is None:
            self._share = torch.arange(self.rank, self.n_items, self.world_size)
            return
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.epoch))
        rows = torch.as_tensor(self.order(self.epoch, generator))
        if rows.dim() != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise ValueError(
                "`order` must return indices of shape (n,); got "
                f"{rows.dtype} of shape {tuple(rows.shape)}."
            )
        if len(rows) < self.world_size or rows.min() < 0 or rows.max() >= self.n_items:
            raise ValueError(
                f"`order` must return at least {self.world_size} indices, all from 0 to "
                f"{self.n_items - 1}; got {len(rows)}"
                + (f" from {int(rows.min())} to {int(rows.max())}." if len(rows) else ".")
            )
        self._share = rows[self.rank :: self.world_size][: len(rows) // self.world_size]

    def __iter__(self) -> Iterator[int]:
        yield from self._share.tolist()

    def __len__(self) -> int:
        return len(self._share)


def _default_workers(world_size: int) -> int:
    if multiprocessing.current_process().daemon:
        return 0
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return max(0, min(_MAX_WORKERS, n_cores() // n_processes - 1))


def _describe(failure: Failure) -> str:
    return f"{failure.utterance} ({failure.message})"
