r"""The challenge's score and key files, and how scores are joined to labels by the trials' names.

Cells are separated by tabs, semicolons or commas, which may then be quoted, or by spaces. A header
is optional; without it the columns are those of the challenge:

===== =================================== ========================================
track scores                              key
===== =================================== ========================================
1     filename cm-score                   filename cm-label
2     spk filename cm-score asv-score     spk filename cm-label asv-label
      sasv-score (``-`` where absent)
===== =================================== ========================================

In a header, ``llr``, ``log-odds`` or ``score`` may stand for ``cm-score``, and
the names and labels may be called as in a protocol. Other columns are left alone. The name of a
trial of Track 2 is that of the claimed speaker and that of the file: ``"S_1 E_1"``.
"""

from __future__ import annotations

import math
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm._util import (
    FloatArray,
    IntArray,
    as_column,
    as_scores,
    atomic_path,
    check_choice,
    first_row,
    read_table,
    text_of,
    write_text,
)
from asvspoof_cm.labels import (
    ABSENT,
    LABEL_COLUMNS,
    LABELS,
    NAME_COLUMNS,
    SASV_CLASSES,
    SPOOF,
    UNITS,
)

Names: TypeAlias = NDArray[np.str_]
PathLike: TypeAlias = "str | os.PathLike[str]"
Known: TypeAlias = Mapping[str, Collection[str]]

CM_COLUMNS: Final = ("cm-score", *UNITS, "score")
"""What a countermeasure's column may be called: by its unit, or as in the challenge."""

# The columns of a whole file of Track 2, in order, and what a header may call them.
_SCORES: Final[Known] = {
    "spk": ["spk"],
    "filename": NAME_COLUMNS,
    "cm-score": CM_COLUMNS,
    "asv-score": ["asv-score"],
    "sasv-score": ["sasv-score"],
}
_KEY: Final[Known] = {
    "spk": ["spk"],
    "filename": NAME_COLUMNS,
    "cm-label": LABEL_COLUMNS,
    "asv-label": ["asv-label"],
}
_FRAMES: Final[Known] = {
    "filename": NAME_COLUMNS,
    "start": ["start_s", "start"],
    "end": ["end_s", "end"],
    "cm-score": CM_COLUMNS,
}
# What a name may have in one file and not in the other.
_DROPPED: Final = {
    "an extension": re.compile(r"\.(flac|wav|ogg|opus|mp3|aiff?|au|m4a)$", re.IGNORECASE),
    "a folder": re.compile(r"^.*[/\\]"),
}
_N_SHOWN = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Key:
    """The labels of a set of trials, (n_trials,) each.

    `cm_label` is 0 (spoof) or 1 (bonafide); `asv_label`, in Track 2, "target", "nontarget" or
    "spoof".
    """

    filename: Names
    cm_label: IntArray
    asv_label: Names | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of a set of trials, (n_trials,) each; None for those that the file leaves out.

    `cm` are the countermeasure's scores, and `unit` is "llr" or "log-odds" where the file says so.
    Track 2 adds the scores of speaker verification and those of both systems combined.
    """

    filename: Names
    cm: FloatArray | None
    asv: FloatArray | None = None
    sasv: FloatArray | None = None
    unit: str | None = None

    def for_key(self, key: Key, *, skip_missing: bool = False) -> Scores:
        """Return these scores in the order of the trials of `key`, with its names.

        Where only one side's names have a folder, or the ending of an audio file such as ``.flac``,
        they are joined without it and a warning says so. With `skip_missing`, a trial without a
        score gets NaN, and scores of other trials are left out.

        Raises:
            ValueError: Where a trial is missing, not in the key or there twice, naming the first
                few.

        Example:
            >>> names, labels = np.array(["E_1", "E_2"]), np.array([0, 1])
            >>> key = Key(filename=names, cm_label=labels)
            >>> Scores(filename=names[::-1], cm=np.array([2.0, -1.0])).for_key(key).cm
            array([-1.,  2.])
        """
        scored, wanted = self.filename.tolist(), key.filename.tolist()
        _check_unique(scored, "the scores: ")
        _check_unique(wanted, "the key: ")
        order = find_trials(wanted, scored)
        if not skip_missing and ((order < 0).any() or len(scored) != len(wanted)):
            missing = key.filename[order < 0].tolist()
            extra = np.delete(self.filename, order[order >= 0]).tolist()
            raise ValueError(
                f"the scores must cover the trials of the key; {_count('missing', missing)}, "
                f"{_count('not in the key', extra)}."
            )
        columns: dict[str, Any] = {"filename": key.filename}
        for name in ("cm", "asv", "sasv"):
            if (column := getattr(self, name)) is not None:
                columns[name] = np.where(order < 0, np.nan, column[order])
        return replace(self, **columns)


def read_scores(path: PathLike) -> Scores:
    r"""Read a score file of Track 1 or Track 2.

    Raises:
        ValueError: With the line number, on a wrong number of cells, a score that isn't a finite
            number, or trials that occur twice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scores.tsv"
        >>> _ = path.write_text("filename\tllr\nE_1\t0.5\nE_2\t-1\n")
        >>> scores = read_scores(path)
        >>> scores.cm, scores.unit
        (array([ 0.5, -1. ]), 'llr')
    """
    wanted = ("cm-score", "asv-score", "sasv-score")
    with text_of(path) as data:
        heads, columns, lines = _read(data, _SCORES, wanted)
        _check_unique(columns["filename"].tolist())
        cm, asv, sasv = (
            _numbers(name, columns[name].tolist(), lines) if name in columns else None
            for name in wanted
        )
        if cm is None and asv is None and sasv is None:
            raise ValueError(f"every score is absent ({ABSENT!r}).")
    head = heads.get("cm-score")
    unit = head if head in UNITS else None
    return Scores(filename=columns["filename"], cm=cm, asv=asv, sasv=sasv, unit=unit)


def read_key(path: PathLike) -> Key:
    r"""Read a key file of Track 1 or Track 2.

    Raises:
        ValueError: With the line number, on a wrong number of cells, an unknown label, or labels
            that contradict each other; also on trials that occur twice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "key.tsv"
        >>> _ = path.write_text("E_1 bonafide\nE_2 spoof\n")
        >>> read_key(path).cm_label
        array([1, 0])
    """
    with text_of(path) as data:
        _, columns, lines = _read(data, _KEY, ("cm-label",))
        _check_unique(columns["filename"].tolist())
        words, asv_label = columns["cm-label"], columns.get("asv-label")
        _check_labels(words.tolist(), lines, LABELS)
        labels = np.array([LABELS[word] for word in words.tolist()], dtype=np.int64)
        if asv_label is not None:
            _check_labels(asv_label.tolist(), lines, SASV_CLASSES)
            wrong = np.flatnonzero((labels == SPOOF) != (asv_label == "spoof"))
            if len(wrong):
                raise ValueError(
                    f"line {lines[wrong[0]]}: cm-label and asv-label must agree, bonafide target, "
                    f"bonafide nontarget or spoof spoof; got {words[wrong[0]]} "
                    f"{asv_label[wrong[0]]}."
                )
    return Key(filename=columns["filename"], cm_label=labels, asv_label=asv_label)


def read_frame_scores(path: PathLike) -> dict[str, FloatArray]:
    r"""Read scores along time: rows (start_s, end_s, score), shape (n_frames, 3), by recording.

    The header names ``filename``, ``start_s`` or ``start``, ``end_s`` or ``end``, and the score, as
    in what ``asvspoof-cm score --timeline`` writes. Rows are put in the order of time.

    Raises:
        ValueError: With the line number, on a wrong number of cells or what is no finite number.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "frames.tsv"
        >>> _ = path.write_text("filename\tstart_s\tend_s\tllr\na\t0\t1\t2.5\na\t1\t2\t-3\n")
        >>> read_frame_scores(path)["a"].tolist()
        [[0.0, 1.0, 2.5], [1.0, 2.0, -3.0]]
    """
    with text_of(path) as data:
        _, columns, lines = _read(data, _FRAMES, ("cm-score",))
        if len(columns) < len(_FRAMES):
            raise ValueError(
                f"the header must name {', '.join(_FRAMES)}; got {', '.join(columns)} only."
            )
        numbers = [_numbers(k, columns[k].tolist(), lines) for k in ("start", "end", "cm-score")]
        if any(column is None for column in numbers):
            raise ValueError(f"times and scores must be numbers, not {ABSENT!r}.")
    rows = np.stack([np.asarray(column) for column in numbers], axis=1)
    names, first, codes = np.unique(columns["filename"], return_index=True, return_inverse=True)
    order = np.lexsort((rows[:, 0], codes))
    parts = np.split(rows[order], np.cumsum(np.bincount(codes))[:-1])
    return {str(names[k]): parts[k] for k in np.argsort(first)}


def write_scores(
    path: PathLike, filename: Sequence[str] | Names, scores: ArrayLike, *, column: str = "cm-score"
) -> None:
    r"""Write a score file with a header, whole or not at all; every digit survives.

    Args:
        path: Where to write. ``.zip`` at its end makes the challenge's submission, with the scores
            as ``score.tsv`` inside; equal scores give equal bytes.
        filename: File names, shape (n_trials,).
        scores: Countermeasure scores, shape (n_trials,).
        column: The head of their column: "cm-score", or the unit, "llr" or "log-odds".

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scores.tsv"
        >>> write_scores(path, ["E_1", "E_2"], [0.5, -1.0])
        >>> path.read_text()
        'filename\tcm-score\nE_1\t0.5\nE_2\t-1.0\n'
    """
    check_choice("column", column, CM_COLUMNS)
    names = [str(name) for name in filename]
    for name in names:
        if not name or name != name.strip() or any(c in name for c in "\t\r\n"):
            raise ValueError(
                "`filename` must be neither empty nor hold tabs, line ends or outer white space; "
                f"got {name!r}."
            )
    _check_unique(names, "`filename`: ")
    values = as_column("scores", as_scores("scores", scores), len(names)).tolist()
    rows = zip(names, map(repr, values), strict=True)
    text = "".join(f"{name}\t{value}\n" for name, value in (("filename", column), *rows))
    if Path(path).suffix != ".zip":
        write_text(path, text)
        return
    member = zipfile.ZipInfo("score.tsv", date_time=(1980, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(member, text)


def find_trials(wanted: Sequence[str], there: Sequence[str]) -> IntArray:
    """Return where each wanted trial is, -1 where it isn't; see `Scores.for_key` for its names."""
    order = _places(wanted, there)
    if (order >= 0).all():
        return order
    sides, dropped = [[*wanted], [*there]], []
    for what, pattern in _DROPPED.items():
        short = [[pattern.sub("", trial) for trial in side] for side in sides]
        if sum(new != old for new, old in zip(short, sides, strict=True)) == 1:
            sides = short
            dropped.append(what)
    found = _places(*sides)
    is_clear = all(len(set(side)) == len(side) for side in sides)
    if not dropped or not is_clear or (found >= 0).sum() <= (order >= 0).sum():
        return order
    pairs = zip((*wanted, *there), (*sides[0], *sides[1]), strict=True)
    warnings.warn(
        f"only one of the files has names with {' and '.join(dropped)}, such as "
        f"{next(long for long, short in pairs if long != short)}; they were joined without it.",
        stacklevel=3,
    )
    return found


def _places(wanted: Sequence[str], there: Sequence[str]) -> IntArray:
    place = {trial: index for index, trial in enumerate(there)}
    return np.fromiter((place.get(t, -1) for t in wanted), dtype=np.int64, count=len(wanted))


def _check_unique(trials: Sequence[str], where: str = "") -> None:
    if len(set(trials)) < len(trials):
        twice = [trial for trial, n in Counter(trials).items() if n > 1]
        raise ValueError(f"{where}every trial must occur once; {_count('repeated', twice)}.")


def _count(what: str, trials: Sequence[str]) -> str:
    if not trials:
        return f"0 are {what}"
    more = ", …" if len(trials) > _N_SHOWN else ""
    return f"{len(trials)} are {what} ({', '.join(trials[:_N_SHOWN])}{more})"


def _read(
    data: bytes, known: Known, wanted: Sequence[str]
) -> tuple[dict[str, str], dict[str, Names], IntArray]:
    """Return what the header calls each column, the columns that are `known`, and their lines."""
    row, delimiter = first_row(data)
    header, has_header = _header(row, known, wanted)
    found = {name: [s for s in spellings if s in header] for name, spellings in known.items()}
    heads = {name: spellings[0] for name, spellings in found.items() if spellings}
    is_twice = any(header.count(head) > 1 for head in heads.values())
    if is_twice or len(found.get("cm-score", ())) > 1:
        raise ValueError(f"the header must name every column once; got {' '.join(header)}.")
    if "filename" not in heads or not set(wanted) & set(heads):
        raise ValueError(
            f"the header must name filename and {' or '.join(wanted)}; got {' '.join(header)}."
            f"{_hint(header, wanted)}"
        )
    positions = {name: header.index(head) for name, head in heads.items()}
    table, lines = read_table(data, delimiter, positions, len(row))
    columns = {name: np.char.strip(column[has_header:], " ") for name, column in table.items()}
    lines = lines[has_header:]
    if not len(lines):
        raise ValueError("the file holds no trial.")
    names, speakers = columns["filename"], columns.pop("spk", None)
    if (names == "").any():
        raise ValueError(f"line {lines[np.argmax(names == '')]}: the file name is empty.")
    if speakers is not None and ("asv-label" in columns or "asv-label" not in known):
        columns["filename"] = np.char.add(np.char.add(speakers, " "), names)
    return heads, columns, lines


def _header(row: Sequence[str], known: Known, wanted: Sequence[str]) -> tuple[list[str], bool]:
    """Return the names of the columns, and whether they are the file's own."""
    header = [cell.strip().lower() for cell in row]
    # Data may hold a word of a header, but a header holds neither numbers nor labels.
    is_data = any(_is_finite(cell) or cell in (ABSENT, *LABELS, *SASV_CLASSES) for cell in header)
    if not is_data and any({*spellings} & {*header} for spellings in known.values()):
        return header, True
    if not row:
        raise ValueError("the file holds no trial.")
    layouts = {2: ["filename", wanted[0]], len(known): [*known]}
    if len(row) not in layouts or ("cm-label" not in known and _hint(row, wanted)):
        raise ValueError(
            f"a line must have 2 columns (filename {wanted[0]}) or {len(known)} "
            f"({' '.join(known)}); the first has {len(row)}: {' '.join(row)}.{_hint(row, wanted)}"
        )
    return layouts[len(row)], False


def _hint(row: Sequence[str], wanted: Sequence[str]) -> str:
    """Say what a file is that was taken for another."""
    wants_labels = "cm-label" in wanted
    if any(cell in (*LABELS, *LABEL_COLUMNS) for cell in row):
        return " It looks like a protocol." if wants_labels else " It has labels: it is a key."
    if wants_labels and any(cell in CM_COLUMNS or _is_finite(cell) for cell in row):
        return " It looks like a score file."
    return ""


def _numbers(name: str, cells: list[str], lines: IntArray) -> FloatArray | None:
    """Return the numbers of one column, or None where all of them are absent."""
    if cells.count(ABSENT) == len(cells):
        return None
    wrong = [index for index, cell in enumerate(cells) if not _is_finite(cell)]
    if not wrong:
        return np.array(list(map(float, cells)))
    first = cells[wrong[0]]
    hint = " Write a decimal point." if _is_finite(first.replace(",", ".")) else ""
    if wrong[0] == 0 and not hint:
        hint = f" If that is a header, call the columns filename and {name}."
    raise ValueError(
        f"{name} must be a finite number; {len(wrong)} of {len(cells)} are not, the first in line "
        f"{lines[wrong[0]]}: {first!r}.{hint}"
    )


def _is_finite(cell: str) -> bool:
    # Python also reads 1_0, and digits of other scripts.
    try:
        return "_" not in cell and cell.isascii() and math.isfinite(float(cell))
    except ValueError:
        return False


def _check_labels(cells: list[str], lines: IntArray, allowed: Collection[str]) -> None:
    for cell, line in zip(cells, lines.tolist(), strict=True):
        if cell not in allowed:
            raise ValueError(
                f"line {line}: a label must be one of {', '.join(allowed)}; got {cell!r}."
                f"{_hint([cell], ['cm-label'])}"
            )
