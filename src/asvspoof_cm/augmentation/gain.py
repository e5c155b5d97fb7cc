"""A random gain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, check_gain, uniform


@dataclass(frozen=True, kw_only=True)
class Gain(Augmentation):
    """Multiply each row by a gain uniform in dB; nothing is clipped.

    Args:
        gain_db: Range of the gain.

    Example:
        >>> import torch
        >>> Gain(gain_db=(-20, -20))(torch.ones(3), generator=torch.Generator().manual_seed(0))
        tensor([0.1000, 0.1000, 0.1000])
    """

    gain_db: tuple[float, float] = (-12.0, 6.0)

    def __post_init__(self) -> None:
        check_gain("gain_db", self.gain_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "gain_db": uniform((n_rows,), self.gain_db, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        return waveform * 10 ** (beside(drawn["gain_db"], waveform) / 20)[:, None]
