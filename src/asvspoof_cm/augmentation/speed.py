"""Speed perturbation: the same words faster and higher or slower and lower, another speaker."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asvspoof_cm.audio import resample
from asvspoof_cm.augmentation.base import Augmentation, Drawn, integers, working_precision


@working_precision
def change_speed(waveform: Tensor, percent: int) -> Tensor:
    """Play each waveform faster or slower, tempo and pitch alike, in the time it had.

    What then lasts longer loses its end; what is over sooner begins again.

    Args:
        waveform: `(..., time)`; it goes through the CPU, and no gradient passes.
        percent: Of the speed before: 110 is faster and higher.
    """
    _check_percent("percent", percent)
    n_samples = waveform.shape[-1]
    played = resample(waveform, percent, 100)
    return played[..., torch.arange(n_samples, device=played.device) % played.shape[-1]]


@dataclass(frozen=True, kw_only=True)
class RandomSpeed(Augmentation):
    """Change the speed of each row by a random whole percentage.

    Pitch, formants and tempo move together, as with another speaker (Ko, Peddinti, Povey and
    Khudanpur, "Audio augmentation for speech recognition", Interspeech 2015). Give it to both
    classes: on one alone, a detector learns the change.

    Args:
        percent: Range of the speed, 100 being unchanged.

    Example:
        >>> import torch
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> RandomSpeed()(x, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([16000])
    """

    percent: tuple[int, int] = (90, 110)

    def __post_init__(self) -> None:
        for value in self.percent:
            _check_percent("percent", value)
        if len(self.percent) != 2 or self.percent[0] > self.percent[1]:
            raise ValueError(f"`percent` must be (low, high); got {self.percent}.")

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        return {
            "percent": integers((n_rows,), self.percent, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        rows = zip(waveform, drawn["percent"].tolist(), strict=True)
        return torch.stack([change_speed(row, percent) for row, percent in rows])


def _check_percent(name: str, percent: int) -> None:
    if not 50 <= percent <= 200 or percent != int(percent):
        raise ValueError(f"`{name}` must be whole numbers from 50 to 200; got {percent}.")
