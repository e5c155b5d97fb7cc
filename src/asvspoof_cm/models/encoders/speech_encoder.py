"""What `Encoder` asks of a speech encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

Call = Callable[..., Any]
"""``run(layer, *args)`` returns ``layer(*args)``, perhaps computed again for the gradient."""


def call(layer: Callable[..., Any], *args: Any) -> Any:
    """Return ``layer(*args)``."""
    return layer(*args)


class SpeechEncoder(nn.Module, ABC):
    """A network from waveforms (batch, time) of peak 1 to layers (batch, n_frames, width).

    Attributes:
        widths: The channels of each layer.
        n_least: The fewest samples it takes.
    """

    hop_length: ClassVar[int] = 320
    """Samples from frame to frame."""
    is_normalized: ClassVar[bool] = False
    """Whether the layers come normalised; otherwise each frame is, to mean 0 and variance 1."""

    widths: Sequence[int]
    n_least: int

    @abstractmethod
    def forward(self, waveform: Tensor, run: Call = call) -> list[Tensor]:
        """Return the layers of waveforms; each Transformer layer is called through `run`."""

    @abstractmethod
    def stages(self) -> list[Iterable[nn.Module]]:
        """Return the modules from bottom to top, in the steps that `freeze` counts."""

    @abstractmethod
    def load_published(self, path: Path | None = None) -> None:
        """Load the published weights from a file, or from where they are installed."""

    def set_recompute(self, on: bool) -> None:
        """Switch recomputing on or off where `run` does not reach the layers."""


def freeze_stages(encoder: SpeechEncoder, n_stages: int | None) -> None:
    """Take the lowest stages, or all for None, out of training."""
    stages = encoder.stages()
    if n_stages is None:
        encoder.requires_grad_(False)
        return
    if n_stages > len(stages):
        raise ValueError(
            f"`freeze` must not exceed the {len(stages)} stages of the encoder; got {n_stages}."
        )
    for stage in stages[:n_stages]:
        for module in stage:
            module.requires_grad_(False)
