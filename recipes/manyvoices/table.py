"""The table of a corpus: one line per clip, tab-separated, with a header.

`asvspoof_cm.data.read_protocol` reads it; `source` and `speaker` group clips for the loader, the
breakdown and the bootstrap.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from asvspoof_cm._util import atomic_path
from asvspoof_cm.data import read_protocol
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES
from minispoof.clips import FOLDERS
from minispoof.confounds import PROTOCOLS

TABLE: Final = "corpus.tsv"
"""The name of the table in a corpus folder."""
_SPLITS: Final = {"T": "train", "D": "dev", "E": "eval"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A clip: `path` is relative to the folder of the table."""

    utterance: str
    path: str
    label: str
    generator: str
    speaker: str
    source: str
    """Where it was recorded or published: clips of one source share rooms, codecs and habits."""
    split: str
    parent: str = ABSENT
    """The utterance whose words (a copy) or whose channel (a new voice) this clip has."""
    origin: str = ABSENT
    """The name that the recording had at its source."""

    @property
    def is_human(self) -> bool:
        """Whether a person spoke."""
        return self.label == LABEL_NAMES[BONAFIDE]


@dataclass(frozen=True, kw_only=True)
class Spoken(Row):
    """A clip whose speaker's gender the protocol names, F or M; "-" where it does not."""

    gender: str


COLUMNS: Final = tuple(field.name for field in fields(Row))


def read_lines(path: Path) -> list[dict[str, str]]:
    """Return the lines of a tab-separated table with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def read_table(path: Path) -> list[Row]:
    """Return the clips of a table; columns that it does not have are absent."""
    lines = read_lines(path)
    missing = {"utterance", "path", "label"} - set(lines[0] if lines else COLUMNS)
    if missing:
        raise ValueError(f"{path} must have a column {', '.join(sorted(missing))}.")
    return [Row(**{name: line.get(name) or ABSENT for name in COLUMNS}) for line in lines]


def known_rows(out: Path) -> list[Row]:
    """Return the clips of the table in a folder, none where there is no table yet."""
    return read_table(out / TABLE) if (out / TABLE).exists() else []


def md5(text: str) -> str:
    """Return a digest that names or places things; it protects nothing."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write a table, whole or not at all; rows of a class with more fields get more columns."""
    values = [asdict(row) for row in rows]
    columns = tuple(values[0]) if values else COLUMNS
    lines = ["\t".join(columns), *("\t".join(row.values()) for row in values)]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def by_source(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each source, in the order they have."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.source, []).append(row)
    return groups


def both_classes(rows: Sequence[Row]) -> bool:
    """Whether there are human and synthetic clips among `rows`."""
    return len({row.is_human for row in rows}) > 1


def join(root: Path, corpora: Iterable[Path]) -> dict[str, list[Row]]:
    """Write ``train.tsv``, ``dev.tsv``, … in `root`: the clips of several corpora below it.

    A clip that has a parent counts to the source of its parent.

    Raises:
        ValueError: A corpus is not below `root`, or two have an utterance of one name.
    """
    rows: dict[str, Row] = {}
    for corpus in corpora:
        try:
            inner = corpus.absolute().relative_to(root.absolute())
        except ValueError:
            raise ValueError(f"`corpora` must lie below {root}; {corpus} does not.") from None
        for row in read_table(corpus / TABLE):
            if row.utterance in rows:
                raise ValueError(f"{corpus}: an utterance must stand once; got {row.utterance!r}.")
            rows[row.utterance] = replace(row, path=(inner / row.path).as_posix())
    splits: dict[str, list[Row]] = {}
    for row in rows.values():
        source = rows[row.parent].source if row.parent in rows else row.source
        splits.setdefault(row.split, []).append(replace(row, source=source))
    for split, of_split in splits.items():
        write_table(root / f"{split}.tsv", of_split)
    return splits


def add_layout(corpus: Path, *, source: str | None = None, by_speaker: bool = False) -> list[Row]:
    """Write the table of a corpus in the layout of ASVspoof 5, such as `minispoof` builds.

    Where it has a ``metadata.tsv``, generators, speakers and origins are those that this names.

    Args:
        corpus: Its folder, which gets ``corpus.tsv``.
        source: What to call it; None is the folder's name.
        by_speaker: Take each speaker for a source, because each was recorded elsewhere. Humans of
            one repository (an origin such as ``owner/name:path``) stay together, and so do, where
            no metadata name their origin, the clips of speakers without human ones.

    Raises:
        FileNotFoundError: There is no protocol in `corpus`.
    """
    source = source or corpus.resolve().name
    known = _metadata(corpus / "metadata.tsv")
    rows = []
    for letter, split in _SPLITS.items():
        path = corpus / PROTOCOLS[letter]
        if not path.exists():
            continue
        protocol = read_protocol(path)
        columns = (protocol.utterance, protocol.label, protocol.attack, protocol.speaker)
        gender = dict(zip(protocol.utterance.tolist(), protocol.gender.tolist(), strict=True))
        clips = [
            (name, label, *known.get(name, (attack, speaker, ABSENT)))
            for name, label, attack, speaker in zip(*(c.tolist() for c in columns), strict=True)
        ]
        human = {
            (speaker, _repository(o)) for _, label, _, speaker, o in clips if label == BONAFIDE
        }
        shared = {repository for _, repository in human if repository}
        for name, label, attack, speaker, origin in clips:
            repository = _repository(origin)
            own = by_speaker and (origin != ABSENT or (speaker, repository) in human)
            place = repository if by_speaker and repository else source
            row = Spoken(
                utterance=name,
                path=f"{FOLDERS[letter]}/{name}.flac",
                label=LABEL_NAMES[label],
                generator=attack,
                speaker=f"{source}:{speaker}",
                source=f"{place}/{speaker}" if own and place not in shared else place,
                split=split,
                origin=origin,
                gender=gender[name],
            )
            rows.append(row)
    if not rows:
        names = ", ".join(PROTOCOLS.values())
        raise FileNotFoundError(f"`corpus` must hold {names} or some of them; {corpus} has none.")
    write_table(corpus / TABLE, rows)
    return rows


def _repository(origin: str) -> str:
    """Return owner/name of an origin such as ``owner/name:path``, and "" for others."""
    name, colon, _ = origin.partition(":")
    return name if colon else ""


def _metadata(path: Path) -> dict[str, tuple[str, str, str]]:
    """Return generator, speaker and origin of each utterance that a ``metadata.tsv`` lists."""
    if not path.exists():
        return {}
    columns = ("generator", "source_speaker", "origin")
    return {line["utterance"]: tuple(line[c] for c in columns) for line in read_lines(path)}  # type: ignore[misc]
