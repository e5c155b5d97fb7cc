"""The contract that every model keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

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
