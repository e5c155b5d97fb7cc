"""``asvspoof-cm score``: score audio files, or every utterance of a protocol."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asvspoof_cm.cli.options import add_device, add_model, load_model

if TYPE_CHECKING:
    from asvspoof_cm.scorer import FileScore, Scorer


SUMMARY = "score audio files or a protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Score audio files to standard output, or every utterance of a protocol to a "
        "score file of the challenge; higher means bonafide. An interrupted protocol is continued "
        "by the same command. The exit code is 1 where any file failed or held no speech to judge."
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        type=Path,
        help="audio files, folders, .tar, .parquet, .scp or .jsonl files",
    )
    parser.add_argument("--protocol", metavar="P", type=Path, help="score its utterances instead")
    parser.add_argument("--audio", metavar="DIR", type=Path, help="where their audio is")
    parser.add_argument("--out", metavar="TSV", type=Path, help="the score file to write")
    parser.add_argument(
        "--shard",
        metavar="K/N",
        type=_shard,
        help="score part K of N only, K from 0; join the parts with: asvspoof-cm merge",
    )
    parser.add_argument("--restart", action="store_true", help="score the whole protocol anew")
    add_model(parser, "a checkpoint, or an exported .onnx model")
    add_device(parser)
    parser.add_argument(
        "--crops", type=int, metavar="N", help="crops of each file (default: the checkpoint's)"
    )
    parser.add_argument(
        "--crop-s",
        type=float,
        metavar="S",
        help="their length, in s (default: the checkpoint's)",
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="crops in a batch")
    parser.add_argument(
        "--score",
        choices=("logit_difference", "bonafide_logit", "llr"),
        help="llr needs a checkpoint with a calibration (llr without --checkpoint, else "
        "logit_difference)",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--json", action="store_true", help="one JSON object per file")


def run(args: argparse.Namespace) -> int:
    """Score what the arguments name."""
    with_protocol = {"--protocol": args.protocol, "--audio": args.audio, "--out": args.out}
    given = [option for option, value in with_protocol.items() if value is not None]
    if args.files and given:
        raise ValueError(f"FILE and {given[0]} exclude each other: score one or the other.")
    if not args.files and len(given) < len(with_protocol):
        missing = [option for option in with_protocol if option not in given]
        raise ValueError(f"give FILE…, or --protocol, --audio and --out; {missing[0]} is missing.")
    if args.shard is not None and args.files:
        raise ValueError("--shard is for --protocol; share FILE… out yourself.")
    if args.json and not args.files:
        raise ValueError("--json is for FILE…; a protocol is scored into the TSV of --out.")
    scorer = build_scorer(args)
    return _score_files(scorer, args) if args.files else _score_protocol(scorer, args)


def _shard(text: str) -> tuple[int, int]:
    from asvspoof_cm.utils.processes import check_shard

    try:
        k, n = map(int, text.split("/"))
        return check_shard((k, n))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be K/N with K from 0 to N - 1, such as 0/16 to 15/16; got {text!r}"
        ) from None


def build_scorer(args: argparse.Namespace) -> Scorer:
    """Return the scorer that the arguments describe."""
    from asvspoof_cm.scorer import Scorer

    score = args.score or ("llr" if args.checkpoint is None else "logit_difference")
    options: dict[str, Any] = {
        "device": args.device,
        "batch_size": args.batch_size,
        "score": score,
        "precision": args.precision,
    }
    if args.crops is not None:
        options["n_crops"] = args.crops
    if args.crop_s is not None:
        options["crop_s"] = args.crop_s
    if args.checkpoint is not None and args.checkpoint.suffix == ".onnx":
        from asvspoof_cm.export import load_onnx

        return Scorer.from_model(load_onnx(args.checkpoint), **options)
    return Scorer.from_model(load_model(args), **options)


def _score_files(scorer: Scorer, args: argparse.Namespace) -> int:
    n_failed = 0
    if not args.json:
        _write("filename\tcm-score\n")
    for scored in scorer.score_files(args.files):
        n_failed += scored.error is not None
        _write(
            json.dumps(scored.as_dict(), ensure_ascii=False) + "\n" if args.json else _row(scored)
        )
        if scored.error is not None:
            sys.stderr.write(f"asvspoof-cm score: {scored.error}\n")
        elif scored.result is not None and scored.result.warnings:
            n_failed += not scored.result.has_speech
            sys.stderr.write(
                f"asvspoof-cm score: {scored.path}: {', '.join(scored.result.warnings)}\n"
            )
        sys.stdout.flush()
    return 1 if n_failed else 0


def _row(scored: FileScore) -> str:
    if scored.score is None:
        return ""
    name = str(scored.path).replace("\t", "\\t").replace("\n", "\\n")
    return f"{name}\t{scored.score!r}\n"


def _write(text: str) -> None:
    """Write text whatever it holds: names of files need not be valid in any encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _score_protocol(scorer: Scorer, args: argparse.Namespace) -> int:
    done = scorer.score_protocol(
        args.protocol,
        args.audio,
        args.out,
        shard=args.shard,
        resume=not args.restart,
        progress=True,
    )
    resumed = f", {done.n_resumed:,} of them before" if done.n_resumed else ""
    failed = f"; {done.n_failed:,} failed, see {done.errors}" if done.errors else ""
    sys.stderr.write(f"{done.n_scored:,} utterances scored{resumed}{failed}\n")
    return 1 if done.n_failed else 0
