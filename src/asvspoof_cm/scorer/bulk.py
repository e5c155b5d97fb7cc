"""Scoring in bulk: files decoded in threads, protocols through interruptions and processes.

A file is either a score or an error. A protocol becomes a score file.

While it runs, each process appends finished rows to ``OUTPUT.part<rank>``, one flushed line each:
``name<TAB>score``, or ``name<TAB><TAB>error``. A kill can tear the last line only, and a torn line
has no end. ``OUTPUT.run.json`` says what the scores depend on, so that a run is never continued
with another model. When all is done, ``OUTPUT`` is written at once, in the order of the protocol.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import soundfile

from asvspoof_cm.audio import AudioFile
from asvspoof_cm.data.audio_sources import open_audio
from asvspoof_cm.data.folder import EXTENSION
from asvspoof_cm.data.formats import OpenAudio
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.metrics import read_scores, write_scores
from asvspoof_cm.scorer.inference import Inference, map_ahead
from asvspoof_cm.scorer.results import FileScore, ScoreResult
from asvspoof_cm.scorer.utterances import Utterance, take_crops
from asvspoof_cm.utils.files import atomic_path, exclusive
from asvspoof_cm.utils.processes import share_work
from asvspoof_cm.utils.progress import Progress, track
from asvspoof_cm.utils.settings import digest

MAX_THREADS = 4
BAD_AUDIO = (OSError, ValueError, soundfile.SoundFileError)
"""What a bad file can raise. It must not stop the others; an error in the code must."""
T = TypeVar("T")


def score_files(
    scorer: Inference,
    paths: Iterable[str | os.PathLike[str]],
    *,
    n_threads: int | None = None,
    progress: bool = False,
) -> Iterator[FileScore]:
    """Score audio files, yielding a `FileScore` for each, in order; see `Scorer.score_files`."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"`paths` must be several files; got {paths!r}. Wrap it in a list.")
    open_file = partial(AudioFile, sample_rate=scorer.input.sample_rate)
    scored = score_opened(scorer, map(Path, paths), open_file, n_threads=n_threads)
    results = itertools.starmap(_file_score, scored)
    total = len(paths) if isinstance(paths, Sized) else None
    return track(results, total=total, description="scoring", unit="file", enabled=progress)


def score_opened(
    scorer: Inference,
    tags: Iterable[T],
    open_tag: Callable[[T], AbstractContextManager[OpenAudio]],
    *,
    n_threads: int | None = None,
) -> Iterator[tuple[T, ScoreResult | str]]:
    """Score what `open_tag` opens for each tag, yielding the tag with a result or an error."""
    if n_threads is None:
        n_threads = min(MAX_THREADS, os.cpu_count() or 1)
    elif n_threads < 1:
        raise ValueError(f"`n_threads` must be at least 1; got {n_threads}.")

    def decode(tag: T) -> tuple[T, Utterance | str]:
        try:
            with open_tag(tag) as source:
                rate = getattr(source, "native_rate", scorer.input.sample_rate)
                resampled_from = None if rate == scorer.input.sample_rate else rate
                return tag, take_crops(source, scorer.input, resampled_from=resampled_from)
        except BAD_AUDIO as error:
            return tag, one_line(error)

    n_in_batch = -(-scorer.batch_size // scorer.input.n_crops)
    decoded = map_ahead(decode, tags, n_threads=n_threads, n_ahead=max(n_threads, 2 * n_in_batch))
    return scorer.score_utterances(decoded)


def _file_score(path: Path, result: ScoreResult | str) -> FileScore:
    if not isinstance(result, str):
        return FileScore(path=path, result=result)
    return FileScore(path=path, error=result if str(path) in result else f"{path}: {result}")


def one_line(error: BaseException) -> str:
    """Return an error's message, or its type where it has none, without line breaks or tabs."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True, kw_only=True)
class ProtocolScores:
    """What `score_protocol` did.

    Attributes:
        output: The score file.
        n_scored: Its rows.
        n_resumed: Those of them that an earlier, interrupted run had left.
        n_failed: Utterances that could not be scored.
        errors: The file that says why; None where all were scored.
    """

    output: Path
    n_scored: int
    n_resumed: int
    n_failed: int
    errors: Path | None


def score_protocol(
    scorer: Inference,
    protocol: Protocol | str | os.PathLike[str],
    audio_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    resume: bool | Literal["if_same"] = True,
    n_threads: int | None = None,
    progress: bool = False,
    extension: str = EXTENSION,
) -> ProtocolScores:
    r"""Score every utterance of a protocol into a score file of the challenge.

    The file has the header ``filename<TAB>cm-score`` and a row for each utterance that could be
    scored, once, in the order of the protocol. The others go to ``OUTPUT.errors.tsv`` with what was
    wrong, and are tried again by the next run. After a kill the same call scores the rest.

    Under torchrun, or in an initialised process group, every process calls this with the same
    arguments and scores its share; the process of rank 0 merges. The number of processes may
    change from run to run.

    Args:
        scorer: The scorer.
        protocol: The utterances, or the file that lists them; labels are not needed.
        audio_dir: Their folder; see `asvspoof_cm.data.open_audio`.
        output: The score file to write.
        resume: Resume an interrupted run of the same model, settings, protocol and `audio_dir`;
            anything else that is there is an error. "if_same" starts over instead, False always.
        n_threads: Threads that decode; None is one for each core, up to four.
        progress: Show progress on standard error.
        extension: What names without the extension of an audio format get.

    Raises:
        ValueError: Before anything is scored: `output` belongs to another model, other settings or
            another protocol, or is being written by another process; or the protocol names an
            utterance twice or with a tab. At the end: nothing could be scored.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> from asvspoof_cm.data import write_miniature
        >>> folder = Path(tempfile.mkdtemp())
        >>> paths = write_miniature(folder, n_train=2, n_dev=2)
        >>> scorer = Scorer(TFPARN(), device="cpu", n_crops=1)
        >>> done = scorer.score_protocol(paths.dev_protocol, paths.audio_dir, folder / "dev.tsv")
        >>> done.n_scored, done.output.read_text().split("\n")[0]
        (2, 'filename\tcm-score')
    """
    if not isinstance(protocol, Protocol):
        protocol = read_protocol(protocol, require_labels=False)
    names = _check_names(protocol)
    audio = open_audio(
        protocol, audio_dir, sample_rate=scorer.input.sample_rate, extension=extension
    )
    run = _Run(Path(output))
    settings = {
        **scorer.settings(),
        "protocol": f"{len(names)} utterances, sha256 {digest(names)[:16]}",
        "audio_dir": str(Path(audio_dir).resolve()),
    }
    with share_work() as processes, ExitStack() as held:

        def begin() -> None:
            held.enter_context(run.alone())
            run.begin(settings, resume=resume)

        processes.first(begin)
        done = run.rows(run.journal())
        todo = [k for k, name in enumerate(names) if name not in done or done[name].score is None]
        share = todo[processes.rank :: processes.n_processes]
        scored = score_opened(scorer, share, audio.open, n_threads=n_threads)
        with (
            run.journal(processes.rank).open("ab") as journal,
            Progress(
                total=len(share), description="scoring", unit="utterance", enabled=progress
            ) as bar,
        ):
            for k, result in scored:
                row = _Row(None, result) if isinstance(result, str) else _Row(result.score)
                journal.write(_line(names[k], row))
                journal.flush()
                bar.update()
        processes.wait()
        return processes.first(lambda: run.finish(names, n_resumed=len(names) - len(todo)))


class _Row(NamedTuple):
    """One line of a journal: a score, or None and an error."""

    score: float | None
    error: str = ""


class _Run:
    """The files of one run; only the first process changes those that others read."""

    def __init__(self, output: Path) -> None:
        if output.is_dir():
            raise IsADirectoryError(f"`output` must name a file; {output} is a directory.")
        self.output = output
        self.errors = output.with_name(f"{output.name}.errors.tsv")
        self.settings = output.with_name(f"{output.name}.run.json")

    def journal(self, rank: int | None = None) -> Path:
        """Return the journal of a process, or that of all runs before."""
        suffix = "" if rank is None else rank
        return self.output.with_name(f"{self.output.name}.part{suffix}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from the output inside the block."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(self.output.with_name(f"{self.output.name}.lock")) as is_ours:
            if not is_ours:
                raise ValueError(
                    f"`output`: {self.output} is being written by another process. Wait for it, or "
                    "choose another output."
                )
            yield

    def begin(self, settings: Mapping[str, Any], *, resume: bool | Literal["if_same"]) -> None:
        """Gather what earlier runs left into one journal, or clear it away."""
        rows: dict[str, _Row] = {}
        if not resume or (resume == "if_same" and self._changes(settings)):
            # Before the settings: old rows must never stand beside new settings.
            for path in (*self._journals(), self.output, self.errors):
                path.unlink(missing_ok=True)
        elif self.output.exists() or self._journals():
            self._check(settings)
            if self.output.exists():
                before = read_scores(self.output)
                if before.cm is not None:
                    pairs = zip(before.filename.tolist(), before.cm.tolist(), strict=True)
                    rows = {name: _Row(score) for name, score in pairs}
            rows |= self._gather()
        with atomic_path(self.settings) as temporary:
            temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        with atomic_path(self.journal()) as temporary, temporary.open("wb") as file:
            file.writelines(_line(name, row) for name, row in rows.items())
        for path in self._journals():
            if path != self.journal():
                path.unlink()

    def finish(self, names: Sequence[str], *, n_resumed: int) -> ProtocolScores:
        """Write the score file in the order of the protocol and remove the journals."""
        rows = self._gather()
        missing = [name for name in names if name not in rows]
        if missing:
            raise RuntimeError(
                f"{len(missing)} utterances were neither scored nor refused, such as {missing[0]}; "
                "another run may have used the same output. Run again to score them."
            )
        failed = [name for name in names if rows[name].score is None]
        if failed:
            lines = [f"{name}\t{rows[name].error}\n" for name in failed]
            with atomic_path(self.errors) as temporary:
                temporary.write_text("filename\terror\n" + "".join(lines), encoding="utf-8")
        else:
            self.errors.unlink(missing_ok=True)
        scores = {name: row.score for name in names if (row := rows[name]).score is not None}
        if not scores:
            raise ValueError(
                f"none of the {len(names)} utterances could be scored; see {self.errors}. "
                f"The first error: {rows[names[0]].error}"
            )
        write_scores(self.output, [*scores], [*scores.values()])
        for path in self._journals():
            path.unlink()
        return ProtocolScores(
            output=self.output,
            n_scored=len(scores),
            n_resumed=n_resumed,
            n_failed=len(failed),
            errors=self.errors if failed else None,
        )

    @staticmethod
    def rows(path: Path) -> dict[str, _Row]:
        """Read a journal; lines that a kill left unfinished are not there."""
        rows = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            name, _, rest = line.decode("utf-8", "replace").partition("\t")
            score, _, error = rest.partition("\t")
            try:
                rows[name] = _Row(None if error else float(score), error)
            except ValueError:
                continue
        return rows

    def _gather(self) -> dict[str, _Row]:
        rows: dict[str, _Row] = {}
        for path in self._journals():
            for name, row in self.rows(path).items():
                if name not in rows or rows[name].score is None:
                    rows[name] = row
        return rows

    def _journals(self) -> list[Path]:
        """Return the journals that exist, that of earlier runs first."""
        prefix = self.journal().name
        suffixes = {
            path.name.removeprefix(prefix): path
            for path in self.output.parent.iterdir()
            if path.name.startswith(prefix)
        }
        ranks = sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())
        return [suffixes[key] for key in ("", *map(str, ranks)) if key in suffixes]

    def _check(self, settings: Mapping[str, Any]) -> None:
        if not self.settings.exists():
            raise ValueError(
                f"`output`: {self.output} is there but {self.settings.name} is not, so nothing "
                "says which model made it. Pass resume=False to replace it."
            )
        changes = self._changes(settings)
        if changes:
            raise ValueError(
                f"`output`: {self.output} was begun with another {'; another '.join(changes)}. "
                "Pass resume=False to start over, or choose another output."
            )

    def _changes(self, settings: Mapping[str, Any]) -> list[str]:
        """Return what differs from the run that was here before, if there was one."""
        if not self.settings.exists():
            return []
        before = json.loads(self.settings.read_text(encoding="utf-8"))
        return [
            f"{key} ({before.get(key)}, now {settings[key]})"
            for key in settings
            if before.get(key) != settings[key]
        ]


def _line(name: str, row: _Row) -> bytes:
    score = f"\t{row.error}" if row.score is None else repr(row.score)
    return f"{name}\t{score}\n".encode("utf-8", "replace")


def _check_names(protocol: Protocol) -> list[str]:
    names: list[str] = protocol.utterance.tolist()
    if len(set(names)) < len(names):
        raise ValueError("`protocol` must name every utterance once; some are repeated.")
    for name in names:
        if not name or name.splitlines() != [name] or "\t" in name:
            raise ValueError(
                "`protocol`: the name of an utterance must neither be empty nor hold tabs or line "
                f"breaks, which a score file can't hold; got {name!r}."
            )
    return names
