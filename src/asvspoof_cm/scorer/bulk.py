"""Scoring in bulk: files decoded in threads, protocols through interruptions and in shards.

A file is either a score or an error. A protocol becomes a score file; `shards` has its files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import soundfile

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.data.audio_sources import open_audio
from asvspoof_cm.data.folder import EXTENSION
from asvspoof_cm.data.formats import FileOpener, OpenAudio, Opener, audio_entries, is_container
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.scorer.inference import Inference, map_ahead
from asvspoof_cm.scorer.results import FileScore, ScoreResult
from asvspoof_cm.scorer.shards import ProtocolScores, Resume, Row, Run, Shard, line, read_header
from asvspoof_cm.scorer.utterances import Utterance, take_crops
from asvspoof_cm.utils.processes import check_shard, share_work
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
    rate = scorer.input.sample_rate
    scored = score_opened(
        scorer, _openers(map(Path, paths)), lambda tag: tag[1](rate), n_threads=n_threads
    )
    results = (_file_score(path, result) for (path, _), result in scored)
    total = len(paths) if isinstance(paths, Sized) else None
    return track(results, total=total, description="scoring", unit="file", enabled=progress)


def _openers(paths: Iterable[Path]) -> Iterator[tuple[Path, Opener]]:
    """Yield files as they are, and what folders, tars and other containers hold."""
    for path in paths:
        if not is_container(path):
            yield path, FileOpener(path)
            continue
        try:
            yield from ((Path(name), opener) for name, opener in audio_entries(path))
        except BAD_AUDIO as error:
            yield path, partial(_fail, error)


def _fail(error: Exception, sample_rate: int = SAMPLE_RATE) -> AbstractContextManager[OpenAudio]:
    raise error


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


def score_protocol(
    scorer: Inference,
    protocol: Protocol | str | os.PathLike[str],
    audio_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    shard: Shard | None = None,
    resume: Resume = True,
    n_threads: int | None = None,
    progress: bool = False,
    extension: str = EXTENSION,
) -> ProtocolScores:
    r"""Score every utterance of a protocol into a score file of the challenge.

    The file has the header ``filename<TAB>cm-score`` and a row for each utterance that could be
    scored, once, in the order of the protocol. The others go to ``OUTPUT.errors.tsv`` with what was
    wrong, and are tried again by the next run. After a kill the same call scores the rest.

    Many machines share the work by `shard`: each calls this with the same arguments and another
    shard, and `merge_scores` makes the score file. Under torchrun, or in an initialised process
    group, this happens by itself: every process scores its shard, and that of rank 0 merges. The
    number of processes may change from run to run.

    Args:
        scorer: The scorer.
        protocol: The utterances, or the file that lists them; labels are not needed.
        audio_dir: Their folder; see `asvspoof_cm.data.open_audio`.
        output: The score file to write.
        shard: Score part k of n only, (k, n) with k from 0.
        resume: Resume an interrupted run of the same model, settings, protocol and `audio_dir`;
            anything else that is there is an error. "if_same" starts over instead, False always.
        n_threads: Threads that decode; None is one for each core, up to four.
        progress: Show progress on standard error.
        extension: What names without the extension of an audio format get.

    Raises:
        ValueError: Before anything is scored: `output` belongs to another model, other settings,
            another protocol or another number of shards, or is being written by another process;
            or the protocol names an utterance twice or with a tab. At the end: nothing could be
            scored.

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
    names, described = _names(protocol)
    audio = open_audio(
        protocol, audio_dir, sample_rate=scorer.input.sample_rate, extension=extension
    )
    settings = {
        **scorer.settings(),
        "protocol": described,
        "audio_dir": str(Path(audio_dir).resolve()),
    }
    run = Run(Path(output), json.loads(json.dumps(settings)))

    def score(part: Shard) -> ProtocolScores:
        with run.alone(part):
            rows = run.begin(part, names[part[0] :: part[1]], True if shard is None else resume)
            todo = [k for k in range(part[0], len(names), part[1]) if names[k] not in rows]
            n_resumed, n_failed = len(rows), 0
            scored = score_opened(scorer, todo, audio.open, n_threads=n_threads)
            with (
                run.journal(part).open("ab") as journal,
                Progress(
                    total=len(todo), description="scoring", unit="utterance", enabled=progress
                ) as bar,
            ):
                for k, result in scored:
                    row = Row(None, result) if isinstance(result, str) else Row(result.score)
                    n_failed += row.score is None
                    journal.write(line(names[k], row))
                    journal.flush()
                    bar.update()
        path = run.journal(part)
        return ProtocolScores(
            output=path,
            n_scored=n_resumed + len(todo) - n_failed,
            n_resumed=n_resumed,
            n_failed=n_failed,
            errors=path if n_failed else None,
        )

    if shard is not None:
        shard = check_shard(shard)
        run.check_number(shard[1])
        return score(shard)
    with share_work() as workers, ExitStack() as held:

        def begin() -> int:
            held.enter_context(run.alone())
            return run.gather(resume)

        n_resumed = workers.first(begin)
        score((workers.rank, workers.n_processes))
        workers.wait()
        return workers.first(lambda: run.merge(names, n_resumed))


def merge_scores(
    protocol: Protocol | str | os.PathLike[str], output: str | os.PathLike[str]
) -> ProtocolScores:
    r"""Make the score file of a protocol of its shards, and remove them.

    Args:
        protocol: The utterances, as they were given to `Scorer.score_protocol`.
        output: The score file, as it was given there; its shards are ``OUTPUT.shard-K-of-N``.

    Raises:
        FileNotFoundError: There are no shards.
        ValueError: A shard is missing, not finished or of another model, of other settings or of
            another protocol than the others; or an utterance is in two of them.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> from asvspoof_cm.data import write_miniature
        >>> folder = Path(tempfile.mkdtemp())
        >>> paths = write_miniature(folder, n_train=2, n_dev=5)
        >>> scorer = Scorer(TFPARN(), device="cpu", n_crops=1)
        >>> for k in range(2):  # on two machines
        ...     part = scorer.score_protocol(
        ...         paths.dev_protocol, paths.audio_dir, folder / "dev.tsv", shard=(k, 2)
        ...     )
        >>> merge_scores(paths.dev_protocol, folder / "dev.tsv").n_scored
        5
    """
    if not isinstance(protocol, Protocol):
        protocol = read_protocol(protocol, require_labels=False)
    names, described = _names(protocol)
    run = Run(Path(output), {})
    shards = run.shards()
    if not shards:
        raise FileNotFoundError(f"`output`: there is no {run.output.name}.shard-0-of-N beside it.")
    run.check_number(next(iter(shards))[1])
    run.settings = read_header(next(iter(shards.values())))
    if run.settings.get("protocol") != described:
        raise ValueError(
            f"`protocol` must be that of the shards, {run.settings.get('protocol')}; got "
            f"{described}."
        )
    with run.alone(), ExitStack() as held:
        for shard in shards:
            held.enter_context(run.alone(shard))
        return run.merge(names, 0)


def _names(protocol: Protocol) -> tuple[list[str], str]:
    """Return the names of the utterances, and what stands for all of them in a record."""
    names: list[str] = protocol.utterance.tolist()
    if len(set(names)) < len(names):
        raise ValueError("`protocol` must name every utterance once; some are repeated.")
    for name in names:
        if not name or name.splitlines() != [name] or "\t" in name:
            raise ValueError(
                "`protocol`: the name of an utterance must neither be empty nor hold tabs or line "
                f"breaks, which a score file can't hold; got {name!r}."
            )
    return names, f"{len(names)} utterances, sha256 {digest(names)[:16]}"
