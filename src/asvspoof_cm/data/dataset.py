"""The dataset of a protocol, and its batches in a reproducible order, on one process or several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from asvspoof_cm._util import check_between, check_choice, check_not_negative, derive_seed, n_cores
from asvspoof_cm.audio import (
    InMemory,
    InputSettings,
    OpenAudio,
    cut,
    random_start,
    set_level,
    take_crops,
)
from asvspoof_cm.data.folder import AudioPath, Item, audio_of
from asvspoof_cm.data.orders import Order, shuffled
from asvspoof_cm.data.protocol import Protocol, read_protocol

Array: TypeAlias = NDArray[np.float32]

_MAX_WORKERS = 8
_INT16 = 32768


@dataclass(frozen=True, eq=False)
class Batch:
    """Several utterances, as a loader gives them and a loss gets them.

    Attributes:
        waveform: Crops of shape (batch, n_samples), or (batch, n_crops, n_samples) to validate on.
        label: Labels of shape (batch,), int64.
        index: Rows of the protocol, shape (batch,), int64; -1 for rows that augmentation added.
        frame_label: Labels of equally long frames, shape (batch, n_frames), where there are any.
    """

    waveform: Tensor
    label: Tensor
    index: Tensor
    frame_label: Tensor | None = None

    def __len__(self) -> int:
        return len(self.label)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        return self._map(lambda column: column.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Return the batch in pinned memory, from where CUDA copies while it computes."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(*(None if v is None else function(v) for v in vars(self).values()))  # type: ignore[arg-type]


class Place(NamedTuple):
    """The index of an item for a sampler: the row, the epoch, and the length of the crop."""

    row: int
    epoch: int = 0
    crop_s: float | None = None


class SpoofDataset(Dataset[tuple[Tensor, int, int]]):
    """The utterances of a protocol as crops of one length.

    Item `row` is ``(waveform (n_samples,), label, row)``. In evaluation the crop is what a `Scorer`
    hears. In training nothing else is decoded; it follows from `seed`, the epoch and the row alone,
    and a copy (column `codec_seed`, or `parent`) is cut where its own recording is.

    Args:
        protocol: The utterances, or the file that lists them.
        audio_dir: The folder of their files or the root of the corpus (see `AudioFolder`), a list
            of files, or pairs of a name and its audio (see `find_audio`).
        crop: "random" for training, "center" for evaluation.
        n_crops: Evenly spaced crops of each utterance, for evaluation: items are then
            (n_crops, n_samples). None is a single one.
        input: Rate, length and level of the crops, such as ``model.input``.
        seed: The seed of the crops.
        in_memory: Keep what was decoded as 16-bit samples: 1 GB for each 9 hours at 16 kHz. It is
            then read in this process, without workers.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=4, n_dev=2)
        >>> dataset = SpoofDataset(paths.train_protocol, paths.audio_dir, crop="random", seed=42)
        >>> waveform, label, row = dataset[3]
        >>> waveform.shape
        torch.Size([64000])
    """

    def __init__(
        self,
        protocol: Protocol | str | os.PathLike[str],
        audio_dir: AudioPath | Iterable[Item],
        *,
        crop: Literal["center", "random"] = "center",
        n_crops: int | None = None,
        input: InputSettings | None = None,  # noqa: A002 — as `Countermeasure.input`
        seed: int = 0,
        in_memory: bool = False,
    ) -> None:
        check_choice("crop", crop, ("center", "random"))
        check_not_negative(seed=seed)
        check_between("n_crops", 1 if n_crops is None else n_crops, 1)
        if n_crops is not None and crop == "random":
            raise ValueError('`n_crops` must be None with crop="random", which cuts one.')
        self.input = input or InputSettings()
        self.protocol = read_protocol(protocol, require_labels=False)
        self._parents = self.protocol.parents()
        self.audio = audio_of(self.protocol, audio_dir)
        self.crop, self.n_crops, self.seed, self.in_memory = crop, n_crops, seed, in_memory
        self._kept: dict[int, NDArray[np.int16]] = {}

    def __len__(self) -> int:
        return len(self.protocol)

    def __getitem__(self, place: int | Place) -> tuple[Tensor, int, int]:
        row, epoch, crop_s = place if isinstance(place, tuple) else (place, 0, None)
        if not 0 <= row < len(self):
            raise IndexError(f"`row` must be from 0 to {len(self) - 1}; got {row}.")
        settings = self.input if crop_s is None else replace(self.input, crop_s=crop_s)
        with self._open(row) as audio:
            if self.crop == "random":
                # A copy is cut where its recording is.
                seed = derive_seed(self.seed, epoch, int(self._parents[row]))
                crops = _random_crop(audio, settings, torch.Generator().manual_seed(seed))
            else:
                heard = take_crops(audio, replace(settings, n_crops=self.n_crops or 1))
                crops = heard.crops[[*heard.which]]
                crops = crops[0] if self.n_crops is None else crops
        return torch.from_numpy(crops), int(self.protocol.label[row]), int(row)

    def _open(self, row: int) -> AbstractContextManager[OpenAudio]:
        rate = self.input.sample_rate
        if not self.in_memory:
            return self.audio[row].open(rate)
        if row not in self._kept:
            with self.audio[row].open(rate) as file:
                scaled = np.rint(file.read() * _INT16).clip(-_INT16, _INT16 - 1)
            self._kept[row] = scaled.astype(np.int16)
        return nullcontext(InMemory(self._kept[row] * np.float32(1 / _INT16), rate))


def _random_crop(audio: OpenAudio, settings: InputSettings, generator: torch.Generator) -> Array:
    n_samples, level = settings.n_samples, settings.normalization
    start = random_start(audio.n_samples, n_samples, generator)
    if audio.n_samples >= n_samples and level != "utterance":
        return set_level(audio.read(start, n_samples), level)
    whole = audio.read()
    return set_level(cut(whole, start, n_samples), level, float(np.abs(whole).max()))


def make_loader(
    dataset: SpoofDataset,
    *,
    shuffle: bool = False,
    order: Order | None = None,
    batch_size: int = 64,
    crop_s: Sequence[float] = (),
    seed: int = 0,
    n_workers: int | None = None,
    device: torch.device | str = "cpu",
) -> DataLoader[Any]:
    """Return a `DataLoader` of `Batch` over a dataset; its ``sampler.set_epoch`` begins an epoch.

    In a process group batch k of all processes is batch k of one process with the joint batch size.
    With `shuffle` or `order` an epoch is made of whole batches, and what is left over is left out.

    Args:
        dataset: The utterances.
        shuffle: True for training, False for evaluation.
        order: Instead of `shuffle`, what gives the rows of each epoch, such as `matched_pairs`:
            any number of them, repeated or left out.
        batch_size: The size of a batch of this process.
        crop_s: Lengths in seconds, of which each batch draws one; empty is the dataset's.
        seed: The seed of the order and of the lengths.
        n_workers: Processes that read ahead; None for one per core less one, at most 8, divided by
            the processes on this machine. A dataset in memory is read in this process.
        device: Where the batches will go: memory is pinned for CUDA.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=8, n_dev=2)
        >>> dataset = SpoofDataset(paths.train_protocol, paths.audio_dir)
        >>> loader = make_loader(dataset, shuffle=True, batch_size=4, n_workers=0)
        >>> [batch.waveform.shape for batch in loader]
        [torch.Size([4, 64000]), torch.Size([4, 64000])]
    """
    check_between("batch_size", batch_size, 1)
    if shuffle and order is not None:
        raise ValueError("`shuffle` must be False where `order` is given.")
    for seconds in crop_s:
        replace(dataset.input, crop_s=seconds)  # refused at once
    if dataset.in_memory and n_workers:
        raise ValueError(
            f"`n_workers` must be 0 for a dataset with in_memory=True, of which each worker would "
            f"keep a copy; got {n_workers}."
        )
    order = shuffled(dataset.protocol) if shuffle else order
    sampler = EpochSampler(len(dataset), batch_size, order, crop_s, seed)
    if n_workers is None:
        n_workers = min(_default_workers(sampler.world_size), -(-len(sampler) // batch_size))
    n_workers = 0 if dataset.in_memory else n_workers
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=n_workers,
        collate_fn=_collate,
        pin_memory=torch.device(device).type == "cuda",
        persistent_workers=n_workers > 0,
        # Else torch would draw the workers' seed from the global generator.
        generator=torch.Generator().manual_seed(derive_seed(seed)),
    )


def _collate(items: list[tuple[Tensor, int, int]]) -> Batch:
    return Batch(*default_collate(items))


class EpochSampler(Sampler[Place]):
    """One process's share of the places of an epoch, in its order; see `make_loader`."""

    def __init__(
        self, n_rows: int, batch_size: int, order: Order | None, crop_s: Sequence[float], seed: int
    ) -> None:
        self.rank, self.world_size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._n_rows, self._batch_size = n_rows, batch_size
        self._order, self._crop_s, self._seed = order, crop_s or (None,), seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the crops of the next epoch."""
        check_not_negative(epoch=epoch)
        self.epoch = epoch
        generator = torch.Generator().manual_seed(derive_seed(self._seed, epoch))
        self._rows = self._share(generator)
        n_batches = -(-len(self._rows) // self._batch_size)
        drawn = torch.randint(len(self._crop_s), (n_batches,), generator=generator)
        self._length_of = [self._crop_s[k] for k in drawn.tolist()]

    def _share(self, generator: torch.Generator) -> list[int]:
        if self._order is None:
            return [*range(self.rank, self._n_rows, self.world_size)]
        rows = np.asarray(self._order(self.epoch, generator))
        is_good = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) >= self.world_size
        if not is_good or rows.min() < 0 or rows.max() >= self._n_rows:
            found = f" from {rows.min()} to {rows.max()}" if rows.size else ""
            raise ValueError(
                f"`order` must return at least {self.world_size} indices from 0 to "
                f"{self._n_rows - 1}, shape (n,); got {rows.dtype} of shape {rows.shape}{found}."
            )
        n_whole = len(rows) // self.world_size
        if n_whole > self._batch_size:
            n_whole -= n_whole % self._batch_size
        share: list[int] = rows[self.rank :: self.world_size][:n_whole].tolist()
        return share

    def __iter__(self) -> Iterator[Place]:
        for k, row in enumerate(self._rows):
            yield Place(row, self.epoch, self._length_of[k // self._batch_size])

    def __len__(self) -> int:
        return len(self._rows)


def _default_workers(world_size: int) -> int:
    if multiprocessing.current_process().daemon:
        return 0  # it may have no processes of its own
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return max(0, min(_MAX_WORKERS, n_cores() // n_processes - 1))
