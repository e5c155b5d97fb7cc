r"""Five objectives at one budget: the experiment that the TFPARN paper asks for.

    python benchmarks/compare_losses.py train --train FILE --dev FILE --eval FILE \
        --audio DIR --work DIR
    python benchmarks/compare_losses.py table

``train`` trains each model with each objective and seed, the same number of steps on the same data
without early stopping, scores the evaluation part with the checkpoint of the lowest Dev minDCF, and
writes the figures of the runs that are finished to ``losses/figures.json``. Give the same command
again after an interruption; ``--shard 0/2`` and ``--shard 1/2`` divide the runs among two machines
or processes that share the folder. ``table`` writes the table of docs/losses.md from the figures.

The interval of a figure is the 95 % range over draws of whole clusters of the evaluation part. A
draw is the same for all objectives and seeds, so the differences from the paper's objective have
intervals of their own, in which what makes a clip hard for all of them cancels.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from asvspoof_cm import BONAFIDE, read_protocol
from asvspoof_cm._util import atomic_path, sha256
from asvspoof_cm.data import Protocol
from asvspoof_cm.metrics import act_dcf, cllr, eer, min_dcf, read_scores
from asvspoof_cm.runs import read_final
from asvspoof_cm.training import (
    Augmented,
    Corpus,
    Recipe,
    System,
    evaluate_run,
    train_system,
)
from harness import environment

FIGURES = Path(__file__).parent / "losses" / "figures.json"
PAGE = Path(__file__).parent.parent / "docs" / "losses.md"
REFERENCE = "focal + 0.3 * pairwise"
OBJECTIVES = (
    REFERENCE,
    "focal + 0.3 * listwise",
    "focal + 0.3 * partial_auc",
    "soft_dcf",
    "cross_entropy",
)
# The learning rate of each model at batch size 64; set before the comparison, the same throughout.
LEARNING_RATES = {"TFPARN": 1e-3, "ResNet": 1e-3, "AASIST": 1e-4, "RawNet2": 1e-4, "LCNN": 1e-3}
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "eer": lambda bonafide, spoof: eer(bonafide, spoof).value,
    "min_dcf": lambda bonafide, spoof: min_dcf(bonafide, spoof).value,
    "act_dcf": lambda bonafide, spoof: act_dcf(bonafide, spoof).value,
    "cllr": cllr,
}
TITLES = {
    "eer": "EER (%)",
    "min_dcf": "minDCF",
    "act_dcf": "actDCF",
    "cllr": "Cllr",
    "within_eer": "EER within a source (%)",
}


def train(args: argparse.Namespace) -> None:
    """Train and score every run of this shard, and write the figures after each."""
    runs = [
        (model, objective, seed)
        for seed in args.seeds
        for model in args.models
        for objective in args.objectives
    ]
    k, n = args.shard
    evaluation = read_protocol(args.eval)
    corpus = Corpus(
        train_protocol=args.train,
        dev_protocol=args.dev,
        audio_dir=args.audio,
        n_workers=args.workers,
    )
    for model, objective, seed in runs[k::n]:
        system = make_system(model, objective, args)
        folder = run_folder(args.work, model, objective, seed)
        train_system(
            system,
            corpus,
            folder,
            seed=seed,
            device=args.device,
            n_crops=0,
            progress=not args.quiet,
        )
        if "eval" not in read_final(folder):
            evaluate_run(
                folder,
                evaluation,
                args.audio,
                split="eval",
                n_crops=args.crops,
                device=args.device,
                progress=not args.quiet,
            )
        write_figures(args, evaluation)


def make_system(model: str, objective: str, args: argparse.Namespace) -> System:
    """Return a run's system: all but the model and the objective is the same for all runs."""
    recipe = Recipe(
        n_epochs=args.epochs,
        patience=args.epochs,
        lr=LEARNING_RATES[model] * args.batch_size / 64,
        warmup_epochs=args.epochs / 20,
        clip_norm=1.0,
        precision="auto",
    )
    return System(
        name=f"{model}, {objective}",
        model=model,
        model_config=args.config.get(model, {}),
        objective=objective,
        recipe=recipe,
        transform=Augmented(augmentation=args.augment),
        batch_size=args.batch_size,
        crop_s=args.crop_s,
    )


def run_folder(work: Path, model: str, objective: str, seed: int) -> Path:
    """Return where a run lies, such as TFPARN-focal-0.3-pairwise-42."""
    words = re.findall(r"[\w.]+", objective)
    return work / "-".join([model, *words, str(seed)])


def write_figures(args: argparse.Namespace, evaluation: Protocol) -> None:
    """Measure what is finished: each model and objective of which all seeds are there."""
    draws = list(
        draw(evaluation.clusters(args.clusters), evaluation.label, args.replicates, seed=0)
    )
    sources = evaluation.source if args.clusters == "source" else None
    rows = []
    for model in args.models:
        replicates: dict[str, dict[str, np.ndarray]] = {}
        for objective in args.objectives:
            folders = [run_folder(args.work, model, objective, seed) for seed in args.seeds]
            if not all("eval" in read_final(folder) for folder in folders):
                continue
            scores = [in_order(folder / "eval_scores.tsv", evaluation) for folder in folders]
            replicates[objective] = measure(scores, evaluation.label, draws, sources)
            rows.append(
                {
                    "model": model,
                    "objective": objective,
                    "seeds": [seed_record(folder) for folder in folders],
                    "figures": summarise(replicates[objective]),
                    "differences": None
                    if objective == REFERENCE or REFERENCE not in replicates
                    else summarise(
                        {
                            name: values - replicates[REFERENCE][name]
                            for name, values in replicates[objective].items()
                        }
                    ),
                }
            )
    protocols = {"train": args.train, "dev": args.dev, "eval": args.eval}
    reference = make_system(args.models[0], REFERENCE, args)
    content = {
        "environment": environment(),
        "budget": {
            "recipe": asdict(reference.recipe) | {"lr": None},
            "batch_size": reference.batch_size,
            "crop_s": reference.crop_s,
            "augmentation": reference.transform.augmentation,
            "learning_rates": {model: LEARNING_RATES[model] for model in args.models},
            "n_crops": args.crops,
        },
        "data": {
            name: {"file": path.name, "sha256": sha256(path), **read_protocol(path).counts()}
            for name, path in protocols.items()
        },
        "clusters": args.clusters,
        "n_replicates": args.replicates,
        "rows": rows,
    }
    with atomic_path(args.figures) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def seed_record(folder: Path) -> dict[str, Any]:
    """Return what one run gave: its figures, the epoch that was kept, and the time it took."""
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    best = max(record["epoch"] for record in history if record["is_best"])
    return {
        "run": folder.name,
        "best_epoch": best,
        "n_epochs": len(history),
        "train_s": sum(record["train_s"] for record in history),
        "dev": history[best - 1]["dev"],
        "eval": read_final(folder)["eval"],
    }


def in_order(path: Path, protocol: Protocol) -> np.ndarray:
    """Return the scores of a file in the order of the protocol."""
    scores = read_scores(path)
    found = dict(zip(scores.filename.tolist(), scores.cm.tolist(), strict=True))
    missing = [name for name in protocol.utterance.tolist() if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} utterances, such as {missing[0]}.")
    return np.array([found[name] for name in protocol.utterance.tolist()])


def draw(clusters: np.ndarray, labels: np.ndarray, n: int, *, seed: int) -> Iterable[np.ndarray]:
    """Yield all trials once, then `n` draws of whole clusters, as indices of trials."""
    yield np.arange(len(labels))
    names, codes = np.unique(clusters, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    rng = np.random.default_rng(seed)
    n_drawn = 0
    while n_drawn < n:
        chosen = rng.integers(len(names), size=len(names))
        trials = np.concatenate([members[k] for k in chosen])
        if 0 < labels[trials].sum() < len(trials):
            n_drawn += 1
            yield trials


def measure(
    scores: list[np.ndarray],
    labels: np.ndarray,
    draws: list[np.ndarray],
    sources: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Return the mean over seeds of each metric for each draw; the first is of all trials.

    With `sources`, which must then be the clusters drawn, also the mean EER within a source.
    """
    is_bonafide = labels == BONAFIDE
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # meant for finished systems
        for trials in draws:
            bonafide, spoof = trials[is_bonafide[trials]], trials[~is_bonafide[trials]]
            for name, metric in METRICS.items():
                of_seeds = [metric(run[bonafide], run[spoof]) for run in scores]
                values[name].append(float(np.mean(of_seeds)))
        if sources is not None:
            values["within_eer"] = _within(scores, is_bonafide, draws, sources)
    return {name: np.array(column) for name, column in values.items()}


def _within(
    scores: list[np.ndarray], is_bonafide: np.ndarray, draws: list[np.ndarray], sources: np.ndarray
) -> list[float]:
    """Return the mean EER of the sources of each draw that have both classes."""
    _, codes = np.unique(sources, return_inverse=True)
    sizes = np.bincount(codes)
    eers = np.full(len(sizes), np.nan)
    for k in range(len(sizes)):
        bonafide, spoof = (
            np.flatnonzero((codes == k) & side) for side in (is_bonafide, ~is_bonafide)
        )
        if len(bonafide) and len(spoof):
            eers[k] = np.mean([METRICS["eer"](run[bonafide], run[spoof]) for run in scores])
    has_both = ~np.isnan(eers)
    means = []
    for trials in draws:
        n_drawn = (np.bincount(codes[trials], minlength=len(sizes)) / sizes)[has_both]
        means.append(float(n_drawn @ eers[has_both] / n_drawn.sum()) if n_drawn.any() else np.nan)
    return means


def summarise(replicates: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the value of each metric and the 95 % range of its draws."""
    return {
        name: {
            "value": float(column[0]),
            "low": float(np.nanquantile(column[1:], 0.025)),
            "high": float(np.nanquantile(column[1:], 0.975)),
        }
        for name, column in replicates.items()
    }


def table(args: argparse.Namespace) -> None:
    """Write the table into the page, between its two marks."""
    text = render(json.loads(args.figures.read_text()))
    page = args.page.read_text()
    start, end = "<!-- compare_losses -->\n", "<!-- end of compare_losses -->"
    before, rest = page.split(start)
    after = rest.split(end)[1]
    with atomic_path(args.page) as temporary:
        temporary.write_text(f"{before}{start}\n{text}\n{end}{after}")


def render(content: Mapping[str, Any]) -> str:
    """Return the budget in a sentence and the table in Markdown."""
    budget, data = content["budget"], content["data"]
    n_train = data["train"]["bonafide"] + data["train"]["spoof"]
    n_seeds = len(content["rows"][0]["seeds"])
    said = (
        f"Each run: {budget['recipe']['n_epochs']} epochs of {n_train:,} clips, batch "
        f"{budget['batch_size']}, crops of {budget['crop_s']:g} s, augmentation "
        f"`{budget['augmentation']}`, the epoch of the lowest Dev minDCF kept. Figures: the "
        f"evaluation part ({data['eval']['bonafide']:,} bona fide and {data['eval']['spoof']:,} "
        f"spoofed clips), mean of {n_seeds} seeds, with 95 % intervals over "
        f"{content['n_replicates']:,} draws of whole clusters ({content['clusters']}); scores are "
        "not calibrated. An asterisk: the interval of the difference from the paper's objective "
        "leaves out zero."
    )
    titles = [TITLES[name] for name in content["rows"][0]["figures"]]
    lines = [
        said,
        "",
        f"| model | objective | {' | '.join(titles)} |",
        "|---|---" + "|---" * len(titles) + "|",
    ]
    for row in content["rows"]:
        cells = [row["model"], f"`{row['objective']}`"]
        for name, figure in row["figures"].items():
            scale, digits = (100, 2) if name.endswith("eer") else (1, 4)
            value, low, high = (scale * figure[key] for key in ("value", "low", "high"))
            difference = (row["differences"] or {}).get(name)
            differs = difference is not None and not difference["low"] <= 0 <= difference["high"]
            cells.append(
                f"{value:.{digits}f}{'*' if differs else ''} [{low:.{digits}f}, {high:.{digits}f}]"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def shard(text: str) -> tuple[int, int]:
    """Read "k/n"."""
    k, _, n = text.partition("/")
    if not (k.isdigit() and n.isdigit() and int(k) < int(n)):
        raise argparse.ArgumentTypeError(f"must be k/n with k below n, such as 0/2; got {text}")
    return int(k), int(n)


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train", help="train, score, write the figures")
    training.set_defaults(run=train)
    for name in ("train", "dev", "eval"):
        training.add_argument(f"--{name}", type=Path, required=True, metavar="PROTOCOL")
    training.add_argument("--audio", type=Path, required=True, metavar="DIR")
    training.add_argument("--work", type=Path, required=True, metavar="DIR")
    training.add_argument("--models", nargs="+", default=["TFPARN", "ResNet"])
    training.add_argument(
        "--config", type=json.loads, default={}, help='JSON, such as {"TFPARN": {"n_layers": 4}}'
    )
    training.add_argument("--objectives", nargs="+", default=list(OBJECTIVES))
    training.add_argument("--seeds", nargs="+", type=int, default=[42, 63])
    training.add_argument("--epochs", type=int, default=20)
    training.add_argument("--batch-size", type=int, default=32)
    training.add_argument("--crop-s", type=float, default=2.5)
    training.add_argument("--augment", default="tfparn")
    training.add_argument("--crops", type=int, default=3, help="crops of each clip in scoring")
    training.add_argument("--clusters", default="speaker", help="column of the clusters to draw")
    training.add_argument("--replicates", type=int, default=1000)
    training.add_argument("--shard", type=shard, default=(0, 1), metavar="K/N")
    training.add_argument("--device", default="auto")
    training.add_argument("--workers", type=int)
    training.add_argument("--quiet", action="store_true")
    writing = commands.add_parser("table", help="write the table of docs/losses.md")
    writing.set_defaults(run=table)
    writing.add_argument("--page", type=Path, default=PAGE)
    for command in (training, writing):
        command.add_argument("--figures", type=Path, default=FIGURES)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
