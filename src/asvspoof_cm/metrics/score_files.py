r"""The challenge's score and key files, joined by file name whatever their order.

Fields are separated by tabs, or by spaces where a line has no tab. A header is optional; without
it the columns are those of the challenge:

===== =================================== ========================================
track scores                              key
===== =================================== ========================================
1     filename cm-score                   filename cm-label
2     spk filename cm-score asv-score     spk filename cm-label asv-label
      sasv-score (``-`` where absent)
===== =================================== ========================================
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.labels import ABSENT, LABELS, SASV_CLASSES, SPOOF
from asvspoof_cm.utils.checks import FloatArray, as_column, as_scores
from asvspoof_cm.utils.files import atomic_path

SCORE_COLUMNS: Final = ("cm-score", "asv-score", "sasv-score")
_SCORE_HEADERS: Final = {
    2: ("filename", "cm-score"),
    5: ("spk", "filename", *SCORE_COLUMNS),
}
_KEY_HEADERS: Final = {
    2: ("filename", "cm-label"),
    4: ("spk", "filename", "cm-label", "asv-label"),
}
_N_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Key:
    """The labels of a set of trials.

    Attributes:
        filename: File names, shape (n_trials,).
        cm_label: 0 (spoof) or 1 (bonafide), shape (n_trials,).
        speaker: Claimed speakers, shape (n_trials,); Track 2 only.
        asv_label: "target", "nontarget" or "spoof", shape (n_trials,); Track 2 only.

    Example:
        >>> key = Key(filename=np.array(["E_1", "E_2"]), cm_label=np.array([1, 0]))
        >>> key.speaker is None
        True
    """

    filename: NDArray[np.str_]
    cm_label: NDArray[np.int64]
    speaker: NDArray[np.str_] | None = None
    asv_label: NDArray[np.str_] | None = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of a set of trials; a score that the file leaves out is None.

    Attributes:
        filename: File names, shape (n_trials,).
        cm: Countermeasure scores, shape (n_trials,).
        speaker: Claimed speakers, shape (n_trials,); Track 2 only.
        asv: Speaker verification scores, shape (n_trials,); Track 2 only.
        sasv: Scores of the combined system, shape (n_trials,); Track 2 only.

    Example:
        >>> Scores(filename=np.array(["E_1", "E_2"]), cm=np.array([0.5, -1.0])).cm
        array([ 0.5, -1. ])
    """

    filename: NDArray[np.str_]
    cm: FloatArray | None
    speaker: NDArray[np.str_] | None = None
    asv: FloatArray | None = None
    sasv: FloatArray | None = None

    def for_key(self, key: Key) -> Scores:
        """Return these scores in the order of the trials of `key`.

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
        scored, wanted = _trials(self.speaker, self.filename), _trials(key.speaker, key.filename)
        _check_unique("the scores", scored)
        _check_unique("the key", wanted)
        place = {trial: i for i, trial in enumerate(scored)}
        missing = [trial for trial in wanted if trial not in place]
        if missing or len(place) != len(wanted):
            extra = sorted(set(place).difference(wanted), key=place.__getitem__)
            raise ValueError(
                f"the scores must cover the trials of the key; {_count('missing', missing)}, "
                f"{_count('not in the key', extra)}."
            )
        order = np.fromiter((place[trial] for trial in wanted), dtype=np.int64, count=len(wanted))
        columns: dict[str, Any] = {
            name: None if column is None else column[order] for name, column in vars(self).items()
        }
        return replace(self, **columns)


def read_scores(path: str | os.PathLike[str]) -> Scores:
    r"""Read a score file of Track 1 or Track 2.

    Raises:
        ValueError: With the line number, on a wrong number of fields, a score that isn't a finite
            number, or trials that occur twice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scores.tsv"
        >>> _ = path.write_text("filename\tcm-score\nE_1\t0.5\nE_2\t-1\n")
        >>> read_scores(path).cm
        array([ 0.5, -1. ])
    """
    columns = _read_columns(path, _SCORE_HEADERS, SCORE_COLUMNS)
    values = {
        name: _parse_scores(path, name, columns[name]) for name in SCORE_COLUMNS if name in columns
    }
    if all(value is None for value in values.values()):
        raise ValueError(f"{path}: every score is absent ({ABSENT!r}).")
    return Scores(
        filename=np.array(columns["filename"].cells),
        cm=values.get("cm-score"),
        speaker=np.array(columns["spk"].cells) if "spk" in columns else None,
        asv=values.get("asv-score"),
        sasv=values.get("sasv-score"),
    )


def read_key(path: str | os.PathLike[str]) -> Key:
    r"""Read a key file of Track 1 or Track 2.

    Raises:
        ValueError: With the line number, on a wrong number of fields, an unknown label, or labels
            that contradict each other; also on trials that occur twice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "key.tsv"
        >>> _ = path.write_text("E_1 bonafide\nE_2 spoof\n")
        >>> read_key(path).cm_label
        array([1, 0])
    """
    columns = _read_columns(path, _KEY_HEADERS, ("cm-label",))
    cm_label = _parse_labels(path, columns["cm-label"], LABELS)
    labels = np.array([LABELS[word] for word in cm_label], dtype=np.int64)
    speaker = asv_label = None
    if "spk" in columns:
        speaker = np.array(columns["spk"].cells)
    if "asv-label" in columns:
        asv_label = np.array(_parse_labels(path, columns["asv-label"], SASV_CLASSES))
        wrong = np.flatnonzero((labels == SPOOF) != (asv_label == "spoof"))
        if len(wrong):
            raise ValueError(
                f"{path}, line {columns['cm-label'].lines[wrong[0]]}: cm-label and asv-label must "
                "agree, bonafide target, bonafide nontarget or spoof spoof; got "
                f"{cm_label[wrong[0]]} {asv_label[wrong[0]]}."
            )
    return Key(
        filename=np.array(columns["filename"].cells),
        cm_label=labels,
        speaker=speaker,
        asv_label=asv_label,
    )


def write_scores(
    path: str | os.PathLike[str],
    filename: Sequence[str] | NDArray[np.str_],
    cm: ArrayLike | None,
    *,
    speaker: Sequence[str] | NDArray[np.str_] | None = None,
    asv: ArrayLike | None = None,
    sasv: ArrayLike | None = None,
) -> None:
    r"""Write a score file with a header, whole or not at all; every digit survives.

    Args:
        path: Where to write.
        filename: File names, shape (n_trials,).
        cm: Countermeasure scores, shape (n_trials,); None for absent ones in Track 2.
        speaker: Claimed speakers, shape (n_trials,). With them the file is one of Track 2.
        asv: Speaker verification scores, shape (n_trials,); Track 2 only.
        sasv: Scores of the combined system, shape (n_trials,); Track 2 only.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scores.tsv"
        >>> write_scores(path, ["E_1", "E_2"], [0.5, -1.0])
        >>> path.read_text()
        'filename\tcm-score\nE_1\t0.5\nE_2\t-1.0\n'
    """
    text = _format_scores(filename, cm, speaker, asv, sasv)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_submission(
    path: str | os.PathLike[str],
    filename: Sequence[str] | NDArray[np.str_],
    cm: ArrayLike | None,
    *,
    speaker: Sequence[str] | NDArray[np.str_] | None = None,
    asv: ArrayLike | None = None,
    sasv: ArrayLike | None = None,
) -> None:
    """Write a challenge submission: a zip with the scores as ``score.tsv``.

    Equal scores give equal bytes. The arguments are those of `write_scores`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "submission.zip"
        >>> write_submission(path, ["E_1"], [0.5])
        >>> zipfile.ZipFile(path).namelist()
        ['score.tsv']
    """
    text = _format_scores(filename, cm, speaker, asv, sasv)
    member = zipfile.ZipInfo("score.tsv", date_time=(1980, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(member, text)


@dataclass(frozen=True)
class _Column:
    cells: Sequence[str]
    lines: Sequence[int]


def _read_columns(
    path: str | os.PathLike[str], headers: dict[int, tuple[str, ...]], required: Sequence[str]
) -> dict[str, _Column]:
    """Split the file into named columns and check that every trial occurs once."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}).") from error
    rows = [_fields(line) for line in text.split("\n")]
    lines = [number for number, row in enumerate(rows, start=1) if row]
    rows = [row for row in rows if row]
    header: tuple[str, ...] | None = None
    if rows and set(rows[0]) <= {name for names in headers.values() for name in names}:
        header = tuple(rows.pop(0))
        lines.pop(0)
        if len(set(header)) < len(header):
            raise ValueError(
                f"{path}: the header must name every column once; got {' '.join(header)}."
            )
        if "filename" not in header or not set(required) & set(header):
            raise ValueError(
                f"{path}: the header must name filename and {' or '.join(required)}; got "
                f"{' '.join(header)}."
            )
    if not rows:
        raise ValueError(f"{path}: the file holds no trial.")
    header = header or headers.get(len(rows[0]))
    if header is None:
        expected = " or ".join(f"{n} ({' '.join(names)})" for n, names in headers.items())
        raise ValueError(
            f"{path}: a line must have {expected} fields; line {lines[0]} has {len(rows[0])}."
        )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(header)} fields expected ({' '.join(header)}), "
                f"found {len(row)}."
            )
    columns = {
        name: _Column(cells, lines)
        for name, cells in zip(header, zip(*rows, strict=True), strict=True)
    }
    speaker = columns["spk"].cells if "spk" in columns else None
    _check_unique(str(path), _trials(speaker, columns["filename"].cells))
    return columns


def _fields(line: str) -> list[str]:
    # Not str.split(): it takes a no-break space in a name for a separator.
    if "\t" in line and " " in line:
        return [cell.strip(" ") for cell in line.split("\t") if cell.strip(" ")]
    return [cell for cell in line.replace("\t", " ").split(" ") if cell]


def _trials(
    speaker: Iterable[str] | NDArray[np.str_] | None, filename: Iterable[str] | NDArray[np.str_]
) -> list[Any]:
    """What identifies a trial: the file name, in Track 2 with the claimed speaker."""
    names = filename.tolist() if isinstance(filename, np.ndarray) else list(filename)
    if speaker is None:
        return names
    speakers = speaker.tolist() if isinstance(speaker, np.ndarray) else list(speaker)
    return list(zip(speakers, names, strict=True))


def _check_unique(where: str, trials: Sequence[Any]) -> None:
    if len(set(trials)) == len(trials):
        return
    seen: set[Any] = set()
    twice = []
    for trial in trials:
        if trial in seen:
            twice.append(trial)
        seen.add(trial)
    raise ValueError(f"{where}: every trial must occur once; {_count('repeated', twice)}.")


def _count(what: str, trials: Sequence[Any]) -> str:
    shown = [trial if isinstance(trial, str) else " ".join(trial) for trial in trials[:_N_SHOWN]]
    if not shown:
        return f"0 are {what}"
    more = ", …" if len(trials) > _N_SHOWN else ""
    return f"{len(trials)} are {what} ({', '.join(shown)}{more})"


def _parse_scores(path: str | os.PathLike[str], name: str, column: _Column) -> FloatArray | None:
    """Numbers of one column, or None where all of them are absent."""
    n_absent = column.cells.count(ABSENT)
    if n_absent == len(column.cells):
        return None
    wrong = [i for i, cell in enumerate(column.cells) if not _is_finite(cell)]
    if not wrong:
        return np.array(list(map(float, column.cells)))
    raise ValueError(
        f"{path}: {name} must be a finite number; {len(wrong)} of {len(column.cells)} are not, "
        f"the first in line {column.lines[wrong[0]]}: {column.cells[wrong[0]]!r}."
    )


def _is_finite(cell: str) -> bool:
    # Python also reads 1_0, and digits of other scripts.
    try:
        return "_" not in cell and cell.isascii() and math.isfinite(float(cell))
    except ValueError:
        return False


def _parse_labels(
    path: str | os.PathLike[str], column: _Column, allowed: Iterable[str]
) -> Sequence[str]:
    words = list(allowed)
    unknown = set(column.cells).difference(words)
    if unknown:
        wrong = next(i for i, cell in enumerate(column.cells) if cell in unknown)
        raise ValueError(
            f"{path}, line {column.lines[wrong]}: a label must be one of "
            f"{', '.join(words)}; got {column.cells[wrong]!r}."
        )
    return column.cells


def _names(argument: str, names: NDArray[Any]) -> list[str]:
    """Return strings that come back from a file as they are."""
    cells = [str(name) for name in names]
    for cell in cells:
        if not cell or cell != cell.strip() or any(c in cell for c in "\t\r\n"):
            raise ValueError(
                f"`{argument}` must be neither empty nor hold tabs, line ends or outer white "
                f"space; got {cell!r}."
            )
    return cells


def _format_scores(
    filename: Sequence[str] | NDArray[np.str_],
    cm: ArrayLike | None,
    speaker: Sequence[str] | NDArray[np.str_] | None,
    asv: ArrayLike | None,
    sasv: ArrayLike | None,
) -> str:
    names = np.asarray(filename)
    if names.ndim != 1 or names.size == 0:
        raise ValueError(f"`filename` must have shape (n_trials,), n ≥ 1; got {names.shape}.")
    if speaker is None and (asv is not None or sasv is not None):
        raise ValueError("`speaker` must be given with `asv` or `sasv` scores: a Track 2 file.")
    if cm is None and sasv is None:
        raise ValueError("`cm` must be given where there is no `sasv` score.")
    trials = [_names("filename", names)]
    if speaker is not None:
        trials.insert(0, _names("speaker", as_column("speaker", speaker, len(names))))
    if len(set(zip(*trials, strict=True))) != len(names):
        raise ValueError("`filename` must name every trial once; some are repeated.")
    scores = []
    columns = {"cm": cm} if speaker is None else {"cm": cm, "asv": asv, "sasv": sasv}
    for name, column in columns.items():
        if column is None:
            scores.append([ABSENT] * len(names))
        else:
            values = as_column(name, as_scores(name, column), len(names))
            scores.append(list(map(repr, values.tolist())))
    rows = zip(*trials, *scores, strict=True)
    header = _SCORE_HEADERS[len(trials) + len(scores)]
    return "".join("\t".join(row) + "\n" for row in (header, *rows))
