"""The map-style dataset: one crop, its label and its index per item."""

from __future__ import annotations

import operator
import os
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol as Interface

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from asvspoof_cm.audio import InputSettings, crop_start, cut, set_level
from asvspoof_cm.data.audio_sources import open_audio
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.utils.checks import check_between, check_choice, check_not_negative
from asvspoof_cm.utils.seeds import derive_seed


class Augment(Interface):
    """What changes a waveform at random, as the objects of `asvspoof_cm.augmentation` do."""

    def __call__(self, waveform: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the changed waveform, of the same shape."""


class Item(NamedTuple):
    """One utterance of a dataset: its crop (n_samples,), label and row of the protocol."""

    waveform: Tensor
    label: int
    index: int  # type: ignore[assignment]


class Failure(NamedTuple):
    """An utterance that could not be read; `index` is its row of the protocol."""

    index: int  # type: ignore[assignment]
    utterance: str
    message: str


class SpoofDataset(Dataset["Item | Failure"]):
    """The utterances of a protocol as crops of one length.

    Item `index` is ``(waveform (n_samples,), label, index)``: a crop (section III-B.1 of the
    paper) at the level that `input` says, augmented. Only the crop is decoded of a longer file.

    What is random in an item follows from `seed`, the epoch and the index alone, so an epoch is the
    same whatever the number of workers and the order of the items. A copy (column `codec_seed`, or
    `parent`) is cut where its own recording is. `set_epoch` reaches workers that are running.

    Args:
        protocol: The utterances: a `Protocol`, or the file of one.
        audio_dir: The folder of their files, the root of the corpus (see `AudioFolder`), or a
            folder that `pack` wrote.
        crop: "random" for training, "center" for evaluation.
        n_samples: The length of a crop; None is that of `input`.
        input: Rate, length and level of the crops; None is 4 s at 16 kHz, divided by their own
            peak. The normalisation "utterance" reads the whole file for a crop of it.
        augment: Called with each waveform (n_samples,) and a generator; None leaves it as it is.
            Augmenting whole batches on the device is faster: leave this None and augment what the
            loader yields.
        seed: The seed of crops and augmentation.
        on_error: "raise" stops at an utterance that can't be read; "skip" returns a `Failure` in
            its place, which `make_loader` leaves out of the batch, counts and reports.

    Attributes:
        protocol: The utterances.
        audio: Where they are read from, an `AudioSource`.
        input: Rate, length and level of the crops, for the model that learns from them.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> paths = write_miniature(tempfile.mkdtemp(), n_train=4, n_dev=2)
        >>> dataset = SpoofDataset(paths.train_protocol, paths.audio_dir, crop="random", seed=42)
        >>> waveform, label, index = dataset[3]
        >>> waveform.shape, label == int(dataset.protocol.label[3]), index
        (torch.Size([64000]), True, 3)
    """

    def __init__(
        self,
        protocol: Protocol | str | os.PathLike[str],
        audio_dir: str | os.PathLike[str],
        *,
        crop: Literal["center", "random"] = "center",
        n_samples: int | None = None,
        input: InputSettings | None = None,  # noqa: A002 — as `Countermeasure.input`
        augment: Augment | None = None,
        seed: int = 0,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        check_choice("crop", crop, ("center", "random"))
        check_choice("on_error", on_error, ("raise", "skip"))
        check_not_negative(seed=seed)
        self.input = InputSettings() if input is None else input
        rate = self.input.sample_rate
        if n_samples is not None:
            check_between("n_samples", n_samples, 1)
            self.input = replace(self.input, crop_s=n_samples / rate)
        self.protocol = protocol = read_protocol(protocol, require_labels=False)
        self._parents = protocol.parents()
        self.audio = open_audio(protocol, audio_dir, sample_rate=rate)
        self.crop: Literal["center", "random"] = crop
        self.n_samples = self.input.n_samples
        self.augment = augment
        self.seed = seed
        self.on_error = on_error
        # In shared memory, because workers hold copies of the dataset.
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch that the next items belong to."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; call it between epochs, not while a loader is being read."""
        check_not_negative(epoch=epoch)
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.protocol)

    def __getitem__(self, index: int) -> Item | Failure:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"`index` must be from 0 to {len(self) - 1}; got {index}.")
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.epoch, index))
        try:
            waveform = self._read(index, generator)
        except (OSError, ValueError) as error:
            if self.on_error == "raise":
                raise
            return Failure(index, str(self.protocol.utterance[index]), str(error))
        if self.augment is not None:
            waveform = self.augment(waveform, generator=generator)
        return Item(waveform, int(self.protocol.label[index]), index)

    def _read(self, index: int, generator: torch.Generator) -> Tensor:
        normalization = self.input.normalization
        with self.audio.open(index) as file:
            parent = int(self._parents[index])
            if parent != index:
                seed = derive_seed(self.seed, self.epoch, parent)
                generator = torch.Generator().manual_seed(seed)
            start = crop_start(file.n_samples, self.n_samples, crop=self.crop, generator=generator)
            if file.n_samples >= self.n_samples and normalization != "utterance":
                crop = file.read(start, self.n_samples)
                # In place: the crop is ours, and new memory costs more than the division.
                return torch.from_numpy(set_level(crop, normalization, out=crop))
            whole = file.read()
            crop = cut(whole, start, self.n_samples)
            peak = float(np.abs(whole).max())
            return torch.from_numpy(set_level(crop, normalization, peak))
