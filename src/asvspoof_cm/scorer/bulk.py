"""Scoring in bulk: files decoded in threads; protocols in shards, resumed after interruptions.

A file gives either a score or an error. A protocol becomes a score file; `shards` writes it.
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

from asvspoof_cm.audio import OpenAudio
from asvspoof_cm.data.audio_sources import open_audio
from asvspoof_cm.data.containers import audio_entries, is_container, stem
from asvspoof_cm.data.openers import Opener, open_file
from asvspoof_cm.data.protocol import Protocol, read_protocol
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.scorer.inference import Inference, map_ahead
from asvspoof_cm.scorer.results import FileScore, ProtocolScores, ScoreResult
from asvspoof_cm.scorer.shards import Resume, Row, ScoreRun, Shard, as_line, read_header
from asvspoof_cm.scorer.utterances import Utterance, take_crops
from asvspoof_cm.utils.checks import check_between, one_line
from asvspoof_cm.utils.processes import check_shard, n_cores, share_work
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
    root: str | os.PathLike[str] | None = None,
    glob: str | None = None,
    n_threads: int | None = None,
    progress: bool = False,
) -> Iterator[FileScore]:
    """Yield a `FileScore` for each audio file, in order.

    Files are decoded in threads ahead of the model, each read once in blocks: memory grows
    neither with their number nor with their length. A file that can't be scored yields a
    `FileScore` with its `error`, and the rest goes on.

    Args:
        scorer: The scorer.
        paths: The files, read lazily. Folders, lists, tars and the other formats of
            `asvspoof_cm.data.audio_entries` stand for what they hold, by its names.
        root: Where the files of lists must lie, and relative names start; None is the list's
            folder.
        glob: Which files of folders, such as ``"*.wav"``, at any depth; None is all audio.
        n_threads: Threads that decode; None is one for each core, up to four.
        progress: Show progress on standard error.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> from asvspoof_cm.scorer import Scorer
        >>> [score.error for score in Scorer(TFPARN(), device="cpu").score_files(["no.wav"])]
        ["[Errno 2] No such file or directory: 'no.wav'"]
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"`paths` must be several files; got {paths!r}. Wrap it in a list.")
    entries = openers(map(Path, paths), root, glob)
    total = None
    if isinstance(paths, Sized) and not any(is_container(Path(path)) for path in paths):
        total = len(paths)
    return score_entries(scorer, entries, n_threads=n_threads, progress=progress, total=total)


def score_file(scorer: Inference, path: str | os.PathLike[str]) -> ScoreResult:
    """Return the result of one audio file, read in blocks: its length costs no memory.

    Raises:
        OSError: There is no such file.
        ValueError: It can't be decoded or scored; the message says why.
    """
    with open_file(Path(path), scorer.input.sample_rate) as source:
        utterance = take_crops(source, scorer.input)
    return scorer.score_utterance(utterance, str(path))


def score_entries(
    scorer: Inference,
    entries: Iterable[tuple[Path, Opener]],
    *,
    n_threads: int | None = None,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[FileScore]:
    """Yield a `FileScore` for what each opener opens, under the path that comes with it."""
    rate = scorer.input.sample_rate
    scored = score_opened(scorer, entries, lambda tag: tag[1](rate), n_threads=n_threads)
    results = (_file_score(path, result) for (path, _), result in scored)
    return track(results, total=total, description="scoring", unit="file", enabled=progress)


def openers(
    paths: Iterable[Path], root: str | os.PathLike[str] | None = None, glob: str | None = None
) -> Iterator[tuple[Path, Opener]]:
    """Yield files as they are, and what folders, tars and other containers hold."""
    for path in paths:
        try:
            if glob is not None and path.is_dir():
                yield from _matching(path, glob)
            elif is_container(path):
                found = audio_entries(path, root=root)
                yield from ((Path(name), opener) for name, opener in found)
            else:
                yield path, partial(open_file, path)
        except BAD_AUDIO as error:
            yield path, partial(_fail, error)


def _matching(folder: Path, glob: str) -> Iterator[tuple[Path, Opener]]:
    found = sorted(path for path in folder.rglob(glob) if path.is_file())
    if not found:
        raise ValueError(f"{folder} holds no file {glob}.")
    for path in found:
        yield Path(stem(path.relative_to(folder).as_posix())), partial(open_file, path)


def _fail(error: Exception, sample_rate: int = SAMPLE_RATE) -> AbstractContextManager[OpenAudio]:
    raise error


def score_opened(
    scorer: Inference,
    tags: Iterable[T],
    open_tag: Callable[[T], AbstractContextManager[OpenAudio]],
    *,
    n_threads: int | None = None,
) -> Iterator[tuple[T, ScoreResult | str]]:
    """Yield each tag with the result, or the error, of what `open_tag` opens for it."""
    if n_threads is None:
        n_threads = min(MAX_THREADS, n_cores())
    check_between("n_threads", n_threads, 1)

    def decode(tag: T) -> tuple[T, Utterance | str]:
        try:
            with open_tag(tag) as source:
                return tag, take_crops(source, scorer.input)
        except BAD_AUDIO as error:
            return tag, one_line(error)

    n_in_batch = -(-scorer.batch_size // scorer.input.n_crops)
    decoded = map_ahead(decode, tags, n_threads=n_threads, n_ahead=max(n_threads, 2 * n_in_batch))
    return scorer.score_utterances(decoded)


def _file_score(path: Path, result: ScoreResult | str) -> FileScore:
    if not isinstance(result, str):
        return FileScore(path=path, result=result)
    return FileScore(path=path, error=result if str(path) in result else f"{path}: {result}")


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
) -> ProtocolScores:
    r"""Score a protocol into a score file of the challenge, and return what was done.

    The file has the header ``filename<TAB>cm-score`` and a row for each utterance that could be
    scored, once, in the order of the protocol; ``OUTPUT.run.json`` says the unit of the scores and
    what else they depend on. The others go to ``OUTPUT.errors.tsv`` with what was wrong, and are
    tried again by the next run; ``OUTPUT.warnings.tsv`` lists scores that may mean little. After
    an interruption the same call scores the rest.

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
    protocol, names, described = _utterances(protocol)
    audio = open_audio(protocol, audio_dir, sample_rate=scorer.input.sample_rate)
    settings = {
        **scorer.settings(),
        "protocol": described,
        "audio_dir": str(Path(audio_dir).resolve()),
    }
    run = ScoreRun(Path(output), json.loads(json.dumps(settings)))

    def score(part: Shard) -> ProtocolScores:
        with run.alone(part):
            # Without `shard`, `gather` has kept or cleared what was there, as `resume` says.
            rows = run.begin(part, names[part[0] :: part[1]], True if shard is None else resume)
            todo = [k for k in range(part[0], len(names), part[1]) if names[k] not in rows]
            n_failed = n_without_speech = 0
            scored = score_opened(scorer, todo, audio.open, n_threads=n_threads)
            with (
                run.journal(part).open("ab") as journal,
                Progress(
                    total=len(todo), description="scoring", unit="utterance", enabled=progress
                ) as bar,
            ):
                for k, result in scored:
                    if isinstance(result, str):
                        row = Row(None, result)
                        n_failed += 1
                    else:
                        row = Row(result.score, ", ".join(result.warnings))
                        n_without_speech += not result.has_speech
                    journal.write(as_line(names[k], row))
                    journal.flush()
                    bar.update()
        path = run.journal(part)
        return ProtocolScores(
            output=path,
            n_scored=len(rows) + len(todo) - n_failed,
            n_resumed=len(rows),
            n_failed=n_failed,
            errors=path if n_failed else None,
            n_without_speech=n_without_speech,
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
    r"""Join the shards of a protocol into its score file, and return what was scored.

    The shards are removed.

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
    _, names, described = _utterances(protocol)
    run = ScoreRun(Path(output), {})
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


def _utterances(protocol: Protocol | str | os.PathLike[str]) -> tuple[Protocol, list[str], str]:
    """Return a protocol, the names of its utterances, and what stands for them in a record."""
    protocol = read_protocol(protocol, require_labels=False)
    names: list[str] = protocol.utterance.tolist()
    if len(set(names)) < len(names):
        raise ValueError("`protocol` must name every utterance once; some are repeated.")
    for name in names:
        if not name or name.splitlines() != [name] or "\t" in name:
            raise ValueError(
                "`protocol`: the name of an utterance must neither be empty nor hold tabs or line "
                f"breaks, which a score file can't hold; got {name!r}."
            )
    return protocol, names, f"{len(names)} utterances, sha256 {digest(names)[:16]}"
