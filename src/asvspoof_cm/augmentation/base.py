"""The contract of every augmentation: draw, then apply what was drawn.

A draw is a dict that can be printed, stored with ``torch.save`` and replayed: CPU tensors or tuples
with one entry per row of the batch, one seed per row for noise, or lists of further draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import torch
from torch import Tensor

from asvspoof_cm._util import check_float

CHUNK: Final = 2**19  # samples that are augmented at a time, on the CPU
# Limits in dB: beyond a factor of 1e10 float32 runs out; an SNR of (inf, inf) adds nothing.
GAIN_DB: Final = (-200.0, 200.0)
SNR_DB: Final = (-200.0, math.inf)

Drawn: TypeAlias = dict[str, Any]


class Augmentation(ABC):
    """A random change of waveforms that keeps their shape, dtype and device.

    A subclass writes `_apply`, which sees a `(n_rows, time)` waveform of float32 or float64. The
    values that `ranges` and `counts` name are drawn uniformly for each row, and a seed where
    `needs_seed` is set. A subclass with other draws writes `_draw`.

    Example:
        >>> from asvspoof_cm.augmentation import WhiteNoise
        >>> waveform, augment = torch.sin(torch.arange(16000) / 10), WhiteNoise(snr_db=(20.0, 20.0))
        >>> noisy = augment(waveform, generator=torch.Generator().manual_seed(0))
        >>> drawn = augment.draw(1, 16000, torch.Generator().manual_seed(0))
        >>> torch.equal(augment.apply(waveform, drawn), noisy)
        True
    """

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The limits of each field (low, high) that is drawn."""
    counts: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The same for whole numbers, both ends included."""
    needs_seed: ClassVar[bool] = False
    """Whether each row has a seed of its own."""

    def __post_init__(self) -> None:
        for name, limits in {**self.counts, **self.ranges}.items():
            check_range(name, getattr(self, name), *limits)

    def draw(self, n_rows: int, n_samples: int, generator: torch.Generator | None = None) -> Drawn:
        """Return what is random about `n_rows` waveforms; None takes a fresh seed."""
        if n_rows < 1 or n_samples < 1:
            raise ValueError(
                f"`n_rows` and `n_samples` must be at least 1; got {n_rows} and {n_samples}."
            )
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
            came = getattr(generator, "device", type(generator).__name__)
            raise TypeError(
                f"`generator` must be a torch.Generator on the CPU; got {came}. "
                "Make one with torch.Generator().manual_seed(seed)."
            )
        drawn = self._draw(n_rows, n_samples, generator)
        return {"of": type(self).__name__, "n_rows": n_rows, **drawn}

    def apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        """Return `waveform` `(time,)` or `(batch, time)` changed as `drawn` says."""
        rows = _as_rows(waveform)
        if drawn.get("of") != type(self).__name__:
            raise ValueError(
                f"`drawn` must come from {type(self).__name__}.draw; got that of "
                f"{drawn.get('of')!r}."
            )
        if len(rows) != drawn["n_rows"]:
            raise ValueError(
                f"`drawn` is for {drawn['n_rows']} rows; `waveform` has {len(rows)}. "
                f"Draw with n_rows={len(rows)}."
            )
        wide = rows if rows.dtype == torch.float64 else rows.float()
        # A few rows at a time stay in the processor's cache from the first step to the last.
        size = max(1, CHUNK // rows.shape[1]) if rows.device.type == "cpu" else len(rows)
        if size < len(rows):
            chunks = torch.split(torch.arange(len(rows)), size)
            changed = torch.cat([self._apply(wide[k], select_rows(drawn, k)) for k in chunks])
        else:
            changed = self._apply(wide, drawn)
        return changed.to(waveform.dtype).reshape(waveform.shape)

    def __call__(self, waveform: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw and apply; None takes a fresh seed."""
        n_rows, n_samples = _as_rows(waveform).shape
        return self.apply(waveform, self.draw(n_rows, n_samples, generator))

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        drawn = {name: integers((n_rows,), getattr(self, name), generator) for name in self.counts}
        drawn |= {name: uniform((n_rows,), getattr(self, name), generator) for name in self.ranges}
        seed = torch.randint(2**63 - 1, (n_rows,), generator=generator)
        return {**drawn, "seed": seed} if self.needs_seed else drawn

    @abstractmethod
    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor: ...


def select_rows(drawn: Any, rows: Tensor) -> Any:
    """Return the part of a draw that belongs to some rows."""
    if isinstance(drawn, dict):
        selected = {name: select_rows(value, rows) for name, value in drawn.items()}
        return selected | ({"n_rows": len(rows)} if "n_rows" in drawn else {})
    if isinstance(drawn, list):
        return [select_rows(value, rows) for value in drawn]
    if isinstance(drawn, tuple):
        return tuple(drawn[row] for row in rows.tolist())
    return drawn[rows] if isinstance(drawn, Tensor) else drawn


def _as_rows(waveform: Tensor) -> Tensor:
    check_float(waveform)
    if waveform.dim() not in (1, 2) or waveform.numel() == 0:
        raise ValueError(
            "`waveform` must have shape (time,) or (batch, time) and hold samples; "
            f"got {tuple(waveform.shape)}."
        )
    return waveform if waveform.dim() == 2 else waveform[None]


def check_range(
    name: str, values: tuple[float, float], minimum: float = -math.inf, maximum: float = math.inf
) -> None:
    """Raise unless `values` are two ascending numbers in [minimum, maximum]."""
    ascending = len(values) == 2 and minimum <= values[0] <= values[1] <= maximum
    if not ascending or math.isinf(values[1] - values[0]):
        raise ValueError(
            f"`{name}` must be (low, high) with {minimum:g} <= low <= high <= {maximum:g} and a "
            f"finite width; got {values}."
        )


def uniform(
    shape: Sequence[int], values: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Return float64 values, uniform between the two of `values`."""
    low, high = values
    if low == high:  # also keeps an infinite SNR from becoming inf - inf
        return torch.full(tuple(shape), low, dtype=torch.float64)
    return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=generator)


def integers(shape: Sequence[int], values: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return int64 values, uniform from the first to the second of `values`, both included."""
    return torch.randint(values[0], values[1] + 1, tuple(shape), generator=generator)


def chance(n_rows: int, p: float, generator: torch.Generator) -> Tensor:
    """Return `(n_rows,)` bools that are true with probability `p`."""
    return uniform((n_rows,), (0, 1), generator) < p


def row_generators(seeds: Tensor, device: torch.device | str = "cpu") -> list[torch.Generator]:
    """Return one generator per row; a seed gives other noise on another kind of device."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds.tolist()]


def row_noise(like: Tensor, seeds: Tensor) -> Tensor:
    """Return white Gaussian noise like `like` `(n_rows, time)`, each row from its seed."""
    noise = torch.empty_like(like, requires_grad=False)
    if not like.is_meta:  # of which there are shapes only
        for row, generator in zip(noise, row_generators(seeds, like.device), strict=True):
            row.normal_(generator=generator)
    return noise


def beside(values: Tensor, waveform: Tensor) -> Tensor:
    """Copy drawn `values` to the device of `waveform`, not waiting; floats get its dtype."""
    dtype = waveform.dtype if values.is_floating_point() else values.dtype
    return values.to(waveform.device, dtype, non_blocking=True)


def columns(waveform: Tensor, drawn: Drawn, *names: str) -> list[Tensor]:
    """Return drawn values `(n_rows,)` beside the waveform, as `(n_rows, 1)`."""
    return [beside(drawn[name], waveform)[:, None] for name in names]
