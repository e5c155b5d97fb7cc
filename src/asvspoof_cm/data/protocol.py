"""Protocols: the utterances of a corpus, who speaks them, and which are spoofed.

A file's format is recognised by its content, never by its name; docs/data.md has the table of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np

from asvspoof_cm._tables import render
from asvspoof_cm._util import (
    check_choice,
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
# Files without a header, whose columns are separated by white space.
_HEADERLESS: Final[Mapping[str, str]] = {
    "asvspoof5": "speaker utterance gender codec . codec_seed . attack label .",
    "asvspoof5-6": "speaker utterance gender . attack label",
    "asvspoof2019": "speaker utterance . attack label",
    "asvspoof2021-la": "speaker utterance codec . attack label . .",
    "asvspoof2021-df": "speaker utterance codec source attack label . . . . . . .",
    "key": "utterance label",
    "names": "utterance",
}
_FIELD_OF: Final[Mapping[str, str]] = {
    **{name: name for name in _STRING_COLUMNS},
    **dict.fromkeys(NAME_COLUMNS, "utterance"),
    **dict.fromkeys(("speaker_id", "spk"), "speaker"),
    **dict.fromkeys(LABEL_COLUMNS, "label"),
    "speaker_gender": "gender",
    "attack_label": "attack",
}
# Columns that say as much as another, where a header does not have that other.
_FALLBACK_OF: Final[Mapping[str, str]] = {"generator": "attack", "parent": "codec_seed"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Protocol:
    """The table of a corpus: one row per utterance, one NumPy array of shape (n,) per column.

    "-" stands where a file does not say, and for the attack of every bona fide utterance.

    Attributes:
        utterance: The name of each utterance, unique: its audio file, often without extension.
        speaker: Who speaks, or is imitated.
        gender: "F" or "M".
        codec: The codec that the utterance went through.
        codec_seed: The utterance that it is a coded copy of; copies of one are not independent.
        attack: The spoofing attack.
        source: Where the utterance was recorded or published: a corpus, a site, a collection.
        split: The part that the utterance belongs to, where one file lists several.
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
        **columns: Sequence[str] | StringArray,
    ) -> Self:
        """Build a protocol from sequences; `label` None makes it unlabelled, other columns "-".

        Labels are 0, 1, -1 or the words of `LABELS`, "spoof" and "bonafide".
        """
        return cls._checked({"utterance": utterance, **columns}, label, "row {}".format, "arrays")

    @classmethod
    def _checked(
        cls,
        columns: Mapping[str, Any],
        label: Any,
        place: Callable[[int], str],
        kind: str,
        path: Path | None = None,
    ) -> Self:
        """Build a protocol whose errors name the `place` of a row."""
        arrays: dict[str, Any] = {k: np.asarray(v, dtype=np.str_) for k, v in columns.items()}
        n_rows = len(arrays["utterance"])
        labels = np.asarray(np.full(n_rows, UNLABELLED) if label is None else label)
        shapes = {k: v.shape for k, v in {**arrays, "label": labels}.items()}
        if wrong := {k: shape for k, shape in shapes.items() if shape != (n_rows,)}:
            raise ValueError(f"every column must have shape ({n_rows},); got {wrong}.")
        _check_names(arrays["utterance"].tolist(), place)
        arrays["label"], known = label_numbers(labels, (SPOOF, BONAFIDE, UNLABELLED))
        if not known.all():
            row = int(np.argmin(known))
            raise ValueError(
                f"{place(row)}: a label must be one of {', '.join(LABELS)}, or as a number {SPOOF} "
                f"(spoof), {BONAFIDE} (bonafide) or {UNLABELLED} (unlabelled); got "
                f"{labels.tolist()[row]!r}. Say what other words of a table mean: labels={{'real': "
                "'bonafide', 'fake': 'spoof'}, or asvspoof-cm protocol FILE --labels real=bonafide "
                "fake=spoof --out mine.csv."
            )
        absent = {k: np.full(n_rows, ABSENT) for k in _STRING_COLUMNS if k not in arrays}
        return cls(**arrays, **absent, format=kind, path=path)

    def select(self, rows: np.ndarray[Any, Any] | Sequence[int] | slice) -> Protocol:
        """Return the protocol of some rows: a mask of shape (n,), indexes or a slice."""
        keep = rows if isinstance(rows, slice | np.ndarray) else list(rows)
        columns = ("utterance", *_STRING_COLUMNS, "label")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})

    def counts(self) -> dict[str, int]:
        """Return the number of utterances of each class, and of unlabelled ones if there are."""
        counts = {LABEL_NAMES[k]: int((self.label == k).sum()) for k in (BONAFIDE, SPOOF)}
        n_unlabelled = len(self) - sum(counts.values())
        return {**counts, "unlabelled": n_unlabelled} if n_unlabelled else counts

    def clusters(self, column: str) -> StringArray:
        """Return the cluster of each utterance, to draw whole clusters in a bootstrap.

        It is the value of `column`, or the utterance itself where the file has no value.
        """
        values = self.column(column)
        return np.where(values == ABSENT, self.utterance, values)

    def column(self, name: str) -> StringArray:
        """Return a column of words by its name."""
        check_choice("column", name, _STRING_COLUMNS)
        values: StringArray = getattr(self, name)
        return values

    def files(self) -> StringArray:
        """Return the audio file of each utterance: what the column `file` says, else the name."""
        return np.where(self.file == ABSENT, self.utterance, self.file)

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
        expect: The subset of ASVspoof 5 whose utterances, speakers and attacks it must have.
        require_labels: False also reads lists without labels, whose `label` is then `UNLABELLED`.
        columns: What a table calls the columns of a protocol, such as ``{"path": "clip", "label":
            "is_fake"}``, where its header does not say it in known words.
        labels: What its labels mean, such as ``{"real": "bonafide", "1": "spoof"}``.

    Raises:
        ValueError: The format is not known, a list of Track 2 trials or not what `expect` says, or
            a line has an unknown label, another number of columns, or a name that stood before.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ASVspoof5.dev.track_1.tsv"
        >>> _ = path.write_text("D_0062 D_0000000001 F - - - AC1 A11 spoof -\n")
        >>> protocol = read_protocol(path)
        >>> protocol.format, protocol.utterance.tolist(), protocol.attack.tolist()
        ('asvspoof5', ['D_0000000001'], ['A11'])
    """
    if expect is not None:
        check_choice("expect", expect, OFFICIAL_COUNTS)
    if isinstance(path, Protocol):
        protocol = path
    else:
        protocol = _read_file(Path(path), columns or {}, labels or {})
    if require_labels and (protocol.label == UNLABELLED).all():
        raise ValueError(
            f"{protocol.path or '`path`'}: there are no labels (recognised as "
            f"{protocol.format!r}). Add a label column, say which column it is, columns={{'label': "
            "…}, or pass require_labels=False to read a list of utterances to score."
        )
    if expect is not None:
        _check_official(protocol, expect)
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


def _check_official(protocol: Protocol, subset: Subset) -> None:
    """Raise unless a protocol holds what a subset of ASVspoof 5 does."""
    first, last, n_speakers = _OFFICIAL[subset]
    names = [f"A{number:02d}" for number in range(first, last + 1)]
    n_found = len(np.unique(protocol.speaker))
    attacks = np.unique(protocol.attack[protocol.label == SPOOF]).tolist()
    for what, expected, got in (
        ("utterances", dict(OFFICIAL_COUNTS[subset]), protocol.counts()),
        ("attacks", names, attacks),
        ("speakers", n_speakers or n_found, n_found),
    ):
        if expected != got:
            raise ValueError(
                f"{protocol.path or protocol} is not the whole {subset} set of ASVspoof 5: "
                f"expected {what} {expected}; got {got}."
            )


def _read_file(path: Path, named: Mapping[str, str], meant: Mapping[str, str]) -> Protocol:
    with text_of(path) as data:
        kind, fields, delimiter, has_header = _recognise(data, named)
        positions = {name: k for k, name in enumerate(fields) if name != "."}
        table, lines = read_table(data, delimiter, positions, len(fields))
        if has_header:
            table, lines = {name: column[1:] for name, column in table.items()}, lines[1:]
            if not len(lines):
                raise ValueError("the file is empty: it holds a header but no utterance.")
        label = table.pop("label", None)
        if label is not None and meant:
            label = np.array([meant.get(word, word) for word in label.tolist()])
        if "attack" in table:
            # ASVspoof 5 writes the label where other protocols write "-".
            table["attack"][table["attack"] == LABEL_NAMES[BONAFIDE]] = ABSENT
        return Protocol._checked(table, label, lambda row: f"line {lines[row]}", kind, path)


def _recognise(
    data: bytes, named: Mapping[str, str]
) -> tuple[str, Sequence[str], str | None, bool]:
    """Return a file's format, the field or "." of each column, what separates them, if headed."""
    row, delimiter = first_row(data)
    if not row:
        raise ValueError("the file is empty: it holds no utterance.")
    header = [name.strip().lower() for name in row]
    fields = _fields(header, named)
    if "utterance" in fields:
        kind = {"\t": "tsv", None: "table"}.get(delimiter, "csv")
        return kind, fields, delimiter, True
    if named:
        raise ValueError(f"`columns` must say which column is the path: {', '.join(header)}.")
    row = (delimiter or " ").join(row).split()
    if len(row) == 5 and (row[2] in ("F", "M") or row[4] in ("target", "nontarget")):
        raise ValueError(
            "this is a list of Track 2 trials, which name an utterance several times. "
            "A countermeasure is trained and scored with the Track 1 protocol."
        )
    # A comma means a CSV whose header is missing, not a list of names.
    is_sure = delimiter is None if len(row) == 1 else len(row) > 2 or row[1] in LABELS
    for kind, columns in _HEADERLESS.items():
        if is_sure and len(row) == len(columns.split()):
            return kind, columns.split(), None, False
    known = ", ".join(f"{len(columns.split())} ({kind})" for kind, columns in _HEADERLESS.items())
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
        if field not in _FIELD_OF.values():
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
    for field in {*fields} - {"."}:
        same = [name for name, each in zip(header, fields, strict=True) if each == field]
        if len(same) > 1 and "utterance" in fields:
            raise ValueError(f"several columns give the {field}: {same}. Keep one.")
    return fields


def _check_names(names: list[str], place: Callable[[int], str]) -> None:
    if len({"", *names}) == len(names) + 1:
        return
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise ValueError(f"{place(row)}: the name of the utterance is empty.")
        if first.setdefault(name, row) != row:
            raise ValueError(
                f"{place(row)}: an utterance must stand once; {name!r} is also on "
                f"{place(first[name])}."
            )
