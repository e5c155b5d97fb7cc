"""Batches of any origin, with what is known of their rows, and checked as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol as Interface, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from asvspoof_cm.data.dataset import SpoofDataset
from asvspoof_cm.data.loader import Batch, Loader
from asvspoof_cm.data.protocol import UNLABELLED
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics.groups import has_sources
from asvspoof_cm.utils.settings import describe, digest


@runtime_checkable
class _InEpochs(Interface):
    """Batches that differ from epoch to epoch."""

    def set_epoch(self, epoch: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of your own, and what is known of the rows that their indices count.

    `fit`, `train_epoch` and `validate` take any iterable of batches; this one adds to it. What
    `make_loader` returns needs nothing added.

    Attributes:
        batches: ``(waveform, label, index)`` triples, as in `Batch`. One with `set_epoch` is told
            the epoch, from 0.
        names: What to call the rows in an error.
        groups: The group of each row, integers, for losses that want groups; negative for none.

    Example:
        >>> import torch
        >>> batch = Batch(torch.randn(2, 8000), torch.tensor([0, 1]), torch.arange(2))
        >>> batches = Batches([batch], names=["a.wav", "b.wav"])
        >>> [index.tolist() for waveform, label, index in batches]
        [[0, 1]]
    """

    batches: Iterable[Any]
    names: Sequence[str] | NDArray[np.str_] | None = None
    groups: ArrayLike | None = None

    @classmethod
    def of(cls, batches: Iterable[Any] | Self) -> Batches:
        """Return batches with what their loader knows of them."""
        if isinstance(batches, Batches):
            return batches
        known = cls(batches)
        if known.dataset is None:
            return known
        groups = batches.groups if isinstance(batches, Loader) else None
        return cls(batches, known.dataset.protocol.utterance, groups)

    @property
    def dataset(self) -> SpoofDataset | None:
        """The dataset behind them, where it is one of the library."""
        if isinstance(self.batches, Loader | DataLoader):
            dataset = self.batches.dataset
            return dataset if isinstance(dataset, SpoofDataset) else None
        return None

    @property
    def sources(self) -> NDArray[np.str_] | None:
        """The source of each row; None unless one has both classes."""
        if self.dataset is None:
            return None
        protocol = self.dataset.protocol
        return protocol.source if has_sources(protocol.label, protocol.source) else None

    @property
    def n_batches(self) -> int | None:
        """The number of batches per epoch, where it is known."""
        return len(self.batches) if isinstance(self.batches, Sized) else None

    def set_epoch(self, epoch: int) -> None:
        """Tell the batches which epoch comes next, from 0."""
        if isinstance(self.batches, _InEpochs):
            self.batches.set_epoch(epoch)
        elif self.dataset is not None:
            self.dataset.set_epoch(epoch)

    def check(self, name: str) -> None:
        """Raise unless they can be trained on: all labelled, and there in every epoch."""
        if self.dataset is not None:
            protocol = self.dataset.protocol
            unlabelled = protocol.utterance[protocol.label == UNLABELLED]
            if len(unlabelled):
                raise ValueError(
                    f"`{name}` must have labels; {len(unlabelled)} of its {len(protocol)} "
                    f"utterances have none, such as {unlabelled[0]}."
                )
        if isinstance(self.batches, Iterator):
            raise TypeError(
                f"`{name}` must be an iterable that can be gone through once per epoch; got a "
                f"{type(self.batches).__name__}, which is used up after one. Pass a list or a "
                "loader."
            )

    def describe(self) -> dict[str, Any]:
        """Return what they are: utterances and labels as a hash, and how they are served."""
        groups = {} if self.groups is None else {"groups": digest(self.groups)[:16]}
        if self.dataset is None or not isinstance(self.batches, Loader):
            names = {} if self.names is None else {"names": digest(self.names)[:16]}
            return {"type": describe(type(self.batches)), **names, **groups}
        protocol = self.dataset.protocol
        return {
            "protocol": {"sha256": protocol.sha256(), **protocol.counts()},
            "batch_size": self.batches.batch_size,
            "order": describe(self.batches.order),
            "crop": self.dataset.crop,
            "augment": describe(self.dataset.augment),
            "seed": [self.batches.seed, self.dataset.seed],
            **groups,
        }

    def shown(self, index: Tensor) -> str:
        """Return the names of rows."""
        names = self.names
        return ", ".join(f"row {k}" if names is None else str(names[k]) for k in index.tolist())

    def check_labels(self, label: Tensor, index: Tensor) -> None:
        """Raise unless all labels are 0 or 1."""
        wrong = (label != SPOOF) & (label != BONAFIDE)
        if wrong.any():
            raise ValueError(
                f"labels must be {SPOOF} (spoof) or {BONAFIDE} (bonafide); got "
                f"{label[wrong][0].item()} for {self.shown(index.cpu()[wrong.cpu()][:1])}."
            )

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield self._checked(batch)

    def _checked(self, batch: Any) -> Batch:
        """Return a batch whose shapes are right; labels elsewhere are looked at after the epoch."""
        rule = "a batch must be (waveform (batch, time), label (batch,), index (batch,))"
        if not isinstance(batch, Sequence) or len(batch) != 3:
            n = f" of {len(batch)}" if isinstance(batch, Sized) else ""
            raise TypeError(
                f"{rule}; got a {type(batch).__name__}{n}. Let the dataset return the number of "
                "the row too, or use make_loader."
            )
        wrong = [type(part).__name__ for part in batch if not isinstance(part, Tensor)]
        if wrong:
            raise TypeError(f"{rule}, all of them tensors; got a {wrong[0]}.")
        waveform, label, index = batch
        shapes = [tuple(part.shape) for part in batch]
        if waveform.dim() != 2 or not len(waveform) or shapes[1:] != [(len(waveform),)] * 2:
            hint = ""
            if waveform.dim() == 3 and waveform.shape[1] == 1:
                hint = " Take the axis of channels out: waveform[:, 0]."
            raise ValueError(f"{rule}; got shapes {', '.join(map(str, shapes))}.{hint}")
        if not waveform.is_floating_point() or any(
            part.is_floating_point() or part.is_complex() for part in (label, index)
        ):
            kinds = ", ".join(str(part.dtype) for part in batch)
            raise TypeError(f"{rule}, of floats, integers and integers; got {kinds}.")
        if label.device.type == "cpu":
            self.check_labels(label, index)
        return Batch(waveform, label.long(), index)
