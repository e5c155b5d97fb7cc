"""Speed perturbation: the same words faster and higher or slower and lower, another speaker."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.audio import resample
from asvspoof_cm.augmentation.base import Augmentation, Drawn, integers


@dataclass(frozen=True, kw_only=True)
class RandomSpeed(Augmentation):
    """Change the speed of each row by a random whole percentage, in the time it had.

    Pitch, formants and tempo move together, as with another speaker (Ko, Peddinti, Povey and
    Khudanpur, "Audio augmentation for speech recognition", Interspeech 2015). What then lasts
    longer loses its end; what is over sooner begins again. Rows go through the CPU, and no gradient
    passes. Give it to both classes: on one alone, a detector learns the change.

    Args:
        percent: Range of the speed, 100 being unchanged, 110 faster and higher.

    Example:
        >>> RandomSpeed()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    percent: tuple[int, int] = (90, 110)

    def __post_init__(self) -> None:
        for value in self.percent:
            if not 50 <= value <= 200 or value != int(value):
                raise ValueError(f"`percent` must be whole numbers from 50 to 200; got {value}.")
        if len(self.percent) != 2 or self.percent[0] > self.percent[1]:
            raise ValueError(f"`percent` must be (low, high); got {self.percent}.")

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {"percent": integers((n_rows,), self.percent, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        place, rows = torch.arange(waveform.shape[1], device=waveform.device), []
        for row, percent in zip(waveform, drawn["percent"].tolist(), strict=True):
            played = resample(row, 160 * percent, 16000)
            rows.append(played[place % len(played)])
        return torch.stack(rows)
