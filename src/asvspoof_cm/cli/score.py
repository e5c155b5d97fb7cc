"""``asvspoof-cm score``: score audio files, or every utterance of a protocol."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from asvspoof_cm._util import one_line
from asvspoof_cm.cli.options import add_device, add_model, load_scorer
from asvspoof_cm.data.segments import SEGMENT_NAMES, Segment
from asvspoof_cm.labels import ABSENT

if TYPE_CHECKING:
    from asvspoof_cm.data.folder import Entry
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer import FileScore, Scorer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    from asvspoof_cm.metrics import ASVSPOOF5

    parser.description = (
        "Score audio, a row for each file or utterance: its score, the verdict and warnings; a "
        "higher score means bonafide. Scores are calibrated log-likelihood ratios (llr) where the "
        "model has a calibration, else log-odds; the name of the column says which. With --out, "
        "rows are appended to a table, and the same command resumes after an interruption. The "
        "exit code is 1 where a file failed or held no speech to judge; with --protocol, only "
        "where one failed."
    )
    add = parser.add_argument
    text = (
        "audio files, folders, lists (.txt; .csv or .tsv with a column path); - is standard input"
    )
    add("files", nargs="*", metavar="FILE", help=text)
    add("--protocol", metavar="P", help="score the utterances that it lists")
    text = "where the files of the protocol, or of lists, are (default: the list's folder)"
    add("--audio", metavar="DIR", help=text)
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--out", dest="output", metavar="TSV", type=Path, help="table to append to")
    one_of("--json", action="store_true", help="print JSON lines, with details")
    text = "score part K of N only, K from 0, to an --out of its own; merge joins them"
    add("--shard", metavar="K/N", type=_shard, help=text)
    add_model(parser)
    add_device(parser)
    add("--crops", dest="n_crops", type=int, metavar="N", help="crops of each file (the model's)")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the model (fp32)")
    text = "of several channels: their mix (the default), each on its own, or one, from 0"
    add("--channel", type=_channel, default="mix", metavar="C", help=text)
    for option, name, text in (
        ("--prior", "p_spoof", "probability of spoof before listening"),
        ("--c-miss", "c_miss", "cost of taking bonafide for spoof"),
        ("--c-fa", "c_fa", "cost of taking spoof for bonafide"),
    ):
        usual = getattr(ASVSPOOF5, name)
        text += f" ({usual:g})"
        add(option, dest=name, type=float, metavar="X", default=usual, help=text)
    add("--worst", action="store_true", help="decide by the worst passage")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--timeline", action="store_true", help="a row for each second instead")
    one_of("--segments", action="store_true", help="a row for each segment instead")
    add("--plot", metavar="DIR", type=Path, help="also draw what is found as DIR/NAME.png")


def run(args: argparse.Namespace) -> int:
    """Score what the arguments name."""
    from asvspoof_cm.data.folder import find_audio
    from asvspoof_cm.metrics import DetectionCosts
    from asvspoof_cm.scorer import files

    costs = DetectionCosts(p_spoof=args.p_spoof, c_miss=args.c_miss, c_fa=args.c_fa)
    is_along = bool(args.timeline or args.segments or args.plot)
    _refuse(args, is_along=is_along)
    if args.output is not None:
        files.check_table(args.output)
    names = ("device", "n_crops", "precision", "channel")
    options: Any = {name: vars(args)[name] for name in names}
    scorer = load_scorer(args.model, **options)
    if args.protocol is not None:
        entries: Iterable[Entry] = files.protocol_entries(args.protocol, args.audio)
    else:
        given = (("-", sys.stdin.buffer.read()) if path == "-" else path for path in args.files)
        entries = find_audio(given, root=args.audio, each_channel=args.channel == "each")
    if is_along:
        return _along(scorer, args, entries, costs)
    if args.output is not None:
        options = {"costs": costs, "worst": args.worst, "shard": args.shard or (0, 1)}
        done = files.write_table(scorer, entries, args.output, progress=True, say=_say, **options)
        sys.stderr.write(f"{done}\n")
        return 1 if done.n_failed or (args.protocol is None and done.n_without_speech) else 0
    n_doubtful = 0
    if not args.json:
        _write(sys.stdout, files.header(scorer.unit))
    for scored in files.score_entries(scorer, entries, progress=not sys.stdout.isatty()):
        n_doubtful += scored.result is None or not scored.result.has_speech
        _say(scored)
        if args.json:
            _write(sys.stdout, json.dumps(scored.as_dict(costs, worst=args.worst)) + "\n")
        elif scored.result is not None:
            line = files.row_of(scored.name, scored.result, costs, worst=args.worst)
            _write(sys.stdout, line)
    return 1 if n_doubtful else 0


def _refuse(args: argparse.Namespace, *, is_along: bool) -> None:
    """Refuse options that contradict each other or would have no effect."""
    for option in ("crops", "worst", "shard", "protocol") if is_along else ():
        if vars(args)["n_crops" if option == "crops" else option]:
            raise ValueError(f"--{option} has no effect along time.")
    by_protocol, writes = args.protocol is not None, args.output is not None
    needed = {"--audio": args.audio, "--out": args.output}
    missing = " and ".join(option for option, value in needed.items() if value is None)
    for is_wrong, message in (
        (not by_protocol and not args.files, "give FILE… or --protocol."),
        (by_protocol and missing, f"--protocol needs {missing} too."),
        (by_protocol and args.files, "--protocol takes no FILE: the table lists them."),
        (
            by_protocol and args.channel == "each",
            "--channel each gives a name several scores, and a --protocol has one for each.",
        ),
        (args.shard and not writes, "--shard needs --out, a table of its own for each part."),
        (
            is_along and writes and args.output.exists(),
            f"{args.output} is there already; choose another --out, or delete it.",
        ),
    ):
        if is_wrong:
            raise ValueError(message)


def _shard(text: str) -> tuple[int, int]:
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and int(k) < int(n)):
        rule = "must be K/N with K from 0 to N - 1, such as 0/16 to 15/16"
        raise argparse.ArgumentTypeError(f"{rule}; got {text!r}")
    return int(k), int(n)


def _channel(text: str) -> int | str:
    if text not in ("mix", "each") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be mix, each or a number from 0; got {text!r}")
    return text if text in ("mix", "each") else int(text)


def _along(
    scorer: Scorer, args: argparse.Namespace, entries: Iterable[Entry], costs: DetectionCosts
) -> int:
    """Write a row per window or segment, and pictures."""
    from asvspoof_cm import plots
    from asvspoof_cm.audio import BAD_AUDIO
    from asvspoof_cm.scorer import FileScore, files

    n_failed = 0
    drawn: set[Path] = set()
    last = ("llr", "label") if args.segments else (scorer.unit, "warnings")
    place: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    if args.output is not None:
        place = args.output.open("x", encoding="utf-8", newline="")
    with place as out:
        if not args.json:
            _write(out, files.as_line(["filename", "start_s", "end_s", *last]))
        for entry in entries:
            try:
                files.check_audio(scorer, entry)
            except BAD_AUDIO as error:  # of this file: the others go on
                n_failed += 1
                error_text = files.error_of(entry.name, one_line(error))
                _say(FileScore(name=entry.name, error=error_text))
                continue
            with files.open_entry(scorer, entry) as source:
                found = scorer.segments(source) if args.segments else []
                is_wanted = args.plot is not None or not args.segments
                windows = scorer.timeline(source) if is_wanted else []
            for part in found or windows:
                times = {"start_s": round(part.start_s, 6), "end_s": round(part.end_s, 6)}
                if isinstance(part, Segment):
                    score, note = part.llr, SEGMENT_NAMES[part.label]
                    about = {**times, "llr": score, "label": note}
                else:
                    score, note = part.score, "; ".join(part.warnings) or ABSENT
                    about = part.as_dict(costs)
                if args.json:
                    _write(out, json.dumps({"filename": entry.name, **about}) + "\n")
                else:
                    shown = ABSENT if score is None else f"{score:.6f}"
                    cells = [entry.name, *map(str, times.values()), shown, note]
                    _write(out, files.as_line(cells))
            if args.plot is not None:
                threshold = costs.threshold if scorer.unit == "llr" else None
                axes = plots.timeline(windows, threshold=threshold, found=found)
                axes.set_title(entry.name, fontsize=9)
                stem = "stdin" if entry.name == "-" else str(Path(entry.name).with_suffix(""))
                plots.save_figure(axes, plots.picture_path(args.plot, stem, drawn))
    return 1 if n_failed else 0


def _write(out: TextIO, text: str) -> None:
    """Write at once, whatever the terminal can show."""
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def _say(scored: FileScore) -> None:
    """Name a file that failed or is doubtful on standard error."""
    warnings = scored.result.warnings if scored.result is not None else ()
    text = scored.error or f"{scored.name}: {', '.join(warnings)}"
    if scored.error or warnings:
        sys.stderr.write(f"asvspoof-cm score: {text}\n")
