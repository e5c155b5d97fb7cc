"""What functions ask of their arguments, and what they say when they don't get it.

A message names the argument, the rule, what came and what to do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.labels import BONAFIDE, LABELS, SPOOF

if TYPE_CHECKING:
    from torch import Generator, Tensor

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

MIN_RATE, MAX_RATE = 1_000, 768_000
_MAX_DB = 200.0  # a factor of 1e10: beyond it, float32 runs out


def as_scores(name: str, scores: ArrayLike) -> FloatArray:
    """Return `scores` as float64 of shape (n,), or say what is wrong with the argument `name`."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(
            f"`{name}` must have shape (n,); got {values.shape}. Pass one score per trial."
        )
    if values.size == 0:
        raise ValueError(
            f"`{name}` must hold at least one score; got none. "
            "A metric needs trials of every class: check the labels and the order of arguments."
        )
    finite = np.isfinite(values)
    if not finite.all():
        n_nan = int(np.isnan(values).sum())
        n_infinite = int((~finite).sum()) - n_nan
        raise ValueError(
            f"`{name}` must be finite; got {n_nan} NaN and {n_infinite} infinite of {values.size} "
            f"scores, the first at index {int(np.argmin(finite))}. "
            "Find out why the model gave them (half precision overflows) and score again."
        )
    return values


def as_labels(labels: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of shape (n,), true for bonafide, from 0 / 1 or "spoof" / "bonafide"."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(f"`labels` must have shape (n,); got {values.shape}.")
    numbers, known = label_numbers(values, (SPOOF, BONAFIDE))
    if not known.all():
        first = int(np.argmin(known))
        raise ValueError(
            '`labels` must be 0 or "spoof", 1 or "bonafide"; '
            f"got {values.tolist()[first]!r} at index {first} ({int((~known).sum())} such of "
            f"{values.size})."
        )
    is_bonafide: NDArray[np.bool_] = numbers == BONAFIDE
    return is_bonafide


def label_numbers(
    values: NDArray[Any], allowed: Collection[int]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return labels (n,) of words or of `allowed` numbers, and which of them are known.

    Values are compared before they are cast, so that none wraps round.
    """
    words: dict[str | int, int] = {}
    if values.dtype.kind in "USOT":
        words.update(LABELS)
    if values.dtype.kind not in "UST":
        words.update({number: number for number in allowed})
    numbers = np.zeros(values.shape, dtype=np.int8)
    known = np.zeros(values.shape, dtype=bool)
    for word, number in words.items():
        matches = values == word
        numbers[matches] = number
        known |= matches
    return numbers, known


def split_by_label(scores: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the bonafide scores and the spoof scores of one list of trials."""
    values, is_bonafide = as_trials(scores, labels)
    return values[is_bonafide], values[~is_bonafide]


def as_trials(scores: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return scores (n,) and a mask (n,), true for bonafide, of trials of both classes."""
    values = as_scores("scores", scores)
    is_bonafide = as_labels(labels)
    if len(values) != len(is_bonafide):
        raise ValueError(
            f"`scores` and `labels` must be equally long; got {len(values)} and "
            f"{len(is_bonafide)}. Join them by file name first (metrics.read_scores, "
            "metrics.read_key)."
        )
    n_bonafide = int(is_bonafide.sum())
    if n_bonafide in (0, len(values)):
        missing, present = ("bonafide", "spoof") if n_bonafide == 0 else ("spoof", "bonafide")
        raise ValueError(
            f"`labels` must hold both classes; got {len(values)} {present} and no {missing} trial."
        )
    return values, is_bonafide


def as_column(name: str, values: ArrayLike, n_trials: int) -> NDArray[Any]:
    """Return one value per trial, shape (n_trials,), of any type that sorts."""
    column = np.asarray(values)
    if column.shape != (n_trials,):
        raise ValueError(
            f"`{name}` must have one value per trial, shape ({n_trials},); got {column.shape}."
        )
    if column.dtype.kind in "fO":
        missing = [i for i, value in enumerate(column.tolist()) if value is None or value != value]
        if missing:
            raise ValueError(
                f"`{name}` must have a value for every trial; {len(missing)} of {n_trials} are "
                f"None or NaN, the first at index {missing[0]}. Give them a name of their own."
            )
    return column


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise a ValueError unless `value` is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}; got {value!r}.")


def one_line(error: BaseException) -> str:
    """Return an error's message, or its type where it has none, without line breaks or tabs."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}."
    return " ".join(text.split()) or type(error).__name__


class Plain:
    """A dataclass that JSON can hold."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, ready for JSON; None for what isn't finite."""
        return {name: _plain(value) for name, value in vars(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Plain):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_between(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """Raise unless `minimum` <= `value` <= `maximum`."""
    if not minimum <= value <= maximum:
        bounds = f"between {minimum:g} and {maximum:g}"
        rule = f"at least {minimum:g}" if maximum == math.inf else bounds
        raise ValueError(f"`{name}` must be {rule}; got {value}.")


def check_positive_finite(**values: float) -> None:
    """Raise unless each value is positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite; got {value!r}.")


def check_not_negative(**values: float) -> None:
    """Raise unless each value is 0 or above, and finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            rule = "be finite" if value > 0 else "not be negative"
            raise ValueError(f"`{name}` must {rule}; got {value}.")


def check_inside_unit(**values: float) -> None:
    """Raise unless each value lies in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"`{name}` must lie between 0 and 1, excluded; got {value}.")


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


def check_gain(name: str, values: tuple[float, float]) -> None:
    """Raise unless `values` are a range in dB whose factors float32 can hold."""
    check_range(name, values, -_MAX_DB, _MAX_DB)


def check_snr(name: str, values: tuple[float, float]) -> None:
    """Raise unless `values` are a range in dB as for `check_gain`, or twice +inf: no noise."""
    if tuple(values) != (math.inf, math.inf):
        check_gain(name, values)


def check_rate(rate: int, name: str = "sample_rate") -> int:
    """Return a sampling rate if it is one: from 1 kHz to 768 kHz."""
    is_number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not is_number or not MIN_RATE <= rate <= MAX_RATE or rate != int(rate):
        raise ValueError(
            f"`{name}` must be a whole number of Hz from {MIN_RATE:,} to {MAX_RATE:,}; got "
            f"{rate!r}. Did you pass kHz?"
        )
    return int(rate)


def check_positive(config: Any, *names: str) -> None:
    """Raise unless each named field, or each of type int, is a whole number of at least 1."""
    for name in names or [field.name for field in fields(config) if field.type in ("int", int)]:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")


def check_frames(config: Any) -> None:
    """Raise unless the frames of a configuration's spectrum touch, and each fits in memory."""
    check_between("n_fft", config.n_fft, 2, 2**15)
    check_between("hop_length", config.hop_length, 1, config.n_fft)


def check_probability(config: object, *names: str) -> None:
    """Raise unless each named field of a configuration lies in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1); got {value!r}.")


def check_float(waveform: Tensor) -> None:
    """Raise unless `waveform` is a tensor of floating-point samples."""
    import torch

    if not isinstance(waveform, torch.Tensor):
        raise TypeError(
            f"`waveform` must be a torch.Tensor; got {type(waveform).__name__}. "
            "Convert an array: torch.from_numpy(waveform)."
        )
    if not waveform.is_floating_point():
        raise TypeError(
            f"`waveform` must be a float tensor; got {waveform.dtype}. "
            "Scale integers first: waveform / 32768 for int16."
        )


def check_one_waveform(waveform: Tensor | NDArray[Any]) -> None:
    """Raise unless `waveform` has shape (time,) and holds samples."""
    if waveform.ndim != 1:
        raise ValueError(
            f"`waveform` must have shape (time,); got {tuple(waveform.shape)}. "
            "Average channels, waveform.mean(0), and take batches one by one."
        )
    if len(waveform) == 0:
        raise ValueError("`waveform` must hold at least one sample; got none.")


def check_waveform_batch(waveform: Tensor, n_least: int) -> None:
    """Raise unless `waveform` is a float tensor (batch, time) of at least `n_least` samples."""
    if waveform.dim() != 2:
        hint = " Add a batch axis: waveform[None]." if waveform.dim() == 1 else ""
        raise ValueError(
            f"`waveform` must have shape (batch, time); got {tuple(waveform.shape)}.{hint}"
        )
    if waveform.shape[0] == 0:  # len() would fix the batch of a traced graph
        raise ValueError("`waveform` must hold at least one row; got a batch of none.")
    check_float(waveform)
    if waveform.shape[-1] < n_least:
        raise ValueError(
            f"`waveform` must be at least {n_least} samples long; got {waveform.shape[-1]}. "
            "Repeat it first: fix_length(waveform)."
        )


def check_finite(waveform: Tensor) -> None:
    """Raise where a sample is NaN or infinite."""
    # The extremes of a waveform with NaN are NaN; finding them is faster than looking at each.
    low, high = waveform.detach().aminmax()
    if not (low.isfinite() & high.isfinite()):
        n_finite, n_samples = int(waveform.isfinite().count_nonzero()), waveform.numel()
        raise ValueError(
            "`waveform` must be finite; got "
            f"{n_samples - n_finite} NaN or infinite of {n_samples} samples. "
            "Find the file, or the step before, that they come from."
        )


def as_generator(generator: Generator | None) -> Generator:
    """Return `generator` if it is one of the CPU; for None, a new one with a fresh seed."""
    import torch

    if generator is None:
        generator = torch.Generator()
        generator.seed()
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        came = getattr(generator, "device", type(generator).__name__)
        raise TypeError(
            f"`generator` must be a torch.Generator on the CPU; got {came}. "
            "Make one with torch.Generator().manual_seed(seed)."
        )
    return generator
