"""What the three models share: the check of their input, and their configuration's rules."""

from __future__ import annotations

from torch import Tensor

__all__: list[str] = []


def check_waveforms(waveform: Tensor, n_least: int) -> None:
    """Raise unless `waveform` is a float tensor (batch, time) of at least `n_least` samples."""
    if waveform.dim() != 2:
        hint = " Add a batch axis: waveform[None]." if waveform.dim() == 1 else ""
        raise ValueError(
            f"`waveform` must have shape (batch, time); got {tuple(waveform.shape)}.{hint}"
        )
    if not waveform.is_floating_point():
        raise TypeError(
            f"`waveform` must be a float tensor; got {waveform.dtype}. "
            "Scale integers first: waveform / 32768 for int16."
        )
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
