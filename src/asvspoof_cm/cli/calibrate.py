"""``asvspoof-cm calibrate``: fit a model's scores to own recordings, and find a threshold."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asvspoof_cm.cli.options import add_device, add_model, load_scorer
from asvspoof_cm.labels import BONAFIDE, SPOOF

if TYPE_CHECKING:
    from asvspoof_cm.scorer import Scorer

LEAST_FOR_SLOPE = 30
"""With fewer recordings of either class, the model's own calibration is moved by a constant."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Fit the log-likelihood ratios of a model to recordings of your channel, beginning from "
        "the model's own, and find the threshold that refuses few people. With fewer than 30 of "
        "either class the ratios are moved by a constant only. People alone will do, but then the "
        "ratios can rise only, and nothing is known of fakes."
    )
    add = parser.add_argument
    text = "recordings of people: files, folders or lists; one for each person"
    add("--human", nargs="+", required=True, metavar="PATH", help=text)
    add("--fake", nargs="+", default=[], metavar="PATH", help="synthetic speech, made alike")
    text = "the share of people that may be refused (default: 0.01)"
    add("--refuse-at-most", type=float, default=0.01, metavar="X", help=text)
    text = "a checkpoint with the calibration inside (.pt), or the calibration alone (.json)"
    add("--out", dest="output", required=True, type=Path, metavar="PATH", help=text)
    text = "what the calibration is called (default: that of --out)"
    add("--name", dest="called", metavar="NAME", help=text)
    add_model(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Score, fit, write, and say what the recordings show."""
    from asvspoof_cm.calibration import (
        adapt_calibration,
        costs_at,
        fit_calibration,
        save_settings,
        threshold_for,
    )
    from asvspoof_cm.checkpoint import save_checkpoint

    form = args.output.suffix.lower()
    if form not in (".pt", ".json"):
        raise ValueError(f"--out must end in .pt or .json; got {args.output.name}.")
    if form == ".pt" and (args.model or "").lower().endswith(".onnx"):
        raise ValueError("--out must end in .json: an ONNX file keeps the calibration it has.")
    scorer = load_scorer(args.model, device=args.device, score="log-odds")
    human, fake = _scores(scorer, args.human), _scores(scorer, args.fake) if args.fake else []
    own = scorer.calibration
    if own is None and not fake:
        raise ValueError("--fake is needed: the model has no calibration to begin from.")
    if own is not None and min(len(human), len(fake)) < LEAST_FOR_SLOPE:
        fitted = adapt_calibration(own, own.apply(human), own.apply(fake))
    else:
        labels = [BONAFIDE] * len(human) + [SPOOF] * len(fake)
        fitted = fit_calibration([*human, *fake], labels, towards=own)
    name = args.called or args.output.stem
    calibration = replace(fitted, name=name, fitted_for=scorer.conditions())
    found = threshold_for(calibration.apply(human), args.refuse_at_most)
    if form == ".json":
        save_settings(args.output, calibration)
    else:
        known = {"calibration": calibration.as_dict()}
        if own is not None and "segments" in scorer.model.meta:
            known["segments"] = asdict(scorer.segment_settings.moved(own, calibration))
        save_checkpoint(args.output, scorer.model, **known)
    lines = [f"{name}: {calibration}, from {len(human)} people and {len(fake)} fakes"]
    if calibration.covariance:
        low, high = calibration.interval(-calibration.offset / calibration.scale)
        lines.append(f"what it calls 0 lies between {low:.2f} and {high:.2f} (95 %)")
    lines.append(str(found))
    if fake:
        n_passed = int((calibration.apply(fake) >= found.threshold).sum())
        lines.append(f"of {len(fake)} fakes, {n_passed} pass there")
    costs = costs_at(found.threshold)
    options = f"--prior {costs.p_spoof:g} --c-miss {costs.c_miss:g} --c-fa {costs.c_fa:.9g}"
    lines.append(f"to decide at it: {options}")
    sys.stdout.write("\n".join([*lines, f"written: {args.output}", ""]))
    return 0


def _scores(scorer: Scorer, paths: list[str]) -> list[float]:
    """Return the log-odds of all recordings that hold speech; the others are named."""
    scores = []
    for scored in scorer.score_files(paths, progress=True):
        if scored.result is None or not scored.result.has_speech:
            text = scored.error or f"{scored.name}: no speech to judge"
            sys.stderr.write(f"asvspoof-cm calibrate: left out: {text}\n")
        else:
            scores.append(scored.result.score)
    if not scores:
        raise ValueError(f"{', '.join(paths)}: none of the recordings can be scored.")
    return scores
