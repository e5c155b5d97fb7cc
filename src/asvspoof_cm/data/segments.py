"""Which stretches of a recording are synthetic: reading and writing them.

The formats are PartialSpoof's and Audacity's lines ``start end label`` of one recording, RTTM, and
tables with the columns ``utterance,start,end,label`` and maybe ``llr``, as the guide shows them.
A file's format is recognised by its content.
Times are seconds. A label is 0 or spoof, 1 or bonafide, 2 or "no speech".
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from asvspoof_cm._tables import render
from asvspoof_cm._util import first_row, read_table, text_of, write_text
from asvspoof_cm.labels import ABSENT, LABEL_COLUMNS, LABEL_NAMES, LABELS, NAME_COLUMNS, NO_SPEECH

SEGMENT_NAMES: Final = (*LABEL_NAMES, "no speech")
"""The word for each label of a segment."""

_LABELS: Final[Mapping[str, int]] = {
    **LABELS,
    **{str(number): number for number in range(len(SEGMENT_NAMES))},
    **dict.fromkeys(("no speech", "nospeech", "nonspeech", "silence"), NO_SPEECH),
}
_COLUMNS: Final = (NAME_COLUMNS, ("start", "start_s"), ("end", "end_s"), LABEL_COLUMNS, ("llr",))
_SAME_S = 1e-3  # what rounding leaves: boundaries this close are one


class Segment(NamedTuple):
    """A stretch of a recording, in seconds, and what it is: `SPOOF`, `BONAFIDE` or `NO_SPEECH`.

    `llr` is the mean log-likelihood ratio of what a detector found, None where it heard no speech.
    """

    start_s: float
    end_s: float
    label: int
    llr: float | None = None


def read_segments(
    path: str | os.PathLike[str],
    *,
    gaps: str | int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, list[Segment]]:
    r"""Return the segments of each recording, by its name and in the order of time.

    Args:
        path: A file, or a folder of them; see the formats above.
        gaps: The label of the time that no line names, up to the end of the recording, such as
            "bonafide" where only synthetic stretches are named; None makes a gap an error.
        labels: What other words mean, such as ``{"fake": "spoof", "real": "bonafide"}``.

    Raises:
        ValueError: A time is no number, a label isn't known, or segments overlap or leave a gap.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "CON_D_1.vad"
        >>> _ = path.write_text("0.0 1.25 1\n1.25 2 0\n")
        >>> read_segments(path)["CON_D_1"][1]
        Segment(start_s=1.25, end_s=2.0, label=0, llr=None)
    """
    path = Path(path)
    known = {**_LABELS, **{word: _label(meant, _LABELS) for word, meant in (labels or {}).items()}}
    filled = None if gaps is None else _label(str(gaps), known)
    found: dict[str, list[Segment]] = {}
    for file in sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]:
        with text_of(file) as data:
            for line, name, start, ends, word, llr in _rows(data, file.stem):
                try:
                    start_s, end_s = float(start), round(sum(map(float, ends)), 9)
                    if not 0 <= start_s < end_s < math.inf:
                        raise ValueError(
                            f"a segment must end after it starts; got {start_s:g}, {end_s:g}."
                        )
                    value = None if llr in ("", ABSENT) else float(llr)
                    row = Segment(start_s, end_s, _label(word, known), value)
                except ValueError as error:
                    raise ValueError(f"line {line}: {error}") from None
                found.setdefault(name, []).append(row)
    if not found:
        raise ValueError(f"{path}: there is no segment.")
    return {name: _in_order(f"{path}: {name}", rows, filled) for name, rows in found.items()}


def write_segments(
    path: str | os.PathLike[str], segments: Mapping[str, Sequence[Segment | tuple[Any, ...]]]
) -> None:
    r"""Write the segments of recordings, as ``.rttm`` or ``.csv``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "calls.csv"
        >>> write_segments(path, {"call": [Segment(0.0, 1.5, 1), Segment(1.5, 2.0, 0)]})
        >>> path.read_text()
        'utterance,start,end,label\ncall,0.0,1.5,bonafide\ncall,1.5,2.0,spoof\n'
    """
    rows = [(name, Segment(*row)) for name, of_name in segments.items() for row in of_name]
    if not all(math.isfinite(row.end_s) for _, row in rows):
        raise ValueError(
            "`segments` must have finite ends. Read them without `gaps`, or cut the last one."
        )
    suffix = Path(path).suffix
    if suffix == ".rttm":
        if wrong := [name for name in segments if len(name.split()) != 1]:
            raise ValueError(
                f"`segments` must have names without spaces in RTTM; got {wrong[0]!r}."
            )
        text = "\n".join(
            f"SPEAKER {name} 1 {row.start_s:.6f} {row.end_s - row.start_s:.6f} <NA> <NA> "
            f"{SEGMENT_NAMES[row.label].replace(' ', '')} <NA> <NA>"
            for name, row in rows
        )
    elif suffix == ".csv":
        n_columns = 4 + any(row.llr is not None for _, row in rows)
        header = ["utterance", "start", "end", "label", "llr"][:n_columns]
        cells = [
            (name, float(a), float(b), SEGMENT_NAMES[k], ABSENT if llr is None else llr)[:n_columns]
            for name, (a, b, k, llr) in rows
        ]
        text = render(header, cells, "csv")
    else:
        raise ValueError(f"`path` must end with .rttm or .csv; got {path}.")
    write_text(path, text + "\n")


def _label(word: str, known: Mapping[str, int]) -> int:
    found = known.get(word.strip(), known.get(word.strip().lower()))
    if found is None:
        raise ValueError(f"a label must be one of {', '.join(known)}; got {word!r}.")
    return found


def _rows(data: bytes, stem: str) -> Iterator[tuple[int, str, str, Sequence[str], str, str]]:
    """Yield line, name, start, what adds up to the end, label and LLR of each segment."""
    header, delimiter = first_row(data)
    names = [cell.strip().lower() for cell in header]
    places = [next((k for k, c in enumerate(names) if c in known), -1) for known in _COLUMNS]
    if min(places[:4]) >= 0:
        columns = {str(k): place for k, place in enumerate(places) if place >= 0}
        table, lines = read_table(data, delimiter, columns, len(header))
        cells = [column.tolist() for column in table.values()]
        cells += [[ABSENT] * len(lines)] * (5 - len(cells))
        for line, name, start, end, word, llr in [*zip(lines.tolist(), *cells, strict=True)][1:]:
            yield line, name, start, [end], word, llr
        return
    for number, line in enumerate(data.decode().splitlines(), start=1):
        words = line.split("\t") if "\t" in line else line.split(None, 9)
        if not line.strip() or line.startswith((";;", "\\")):  # a comment, Audacity's frequencies
            continue
        if words[0] == "SPEAKER" and len(words) >= 8:
            yield number, words[1], words[3], words[3:5], words[7], ABSENT
        elif len(words) == 3:
            yield number, stem, words[0], [words[1]], words[2], ABSENT
        else:
            raise ValueError(
                f"line {number}: a segment must be `start end label`, a line of RTTM, or a row "
                f"under a header with utterance, start, end and label; got {line[:60]!r}."
            )


def _in_order(where: str, rows: list[Segment], filled: int | None) -> list[Segment]:
    """Return the segments by time, without overlaps, and with the gaps filled."""
    complete: list[Segment] = []
    end_s = 0.0
    for row in sorted(rows, key=lambda row: row[:2]):
        if row.start_s < end_s - _SAME_S:
            raise ValueError(
                f"{where}: segments must not overlap; that from {row.start_s:g} to {row.end_s:g} s "
                f"starts before {end_s:g} s, where another ends."
            )
        if row.start_s <= end_s + _SAME_S:
            row = row._replace(start_s=end_s)
        elif filled is not None:
            complete.append(Segment(end_s, row.start_s, filled))
        else:
            raise ValueError(
                f"{where}: there must be a segment for every time; there is none from {end_s:g} to "
                f'{row.start_s:g} s. Label it, or say what such time is: gaps="bonafide".'
            )
        complete.append(row)
        end_s = row.end_s
    return complete if filled is None else [*complete, Segment(end_s, math.inf, filled)]
