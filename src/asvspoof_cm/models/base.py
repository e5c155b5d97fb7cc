"""What the three models share: their contract, and the checks of their input and configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from asvspoof_cm.audio.waveforms import check_float

__all__ = ["Countermeasure"]


class Countermeasure(nn.Module, ABC):
    """A model that tells human from synthetic speech.

    Calling it maps waveforms (batch, time) to logits (batch, 2), index 0 spoof and 1 bonafide.

    Attributes:
        config: The frozen dataclass of plain values that the model was built from.
        meta: What a checkpoint says about the model: its training, its calibration.
    """

    config: Any

    def __init__(self) -> None:
        super().__init__()
        self.meta: dict[str, Any] = {}

    @abstractmethod
    def embed(self, waveform: Tensor) -> Tensor:
        """Return utterance vectors (batch, d) of waveforms (batch, time)."""


def check_waveforms(waveform: Tensor, n_least: int) -> None:
    """Raise unless `waveform` is a float tensor (batch, time) of at least `n_least` samples."""
    if waveform.dim() != 2:
        hint = " Add a batch axis: waveform[None]." if waveform.dim() == 1 else ""
        raise ValueError(
            f"`waveform` must have shape (batch, time); got {tuple(waveform.shape)}.{hint}"
        )
    if waveform.shape[0] == 0:  # len() would fix the batch of a traced graph
        raise ValueError("`waveform` must hold at least one row; got a batch of none.")
    check_float(waveform)
    if waveform.shape[-1] < n_least:
        raise ValueError(
            f"`waveform` must be at least {n_least} samples long; got {waveform.shape[-1]}. "
            "Repeat it first: fix_length(waveform)."
        )


def check_positive(config: object, *names: str) -> None:
    """Raise unless each named field of a configuration is a whole number of at least 1."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")


def check_probability(config: object, *names: str) -> None:
    """Raise unless each named field of a configuration lies in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1); got {value!r}.")
