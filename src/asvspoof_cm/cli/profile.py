"""``asvspoof-cm profile``: what a checkpoint costs on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from asvspoof_cm.cli.options import add_device, find_checkpoint

SUMMARY = "measure latency and memory of a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Measure the time an utterance of 8 s takes with test-time augmentation, the real-time "
        "factor and the peak memory, on synthetic utterances."
    )
    parser.add_argument(
        "checkpoint",
        metavar="MODEL",
        help="a checkpoint, a trained model that `models` lists, or the folder of a run: then "
        "final.json gets the figures",
    )
    parser.add_argument("--crops", type=int, help="crops per utterance (default: the checkpoint's)")
    parser.add_argument("--utterances", type=int, default=8, help="how many to score (default: 8)")
    parser.add_argument("--batch-size", type=int, default=4, help="utterances at once (default: 4)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from asvspoof_cm._util import resolve_device
    from asvspoof_cm.checkpoint import load_checkpoint
    from asvspoof_cm.profiling import profile, profile_run

    options = {"n_utterances": args.utterances, "n_crops": args.crops}
    options |= {"batch_size": args.batch_size, "device": resolve_device(args.device)}
    path = find_checkpoint(args.checkpoint)
    if path.is_dir():
        result = profile_run(path, **options)
    else:
        result = profile(load_checkpoint(path), **options)
    if args.json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
    else:
        sys.stdout.write(
            f"{result.n_parameters:,} parameters on {result.device}: "
            f"{result.ms_per_utterance:.1f} ms per utterance (real-time factor "
            f"{result.real_time_factor:.3f}), {result.peak_memory_bytes / 1e6:.0f} MB at the peak\n"
        )
    return 0
