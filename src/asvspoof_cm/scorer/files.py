"""Files, folders, lists and protocols: each utterance a score or an error that stops no other."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from asvspoof_cm._util import check_between, one_line
from asvspoof_cm.audio import BAD_AUDIO, OpenAudio
from asvspoof_cm.data.folder import AudioFolder, AudioPath, Entry
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.labels import ABSENT
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts

if TYPE_CHECKING:
    from asvspoof_cm.scorer.scorer import Scorer, ScoreResult, Utterance

Shard: TypeAlias = tuple[int, int]
T = TypeVar("T")
R = TypeVar("R")

TABLES = (".tsv", ".jsonl")
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
        found = {"error": self.error} if self.result is None else None
        return {"filename": self.name, **(found or self.result.as_dict(costs, worst=worst))}  # type: ignore[union-attr]


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


# What there is to score


def protocol_entries(protocol: Protocol | AudioPath, audio_dir: AudioPath) -> list[Entry]:
    """Return the utterances of a protocol, with their files below a folder."""
    protocol = read_protocol(protocol, require_labels=False)
    folder = AudioFolder(protocol, audio_dir)
    return [Entry(name, folder.path(k)) for k, name in enumerate(protocol.utterance.tolist())]


# Scores


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
        n_threads = min(MAX_THREADS, _n_cores())
    check_between("n_threads", n_threads, 1)

    def decode(entry: Entry) -> tuple[str, Utterance | str]:
        try:
            with open_entry(scorer, entry) as source:
                return entry.name, scorer.take_crops(source)
        except BAD_AUDIO as error:
            return entry.name, one_line(error)

    n_in_batch = -(-scorer.batch_size // scorer.input.n_crops)
    n_ahead = max(n_threads, 2 * n_in_batch)
    decoded = _map_ahead(decode, found, n_threads=n_threads, n_ahead=n_ahead)
    results = (_file_score(name, result) for name, result in scorer.score_utterances(decoded))
    if not progress:
        return results
    from asvspoof_cm._util import track

    return track(results, total=total, description="scoring", unit="file")


def open_entry(scorer: Scorer, entry: Entry) -> AbstractContextManager[OpenAudio]:
    """Return the audio of an entry as a context, or raise what is wrong with it."""
    channel = scorer.one_channel() if entry.channel is None else entry.channel
    return entry.open(scorer.input.sample_rate, channel)


def _file_score(name: str, result: ScoreResult | str) -> FileScore:
    if isinstance(result, str):
        return FileScore(name=name, error=error_of(name, result))
    return FileScore(name=name, result=result)


def error_of(name: str, message: str) -> str:
    """Return an error that names its file."""
    return message if message.startswith(name) else f"{name}: {message}"


def _map_ahead(
    function: Callable[[T], R], items: Iterable[T], *, n_threads: int, n_ahead: int
) -> Iterator[R]:
    """Apply `function` to the items in threads, in order, at most `n_ahead` of them in advance.

    `items` is read only as far as needed. What is not wanted any more is not started.
    """
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


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Tables


def header(unit: str) -> list[str]:
    """Return the columns of a table of scores."""
    return ["filename", unit, "verdict", "warnings"]


def row_of(scored: FileScore, costs: DetectionCosts, *, worst: bool = False) -> list[str]:
    """Return the cells of a file that was scored."""
    result = scored.result
    if result is None:
        raise ValueError(f"{scored.name} has no score.")
    verdict = ABSENT if result.llr is None else str(result.verdict(costs, worst=worst))
    notes = "; ".join(result.warnings) or ABSENT
    return [escaped(scored.name), f"{result.score:.6f}", verdict, notes]


def escaped(name: str) -> str:
    r"""Return a name that fits into one cell: tabs and line breaks as ``\t`` and ``\n``."""
    return name.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def as_line(cells: Sequence[str]) -> str:
    """Return cells as a line of a table."""
    return "\t".join(cells) + "\n"


def write_table(
    scorer: Scorer,
    found: Iterable[Entry],
    output: Path,
    *,
    shard: Shard = (0, 1),
    n_threads: int | None = None,
    progress: bool = False,
    costs: DetectionCosts = ASVSPOOF5,
    worst: bool = False,
    say: Callable[[FileScore], None] = lambda _: None,
) -> ScoreSummary:
    """Append the scores of entries to a table, skip what is there; see `Scorer.score_protocol`."""
    from asvspoof_cm._util import digest, exclusive, write_json

    form = check_table(output)
    every = [*found]
    names = [escaped(entry.name) for entry in every]
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"every utterance must have a name of its own; {twice!r} occurs twice.")
    part = part_of(len(every), shard)
    record, errors = (output.with_name(output.name + end) for end in (".run.json", ".errors.tsv"))
    asked = {"costs": [costs.p_spoof, costs.c_miss, costs.c_fa], "worst": worst}
    settings = {**scorer.settings(), **asked, "names": digest(names), "n_names": len(names)}
    settings = json.loads(json.dumps({**settings, "shard": [*shard]}))
    output.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(output.with_name(f"{output.name}.lock")) as is_ours:
        if not is_ours:
            raise ValueError(f"{output} is being written by another process. Wait for it.")
        before = _resume(output, record, settings, form)
        write_json(record, settings)
        todo = [
            entry
            for entry, name in zip(every[part], names[part], strict=True)
            if name not in before
        ]
        failed: list[str] = []
        n_silent = 0
        with output.open("ab") as table, errors.open("wb") as failures:
            failures.write(b"filename\terror\n")
            if not output.stat().st_size and form != ".jsonl":
                table.write(as_line(header(scorer.unit)).encode())
            for scored in score_entries(
                scorer, todo, n_threads=n_threads, progress=progress, total=len(todo)
            ):
                say(scored)
                if scored.result is None:
                    failed.append(str(scored.error))
                    failures.write(f"{escaped(scored.name)}\t{escaped(failed[-1])}\n".encode())
                    failures.flush()
                    continue
                n_silent += not scored.result.has_speech
                if form == ".jsonl":
                    line = json.dumps(scored.as_dict(costs, worst=worst), ensure_ascii=True) + "\n"
                else:
                    line = as_line(row_of(scored, costs, worst=worst))
                table.write(line.encode())
                table.flush()
        if not failed:
            errors.unlink()
        elif len(failed) == len(todo) and not before:
            raise ValueError(
                f"none of the {len(todo)} utterances could be scored; see {errors}. The first "
                f"error: {failed[0]}"
            )
    return ScoreSummary(
        output=output,
        n_scored=len(before) + len(todo) - len(failed),
        n_resumed=len(before),
        n_failed=len(failed),
        errors=errors if failed else None,
        n_without_speech=n_silent,
    )


def part_of(n: int, shard: Shard) -> slice:
    """Return the slice of `n` names that a shard is."""
    k, n_shards = shard
    if not 0 <= k < n_shards:
        raise ValueError(f"`shard` must be (k, n) with 0 <= k < n; got {shard}.")
    return slice(n * k // n_shards, n * (k + 1) // n_shards)


def check_table(output: Path) -> str:
    """Return how the name of a table ends, if it is one."""
    if output.is_dir():
        raise IsADirectoryError(f"`output` must name a file; {output} is a directory.")
    form = output.suffix.lower()
    if form not in TABLES:
        raise ValueError(
            f"`output` must end in {', '.join(TABLES)}; got {output.name}. A submission to the "
            "challenge is made of a finished table: asvspoof-cm merge scores.tsv --out x.zip."
        )
    return form


def _resume(output: Path, record: Path, settings: dict[str, Any], form: str) -> set[str]:
    """Return the names that a table has already; an error where it holds other scores."""
    if not output.exists() or not output.stat().st_size:
        return set()
    if not record.exists():
        raise ValueError(
            f"{output} is there but {record.name} is not, so nothing says which model made it. "
            "Choose another name, or delete it."
        )
    begun = json.loads(record.read_text(encoding="utf-8"))
    if begun != settings:
        changed = [k for k in sorted({*begun, *settings}) if begun.get(k) != settings.get(k)]
        raise ValueError(
            f"{output} was begun with another {', another '.join(changed)}. Choose another name, "
            "or delete it."
        )
    content = output.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):  # an interruption tore the last line
        os.truncate(output, len(whole))
    return {name for name, _ in _read_rows(whole, form)}


def _read_rows(content: bytes, form: str) -> list[tuple[str, str]]:
    """Return the name and the score of each row of a table."""
    if form == ".jsonl":
        rows = [json.loads(line) for line in content.splitlines()]
        return [(escaped(row["filename"]), str(row["score"])) for row in rows]
    cells = (line.split("\t") for line in content.decode().split("\n")[1:-1])
    return [(row[0], row[1]) for row in cells]


def merge_scores(parts: Iterable[AudioPath], output: AudioPath) -> ScoreSummary:
    r"""Join the tables of all shards into one, or into a submission, and return what was scored.

    Args:
        parts: The tables that `Scorer.score_protocol` wrote, each with the ``.run.json`` beside it.
        output: The table to write, of their format; or ``.zip``, the submission to the challenge.

    Raises:
        ValueError: A part is missing, not finished, there twice, or of another model, other
            settings or another protocol than the others.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.data import write_miniature
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> folder = Path(tempfile.mkdtemp())
        >>> paths = write_miniature(folder, n_train=2, n_dev=5)
        >>> scorer = Scorer(TFPARN(), device="cpu", n_crops=1)
        >>> parts = [folder / "0.tsv", folder / "1.tsv"]
        >>> for k in range(2):  # on two machines
        ...     part = scorer.score_protocol(
        ...         paths.dev_protocol, paths.audio_dir, parts[k], shard=(k, 2)
        ...     )
        >>> merge_scores(parts, folder / "dev.tsv").n_scored
        5
    """
    from asvspoof_cm._util import atomic_path, write_json
    from asvspoof_cm.metrics import write_scores

    given = sorted(map(Path, parts), key=lambda path: _record(path)["shard"])
    output = Path(output)
    records = [_record(path) for path in given]
    if not given:
        raise ValueError("`parts` must name the tables to join; got none.")
    shards, n_names = [record.pop("shard") for record in records], records[0]["n_names"]
    n_shards = shards[0][1]
    for path, record, shard in zip(given, records, shards, strict=True):
        changed = [k for k in record if record[k] != records[0].get(k)]
        if changed or shard[1] != n_shards:
            what = ", another ".join(changed) or "number of shards"
            raise ValueError(f"{path} has another {what} than {given[0]}.")
    if [k for k, _ in shards] != [*range(n_shards)]:
        raise ValueError(
            f"all shards from 0 to {n_shards - 1} must be there, once; got "
            f"{', '.join(f'{k}/{n}' for k, n in shards)}."
        )
    form = given[0].suffix.lower()
    rows: list[tuple[str, str]] = []
    contents, failures = [], []
    for path, (k, _) in zip(given, shards, strict=True):
        content, errors = path.read_bytes(), path.with_name(f"{path.name}.errors.tsv")
        failed = errors.read_bytes().splitlines(keepends=True)[1:] if errors.exists() else []
        found = _read_rows(content, form)
        part = part_of(n_names, (k, n_shards))
        if len(found) + len(failed) < part.stop - part.start or content[-1:] not in (b"\n", b""):
            raise ValueError(
                f"{path} is not finished: {len(found)} scores and {len(failed)} errors of "
                f"{part.stop - part.start} utterances. Run it again to score the rest."
            )
        rows += found
        contents.append(content)
        failures += failed
    twice = next((name for name, n in Counter(name for name, _ in rows).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"every utterance must be in one part; {twice} is in two.")
    if output.suffix.lower() == ".zip":
        write_scores(output, [name for name, _ in rows], [float(score) for _, score in rows])
    elif output.suffix.lower() != form:
        raise ValueError(
            f"`output` must end in {form}, as the parts do, or .zip; got {output.name}."
        )
    else:
        head = b"" if form == ".jsonl" else contents[0].partition(b"\n")[0] + b"\n"
        with atomic_path(output) as temporary:
            temporary.write_bytes(head + b"".join(content[len(head) :] for content in contents))
        write_json(output.with_name(f"{output.name}.run.json"), {**records[0], "shard": [0, 1]})
    errors = output.with_name(f"{output.name}.errors.tsv")
    errors.unlink(missing_ok=True)
    if failures:
        errors.write_bytes(b"filename\terror\n" + b"".join(failures))
    return ScoreSummary(
        output=output,
        n_scored=len(rows),
        n_failed=len(failures),
        errors=errors if failures else None,
    )


def _record(path: Path) -> dict[str, Any]:
    record = path.with_name(f"{path.name}.run.json")
    if not record.is_file():
        raise FileNotFoundError(f"{path} was not written by score: there is no {record.name}.")
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return content
