"""What every metric asks of its inputs, and what it says when it doesn't get it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.labels import BONAFIDE, LABELS, SPOOF

__all__ = [
    "as_scores",
    "as_labels",
    "as_column",
    "check_choice",
    "check_seed",
    "finite_or_none",
    "split_by_label",
]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]


def as_scores(name: str, scores: ArrayLike) -> FloatArray:
    """Return `scores` as float64 of shape (n,), or say what is wrong with the argument `name`.

    Example:
        >>> as_scores("spoof", [1, 2])
        array([1., 2.])
    """
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
    """Return a mask of shape (n,), true for bonafide, from 0 / 1 or "spoof" / "bonafide".

    Example:
        >>> as_labels(["spoof", "bonafide"])
        array([False,  True])
    """
    values = np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(f"`labels` must have shape (n,); got {values.shape}.")
    words: dict[str | int, int] = {}
    if values.dtype.kind in "USOT":
        words.update(LABELS)
    if values.dtype.kind not in "UST":
        words.update({SPOOF: SPOOF, BONAFIDE: BONAFIDE})
    is_bonafide = np.zeros(values.shape, dtype=bool)
    is_spoof = np.zeros(values.shape, dtype=bool)
    for word, label in words.items():
        mask = is_bonafide if label == BONAFIDE else is_spoof
        mask |= values == word
    if not (is_bonafide | is_spoof).all():
        wrong = ~(is_bonafide | is_spoof)
        first = int(np.argmax(wrong))
        raise ValueError(
            '`labels` must be 0 or "spoof", 1 or "bonafide"; '
            f"got {values.tolist()[first]!r} at index {first} ({int(wrong.sum())} such of "
            f"{values.size})."
        )
    return is_bonafide


def split_by_label(scores: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the bonafide scores and the spoof scores of one list of trials.

    Example:
        >>> split_by_label([0.3, -2.0], ["bonafide", "spoof"])
        (array([0.3]), array([-2.]))
    """
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
    return values[is_bonafide], values[~is_bonafide]


def as_column(name: str, values: ArrayLike, n_trials: int) -> NDArray[Any]:
    """Return one value per trial, shape (n_trials,), of any type that sorts.

    Example:
        >>> as_column("speaker", ["E_1", "E_2"], 2).tolist()
        ['E_1', 'E_2']
    """
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


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ValueError unless `value` is one of `choices`.

    Example:
        >>> check_choice("ties", "official", ("official", "grouped"))
    """
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}; got {value!r}.")


def check_seed(seed: int) -> None:
    """Raise a ValueError where `seed` is negative, which no generator takes.

    Example:
        >>> check_seed(0)
    """
    if seed < 0:
        raise ValueError(f"`seed` must not be negative; got {seed}.")


def finite_or_none(content: Any) -> Any:
    """Return nested dictionaries with None for every NaN and infinity, which JSON doesn't know.

    Example:
        >>> finite_or_none({"value": 0.5, "threshold": float("inf")})
        {'value': 0.5, 'threshold': None}
    """
    if isinstance(content, dict):
        return {name: finite_or_none(value) for name, value in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content
