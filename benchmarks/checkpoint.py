"""The figures of a trained checkpoint, and the checkpoint that ships made from them.

    python benchmarks/checkpoint.py measure best.pt --corpus DIR --work DIR
    python benchmarks/checkpoint.py robustness best.pt --corpus DIR
    python benchmarks/checkpoint.py ship best.pt

``measure`` scores the development and evaluation parts of a corpus in ASVspoof 5 layout and
calibrates on the first: metrics with intervals, and each attack. ``robustness`` scores the
evaluation part again through each codec, noise, a band limit, a lower level and leading silence.
``ship`` writes the weights in half precision with calibration and card into the package, and the
tables into the model card of ``docs``. What the first two find lies in ``model_card``.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asvspoof_cm import BONAFIDE, Scorer, fit_calibration, load_checkpoint
from asvspoof_cm.audio import SAMPLE_RATE, resample
from asvspoof_cm.augmentation import WhiteNoise, available_codecs, transcode
from asvspoof_cm.augmentation.band import band_limit
from asvspoof_cm.augmentation.speed import change_speed
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.data import Protocol, open_audio, read_protocol
from asvspoof_cm.metrics import bootstrap, breakdown, evaluate, read_scores
from asvspoof_cm.pretrained import DEFAULT_NAME, checkpoint_path
from asvspoof_cm.utils.files import atomic_path, sha256, write_text
from asvspoof_cm.utils.progress import track
from asvspoof_cm.utils.tables import render
from harness import environment

FIGURES = Path(__file__).parent / "model_card" / "figures.json"
ROBUSTNESS = FIGURES.with_name("robustness.json")
CARD = Path(__file__).parent.parent / "docs" / "model_card.md"
NOTES = FIGURES.with_name("NOTES.md")
PROTOCOLS = {"dev": "ASVspoof5.dev.track_1.tsv", "eval": "ASVspoof5.eval.track_1.tsv"}
CROP_S = 1.5  # chosen on the development part, from 1, 1.5, 2, 3 and 4
METRICS = ("eer", "min_dcf", "act_dcf", "cllr")
NEURAL = re.compile("tacotron|melgan|glow", re.IGNORECASE)
USE = "for trying things out, not for deciding about people"


def measure(args: argparse.Namespace) -> None:
    """Score, calibrate on the development part, and write the figures."""
    scorer = _scorer(args.checkpoint)
    protocols = {split: read_protocol(args.corpus / name) for split, name in PROTOCOLS.items()}
    raw = {
        split: _scores(scorer, protocol, args.corpus, args.work / f"{split}.tsv")
        for split, protocol in protocols.items()
    }
    calibration = fit_calibration(
        raw["dev"], protocols["dev"].label, prior=0.5, fitted_for=scorer.conditions()
    )
    llr = {split: calibration.apply(scores) for split, scores in raw.items()}
    generator = _generators(args.corpus)
    meta: dict[str, Any] = scorer.model.meta  # type: ignore[attr-defined]
    trained = meta.get("training", meta)  # version 0.1.0 wrote these at the top
    content = {
        "environment": environment(),
        "checkpoint_sha256": sha256(args.checkpoint),
        "recipe": trained.get("recipe"),
        "seed": trained.get("seed"),
        "epoch": meta.get("epoch"),
        "calibration": calibration.as_dict(),
        **{split: _pooled(llr[split], protocol) for split, protocol in protocols.items()},
        "attacks": {
            split: _attacks(llr[split], protocol, generator)
            for split, protocol in protocols.items()
        },
        "groups": _groups(llr["eval"], protocols["eval"], generator),
        "published": _published(args.published, protocols["eval"], generator),
    }
    _write(FIGURES, content)


def robustness(args: argparse.Namespace) -> None:
    """Score the evaluation part under each condition, one crop a clip, and write EER and minDCF."""
    scorer = _scorer(args.checkpoint, n_crops=1)
    protocol = read_protocol(args.corpus / PROTOCOLS["eval"])
    audio = open_audio(protocol, args.corpus)
    chosen = range(0, len(protocol), args.every)
    clips = []
    for k in track(chosen, description="reading"):
        with audio.open(k) as utterance:
            clips.append(utterance.read())
    content = {"checkpoint_sha256": sha256(args.checkpoint), "n_clips": len(clips)}
    rows = []
    for name, change in track(_conditions().items(), description="conditions"):
        changed = (change(clip, k).numpy() for k, clip in enumerate(clips))
        result = evaluate(scorer.score_batch(changed), protocol.label[chosen])
        rows.append({"condition": name, "eer": result.eer.value, "min_dcf": result.min_dcf.value})
        _write(ROBUSTNESS, {**content, "rows": rows})


def _scorer(path: Path, **options: Any) -> Scorer:
    """Return a scorer of the weights as they ship, rounded to half precision."""
    return Scorer(load_checkpoint(path).half().float(), device="cpu", crop_s=CROP_S, **options)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def _scores(scorer: Scorer, protocol: Protocol, audio_dir: Path, output: Path) -> np.ndarray:
    done = scorer.score_protocol(protocol, audio_dir, output, progress=True)
    return _in_order(done.output, protocol)


def _in_order(path: Path, protocol: Protocol) -> np.ndarray:
    """Return the scores of a file in the order of the protocol."""
    scores = read_scores(path)
    score_of = dict(zip(scores.filename.tolist(), scores.cm.tolist(), strict=True))
    return np.array([score_of[name] for name in protocol.utterance.tolist()])


def _pooled(llr: np.ndarray, protocol: Protocol) -> dict[str, Any]:
    """All trials together, with intervals that draw whole speakers."""
    is_bonafide, speaker = protocol.label == BONAFIDE, protocol.clusters("speaker")
    intervals = bootstrap(
        METRICS,
        llr[is_bonafide],
        llr[~is_bonafide],
        clusters=(speaker[is_bonafide], speaker[~is_bonafide]),
        progress=False,
    )
    return {
        "n_bonafide": int(is_bonafide.sum()),
        "n_spoof": int((~is_bonafide).sum()),
        **{name: interval.as_dict() for name, interval in intervals.items()},
    }


def _attacks(
    llr: np.ndarray, protocol: Protocol, generator: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Each attack against all bona fide trials, with intervals that draw trials."""
    result = breakdown(
        llr, protocol.label, {"attack": protocol.attack}, n_bootstrap=1000, progress=False
    )
    return [
        {
            "attack": row.group[0],
            "generator": generator.get(row.group[0], ""),
            "n_spoof": row.n_spoof,
            "eer": row.intervals["eer"].as_dict(),
            "min_dcf": row.values["min_dcf"],
        }
        for row in result.rows[:-1]
    ]


def _groups(llr: np.ndarray, protocol: Protocol, generator: Mapping[str, str]) -> dict[str, Any]:
    """Attacks by what made them, with intervals that draw whole speakers."""
    is_bonafide, speaker = protocol.label == BONAFIDE, protocol.clusters("speaker")
    neural = np.array([bool(NEURAL.search(generator.get(a, ""))) for a in protocol.attack.tolist()])
    chosen = {"neural": neural, "signal processing": ~neural & ~is_bonafide}
    return {
        name: {
            "n_spoof": int(spoof.sum()),
            "eer": bootstrap(
                "eer",
                llr[is_bonafide],
                llr[spoof],
                clusters=(speaker[is_bonafide], speaker[spoof]),
                progress=False,
            ).as_dict(),
        }
        for name, spoof in chosen.items()
        if spoof.any()
    }


def _published(
    files: Iterable[str], protocol: Protocol, generator: Mapping[str, str]
) -> dict[str, Any]:
    """The same figures for evaluation scores of other systems, given as NAME=FILE."""
    found = {}
    for name, _, path in (entry.partition("=") for entry in files):
        scores = _in_order(Path(path), protocol)
        found[name] = {
            **_pooled(scores, protocol),
            "groups": _groups(scores, protocol, generator),
        }
    return found


def _conditions() -> dict[str, Callable[[Tensor, int], Tensor]]:
    """What happens to the clip number k of the evaluation part."""

    def noise(snr_db: float) -> Callable[[Tensor, int], Tensor]:
        augment = WhiteNoise(snr_db=(snr_db, snr_db))
        return lambda clip, k: augment(clip, generator=torch.Generator().manual_seed(k))

    def coded(codec: str) -> Callable[[Tensor, int], Tensor]:
        return lambda clip, k: transcode(clip, codec)

    def narrowband(clip: Tensor, k: int) -> Tensor:
        return resample(resample(clip, SAMPLE_RATE, 8000), 8000, SAMPLE_RATE)

    return {
        "clean": lambda clip, k: clip,
        **{codec: coded(codec) for codec in available_codecs()},
        "white noise, 20 dB SNR": noise(20.0),
        "white noise, 10 dB SNR": noise(10.0),
        "sampled at 8 kHz": narrowband,
        "nothing above 7 kHz": lambda clip, k: band_limit(clip, torch.tensor(7000.0)),
        "10 % slower": lambda clip, k: change_speed(clip, 90),
        "10 % faster": lambda clip, k: change_speed(clip, 110),
        "level −20 dB": lambda clip, k: 0.1 * clip,
        "1 s of silence before": lambda clip, k: torch.cat((torch.zeros(SAMPLE_RATE), clip)),
    }


def _generators(corpus: Path) -> dict[str, str]:
    """What made each attack, where the corpus says so."""
    path = corpus / "metadata.tsv"
    if not path.exists():
        return {}
    with path.open() as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["attack"]: row["generator"] for row in rows if "generator" in row}


def ship(args: argparse.Namespace) -> None:
    """Write the package's checkpoint and the model card."""
    figures, conditions = (json.loads(path.read_text()) for path in (FIGURES, ROBUSTNESS))
    for path, content in ((FIGURES, figures), (ROBUSTNESS, conditions)):
        if content["checkpoint_sha256"] != sha256(args.checkpoint):
            raise SystemExit(f"{path} was measured on another checkpoint; measure this one.")
    figures["robustness"] = conditions["rows"]
    model = load_checkpoint(args.checkpoint)
    model.input = replace(model.input, crop_s=CROP_S)
    model.meta = {
        "calibration": figures["calibration"],
        "card": {
            "name": DEFAULT_NAME,
            "use": USE,
            "data": "3,411 clips of human and synthetic speech: 925 bona fide and 1,121 spoofed of "
            "23 attacks for training, 237 and 249 of 8 other attacks for selection and calibration",
            "licences": "training audio: GPL, LGPL, CC-BY, CC-BY-SA, BSD, MIT and Apache-2.0; none "
            "of it is in the package. Weights: MIT",
            "recipe": figures["recipe"],
            "history": args.history,
            "seed": figures["seed"],
            **{name: figures[name] for name in ("dev", "eval", "groups", "attacks")},
            "robustness": figures["robustness"],
        },
    }
    path = checkpoint_path(DEFAULT_NAME)
    save_checkpoint(path, model.half())
    for name, table in _tables(figures).items():
        page = NOTES if name == "attacks" else CARD
        write_text(page, _replace_block(page, name, table))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, SHA-256 {sha256(path)}")


def _replace_block(page: Path, name: str, content: str) -> str:
    """Return a page with new content between ``<!-- name -->`` and ``<!-- end name -->``."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} must have a block {start} … {end}.")
    return f"{before}{start}\n{content}{end}{after}"


def _tables(figures: dict[str, Any]) -> dict[str, str]:
    """The tables of the model card, by the name of their block."""
    titles = {"eer": "EER %", "min_dcf": "minDCF", "act_dcf": "actDCF", "cllr": "Cllr"}
    pooled = [
        [f"{split} ({part['n_bonafide']} + {part['n_spoof']})"]
        + [_interval(part[name], 100 if name == "eer" else 1) for name in METRICS]
        for split, part in ((split, figures[split]) for split in PROTOCOLS)
    ]
    others = [["this checkpoint", *_compared(figures["eval"], figures["groups"])]]
    others += [
        [name, *_compared(part, part["groups"])] for name, part in figures["published"].items()
    ]
    attacks = [
        [row["attack"], row["generator"], split, str(row["n_spoof"]), _interval(row["eer"], 100)]
        for split in PROTOCOLS
        for row in figures["attacks"][split]
    ]
    robustness = [
        [row["condition"], f"{100 * row['eer']:.1f}", f"{row['min_dcf']:.3f}"]
        for row in figures["robustness"]
    ]
    return {
        "pooled": _table(["set (bona fide + spoof)", *titles.values()], pooled),
        "published": _table(["system", "all", "neural", "signal processing"], others),
        "attacks": _table(["attack", "generator", "set", "clips", "EER %"], attacks),
        "robustness": _table(["condition", "EER %", "minDCF"], robustness),
    }


def _compared(pooled: dict[str, Any], groups: dict[str, Any]) -> list[str]:
    parts = (pooled, *(groups[name] for name in ("neural", "signal processing")))
    return [_interval(part["eer"], 100) for part in parts]


def _interval(interval: dict[str, float], factor: float) -> str:
    digits = 1 if factor == 100 else 3
    value, low, high = (factor * interval[name] for name in ("value", "low", "high"))
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _table(header: list[str], rows: list[list[str]]) -> str:
    return render(header, rows, "markdown", n_names=len(header)) + "\n"


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("checkpoint", type=Path)
    measuring.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    measuring.add_argument("--work", type=Path, required=True, metavar="DIR", help="for scores")
    measuring.add_argument(
        "--published", nargs="*", default=(), metavar="NAME=TSV", help="others' eval scores"
    )
    measuring.set_defaults(run=measure)
    changing = commands.add_parser("robustness")
    changing.add_argument("checkpoint", type=Path)
    changing.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    changing.add_argument("--every", type=int, default=1, metavar="N", help="every Nth clip only")
    changing.set_defaults(run=robustness)
    shipping = commands.add_parser("ship")
    shipping.add_argument("checkpoint", type=Path)
    shipping.add_argument("--history", default="", help="how the run was made, in a sentence")
    shipping.set_defaults(run=ship)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
