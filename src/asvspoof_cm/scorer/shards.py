"""The files of a protocol that is being scored: shards, what interruptions leave, the result.

A shard ``(k, n)`` writes utterances k, k + n, k + 2n, … to ``OUTPUT.shard-K-of-N``. Its first line
says what the scores depend on, so that a run is never continued with another model. Then comes
one flushed line per utterance: ``name<TAB>score<TAB>warnings``, or ``name<TAB><TAB>error``. An
interruption can tear the last line only, and a torn line has no line break. Merging checks that
every utterance is there once. It writes ``OUTPUT``, in the order of the protocol,
``OUTPUT.run.json``, which says the unit of the scores, and, where there are any,
``OUTPUT.errors.tsv`` and ``OUTPUT.warnings.tsv``.

A process that scores a whole protocol is the one shard of one, and the processes of torchrun are
its shards; both merge at the end. What an interrupted run left, in whatever number of shards, is
first gathered in ``OUTPUT.part``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from asvspoof_cm.metrics import read_scores, write_scores
from asvspoof_cm.runs import changed_settings
from asvspoof_cm.scorer.results import ProtocolScores
from asvspoof_cm.scorer.utterances import NO_SPEECH
from asvspoof_cm.utils.files import atomic_path, exclusive, write_json, write_text

Shard = tuple[int, int]
Resume = bool | Literal["if_same"]


class Row(NamedTuple):
    """The outcome of one utterance: a score and its warnings, or None and an error."""

    score: float | None
    note: str = ""


class ScoreRun:
    """The files of one score file in the making."""

    def __init__(self, output: Path, settings: dict[str, Any]) -> None:
        if output.is_dir():
            raise IsADirectoryError(f"`output` must name a file; {output} is a directory.")
        self.output = output
        self.settings = settings
        self.errors = output.with_name(f"{output.name}.errors.tsv")
        self.warnings = output.with_name(f"{output.name}.warnings.tsv")
        self.record = output.with_name(f"{output.name}.run.json")
        self.before = output.with_name(f"{output.name}.part")

    def journal(self, shard: Shard) -> Path:
        """Return the file of a shard."""
        return self.output.with_name(f"{self.output.name}.shard-{shard[0]}-of-{shard[1]}")

    def shards(self) -> dict[Shard, Path]:
        """Return the files of all shards that are there."""
        pattern = re.compile(re.escape(self.output.name) + r"\.shard-(\d+)-of-(\d+)")
        if not self.output.parent.is_dir():
            return {}
        found = {
            (int(match[1]), int(match[2])): path
            for path in self.output.parent.iterdir()
            if (match := pattern.fullmatch(path.name))
        }
        return dict(sorted(found.items()))

    def check_number(self, n_shards: int) -> None:
        """Raise where there are shards of another number than `n_shards`."""
        others = [path.name for (_, n), path in self.shards().items() if n != n_shards]
        if others:
            raise ValueError(
                f"`output`: there is {others[0]} beside shards of {n_shards}. Merge or delete it."
            )

    @contextmanager
    def alone(self, shard: Shard | None = None) -> Iterator[None]:
        """Keep other processes from the output, or from a shard, inside the block."""
        path = self.output if shard is None else self.journal(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_name(f"{path.name}.lock")) as holder:
            if holder is not None:
                raise ValueError(
                    f"`output`: {path} is being written by another process. Wait for it, or "
                    "choose another output."
                )
            yield

    def gather(self, resume: Resume) -> int:
        """Put what earlier runs left into one file, or clear it away; return how many scores."""
        shards = self.shards()
        with ExitStack() as held:
            for shard in shards:
                held.enter_context(self.alone(shard))
            rows: dict[str, Row] = {}
            if self._may_resume(resume):
                rows = self._left()
                for path in shards.values():
                    rows |= _read_rows(path)
            else:
                for path in (self.output, self.errors, self.warnings, self.before):
                    path.unlink(missing_ok=True)
            self._write(self.before, rows)
            for path in shards.values():
                path.unlink()
        write_json(self.record, self.settings)
        return len(rows)

    def begin(self, shard: Shard, names: Sequence[str], resume: Resume) -> dict[str, Row]:
        """Begin the file of a shard; return the scores of its names that are there already."""
        rows: dict[str, Row] = {}
        if self._may_resume(resume, shard):
            rows = self._left() | _read_rows(self.journal(shard))
            rows = {name: rows[name] for name in names if name in rows}
        self._write(self.journal(shard), rows)
        return rows

    def merge(self, names: Sequence[str], n_resumed: int) -> ProtocolScores:
        """Write the score file in the protocol's order, remove the shards; return the counts."""
        shards = self.shards()
        n_shards = next(iter(shards))[1]
        absent = [str(k) for k in range(n_shards) if (k, n_shards) not in shards]
        if absent:
            raise ValueError(f"`output`: shard {', '.join(absent)} of {n_shards} is missing.")
        rows: dict[str, Row] = {}
        counts: Counter[str] = Counter()
        for (k, _), path in shards.items():
            changes = _changes(self.settings, read_header(path))
            if changes:
                raise ValueError(
                    f"`output`: all shards must have one model and settings; {path.name} has "
                    f"another {changes}."
                )
            found = _read_rows(path, failed=True)
            missing = [name for name in names[k::n_shards] if name not in found]
            if missing:
                raise ValueError(
                    f"`output`: {path.name} is not finished: {len(missing)} utterances are "
                    f"missing, such as {missing[0]}. Run it again to score them."
                )
            counts.update(found.keys())
            rows |= found
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"`output`: every utterance must be in one shard; {twice} is in two.")
        scores = {name: row.score for name in names if (row := rows[name]).score is not None}
        failed = {name: rows[name].note for name in names if name not in scores}
        doubtful = {name: rows[name].note for name in scores if rows[name].note}
        for path, column, notes in (
            (self.errors, "error", failed),
            (self.warnings, "warnings", doubtful),
        ):
            path.unlink(missing_ok=True)
            if notes:
                lines = [f"{name}\t{note}\n" for name, note in notes.items()]
                write_text(path, f"filename\t{column}\n" + "".join(lines))
        if not scores:
            raise ValueError(
                f"none of the {len(names)} utterances could be scored; see {self.errors}. "
                f"The first error: {rows[names[0]].note}"
            )
        write_json(self.record, self.settings)
        write_scores(self.output, [*scores], [*scores.values()])
        for path in (self.before, *shards.values()):
            path.unlink(missing_ok=True)
        return ProtocolScores(
            output=self.output,
            n_scored=len(scores),
            n_resumed=n_resumed,
            n_failed=len(failed),
            errors=self.errors if failed else None,
            n_without_speech=sum(NO_SPEECH in note for note in doubtful.values()),
            warnings=self.warnings if doubtful else None,
        )

    def _left(self) -> dict[str, Row]:
        """Return the scores of a finished run and of those gathered."""
        rows: dict[str, Row] = {}
        if self.output.exists():
            before = read_scores(self.output)
            if before.cm is not None:
                notes = _read_notes(self.warnings)
                pairs = zip(before.filename.tolist(), before.cm.tolist(), strict=True)
                rows = {name: Row(score, notes.get(name, "")) for name, score in pairs}
        return rows | _read_rows(self.before)

    def _write(self, path: Path, rows: Mapping[str, Row]) -> None:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            file.write(json.dumps(self.settings).encode() + b"\n")
            file.writelines(as_line(name, row) for name, row in rows.items())

    def _may_resume(self, resume: Resume, shard: Shard | None = None) -> bool:
        """Whether to go on with what is there; an error where it must not be mixed with this."""
        if not resume:
            return False
        if self.output.exists() and not self.record.exists():
            if resume == "if_same":
                return False
            raise ValueError(
                f"`output`: {self.output} is there but {self.record.name} is not, so nothing "
                "says which model made it. Pass resume=False to replace it."
            )
        headers = [read_header(self.before)]
        if self.output.exists():
            headers.append(json.loads(self.record.read_text(encoding="utf-8")))
        paths = self.shards().values() if shard is None else [self.journal(shard)]
        headers += [read_header(path) for path in paths]
        for header in filter(None, headers):
            changes = _changes(header, self.settings)
            if changes and resume == "if_same":
                return False
            if changes:
                raise ValueError(
                    f"`output`: {self.output} was begun with another {changes}. "
                    "Pass resume=False to start over, or choose another output."
                )
        return True


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    found = changed_settings(before, now)
    return "; another ".join(f"{name} ({old}, now {new})" for name, old, new in found)


def read_header(path: Path) -> dict[str, Any]:
    """Return what the scores of a journal depend on; nothing where it has not begun."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        first = file.readline()
    return dict(json.loads(first)) if first.endswith(b"\n") else {}


def _read_rows(path: Path, *, failed: bool = False) -> dict[str, Row]:
    """Return the scores of a journal, with `failed` the errors too; a torn line is not there."""
    rows: dict[str, Row] = {}
    if not path.exists():
        return rows
    for line in path.read_bytes().split(b"\n")[1:-1]:
        name, _, rest = line.decode("utf-8", "replace").partition("\t")
        score, _, note = rest.partition("\t")
        try:
            row = Row(float(score) if score or not note else None, note)
        except ValueError:
            continue
        if failed or row.score is not None:
            rows[name] = row
    return rows


def _read_notes(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").split("\n")[1:-1] if path.exists() else []
    return {line.partition("\t")[0]: line.partition("\t")[2] for line in lines}


def as_line(name: str, row: Row) -> bytes:
    """Return the line of one utterance."""
    score = "" if row.score is None else repr(row.score)
    return f"{name}\t{score}\t{row.note}".rstrip("\t").encode("utf-8", "replace") + b"\n"
