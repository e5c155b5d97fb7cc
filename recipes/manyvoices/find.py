"""An index of clips, made from repositories and rules that say what the paths of each mean.

A rule has a regular expression for the start of a path. The first rule of a repository that fits a
path gives its label, and its generator and speaker, in which groups of the expression may stand;
the label "-" leaves the path out, and so does a path that no rule fits. Nothing is guessed.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final

from asvspoof_cm._util import atomic_path
from asvspoof_cm.labels import ABSENT, BONAFIDE, LABEL_NAMES, SPOOF
from manyvoices.gather import find_repository
from manyvoices.table import md5

Line = dict[str, str]

_SUFFIXES: Final = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".oga", ".aiff", ".au")
_MOST: Final = 150
_MOST_HUMAN: Final = 80
_BYTES: Final = range(1_000, 4_500_000)
_LABELS: Final = (LABEL_NAMES[BONAFIDE], LABEL_NAMES[SPOOF])


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write such a table, whole or not at all."""
    rows = ["\t".join(lines[0]), *("\t".join(line.values()) for line in lines)]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(rows) + "\n", encoding="utf-8")


def find(
    repos: Path,
    sources: Iterable[Line],
    rules: Iterable[Line],
    *,
    known: Iterable[str] = (),
    without: Container[tuple[str, str]] = (),
) -> tuple[list[Line], list[Line]]:
    """Return the lines of an index, and those of the table of its repositories.

    Of each repository at most 150 clips are taken, half of each label where there are as many, and
    in turn from each generator and speaker; of one with humans alone at most 80.

    Args:
        repos: The folder of the repositories.
        sources: Repositories: split, repo, and about, a note on language and channel.
        rules: repo, path, label, generator, speaker.
        known: Blobs that another index has. Each blob is taken once.
        without: Repositories and paths that are of no use, such as what is too short.

    Raises:
        ValueError: A label is none of bonafide, spoof and "-".
    """
    of: dict[str, list[tuple[re.Pattern[str], Line]]] = {}
    for rule in rules:
        if rule["label"] not in (*_LABELS, ABSENT):
            raise ValueError(f"`label` must be bonafide, spoof or -; got {rule['label']!r}.")
        of.setdefault(rule["repo"], []).append((re.compile(rule["path"]), rule))
    clips, table, seen = [], [], set(known)
    for source in sources:
        repo, own = source["repo"], []
        directory = find_repository(repos, repo)
        for path, blob in _audio(directory) if directory is not None else ():
            meaning = _meaning(path, of.get(repo, ()))
            if meaning and blob not in seen and (repo, path) not in without:
                seen.add(blob)
                place = {"split": source["split"], "repo": repo, "blob": blob, "path": path}
                own.append({**place, **meaning})
        own = _balanced(own)
        clips += own
        if own and directory is not None:
            counts = Counter(line["label"] for line in own)
            commit = {"commit": _git(directory, "rev-parse", "HEAD").strip()}
            numbers = {label: str(counts[label]) for label in _LABELS}
            notes = {"licence stated": _licence(directory), "about": source["about"]}
            table.append({"split": source["split"], "repo": repo, **commit, **numbers, **notes})
    return clips, table


def _audio(directory: Path) -> list[tuple[str, str]]:
    """Return path and blob of the recordings that a repository holds, by path."""
    found = []
    for line in _git(directory, "ls-tree", "-r", "-z", "-l", "HEAD").split("\0")[:-1]:
        (*_, blob, size), path = line.split("\t", 1)[0].split(), line.split("\t", 1)[1]
        fits = path.lower().endswith(_SUFFIXES) and not set(path) & set("\t\n\r\ufffd")
        if fits and size.isdigit() and int(size) in _BYTES:
            found.append((path, blob))
    return sorted(found)


def _meaning(path: str, rules: Iterable[tuple[re.Pattern[str], Line]]) -> Line | None:
    for pattern, rule in rules:
        if match := pattern.match(path):
            names = {key: match.expand(rule[key]) for key in ("generator", "speaker")}
            return None if rule["label"] == ABSENT else {"label": rule["label"], **names}
    return None


def _balanced(lines: Sequence[Line]) -> list[Line]:
    by_label = [[line for line in lines if line["label"] == label] for label in _LABELS]
    most, chosen = _MOST if by_label[1] else _MOST_HUMAN, list[Line]()
    for n_left, group in zip((2, 1), sorted(by_label, key=len), strict=True):
        chosen += _in_turn(group)[: (most - len(chosen)) // n_left]
    return sorted(chosen, key=lambda line: line["path"])


def _in_turn(lines: Sequence[Line]) -> list[Line]:
    """Return the lines in a fixed random order, the first of each generator and speaker first."""
    counts: Counter[tuple[str, str]] = Counter()
    order = [(md5(f"{line['repo']}|{line['path']}"), line) for line in lines]
    turns = []
    for digest, line in sorted(order, key=lambda item: item[0]):
        counts[line["generator"], line["speaker"]] += 1
        turns.append((counts[line["generator"], line["speaker"]], digest, line))
    return [line for *_, line in sorted(turns, key=lambda item: item[:2])]


def _licence(directory: Path) -> str:
    """Return the first line of a licence file, which may be the page theme's."""
    for name in _git(directory, "ls-tree", "--name-only", "HEAD").splitlines():
        if name.lower().startswith(("licen", "copying")):
            text = _git(directory, "cat-file", "-p", f"HEAD:{name}")
            return f"repo {name}: {' '.join(text.strip(' #*=-').split())[:80]}"
    return "repo: none stated"


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], check=True, capture_output=True
    )
    return done.stdout.decode("utf-8", "replace")
