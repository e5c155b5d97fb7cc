"""``asvspoof-cm score``: score audio files, or every utterance of a protocol."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asvspoof_cm.cli.options import add_device, add_model, load_any
from asvspoof_cm.labels import ABSENT, UNITS

if TYPE_CHECKING:
    from asvspoof_cm.data.openers import Opener
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer import Scorer

SUMMARY = "score audio files or a protocol"
FORMATS = ("tsv", "csv", "jsonl")

_PROTOCOLS = ("--protocol", "--audio", "--shard", "--restart")
_DECISIONS = ("--prior", "--c-miss", "--c-fa")
_WINDOWS = ("--window-s", "--hop-s")
_FILES = ("--format", "--plot", "--glob", "--root", "--timeline", *_WINDOWS, *_DECISIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Score audio, or every utterance of a protocol to a score file of the challenge; higher "
        "means bonafide. Scores are calibrated log-likelihood ratios (llr) where the checkpoint "
        "has a calibration, else log-odds; the name of the column says which, and for protocols "
        "OUTPUT.run.json. There the same command resumes after an interruption. The exit code is 1 "
        "where a file failed and, but for protocols and timelines, where one held no speech to "
        "judge."
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        type=Path,
        help="audio files, folders, lists (.txt, .scp, .csv, .tsv, .jsonl), .tar or .parquet "
        "files; - is audio on standard input",
    )
    parser.add_argument("--glob", metavar="PATTERN", help="files of folders (default: all audio)")
    parser.add_argument(
        "--root", metavar="DIR", type=Path, help="where the files of lists lie (default: theirs)"
    )
    parser.add_argument("--out", metavar="PATH", type=Path, help="file to write")
    parser.add_argument(
        "--format", choices=FORMATS, help="default: as --out ends, else tsv; jsonl has details"
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="jsonl", help="--format jsonl"
    )
    add_model(parser, "a checkpoint, or an exported .onnx model")
    add_device(parser)
    parser.add_argument(
        "--crops", type=int, metavar="N", help="crops of each file (default: the checkpoint's)"
    )
    parser.add_argument(
        "--crop-s", type=float, metavar="S", help="their length, in s (default: the checkpoint's)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="crops in a batch")
    parser.add_argument(
        "--score",
        choices=UNITS,
        help="unit of the scores (default: llr with a calibration, else log-odds)",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    decisions = parser.add_argument_group("decisions, of FILE with a calibration")
    for name, default, text in (
        ("--prior", 0.05, "probability of spoof before listening"),
        ("--c-miss", 1.0, "cost of taking bonafide for spoof"),
        ("--c-fa", 10.0, "cost of taking spoof for bonafide"),
    ):
        decisions.add_argument(name, type=float, metavar="X", help=f"{text} ({default:g})")
    along = parser.add_argument_group("along time, of FILE")
    along.add_argument("--timeline", action="store_const", const=True, help="a score per window")
    along.add_argument("--window-s", type=float, metavar="S", help="its length (default: a crop's)")
    along.add_argument("--hop-s", type=float, metavar="S", help="start to start (1)")
    along.add_argument(
        "--plot", metavar="DIR", type=Path, help="draw each timeline as DIR/NAME.png"
    )
    protocols = parser.add_argument_group("protocols")
    protocols.add_argument("--protocol", metavar="P", type=Path, help="score its utterances")
    protocols.add_argument("--audio", metavar="DIR", type=Path, help="where their audio is")
    protocols.add_argument(
        "--shard",
        metavar="K/N",
        type=_shard,
        help="score part K of N only, K from 0; join the parts with: asvspoof-cm merge",
    )
    protocols.add_argument(
        "--restart", action="store_const", const=True, help="score the whole protocol anew"
    )


def run(args: argparse.Namespace) -> int:
    """Score what the arguments name."""
    if args.files:
        _refuse(args, _PROTOCOLS, "is for protocols; score one, or FILE….")
        if args.timeline is None and args.plot is None:
            _refuse(args, _WINDOWS, "is for --timeline and --plot.")
        else:
            _refuse(args, ("--crops",), "has no effect along time: a window is one crop.")
            if args.plot is None:
                _refuse(args, _DECISIONS, "has no effect along time without --plot.")
        return _score_files(_scorer(args), args)
    needed = {"--protocol": args.protocol, "--audio": args.audio, "--out": args.out}
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        raise ValueError(f"give FILE…, or --protocol, --audio and --out; {missing[0]} is missing.")
    _refuse(args, _FILES, "is for FILE…; a protocol becomes the TSV of --out.")
    done = _scorer(args).score_protocol(
        args.protocol,
        args.audio,
        args.out,
        shard=args.shard,
        resume=not args.restart,
        progress=True,
    )
    sys.stderr.write(f"{done}\n")
    return 1 if done.n_failed else 0


def _refuse(args: argparse.Namespace, options: Iterable[str], why: str) -> None:
    """Refuse options that would have no effect."""
    for option in options:
        if vars(args)[option.removeprefix("--").replace("-", "_")] is not None:
            raise ValueError(f"{option} {why}")


def _shard(text: str) -> tuple[int, int]:
    from asvspoof_cm.utils.processes import check_shard

    try:
        k, n = map(int, text.split("/"))
        return check_shard((k, n))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be K/N with K from 0 to N - 1, such as 0/16 to 15/16; got {text!r}"
        ) from None


def _scorer(args: argparse.Namespace) -> Scorer:
    """Return the scorer that the arguments describe."""
    from asvspoof_cm.scorer import Scorer

    return Scorer(
        load_any(args),
        device=args.device,
        n_crops=args.crops,
        crop_s=args.crop_s,
        batch_size=args.batch_size,
        score=args.score,
        precision=args.precision,
    )


def _score_files(scorer: Scorer, args: argparse.Namespace) -> int:
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer.bulk import openers

    given = {"p_spoof": args.prior, "c_miss": args.c_miss, "c_fa": args.c_fa}
    costs = DetectionCosts(**{name: value for name, value in given.items() if value is not None})
    ending = "" if args.out is None else args.out.suffix.removeprefix(".").lower()
    form = args.format or (ending if ending in FORMATS else "tsv")
    files = [path for path in args.files if str(path) != "-"]
    entries = openers(files, args.root, args.glob)
    if len(files) < len(args.files):
        entries = _with_standard_input(entries)
    score = _timelines if args.timeline or args.plot is not None else _scores
    with _opened(args.out) as write:
        return 1 if score(scorer, args, entries, partial(_line, write, form), costs, form) else 0


def _scores(
    scorer: Scorer,
    args: argparse.Namespace,
    entries: Iterator[tuple[Path, Opener]],
    write: Callable[[Sequence[Any]], None],
    costs: DetectionCosts,
    form: str,
) -> int:
    """Write a row per file; return how many failed or held no speech."""
    from asvspoof_cm.scorer.bulk import score_entries

    n_failed = 0
    if form != "jsonl":
        write(("filename", scorer.unit, "decision", "warnings"))
    is_shown = args.out is not None or not sys.stdout.isatty()
    for scored in score_entries(scorer, entries, progress=is_shown):
        result = scored.result
        if form == "jsonl":
            write([scored.as_dict(costs)])
        elif result is not None:
            notes = "; ".join(result.warnings)
            write((scored.path, result.score, result.verdict(costs) or ABSENT, notes or ABSENT))
        n_failed += result is None or not result.has_speech
        if result is None:
            _say(scored.error)
        elif result.warnings:
            _say(f"{scored.path}: {', '.join(result.warnings)}")
    return n_failed


def _timelines(
    scorer: Scorer,
    args: argparse.Namespace,
    entries: Iterator[tuple[Path, Opener]],
    write: Callable[[Sequence[Any]], None],
    costs: DetectionCosts,
    form: str,
) -> int:
    """Write a row per window, and pictures; return how many files failed."""
    from asvspoof_cm.scorer.bulk import BAD_AUDIO
    from asvspoof_cm.scorer.timelines import Windows
    from asvspoof_cm.utils.checks import one_line

    along: dict[str, Any] = {
        "window_s": args.window_s,
        "hop_s": 1.0 if args.hop_s is None else args.hop_s,
    }
    Windows(scorer.input, **along)  # an error of the command, not of a file
    n_failed, drawn = 0, Counter[str]()
    if form != "jsonl":
        write(("filename", "start_s", "end_s", scorer.unit))
    for path, opener in entries:
        try:
            with opener(scorer.input.sample_rate) as audio:
                line = scorer.timeline(audio, **along)
        except BAD_AUDIO as error:
            n_failed += 1
            _say(f"{path}: {one_line(error)}")
            continue
        for window in line:
            row = {"file": str(path), **window._asdict()}
            write([row] if form == "jsonl" else (path, *window[:3]))
        if args.plot is not None:
            from asvspoof_cm import plots

            threshold = costs.threshold if scorer.unit == "llr" else None
            name = "stdin" if str(path) == "-" else path.stem
            drawn[name] += 1
            name += "" if drawn[name] == 1 else f"-{drawn[name]}"
            axes = plots.timeline(line, threshold=threshold)
            axes.set_title(str(path), fontsize=9)
            plots.save_figure(axes, args.plot / f"{name}.png")
    return n_failed


def _with_standard_input(
    entries: Iterator[tuple[Path, Opener]],
) -> Iterator[tuple[Path, Opener]]:
    from asvspoof_cm.audio import AudioFile

    content = sys.stdin.buffer.read()
    yield Path("-"), lambda rate=16000: AudioFile(content, sample_rate=rate, name="standard input")
    yield from entries


@contextmanager
def _opened(path: Path | None) -> Iterator[Callable[[str], Any]]:
    """Yield what writes text, whatever it holds: names of files need not be valid text."""
    if path is None:
        encoding = sys.stdout.encoding or "utf-8"

        def write(text: str) -> None:
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()

        yield write
        return
    from asvspoof_cm.utils.files import atomic_path

    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        yield file.write


def _line(write: Callable[[str], Any], form: str, cells: Sequence[Any]) -> None:
    if form == "jsonl":
        write(json.dumps(cells[0], ensure_ascii=False) + "\n")
    elif form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        write(text.getvalue())
    else:
        texts = (str(cell).replace("\t", "\\t").replace("\n", "\\n") for cell in cells)
        write("\t".join(texts) + "\n")


def _say(text: str | None) -> None:
    sys.stderr.write(f"asvspoof-cm score: {text}\n")
