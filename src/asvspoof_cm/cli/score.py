"""``asvspoof-cm score``: score audio files, or every utterance of a protocol."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from asvspoof_cm._util import one_line
from asvspoof_cm.cli.options import add_device, add_model, load_scorer
from asvspoof_cm.labels import ABSENT, UNITS

if TYPE_CHECKING:
    from asvspoof_cm.data.folder import Entry
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer import FileScore, Scorer

SUMMARY = "score audio files or a protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Score audio, a row for each file or utterance: its score, the verdict and warnings; a "
        "higher score means bonafide. Scores are calibrated log-likelihood ratios (llr) where the "
        "model has a calibration, else log-odds; the name of the column says which. With --out, "
        "rows are appended to a table, and the same command resumes after an interruption. The "
        "exit code is 1 where a file failed or held no speech to judge; with --protocol, only "
        "where one failed."
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="audio files, folders, lists of files (.txt; .csv or .tsv with a column path); - is "
        "audio on standard input",
    )
    parser.add_argument("--protocol", metavar="P", help="score the utterances that it lists")
    parser.add_argument(
        "--audio",
        metavar="DIR",
        help="where the files of the protocol, or of lists, are (default: the list's folder)",
    )
    parser.add_argument(
        "--out",
        dest="output",
        metavar="PATH",
        type=Path,
        help="table to append to: .tsv, or .jsonl with details",
    )
    parser.add_argument(
        "--json", action="store_const", const=True, help="print JSON lines, with details"
    )
    parser.add_argument(
        "--shard",
        metavar="K/N",
        type=_shard,
        help="score part K of N only, K from 0, to an --out of its own; merge joins them",
    )
    add_model(parser)
    add_device(parser)
    parser.add_argument(
        "--crops", dest="n_crops", type=int, metavar="N", help="crops of each file (the model's)"
    )
    parser.add_argument(
        "--score", choices=UNITS, help="unit of the scores (llr with a calibration, else log-odds)"
    )
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument(
        "--channel",
        type=_channel,
        default="mix",
        metavar="C",
        help="of several channels: their mix (the default), each on its own, or one, from 0",
    )
    for name, dest, default, text in (
        ("--prior", "p_spoof", 0.05, "probability of spoof before listening"),
        ("--c-miss", "c_miss", 1.0, "cost of taking bonafide for spoof"),
        ("--c-fa", "c_fa", 10.0, "cost of taking spoof for bonafide"),
    ):
        parser.add_argument(name, dest=dest, type=float, metavar="X", help=f"{text} ({default:g})")
    parser.add_argument(
        "--worst", action="store_const", const=True, help="decide by the worst passage"
    )
    parser.add_argument(
        "--timeline", action="store_const", const=True, help="a row for each second instead"
    )
    parser.add_argument(
        "--segments", action="store_const", const=True, help="a row for each segment instead"
    )
    parser.add_argument("--plot", metavar="DIR", type=Path, help="draw timelines as DIR/NAME.png")


def run(args: argparse.Namespace) -> int:
    """Score what the arguments name."""
    from asvspoof_cm.data.folder import find_audio
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer import files

    given = {name: vars(args)[name] for name in ("p_spoof", "c_miss", "c_fa")}
    costs = DetectionCosts(**{name: value for name, value in given.items() if value is not None})
    is_along = bool(args.timeline or args.segments or args.plot)
    _refuse(args)
    if args.output is not None and not is_along:
        files.check_table(args.output)
    scorer = load_scorer(
        args,
        device=args.device,
        n_crops=args.n_crops,
        score=args.score,
        precision=args.precision,
        channel=args.channel,
    )
    if args.protocol is not None:
        entries: Iterable[Entry] = files.protocol_entries(args.protocol, args.audio)
    else:
        named = [path for path in args.files if path != "-"]
        entries = find_audio(named, root=args.audio, each_channel=args.channel == "each")
        if len(named) < len(args.files):
            entries = _with_standard_input(entries)
    if is_along:
        return _along(scorer, args, entries, costs)
    if args.output is None:
        return _print(scorer, args, entries, costs)
    done = files.write_table(
        scorer,
        entries,
        args.output,
        shard=args.shard or (0, 1),
        progress=True,
        costs=costs,
        worst=bool(args.worst),
        say=_say_of,
    )
    sys.stderr.write(f"{done}\n")
    return 1 if done.n_failed or (args.protocol is None and done.n_without_speech) else 0


def _refuse(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other or would have no effect."""
    if args.protocol is None and not args.files:
        raise ValueError("give FILE… or --protocol.")
    if args.protocol is not None and (args.files or args.audio is None or args.output is None):
        raise ValueError("--protocol needs --audio and --out, and no FILE.")
    if args.shard is not None and args.output is None:
        raise ValueError("--shard needs --out, a table of its own for each part.")
    if args.json and args.output is not None and args.output.suffix.lower() != ".jsonl":
        raise ValueError(f"--json needs an --out that ends in .jsonl; got {args.output.name}.")
    if args.segments and (args.timeline or args.plot):
        raise ValueError("--segments and --timeline are two things; choose one.")
    if args.timeline or args.segments or args.plot:
        for name in ("n_crops", "worst", "shard", "protocol"):
            if vars(args)[name] is not None:
                option = "--crops" if name == "n_crops" else f"--{name}"
                raise ValueError(f"{option} has no effect along time.")


def _shard(text: str) -> tuple[int, int]:
    """Return (k, n) of ``K/N``."""
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and int(k) < int(n)):
        raise argparse.ArgumentTypeError(
            f"must be K/N with K from 0 to N - 1, such as 0/16 to 15/16; got {text!r}"
        )
    return int(k), int(n)


def _channel(text: str) -> int | str:
    """Return the number of a channel, or the word."""
    if text not in ("mix", "each") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be mix, each or a number from 0; got {text!r}")
    return text if text in ("mix", "each") else int(text)


def _print(
    scorer: Scorer, args: argparse.Namespace, entries: Iterable[Entry], costs: DetectionCosts
) -> int:
    """Print a row per file."""
    from asvspoof_cm.scorer import files

    worst, n_doubtful = bool(args.worst), 0
    if not args.json:
        _write(sys.stdout, files.as_line(files.header(scorer.unit)))
    for scored in files.score_entries(scorer, entries, progress=not sys.stdout.isatty()):
        n_doubtful += scored.result is None or not scored.result.has_speech
        _say_of(scored)
        if args.json:
            _write(sys.stdout, json.dumps(scored.as_dict(costs, worst=worst)) + "\n")
        elif scored.result is not None:
            _write(sys.stdout, files.as_line(files.row_of(scored, costs, worst=worst)))
    return 1 if n_doubtful else 0


def _along(
    scorer: Scorer, args: argparse.Namespace, entries: Iterable[Entry], costs: DetectionCosts
) -> int:
    """Write a row per window or segment, and pictures."""
    from asvspoof_cm.audio import BAD_AUDIO
    from asvspoof_cm.scorer import files

    n_failed = 0
    columns = (
        ["start_s", "end_s", "llr", "verdict"]
        if args.segments
        else ["start_s", "end_s", scorer.unit, "warnings"]
    )
    place: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    if args.output is not None:
        place = args.output.open("w", encoding="utf-8", newline="")
    as_json = args.json or (args.output is not None and args.output.suffix.lower() == ".jsonl")
    with place as out:
        if not as_json:
            _write(out, files.as_line(["filename", *columns]))
        for entry in entries:
            try:
                with files.open_entry(scorer, entry) as source:
                    if args.segments:
                        rows = [_segment_row(each) for each in scorer.segments(source)]
                    else:
                        line = scorer.timeline(source)
                        rows = [_window_row(each) for each in line]
            except BAD_AUDIO as error:  # of this file: the others go on
                n_failed += 1
                _say(files.error_of(entry.name, one_line(error)))
                continue
            for row in rows:
                cells = dict(zip(columns, row, strict=True))
                if as_json:
                    _write(out, json.dumps({"filename": entry.name, **cells}) + "\n")
                else:
                    texts = [ABSENT if each in (None, "") else str(each) for each in row]
                    _write(out, files.as_line([files.escaped(entry.name), *texts]))
            if args.plot is not None:
                _draw(
                    line, entry.name, args.plot, costs.threshold if scorer.unit == "llr" else None
                )
    return 1 if n_failed else 0


def _window_row(window: Any) -> list[Any]:
    return [*(round(x, 6) for x in window[:3]), "; ".join(window.warnings)]


def _segment_row(segment: Any) -> list[Any]:
    times = [round(segment.start_s, 3), round(segment.end_s, 3)]
    return [*times, None if segment.llr is None else round(segment.llr, 6), str(segment.verdict)]


def _draw(line: Any, name: str, folder: Path, threshold: float | None) -> None:
    """Draw a timeline as a file of its own."""
    from asvspoof_cm import plots

    axes = plots.timeline(line, threshold=threshold)
    axes.set_title(name, fontsize=9)
    stem = "stdin" if name == "-" else "_".join(Path(name).with_suffix("").parts).strip("/_")
    plots.save_figure(axes, folder / f"{stem}.png")


def _with_standard_input(entries: Iterable[Entry]) -> Iterator[Entry]:
    from asvspoof_cm.data.folder import Entry

    yield Entry("-", sys.stdin.buffer.read())
    yield from entries


def _write(out: TextIO, text: str) -> None:
    """Write at once, whatever the terminal can show."""
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def _say_of(scored: FileScore) -> None:
    """Name a file that failed or is doubtful on standard error."""
    if scored.result is None:
        _say(str(scored.error))
    elif scored.result.warnings:
        _say(f"{scored.name}: {', '.join(scored.result.warnings)}")


def _say(text: str) -> None:
    sys.stderr.write(f"asvspoof-cm score: {text}\n")
