"""Protocols: the utterances of a corpus, who speaks them, and which are spoofed.

A file's format is recognised by its content, never by its name; docs/data.md has the table of them.
Those of `_HEADERLESS` are separated by white space. A header has the words of `_FIELD_OF` and
`_FALLBACK_OF`, and beside ``utterance`` a column ``path``, the audio file; other columns are left
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np

from asvspoof_cm._tables import render
from asvspoof_cm._util import (
    digest,
    first_row,
    label_numbers,
    read_table,
    text_of,
    write_text,
)
from asvspoof_cm.labels import (
    ABSENT,
    BONAFIDE,
    LABEL_COLUMNS,
    LABEL_NAMES,
    LABELS,
    NAME_COLUMNS,
    SPOOF,
)

StringArray: TypeAlias = np.ndarray[Any, np.dtype[np.str_]]
LabelArray: TypeAlias = np.ndarray[Any, np.dtype[np.int8]]
Subset: TypeAlias = Literal["train", "dev", "eval"]

UNLABELLED: Final = -1
"""The label of utterances whose protocol has no labels."""

OFFICIAL_COUNTS: Final[Mapping[str, Mapping[str, int]]] = {
    "train": {"bonafide": 18_797, "spoof": 163_560},
    "dev": {"bonafide": 31_334, "spoof": 109_616},
    "eval": {"bonafide": 138_688, "spoof": 542_086},
}
"""How many utterances of each class the subsets of ASVspoof 5 hold."""
# The first and the last attack, and the number of speakers where it is known.
_OFFICIAL: Final = {"train": (1, 8, 400), "dev": (9, 16, 785), "eval": (17, 32, None)}

_STRING_COLUMNS = ("speaker", "gender", "codec", "codec_seed", "attack", "source", "split", "file")


@dataclass(frozen=True)
class _Layout:
    """Where a file keeps which column."""

    format: str
    column_names: Sequence[str]
    delimiter: str | None = None
    has_header: bool = False


_HEADERLESS: Final[Sequence[_Layout]] = [
    _Layout(name, columns.split())
    for name, columns in (
        ("asvspoof5", "speaker utterance gender codec . codec_seed . attack label ."),
        ("asvspoof5-6", "speaker utterance gender . attack label"),
        ("asvspoof2019", "speaker utterance . attack label"),
        ("asvspoof2021-la", "speaker utterance codec . attack label . ."),
        ("asvspoof2021-df", "speaker utterance codec source attack label . . . . . . ."),
        ("key", "utterance label"),
        ("names", "utterance"),
    )
]
_FIELD_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(NAME_COLUMNS, "utterance"),
    **dict.fromkeys(("speaker", "speaker_id", "spk"), "speaker"),
    **dict.fromkeys(("gender", "speaker_gender"), "gender"),
    **dict.fromkeys(("attack", "attack_label"), "attack"),
    **dict.fromkeys(LABEL_COLUMNS, "label"),
    "codec": "codec",
    "codec_seed": "codec_seed",
    "source": "source",
    "split": "split",
}
_FALLBACK_OF: Final[Mapping[str, str]] = {"generator": "attack", "parent": "codec_seed"}
"""Columns that say as much as another, where a header does not have that other."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Protocol:
    """The table of a corpus: one row per utterance, one NumPy array of shape (n,) per column.

    Strings are those of the file; "-" stands where a file does not say, and for the attack of
    every bona fide utterance.

    Attributes:
        utterance: The name of each utterance, unique: its audio file, often without extension.
        speaker: Who speaks, or is imitated.
        gender: "F" or "M".
        codec: The codec that the utterance went through.
        codec_seed: The utterance that it is a coded copy of; copies of one are not independent.
        attack: The spoofing attack.
        source: Where the utterance was recorded or published: a corpus, a site, a collection. Those
            of one source share rooms, codecs and habits.
        split: The part that the utterance belongs to, such as "train" or "dev", where one file
            lists several.
        file: The audio file, relative to the folder of the audio; "-" where the name gives it.
        label: `SPOOF`, `BONAFIDE` or, in a protocol without labels, `UNLABELLED`, as int8.
        format: Which format the file was recognised as.
        path: The file, None for a protocol made of arrays.

    Example:
        >>> protocol = Protocol.from_columns(["a", "b", "c"], [1, 0, 0], attack=["-", "A01", "A02"])
        >>> protocol
        Protocol(arrays: 3 utterances, 1 bonafide, 2 spoof)
        >>> protocol.select(protocol.attack != "A01").utterance.tolist()
        ['a', 'c']
    """

    utterance: StringArray
    speaker: StringArray
    gender: StringArray
    codec: StringArray
    codec_seed: StringArray
    attack: StringArray
    source: StringArray
    split: StringArray
    file: StringArray
    label: LabelArray
    format: str
    path: Path | None

    @classmethod
    def from_columns(
        cls,
        utterance: Sequence[str] | StringArray,
        label: Sequence[int] | Sequence[str] | LabelArray | None = None,
        *,
        format: str = "arrays",  # noqa: A002 — the name of the field
        path: Path | None = None,
        **columns: Sequence[str] | StringArray,
    ) -> Self:
        """Build a protocol from sequences; `label` None makes it unlabelled, other columns "-".

        Labels are 0, 1, -1 or the words of `LABELS`, "spoof" and "bonafide".

        Example:
            >>> Protocol.from_columns(["x.wav"], speaker=["Ada"]).label.tolist()
            [-1]
        """
        if wrong := sorted(columns.keys() - set(_STRING_COLUMNS)):
            raise TypeError(f"`columns` must be columns of a protocol; got {wrong}.")
        given = {"utterance": utterance, **columns}
        arrays: dict[str, Any] = {k: np.asarray(v, dtype=np.str_) for k, v in given.items()}
        n_rows = len(utterance)
        labels = np.full(n_rows, UNLABELLED) if label is None else label
        arrays["label"] = _known_labels(labels, "row {}".format)
        shapes = {k: v.shape for k, v in arrays.items() if v.shape != (n_rows,)}
        if shapes:
            raise ValueError(f"every column must have shape ({n_rows},); got {shapes}.")
        if path is None:  # a file's names are checked with their lines
            _check_names(arrays["utterance"], "row {}".format)
        absent = {k: np.full(n_rows, ABSENT) for k in _STRING_COLUMNS if k not in arrays}
        return cls(**arrays, **absent, format=format, path=path)

    def select(self, rows: np.ndarray[Any, Any] | Sequence[int] | slice) -> Protocol:
        """Return the protocol of some rows: a mask of shape (n,), indexes or a slice."""
        keep = rows if isinstance(rows, slice | np.ndarray) else list(rows)
        columns = ("utterance", *_STRING_COLUMNS, "label")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})

    def counts(self) -> dict[str, int]:
        """Return the number of utterances of each class, and of unlabelled ones if there are any.

        Example:
            >>> Protocol.from_columns(["a", "b"], [0, 0]).counts()
            {'bonafide': 0, 'spoof': 2}
        """
        classes = (BONAFIDE, SPOOF)
        counts = {LABEL_NAMES[label]: int((self.label == label).sum()) for label in classes}
        n_unlabelled = len(self) - sum(counts.values())
        return {**counts, "unlabelled": n_unlabelled} if n_unlabelled else counts

    def sha256(self) -> str:
        """Return a hash of the utterances and their labels, in their order."""
        return digest([*self.utterance.tolist(), *map(str, self.label.tolist())])

    def clusters(self, column: str) -> StringArray:
        """Return the cluster of each utterance, to draw whole clusters in a bootstrap.

        The cluster is the value of `column` ("speaker", "source" or "codec_seed"), or the
        utterance itself where the file has no value: an uncoded utterance is in one cluster with
        its coded copies.

        Example:
            >>> protocol = Protocol.from_columns(["a", "b", "c"], codec_seed=["-", "a", "-"])
            >>> protocol.clusters("codec_seed").tolist()
            ['a', 'a', 'c']
        """
        values = self.column(column)
        return np.where(values == ABSENT, self.utterance, values)

    def column(self, name: str) -> StringArray:
        """Return a column of words by its name."""
        if name not in _STRING_COLUMNS:
            raise ValueError(f"`column` must be one of {', '.join(_STRING_COLUMNS)}; got {name!r}.")
        values: StringArray = getattr(self, name)
        return values

    def parents(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the row of the recording that each utterance is a copy of; its own for others."""
        row_of = {name: row for row, name in enumerate(self.utterance.tolist())}
        pairs = enumerate(self.codec_seed.tolist())
        return np.array([row_of.get(parent, row) for row, parent in pairs], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.utterance)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.counts().items())
        return f"Protocol({self.format}: {len(self)} utterances, {counts})"


def read_protocol(
    path: Protocol | str | os.PathLike[str],
    *,
    expect: Subset | None = None,
    require_labels: bool = True,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Protocol:
    r"""Return the protocol in a file of any known format; its `format` says which that was.

    Args:
        path: The file, UTF-8 text. A `Protocol` is returned as it is, if it has what is asked for.
        expect: Check utterances of each class, speakers and attacks against this subset of
            ASVspoof 5.
        require_labels: False also reads lists without labels, whose `label` is then `UNLABELLED`.
        columns: What a table calls the columns of a protocol, such as ``{"path": "clip", "label":
            "is_fake"}``, where its header does not say it in known words.
        labels: What its labels mean, such as ``{"real": "bonafide", "1": "spoof"}``.

    Raises:
        ValueError: The format is not known, or a line has an unknown label, another number of
            columns, or a name that stood before; the message gives the line. Or the file is empty,
            has no labels, or is not what `expect` says.

    Note:
        Track 2 files of ASVspoof 5 are lists of trials, where utterances recur: they are refused.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ASVspoof5.dev.track_1.tsv"
        >>> _ = path.write_text(
        ...     "D_0062 D_0000000001 F - - - AC1 A11 spoof -\n"
        ...     "D_0461 D_0000000190 M - - - - bonafide bonafide -\n"
        ... )
        >>> protocol = read_protocol(path)
        >>> protocol.format, protocol.utterance.tolist(), protocol.attack.tolist()
        ('asvspoof5', ['D_0000000001', 'D_0000000190'], ['A11', '-'])
    """
    if expect is not None and expect not in OFFICIAL_COUNTS:
        raise ValueError(f"`expect` must be one of {[*OFFICIAL_COUNTS]} or None; got {expect!r}.")
    if isinstance(path, Protocol):
        protocol = path
    else:
        protocol = _read_file(Path(path), require_labels, columns or {}, labels or {})
    if require_labels and (protocol.label == UNLABELLED).all():
        raise ValueError(f"`path` must have labels; {protocol} has none.")
    if expect is not None:
        for expected, got in _official(protocol, expect):
            if expected != got:
                raise ValueError(
                    f"{protocol.path or protocol} is not the whole {expect} set of ASVspoof 5: "
                    f"expected {expected}; got {got}."
                )
    return protocol


def write_protocol(path: str | os.PathLike[str], protocol: Protocol) -> None:
    r"""Write a protocol as a CSV that `read_protocol` reads without further arguments.

    Columns without a value are left out.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> write_protocol(path, Protocol.from_columns(["a.wav"], [0], attack=["bark"]))
        >>> path.read_text()
        'utterance,attack,label\na.wav,bark,spoof\n'
    """
    columns = {"utterance": protocol.utterance, **{k: protocol.column(k) for k in _STRING_COLUMNS}}
    kept = {k: v.tolist() for k, v in columns.items() if (v != ABSENT).any()}
    if (protocol.label != UNLABELLED).any():
        kept["label"] = [LABEL_NAMES[label] for label in protocol.label]
    header = ["path" if name == "file" else name for name in kept]
    write_text(path, render(header, [*zip(*kept.values(), strict=True)], "csv") + "\n")


def _official(protocol: Protocol, subset: Subset) -> Iterator[tuple[str, str]]:
    """Yield what a subset of ASVspoof 5 must hold, and what a protocol holds."""
    first, last, n_speakers = _OFFICIAL[subset]
    yield _describe(OFFICIAL_COUNTS[subset]), _describe(protocol.counts())
    attacks = np.unique(protocol.attack[protocol.label == SPOOF]).tolist()
    names = [f"A{number:02d}" for number in range(first, last + 1)]
    yield f"the attacks {', '.join(names)}", f"the attacks {', '.join(attacks)}"
    n_found = len(np.unique(protocol.speaker))
    yield f"{n_speakers or n_found} speakers", f"{n_found} speakers"


def _read_file(
    path: Path, require_labels: bool, named: Mapping[str, str], meant: Mapping[str, str]
) -> Protocol:
    with text_of(path) as data:
        layout = _recognise(data, named)
        if require_labels and "label" not in layout.column_names:
            raise ValueError(
                f"there are no labels (recognised as {layout.format!r}). Add a label column, say "
                "which column it is, columns={'label': …}, or pass require_labels=False to read a "
                "list of utterances to score."
            )
        columns = _read_columns(data, layout, meant)
    return Protocol.from_columns(**columns, format=layout.format, path=path)


def _recognise(data: bytes, named: Mapping[str, str]) -> _Layout:
    row, delimiter = first_row(data)
    if not row:
        raise ValueError("the file is empty: it holds no utterance.")
    header = [name.strip().lower() for name in row]
    fields = _fields(header, named)
    if "utterance" in fields:
        for name in set(fields) - {"."}:
            same = [h for h, field in zip(header, fields, strict=True) if field == name]
            if len(same) > 1:
                raise ValueError(f"several columns give the {name}: {same}. Keep one.")
        kind = {"\t": "tsv", None: "table"}.get(delimiter, "csv")
        return _Layout(kind, fields, delimiter, has_header=True)
    if named:
        raise ValueError(f"`columns` must say which column is the path: {', '.join(header)}.")
    row = (delimiter or " ").join(row).split()
    if len(row) == 5 and (row[2] in ("F", "M") or row[4] in ("target", "nontarget")):
        raise ValueError(
            "this is a list of Track 2 trials, which name an utterance several times. "
            "A countermeasure is trained and scored with the Track 1 protocol."
        )
    for layout in _HEADERLESS:
        # A comma means a CSV whose header is missing, not a list of names.
        is_sure = delimiter is None if len(row) == 1 else len(row) > 2 or row[1] in LABELS
        if len(row) == len(layout.column_names) and is_sure:
            return layout
    known = ", ".join(f"{len(layout.column_names)} ({layout.format})" for layout in _HEADERLESS)
    raise ValueError(
        f"unknown format: the first line has {len(row)} columns, {row}. Without a header there are "
        f"{known}; any other file needs one, such as filename,label. If this is its header, say "
        "which column is which: columns={'path': …, 'label': …} (--columns path=… label=…)."
    )


def _fields(header: list[str], named: Mapping[str, str]) -> list[str]:
    """Return the field of each column of a header, "." for those of other tables."""
    fields = [_FIELD_OF.get(name, ".") for name in header]
    if "utterance" in header and "path" in header:
        fields[header.index("path")] = "file"
    for name, field in _FALLBACK_OF.items():
        if name in header and field not in fields:
            fields[header.index(name)] = field
    for word, column in named.items():
        field = _FIELD_OF.get(word, word)
        if field not in {*_FIELD_OF.values(), "file"}:
            raise ValueError(
                f"`columns` must name columns of a protocol, {', '.join(sorted({*_FIELD_OF}))}; "
                f"got {word!r}."
            )
        if header.count(column.lower()) != 1:
            raise ValueError(
                f"`columns` must name a column of the header, {', '.join(header)}; got {column!r}."
            )
        fields = ["." if each == field else each for each in fields]
        fields[header.index(column.lower())] = field
    return fields


def _read_columns(
    data: bytes, layout: _Layout, meant: Mapping[str, str]
) -> dict[str, np.ndarray[Any, Any]]:
    positions = {name: k for k, name in enumerate(layout.column_names) if name != "."}
    table, lines = read_table(data, layout.delimiter, positions, len(layout.column_names))
    if layout.has_header:
        table, lines = {name: column[1:] for name, column in table.items()}, lines[1:]
        if not len(lines):
            raise ValueError("the file is empty: it holds a header but no utterance.")

    def place(row: int) -> str:
        return f"line {lines[row]}"

    _check_names(table["utterance"], place)
    if "label" in table:
        words = [meant.get(word, word) for word in table["label"].tolist()]
        table["label"] = _known_labels(words, place)
    if "attack" in table:
        # ASVspoof 5 writes the label where other protocols write "-".
        table["attack"][table["attack"] == LABEL_NAMES[BONAFIDE]] = ABSENT
    return table


def _check_names(names: StringArray, place: Callable[[int], str]) -> None:
    listed = names.tolist()
    if len({"", *listed}) == len(listed) + 1:
        return
    first: dict[str, int] = {}
    for row, name in enumerate(listed):
        if not name:
            raise ValueError(f"{place(row)}: the name of the utterance is empty.")
        if first.setdefault(name, row) != row:
            raise ValueError(
                f"{place(row)}: an utterance must stand once; {name!r} is also on "
                f"{place(first[name])}."
            )


def _known_labels(label: Any, place: Callable[[int], str]) -> LabelArray:
    """Return numbers or words as int8, or say which is no label."""
    values = np.asarray(label)
    if values.ndim != 1:
        raise ValueError(f"`label` must have shape (n,), one per row; got {values.shape}.")
    labels, known = label_numbers(values, (SPOOF, BONAFIDE, UNLABELLED))
    if not known.all():
        row = int(np.argmin(known))
        raise ValueError(
            f"{place(row)}: a label must be one of {', '.join(LABELS)}, or as a number {SPOOF} "
            f"(spoof), {BONAFIDE} (bonafide) or {UNLABELLED} (unlabelled); got "
            f"{values.tolist()[row]!r}. Say what other words of a table mean: labels={{'real': "
            "'bonafide', 'fake': 'spoof'} (--labels real=bonafide fake=spoof)."
        )
    return labels


def _describe(counts: Mapping[str, int]) -> str:
    classes = ", ".join(f"{n:,} {name}" for name, n in counts.items())
    return f"{sum(counts.values()):,} utterances ({classes})"
