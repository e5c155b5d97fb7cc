"""Clips of public repositories: found by their git blob, made into 16 kHz FLAC.

Neither branch nor path matters, so a clip is the same wherever a clone comes from. A repository
that cannot be had costs its clips, not the build.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import soundfile

from asvspoof_cm._util import atomic_path, track
from asvspoof_cm.labels import SAMPLE_RATE
from manyvoices.clips import make_clip
from manyvoices.table import TABLE, Row, md5, read_lines, write_table

INDEX: Final = Path(__file__).with_name("index.tsv")
REPOSITORIES: Final = Path(__file__).with_name("repositories.tsv")
HOST: Final = "https://github.com/"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A line of the index: a clip to be, and the blob it is made from."""

    row: Row
    blob: str

    @property
    def name(self) -> str:
        """What the choice of a part of a long recording depends on."""
        return self.row.source + self.row.origin


def read_index(path: Path = INDEX, *, split: str | None = None) -> list[Entry]:
    """Return the clips of an index, of one split or of all."""
    return [_entry(line) for line in read_lines(path) if split in (None, line["split"])]


def _entry(line: Mapping[str, str]) -> Entry:
    utterance = md5(f"{line['repo']}|{line['path']}")[:14]
    row = Row(
        utterance=utterance,
        path=f"audio/{utterance}.flac",
        label=line["label"],
        generator=line["generator"],
        speaker=line["speaker"],
        source=line["repo"],
        split=line["split"],
        origin=line["path"],
    )
    return Entry(row, line["blob"])


def find_repository(folder: Path, name: str) -> Path | None:
    """Return the git directory of OWNER/NAME below `folder`, None where there is none.

    It may be OWNER/NAME (a clone, or a bare one), OWNER+NAME/repo/.git or OWNER+NAME/repo.
    """
    flat = folder / name.replace("/", "+") / "repo"
    places = (flat / ".git", flat, folder / name / ".git", folder / name)
    return next((place for place in places if (place / "HEAD").exists()), None)


def clone(name: str, commit: str, folder: Path, *, host: str = HOST) -> Path:
    """Fetch one commit of a repository, without its history, into ``folder/OWNER/NAME``.

    Raises:
        subprocess.CalledProcessError: It is gone, or the host cannot be reached.
    """
    target = folder / name
    with atomic_folder(target) as temporary:
        _git(["init", "--quiet", "--bare", str(temporary)])
        fetch = ["fetch", "--quiet", "--depth", "1", f"{host}{name}", commit]
        _git(["-C", str(temporary), *fetch])
    return target


class atomic_folder:
    """A temporary folder that gets its name when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Path:
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.temporary.replace(self.path)


def _git(arguments: Sequence[str]) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)


def gather(
    entries: Sequence[Entry],
    repos: Path,
    out: Path,
    *,
    n_jobs: int = 1,
    commits: Mapping[str, str] | None = None,
    host: str = HOST,
) -> tuple[list[Row], dict[tuple[str, str], str]]:
    """Write the clips that `out` does not have yet, its table and ``skipped.tsv``.

    Args:
        entries: What to gather.
        repos: The folder of the repositories.
        out: Gets ``audio/``, ``corpus.tsv``, written after each repository, and ``skipped.tsv``.
        n_jobs: Repositories that are read at the same time.
        commits: To fetch repositories that are not there, the commit of each; None leaves them.
        host: Where from.

    Returns:
        The clips that are there, in the order of `entries`, and why others are not, by repository
        and path; the path is "*" for a whole repository.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.row.source, []).append(entry)
    (out / "audio").mkdir(parents=True, exist_ok=True)
    present = {e.row.utterance for e in entries if (out / e.row.path).exists()}
    problems: dict[tuple[str, str], str] = {}
    results = _results(groups, repos, out, n_jobs, commits or {}, host)
    progress = track(results, total=len(groups), description="repositories", unit="repository")
    for source, failed in progress:
        if "*" not in failed:
            present |= {
                entry.row.utterance for entry in groups[source] if entry.row.origin not in failed
            }
        problems |= {(source, path): why for path, why in failed.items()}
        write_table(out / TABLE, (e.row for e in entries if e.row.utterance in present))
        progress.set_postfix(clips=len(present))
    with atomic_path(out / "skipped.tsv") as temporary:
        lines = (f"{repo}\t{path}\t{why}\n" for (repo, path), why in sorted(problems.items()))
        temporary.write_text("".join(lines), encoding="utf-8")
    return [e.row for e in entries if e.row.utterance in present], problems


def _results(
    groups: Mapping[str, Sequence[Entry]],
    repos: Path,
    out: Path,
    n_jobs: int,
    commits: Mapping[str, str],
    host: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    jobs = [(name, group, repos, out, commits.get(name), host) for name, group in groups.items()]
    if n_jobs == 1:
        yield from (_gather_repository(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, mp_context=context) as pool:
        for future in as_completed([pool.submit(_gather_repository, *job) for job in jobs]):
            yield future.result()


def _gather_repository(
    name: str, entries: Sequence[Entry], repos: Path, out: Path, commit: str | None, host: str
) -> tuple[str, dict[str, str]]:
    """Write the missing clips of one repository; return why any could not be, by path."""
    missing = [entry for entry in entries if not (out / entry.row.path).exists()]
    if not missing:
        return name, {}
    directory = find_repository(repos, name)
    if directory is None and commit is not None:
        try:
            directory = clone(name, commit, repos, host=host)
        except subprocess.CalledProcessError as error:
            return name, {"*": f"not fetched: {error.stderr.strip().splitlines()[-1:]}"}
    if directory is None:
        return name, {"*": "the repository is not here"}
    problems = {}
    for entry, data in _blobs(directory, missing):
        try:
            if data is None:
                raise ValueError("the blob is missing")
            samples = make_clip(data, entry.name)
        except (ValueError, soundfile.LibsndfileError) as error:
            problems[entry.row.origin] = str(error).replace("\n", " ")
            continue
        with atomic_path(out / entry.row.path) as temporary:
            soundfile.write(temporary, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return name, problems


def _blobs(directory: Path, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bytes | None]]:
    """Return the content of each entry's blob, None where the repository does not have it."""
    command = ["git", "-C", str(directory), "cat-file", "--batch"]
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as git:
        if git.stdin is None or git.stdout is None:
            raise RuntimeError("git was started without pipes")
        for entry in entries:
            git.stdin.write(entry.blob.encode() + b"\n")
            git.stdin.flush()
            header = git.stdout.readline().split()
            if len(header) != 3:
                yield entry, None
                continue
            data = git.stdout.read(int(header[2]))
            git.stdout.read(1)
            yield entry, data
        git.stdin.close()
