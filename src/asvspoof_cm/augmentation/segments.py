"""B12: bona fide speech cut into short segments and shuffled, an extra spoof example.

It resembles unit selection (attack A12 of ASVspoof 5), which waveform-level detectors miss most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from asvspoof_cm.augmentation.base import Augmentation, Drawn, beside, integers
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_between


@dataclass(frozen=True, kw_only=True)
class ShuffleSegments(Augmentation):
    """Cut each row, drop near-silent segments and shuffle the rest. The result counts as spoof.

    Args:
        mean_s: Mean lengths in seconds; each row takes one of them.
        variance_s2: Variance of the length, in s²; lengths are normal, at least one sample.
        silence: A segment is dropped where its mean |x| is below this share of the peak.
        sample_rate: Of the waveforms, in Hz.

    Note:
        The threshold is published for waveforms whose peak is 1, hence "share of the peak": the
        result doesn't depend on the level. What is kept is repeated up to the input's length. A
        row of near-silent segments only keeps them all. An order that would leave two or more
        kept segments as they were is rotated by one, so that no bona fide waveform comes out.

    Example:
        >>> ShuffleSegments()(torch.randn(2, 16000)).shape
        torch.Size([2, 16000])
    """

    mean_s: tuple[float, ...] = (0.08, 0.2)
    variance_s2: float = 2.5e-5
    silence: float = 0.05
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        if not self.mean_s or min(self.mean_s) * self.sample_rate < 1:
            raise ValueError(
                "`mean_s` must hold lengths in seconds of at least one sample; "
                f"got {self.mean_s} at {self.sample_rate} Hz."
            )
        check_between("variance_s2", self.variance_s2, 0)
        check_between("silence", self.silence, 0, 1)

    @property
    def min_samples(self) -> int:
        """Two of the longest mean segments: a shorter waveform could come out as it was."""
        return math.ceil(2 * max(self.mean_s) * self.sample_rate)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        choice = integers((n_rows,), (0, len(self.mean_s) - 1), generator)
        mean_s = torch.tensor(self.mean_s, dtype=torch.float64)[choice, None]
        n_more = math.ceil(1.2 * n_samples / (min(self.mean_s) * self.sample_rate)) + 1
        lengths = torch.empty(n_rows, 0, dtype=torch.int64)
        while lengths.shape[1] == 0 or int(lengths.sum(dim=1).min()) < n_samples:
            normal = torch.randn(n_rows, n_more, dtype=torch.float64, generator=generator)
            more_s = mean_s + math.sqrt(self.variance_s2) * normal
            more = (more_s * self.sample_rate).round().long().clamp_min(1)
            lengths = torch.cat((lengths, more), dim=1)
        lengths = pad(lengths.cumsum(dim=1).clamp_max(n_samples), (1, 0)).diff(dim=1)
        lengths = lengths[:, : int((lengths > 0).sum(dim=1).max())]
        keys = torch.rand(lengths.shape, dtype=torch.float64, generator=generator)
        return {"n_samples": lengths, "order": keys.argsort(dim=1)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        time, ends = waveform.shape[1], drawn["n_samples"].cumsum(dim=1)
        if not bool((ends[:, -1] == time).all()):
            raise ValueError(
                f"`n_samples` must sum to the waveform's {time} samples in each row; got "
                f"{ends[:, -1].tolist()}. Draw for this length."
            )
        n_samples, ends, order = (
            beside(values, waveform) for values in (drawn["n_samples"], ends, drawn["order"])
        )
        starts = ends - n_samples
        size = waveform.detach().abs()
        total = pad(size.cumsum(dim=1), (1, 0))
        mean = (total.gather(1, ends) - total.gather(1, starts)) / n_samples.clamp_min(1)
        loud = (mean >= self.silence * size.amax(dim=1, keepdim=True)) & (n_samples > 0)
        kept = torch.where(loud.any(dim=1, keepdim=True), loud, n_samples > 0).gather(1, order)
        starts = starts.gather(1, order)
        lengths = n_samples.gather(1, order) * kept
        ends = lengths.cumsum(dim=1)
        # Ascending, so far as kept, is as it was: begin with the second segment.
        highest = torch.where(kept, order, -1).cummax(dim=1).values
        is_same = (highest[:, :-1] < order[:, 1:]) | ~kept[:, 1:]
        first = lengths.gather(1, kept.long().argmax(dim=1, keepdim=True))
        shift = first * is_same.all(dim=1, keepdim=True)
        place = (torch.arange(time, device=waveform.device) + shift) % ends[:, -1:]
        segment = torch.searchsorted(ends, place, right=True)
        return waveform.gather(1, (starts - ends + lengths).gather(1, segment) + place)
