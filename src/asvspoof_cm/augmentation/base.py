"""The contract of every augmentation: draw the parameters, then apply them.

``augment.draw(n_rows, n_samples, generator)`` returns a frozen dataclass that can be printed,
stored and replayed; ``augment.apply(waveform, parameters)`` is a pure function of its arguments.
Calling ``augment(waveform, generator=generator)`` does both. Each row of a batch has its own draw.
Drawn values are CPU tensors of float64, int64 or bool; noise is kept as one seed a row.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from asvspoof_cm.utils.checks import check_finite, check_float, check_generator, check_range

__all__ = ["Augmentation", "Parameters"]

MAX_DB: Final = 200.0  # a factor of 1e10: beyond it, float32 runs out
CHUNK: Final = 2**19  # samples that are augmented at a time, on the CPU

F = TypeVar("F", bound=Callable[..., Tensor])


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """What was drawn for a batch of `n_rows` waveforms; each augmentation has a subclass.

    Example:
        >>> import torch
        >>> from asvspoof_cm.augmentation import Gain
        >>> drawn = Gain().draw(2, 16000, torch.Generator().manual_seed(0))
        >>> sorted(drawn.to_dict())
        ['gain_db', 'n_rows', 'type']
        >>> torch.equal(Parameters.from_dict(drawn.to_dict()).gain_db, drawn.gain_db)
        True
    """

    n_rows: int

    def select(self, start: int, stop: int) -> Self:
        """Return the parameters of the rows from `start` to `stop`, which is excluded."""
        n_rows = len(range(self.n_rows)[start:stop])
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen = {
            name: value.select(start, stop) if isinstance(value, Parameters) else value[start:stop]
            for name, value in values.items()
            if name != "n_rows"
        }
        return replace(self, n_rows=n_rows, **chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return nested dicts and lists of tensors, numbers and words.

        ``torch.save`` writes them, ``torch.load(weights_only=True)`` reads them.
        """
        content = {field.name: _pack(getattr(self, field.name)) for field in fields(self)}
        return {"type": type(self).__name__, **content}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Any:
        """Return the parameters that `to_dict` described."""
        kinds = {kind.__name__: kind for kind in _subclasses(Parameters)}
        if content.get("type") not in kinds:
            raise ValueError(
                f"`content` must come from Parameters.to_dict, with a `type` among "
                f"{sorted(kinds)}; got {content.get('type')!r}."
            )
        values = {name: _unpack(value) for name, value in content.items() if name != "type"}
        return kinds[content["type"]](**values)


def _subclasses(kind: type[Parameters]) -> list[type[Parameters]]:
    children = kind.__subclasses__()
    return children + [deeper for child in children for deeper in _subclasses(child)]


def _pack(value: Any) -> Any:
    if isinstance(value, Parameters):
        return value.to_dict()
    return [_pack(item) for item in value] if isinstance(value, tuple) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Parameters.from_dict(value)
    return tuple(_unpack(item) for item in value) if isinstance(value, list) else value


P = TypeVar("P", bound=Parameters)


class Augmentation(ABC, Generic[P]):
    """A random change of waveforms that keeps their shape, dtype and device.

    A subclass names its `parameters_type` and writes `_draw` and `_apply`; the latter sees a
    `(n_rows, time)` waveform of float32 or float64.

    Example:
        >>> import torch
        >>> from asvspoof_cm.augmentation import WhiteNoise
        >>> waveform = torch.sin(torch.arange(16000) / 10)
        >>> augment = WhiteNoise(snr_db=(20.0, 20.0))
        >>> noisy = augment(waveform, generator=torch.Generator().manual_seed(0))
        >>> drawn = augment.draw(1, 16000, torch.Generator().manual_seed(0))
        >>> torch.equal(augment.apply(waveform, drawn), noisy)
        True
    """

    parameters_type: ClassVar[type[Parameters]]

    @property
    def min_samples(self) -> int:
        """The shortest waveform that it changes as meant."""
        return 1

    def draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> P:
        """Return the parameters for `n_rows` waveforms of `n_samples`."""
        if n_rows < 1 or n_samples < 1:
            raise ValueError(
                f"`n_rows` and `n_samples` must be at least 1; got {n_rows} and {n_samples}."
            )
        check_generator(generator)
        return self._draw(n_rows, n_samples, generator)

    def apply(self, waveform: Tensor, parameters: P) -> Tensor:
        """Return `waveform` `(time,)` or `(batch, time)` changed as `parameters` say."""
        check_waveform(waveform)
        if not isinstance(parameters, self.parameters_type):
            raise TypeError(
                f"`parameters` must be {self.parameters_type.__name__}, as "
                f"{type(self).__name__}.draw returns; got {type(parameters).__name__}."
            )
        rows = waveform if waveform.dim() == 2 else waveform[None]
        if len(rows) != parameters.n_rows:
            raise ValueError(
                f"`parameters` were drawn for {parameters.n_rows} rows; `waveform` has "
                f"{len(rows)}. Draw with n_rows={len(rows)}."
            )
        return working_precision(self._apply_chunks)(rows, parameters).reshape(waveform.shape)

    def __call__(self, waveform: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw and apply."""
        check_shape(waveform)
        n_rows = waveform.shape[0] if waveform.dim() == 2 else 1
        return self.apply(waveform, self.draw(n_rows, waveform.shape[-1], generator))

    def _apply_chunks(self, waveform: Tensor, parameters: P) -> Tensor:
        # A few rows at a time stay in the processor's cache from the first step to the last.
        n_rows, size = len(waveform), max(1, CHUNK // waveform.shape[1])
        if n_rows <= size or waveform.device.type != "cpu":
            return self._apply(waveform, parameters)
        starts = range(0, n_rows, size)
        chunks = [(waveform[i : i + size], parameters.select(i, i + size)) for i in starts]
        return torch.cat([self._apply(*chunk) for chunk in chunks])

    @abstractmethod
    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> P: ...

    @abstractmethod
    def _apply(self, waveform: Tensor, parameters: P) -> Tensor: ...


def working_precision(function: F) -> F:
    """Let `function` see float32 where its waveform is narrower, and narrow its result."""

    @functools.wraps(function)
    def wrapped(waveform: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_float(waveform)
        wide = waveform if waveform.dtype == torch.float64 else waveform.float()
        return function(wide, *args, **kwargs).to(waveform.dtype)

    return cast(F, wrapped)


def check_waveform(waveform: Tensor) -> None:
    check_shape(waveform)
    check_finite(waveform)


def check_shape(waveform: Tensor) -> None:
    check_float(waveform)
    if waveform.dim() not in (1, 2) or waveform.numel() == 0:
        raise ValueError(
            "`waveform` must have shape (time,) or (batch, time) and hold samples; "
            f"got {tuple(waveform.shape)}."
        )


def check_gain(name: str, values: tuple[float, float]) -> None:
    """Raise unless `values` are a range in dB whose factors float32 can hold."""
    check_range(name, values, -MAX_DB, MAX_DB)


def check_snr(name: str, values: tuple[float, float]) -> None:
    """Raise unless `values` are a range in dB as for `check_gain`, or twice +inf: no noise."""
    if tuple(values) != (math.inf, math.inf):
        check_gain(name, values)


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


def draw_seeds(n_rows: int, generator: torch.Generator) -> Tensor:
    """Return one seed a row."""
    return torch.randint(2**63 - 1, (n_rows,), generator=generator)


def row_generators(seeds: Tensor, device: torch.device) -> list[torch.Generator]:
    """Return a generator a row, on the device where it is used.

    Note:
        Devices have their own generators: replaying a seed is exact on one kind of device, and
        gives other noise of the same law on another.
    """
    return [torch.Generator(device).manual_seed(seed) for seed in seeds.tolist()]


def row_noise(waveform: Tensor, seeds: Tensor) -> Tensor:
    """Return white Gaussian noise like `waveform` `(n_rows, time)`, each row from its seed."""
    noise = torch.empty_like(waveform, requires_grad=False)
    for row, generator in zip(noise, row_generators(seeds, waveform.device), strict=True):
        row.normal_(generator=generator)
    return noise


def beside(values: Tensor, waveform: Tensor) -> Tensor:
    """Return drawn `values` on the device of `waveform`; real ones in its dtype."""
    if values.is_floating_point():
        values = values.to(waveform.dtype)
    return values.to(waveform.device)
