"""Files, folders, lists and protocols: each utterance a score or an error that stops no other."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from asvspoof_cm._util import (
    check_between,
    digest,
    n_cores,
    one_line,
    track,
    write_json,
    write_text,
)
from asvspoof_cm.audio import BAD_AUDIO, BLOCK_SAMPLES, OpenAudio, Utterance, take_crops
from asvspoof_cm.data.folder import AudioFolder, AudioPath, Entry
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts, write_scores

if TYPE_CHECKING:
    from asvspoof_cm.scorer.scorer import Scorer, ScoreResult

Shard: TypeAlias = tuple[int, int]
T = TypeVar("T")
R = TypeVar("R")

MAX_THREADS = 4
# What tells rows, cells and lines apart, for any reader.
_BREAKS = {ord(c): f"\\u{ord(c):04x}" for c in "\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
_ESCAPES = {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r", **_BREAKS}


@dataclass(frozen=True, kw_only=True)
class FileScore:
    """The result of one file: either `result` or `error` is None.

    Attributes:
        name: The file as it was given, its name in the folder or list that was given, or the name
            that came with a waveform.
        result: Score and details.
        error: What was wrong, one line that names the file.
    """

    name: str
    result: ScoreResult | None = None
    error: str | None = None

    @property
    def score(self) -> float | None:
        """The score; None where there was an error."""
        return None if self.result is None else self.result.score

    def as_dict(self, costs: DetectionCosts = ASVSPOOF5, *, worst: bool = False) -> dict[str, Any]:
        """Return plain values for JSON."""
        if self.result is None:
            return {"filename": self.name, "error": self.error}
        return {"filename": self.name, **self.result.as_dict(costs, worst=worst)}


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What scoring into a table did.

    Attributes:
        output: The table.
        n_scored: Utterances with a score.
        n_resumed: Those of them that were there before.
        n_failed: Utterances that could not be scored.
        errors: The file that says why; None where all were scored.
        n_without_speech: Utterances, scored now, in which there is no speech to judge.
    """

    output: Path
    n_scored: int
    n_resumed: int = 0
    n_failed: int = 0
    errors: Path | None = None
    n_without_speech: int = 0

    def __str__(self) -> str:
        parts = [f"{self.n_scored:,} utterances scored"]
        if self.n_resumed:
            parts[0] += f", {self.n_resumed:,} of them before"
        if self.n_failed:
            parts.append(f"{self.n_failed:,} failed, see {self.errors}")
        if self.n_without_speech:
            parts.append(f"{self.n_without_speech:,} without speech to judge")
        return "; ".join(parts)


# Scores


def protocol_entries(protocol: Protocol | AudioPath, audio_dir: AudioPath) -> list[Entry]:
    """Return the utterances of a protocol, with their files below a folder."""
    folder = AudioFolder(read_protocol(protocol, require_labels=False), audio_dir)
    return [folder[row] for row in range(len(folder))]


def score_entries(
    scorer: Scorer,
    found: Iterable[Entry],
    *,
    n_threads: int | None = None,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[FileScore]:
    """Yield a `FileScore` for each entry, in order."""
    if n_threads is None:
        n_threads = min(MAX_THREADS, n_cores())
    check_between("n_threads", n_threads, 1)

    def decode(entry: Entry) -> tuple[str, Utterance | str]:
        try:
            with open_entry(scorer, entry) as source:
                return entry.name, take_crops(source, scorer.input)
        except BAD_AUDIO as error:
            return entry.name, one_line(error)

    n_in_batch = -(-scorer.batch_size // scorer.input.n_crops)
    n_ahead = max(n_threads, 2 * n_in_batch)
    decoded = _map_ahead(decode, found, n_threads=n_threads, n_ahead=n_ahead)
    results = (
        FileScore(name=name, error=error_of(name, result))
        if isinstance(result, str)
        else FileScore(name=name, result=result)
        for name, result in scorer.score_utterances(decoded)
    )
    options: Any = {"total": total, "description": "scoring", "unit": "file"}
    return iter(track(results, **options)) if progress else results


def open_entry(scorer: Scorer, entry: Entry) -> AbstractContextManager[OpenAudio]:
    """Return the audio of an entry as a context, or raise what is wrong with it."""
    channel = scorer.one_channel() if entry.channel is None else entry.channel
    return entry.open(scorer.input.sample_rate, channel)


def check_audio(scorer: Scorer, entry: Entry) -> None:
    """Raise what is wrong with the audio of an entry: what is raised later is not its fault."""
    with open_entry(scorer, entry) as source:
        for first in range(0, source.n_samples, BLOCK_SAMPLES):
            source.read(first, BLOCK_SAMPLES)


def error_of(name: str, message: str) -> str:
    """Return an error that names its file."""
    return message if message.startswith((name, str(Path(name)))) else f"{name}: {message}"


def _map_ahead(
    function: Callable[[T], R], items: Iterable[T], *, n_threads: int, n_ahead: int
) -> Iterator[R]:
    """Apply `function` to the items in threads, in order, at most `n_ahead` of them in advance."""
    futures: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads, thread_name_prefix="asvspoof-cm") as pool:
        try:
            for item in items:
                futures.append(pool.submit(function, item))
                if len(futures) > n_ahead:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()


# Tables


def header(unit: str) -> str:
    """Return the first line of a table of scores."""
    return as_line(["filename", unit, "verdict", "warnings"])


def row_of(name: str, result: ScoreResult, costs: DetectionCosts, *, worst: bool = False) -> str:
    """Return the line of a file that was scored."""
    verdict = ABSENT if result.llr is None else str(result.verdict(costs, worst=worst))
    return as_line([name, f"{result.score:.6f}", verdict, "; ".join(result.warnings) or ABSENT])


def as_line(cells: Iterable[str]) -> str:
    """Return cells as a line of a table."""
    return "\t".join(map(_escaped, cells)) + "\n"


def _escaped(cell: str) -> str:
    return cell.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def write_table(
    scorer: Scorer,
    found: Iterable[Entry],
    output: Path,
    *,
    shard: Shard = (0, 1),
    progress: bool = False,
    costs: DetectionCosts = ASVSPOOF5,
    worst: bool = False,
    say: Callable[[FileScore], None] = lambda _: None,
) -> ScoreSummary:
    """Append the scores of entries to a table, skip what is there; see `Scorer.score_protocol`."""
    check_table(output)
    given = [(_escaped(entry.name), entry) for entry in found]
    _check_distinct([name for name, _ in given])
    every = dict(given)
    names = [*every][_part_of(len(every), *shard)]
    settings = scorer.settings()
    settings |= {"costs": [costs.p_spoof, costs.c_miss, costs.c_fa], "worst": worst}
    settings |= {"names": digest([*every]), "n_names": len(every)}
    settings |= {"n_shards": shard[1], "shard": shard[0]}
    errors = _beside(output, "errors.tsv")
    output.parent.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    n_silent = 0
    with _locked(output):
        before = _resume(output, settings, header(scorer.unit))
        write_json(_beside(output, "run.json"), settings)
        todo = [every[name] for name in names if name not in before]
        options: Any = {"progress": progress, "total": len(todo)}
        with output.open("ab") as table, errors.open("wb") as failures:
            failures.write(b"filename\terror\n")
            if not output.stat().st_size:
                table.write(header(scorer.unit).encode())
            for scored in score_entries(scorer, todo, **options):
                say(scored)
                if scored.result is None:
                    failed.append(str(scored.error))
                    failures.write(as_line([scored.name, failed[-1]]).encode())
                    failures.flush()
                else:
                    n_silent += not scored.result.has_speech
                    table.write(row_of(scored.name, scored.result, costs, worst=worst).encode())
                    table.flush()
        if not failed:
            errors.unlink()
        elif len(failed) == len(todo) and not before:
            raise ValueError(
                f"no utterance of {len(todo)} could be scored; see {errors}. The first error: "
                f"{failed[0]}"
            )
    return ScoreSummary(
        output=output,
        n_scored=len(before) + len(todo) - len(failed),
        n_resumed=len(before),
        n_failed=len(failed),
        errors=errors if failed else None,
        n_without_speech=n_silent,
    )


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Hold the lock of a table, which the system releases if this process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(_beside(output, "lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        message = f"{output} is being written by another process. Wait for it."
        raise ValueError(message) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes it at the release
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _part_of(n: int, k: int, n_shards: int) -> slice:
    """Return the slice of `n` names that a shard is."""
    if not 0 <= k < n_shards:
        raise ValueError(f"`shard` must be (k, n) with 0 <= k < n; got {(k, n_shards)}.")
    return slice(n * k // n_shards, n * (k + 1) // n_shards)


def check_table(output: Path) -> None:
    """Refuse what is not the name of a table."""
    if output.is_dir():
        raise IsADirectoryError(f"`output` must name a file; {output} is a directory.")
    if output.suffix.lower() != ".tsv":
        raise ValueError(
            f"`output` must end in .tsv; got {output.name}. A submission to the challenge is made "
            "of a finished table: asvspoof-cm merge scores.tsv --out x.zip."
        )


def _check_distinct(names: Sequence[str]) -> None:
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"every utterance must have a name of its own; {twice!r} occurs twice.")


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(f"{output.name}.{ending}")


def _resume(output: Path, settings: dict[str, Any], head: str) -> set[str]:
    """Return the names that a table has already; an error where it holds other scores."""
    content = output.read_bytes() if output.exists() else b""
    if not content:
        return set()
    changed = _changed(_record(output), settings)
    changed += [] if content.startswith(head.encode()[: len(content)]) else ["header"]
    if changed:
        raise ValueError(
            f"{output} was begun with another {', another '.join(changed)}. Choose another name, "
            "or delete it."
        )
    os.truncate(output, content.rfind(b"\n") + 1)  # an interruption may have torn the last line
    return {row[0] for row in _rows(output)}


def _changed(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _record(table: Path) -> dict[str, Any]:
    """Return what a table's scores depend on."""
    record = _beside(table, "run.json")
    if not record.is_file():
        raise ValueError(
            f"{record} is not there, so nothing says which model made {table.name}. Choose another "
            "table, or delete it."
        )
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    if not {"n_names", "n_shards", "shard"} <= content.keys():
        raise ValueError(f"{record} is of another version. Score {table.name} again.")
    return content


def _rows(table: Path) -> list[list[str]]:
    """Return the cells of each whole row of a table, without its header; none if there is none."""
    lines = table.read_bytes().decode(errors="replace").split("\n") if table.exists() else []
    return [line.split("\t") for line in lines[1:-1]]


def merge_scores(parts: Iterable[AudioPath], output: AudioPath) -> ScoreSummary:
    r"""Join the tables of all shards into one, or into a submission, and return what was scored.

    Args:
        parts: The tables that `Scorer.score_protocol` wrote, each with the ``.run.json`` beside it.
        output: The table to write, ``.tsv``; or ``.zip``, the submission to the challenge.

    Raises:
        ValueError: A part is missing, not finished, there twice, or of another model, other
            settings or another protocol than the others.

    Example:
        >>> merge_scores(["dev-0.tsv", "dev-1.tsv"], "dev.tsv").n_scored  # doctest: +SKIP
        5
    """
    output, paths = Path(output), [*map(Path, parts)]
    # A pattern such as scores-*.tsv also finds what stands beside the tables.
    paths = [path for path in paths if not path.name.endswith(".errors.tsv")]
    is_submission = output.suffix.lower() == ".zip"
    if not is_submission:
        check_table(output)
    if not paths:
        raise ValueError("`parts` must name the tables to join; got none.")
    tables = sorted(((_record(path), path) for path in paths), key=lambda table: table[0]["shard"])
    first, beginning = tables[0]
    shards, n_shards = [record.pop("shard") for record, _ in tables], first["n_shards"]
    rows: list[list[str]] = []
    failed: list[list[str]] = []
    for (record, path), k in zip(tables, shards, strict=True):
        if changed := _changed(first, record):
            raise ValueError(f"{path} has another {', another '.join(changed)} than {beginning}.")
        scored, without = _rows(path), _rows(_beside(path, "errors.tsv"))
        part = _part_of(first["n_names"], k, n_shards)
        if len(scored) + len(without) < part.stop - part.start:
            raise ValueError(
                f"{path} is not finished: {len(scored)} scores and {len(without)} errors of "
                f"{part.stop - part.start} utterances. Run it again to score the rest."
            )
        rows += scored
        failed += without
    if shards != [*range(n_shards)]:
        raise ValueError(
            f"all shards from 0 to {n_shards - 1} must be there, once; got "
            f"{', '.join(map(str, shards))}."
        )
    _check_distinct([row[0] for row in rows])
    if is_submission:
        write_scores(output, [row[0] for row in rows], [float(row[1]) for row in rows])
    else:
        _write(output, beginning.read_text().partition("\n")[0], rows)
        write_json(_beside(output, "run.json"), {**first, "shard": 0, "n_shards": 1})
    errors = _beside(output, "errors.tsv")
    errors.unlink(missing_ok=True)
    if failed:
        _write(errors, "filename\terror", failed)
    return ScoreSummary(
        output=output, n_scored=len(rows), n_failed=len(failed), errors=errors if failed else None
    )


def _write(path: Path, head: str, rows: list[list[str]]) -> None:
    write_text(path, "\n".join([head, *map("\t".join, rows), ""]))
