"""Trials by name: their labels, their scores, and how the two are joined."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.utils.checks import FloatArray, IntArray

Names: TypeAlias = NDArray[np.str_]

# What a name may have in one file and not in the other.
_DROPPED: Final = {
    "an extension": re.compile(r"\.(flac|wav|ogg|opus|mp3|aiff?|au|m4a)$", re.IGNORECASE),
    "a folder": re.compile(r"^.*[/\\]"),
}
_N_SHOWN = 3


class _Trials:
    """What scores and keys share."""

    filename: Names
    speaker: Names | None

    def __repr__(self) -> str:
        columns = [name for name, column in vars(self).items() if column is not None]
        return f"{type(self).__name__}({len(self.filename)} trials: {', '.join(columns)})"

    def trials(self) -> list[Any]:
        """What identifies a trial: the file name, in Track 2 with the claimed speaker."""
        names: list[str] = self.filename.tolist()
        return names if self.speaker is None else [*zip(self.speaker.tolist(), names, strict=True)]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Key(_Trials):
    """The labels of a set of trials, (n_trials,) each; the last two in Track 2 only.

    `cm_label` is 0 (spoof) or 1 (bonafide), `asv_label` "target", "nontarget" or "spoof".
    """

    filename: Names
    cm_label: IntArray
    speaker: Names | None = None
    asv_label: Names | None = None


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Scores(_Trials):
    """The scores of a set of trials, (n_trials,) each; None for those that the file leaves out.

    `cm` is the countermeasure's. In Track 2 there are the claimed speaker and the scores of speaker
    verification and of both systems combined.

    Example:
        >>> Scores(filename=np.array(["E_1", "E_2"]), cm=np.array([0.5, -1.0]))
        Scores(2 trials: filename, cm)
    """

    filename: Names
    cm: FloatArray | None
    speaker: Names | None = None
    asv: FloatArray | None = None
    sasv: FloatArray | None = None

    def for_key(self, key: Key) -> Scores:
        """Return these scores in the order of the trials of `key`, with its names.

        Where only one side's names have a folder, or the ending of an audio file such as ``.flac``,
        they are joined without it and a warning says so.

        Raises:
            ValueError: Where a trial is missing, not in the key or there twice, naming the first
                few.

        Example:
            >>> names, labels = np.array(["E_1", "E_2"]), np.array([0, 1])
            >>> key = Key(filename=names, cm_label=labels)
            >>> Scores(filename=names[::-1], cm=np.array([2.0, -1.0])).for_key(key).cm
            array([-1.,  2.])
        """
        if (self.speaker is None) != (key.speaker is None):
            with_speaker = "key" if self.speaker is None else "scores"
            raise ValueError(
                f"`scores` and `key` must be of the same track; only the {with_speaker} have a "
                "speaker column."
            )
        scored, wanted = self.trials(), key.trials()
        check_unique("the scores", scored)
        check_unique("the key", wanted)
        order = find_trials(wanted, scored)
        missing = [wanted[index] for index in np.flatnonzero(order < 0)]
        if missing or len(scored) != len(wanted):
            found = set(order.tolist())
            extra = [trial for index, trial in enumerate(scored) if index not in found]
            raise ValueError(
                f"the scores must cover the trials of the key; {_count('missing', missing)}, "
                f"{_count('not in the key', extra)}."
            )
        columns: dict[str, Any] = {
            name: None if column is None else column[order] for name, column in vars(self).items()
        }
        return replace(self, **{**columns, "filename": key.filename})


def find_trials(wanted: Sequence[Any], there: Sequence[Any]) -> IntArray:
    """Return where each wanted trial is, -1 where it isn't; see `Scores.for_key` for its names."""
    order = _places(wanted, there)
    if (order >= 0).all():
        return order
    sides: list[list[Any]] = [[*wanted], [*there]]
    dropped = []
    for what, pattern in _DROPPED.items():
        short = [[_drop(pattern, trial) for trial in side] for side in sides]
        if sum(new != old for new, old in zip(short, sides, strict=True)) == 1:
            sides = short
            dropped.append(what)
    if dropped and all(len(set(side)) == len(side) for side in sides):
        found = _places(*sides)
        if (found >= 0).sum() > (order >= 0).sum():
            pairs = zip((*wanted, *there), (*sides[0], *sides[1]), strict=True)
            long = next(trial for trial, without in pairs if trial != without)
            warnings.warn(
                f"only one of the files has names with {' and '.join(dropped)}, such as "
                f"{_text(long)}; they were joined without it.",
                stacklevel=3,
            )
            return found
    return order


def _places(wanted: Sequence[Any], there: Sequence[Any]) -> IntArray:
    place = {trial: index for index, trial in enumerate(there)}
    return np.fromiter((place.get(t, -1) for t in wanted), dtype=np.int64, count=len(wanted))


def _drop(pattern: re.Pattern[str], trial: Any) -> Any:
    return (
        pattern.sub("", trial) if isinstance(trial, str) else (trial[0], _drop(pattern, trial[1]))
    )


def check_unique(where: str, trials: Sequence[Any]) -> None:
    """Raise where a trial occurs twice."""
    if len(set(trials)) < len(trials):
        twice = [trial for trial, n in Counter(trials).items() if n > 1]
        raise ValueError(f"{where}: every trial must occur once; {_count('repeated', twice)}.")


def _count(what: str, trials: Sequence[Any]) -> str:
    if not trials:
        return f"0 are {what}"
    more = ", …" if len(trials) > _N_SHOWN else ""
    return f"{len(trials)} are {what} ({', '.join(map(_text, trials[:_N_SHOWN]))}{more})"


def _text(trial: Any) -> str:
    return trial if isinstance(trial, str) else " ".join(trial)
