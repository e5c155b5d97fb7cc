"""Batches of a dataset: in parallel, in a reproducible order, on one process or several."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol as Interface

import torch
import torch.distributed
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from asvspoof_cm.data.dataset import Failure, Item, SpoofDataset, derive_seed

__all__ = ["Batch", "Loader", "Order", "Shuffle", "collate", "make_loader"]

logger = logging.getLogger(__name__)
_MAX_WORKERS = 8


class Order(Interface):
    """What gives the rows of an epoch; see `make_loader`."""

    def __call__(self, epoch: int, generator: torch.Generator, /) -> Tensor | Sequence[int]:
        """Return the indices of an epoch in their order, shape (n,)."""


@dataclass(frozen=True)
class Shuffle:
    """Every row once, in an order of its own in each epoch.

    Example:
        >>> sorted(Shuffle(4)(0, torch.Generator().manual_seed(0)).tolist())
        [0, 1, 2, 3]
    """

    n_rows: int

    def __call__(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Return a permutation of the rows."""
        return torch.randperm(self.n_rows, generator=generator)


class Batch(NamedTuple):
    """Several utterances; `label` and `index` stay on the CPU, where looking at them is free.

    Example:
        >>> waveform, label, index = Batch(torch.zeros(2, 5), torch.tensor([0, 1]), torch.arange(2))
    """

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
    drop_last: bool = False,
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
        drop_last: Leave out the last batch where it is smaller.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import read_protocol, write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=6, n_dev=2)
        >>> dataset = SpoofDataset(read_protocol(paths.train_protocol), paths.audio_dir)
        >>> loader = make_loader(dataset, shuffle=True, batch_size=4, n_workers=0)
        >>> for epoch in range(2):
        ...     loader.set_epoch(epoch)
        ...     [waveform.shape for waveform, label, index in loader]
        [torch.Size([4, 64000]), torch.Size([2, 64000])]
        [torch.Size([4, 64000]), torch.Size([2, 64000])]
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1; got {batch_size}.")
    rank, world_size = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if shuffle and order is not None:
        raise ValueError("`shuffle` must be False where `order` is given.")
    if shuffle:
        order = Shuffle(len(dataset))
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
        drop_last=drop_last,
        persistent_workers=n_workers > 0,
        # Else torch would draw the workers' seed from the global generator.
        generator=torch.Generator().manual_seed(derive_seed(seed)),
    )
    return Loader(batches, dataset, sampler, device)


class Loader:
    """What `make_loader` returns: batches of the epoch chosen with `set_epoch`.

    Attributes:
        dataset: The dataset.
        batch_size: The size of a batch of this process.
        order: The order of the rows; None is that of the protocol.
        seed: The seed of the order.
        failures: The utterances of the newest epoch that could not be read; only with
            ``on_error="skip"``. A warning is logged at the end of an epoch that has any.
        world_size: How many processes share the dataset.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import read_protocol, write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=2, n_dev=6)
        >>> dataset = SpoofDataset(read_protocol(paths.dev_protocol), paths.audio_dir)
        >>> loader = make_loader(dataset, shuffle=False, batch_size=4, n_workers=0)
        >>> len(loader), [batch.index.tolist() for batch in loader], loader.failures
        (2, [[0, 1, 2, 3], [4, 5]], [])
    """

    def __init__(
        self,
        batches: DataLoader[Any],
        dataset: SpoofDataset,
        sampler: _ShareSampler,
        device: torch.device | None,
    ) -> None:
        self.dataset = dataset
        self.failures: list[Failure] = []
        self.batch_size = batches.batch_size
        self.order = sampler.order
        self.seed = sampler.seed
        self.world_size = sampler.world_size
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
                if self.world_size > 1 and self._sampler.order is not None:
                    raise ValueError(
                        f"no utterance of a batch could be read, and {self.world_size} processes "
                        f"share the epoch. The first: {_describe(failures[0])}"
                    )
                continue
            n_read += len(batch.index)
            yield batch if self._device is None else self._move(batch)
        if not self.failures:
            return
        first = _describe(self.failures[0])
        if n_read == 0:
            raise ValueError(f"none of {len(self.failures)} utterances could be read: {first}")
        logger.warning(
            "epoch %d: skipped %d of %d utterances that could not be read, such as %s",
            self._sampler.epoch,
            len(self.failures),
            len(self.failures) + n_read,
            first,
        )

    def _move(self, batch: Batch) -> Batch:
        return batch._replace(waveform=batch.waveform.to(self._device, non_blocking=True))


def collate(items: Sequence[Item | Failure]) -> tuple[Batch | None, list[Failure]]:
    """Put items into a batch, None where there is none, and failures into a list.

    Example:
        >>> batch, failures = collate([Item(torch.zeros(3), 1, 0), Failure(1, "b", "is empty")])
        >>> batch.waveform.shape, batch.label, failures[0].utterance
        (torch.Size([1, 3]), tensor([1]), 'b')
    """
    failures = [item for item in items if isinstance(item, Failure)]
    read = [tuple(item) for item in items if isinstance(item, Item)]
    return (Batch(*default_collate(read)) if read else None), failures


class _ShareSampler(Sampler[int]):
    """One process's share of a dataset's indices, in the order of the epoch."""

    def __init__(
        self, n_items: int, order: Order | None, seed: int, rank: int, world_size: int
    ) -> None:
        self.n_items = n_items
        self.order = order
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._share = self._take_share()

    def _take_share(self) -> Tensor:
        if self.order is None:
            return torch.arange(self.rank, self.n_items, self.world_size)
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
        return rows[self.rank :: self.world_size][: len(rows) // self.world_size]

    def __iter__(self) -> Iterator[int]:
        yield from self._share.tolist()

    def __len__(self) -> int:
        return len(self._share)


def _default_workers(world_size: int) -> int:
    if multiprocessing.current_process().daemon:
        return 0
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    else:
        n_cores = os.cpu_count() or 1
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return max(0, min(_MAX_WORKERS, n_cores // n_processes - 1))


def _describe(failure: Failure) -> str:
    return f"{failure.utterance} ({failure.message})"
