"""A random gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Parameters, beside, check_gain, uniform

__all__ = ["Gain", "GainParameters"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GainParameters(Parameters):
    """The gains of `Gain`.

    Attributes:
        gain_db: `(n_rows,)`.
    """

    gain_db: Tensor


@dataclass(frozen=True, kw_only=True)
class Gain(Augmentation[GainParameters]):
    """Multiply each row by a gain uniform in dB; nothing is clipped.

    Args:
        gain_db: Range of the gain.

    Example:
        >>> import torch
        >>> Gain(gain_db=(-20, -20))(torch.ones(3), generator=torch.Generator().manual_seed(0))
        tensor([0.1000, 0.1000, 0.1000])
    """

    gain_db: tuple[float, float] = (-12.0, 6.0)

    parameters_type: ClassVar[type[Parameters]] = GainParameters

    def __post_init__(self) -> None:
        check_gain("gain_db", self.gain_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> GainParameters:
        return GainParameters(n_rows=n_rows, gain_db=uniform((n_rows,), self.gain_db, generator))

    def _apply(self, waveform: Tensor, parameters: GainParameters) -> Tensor:
        return waveform * 10 ** (beside(parameters.gain_db, waveform) / 20)[:, None]
