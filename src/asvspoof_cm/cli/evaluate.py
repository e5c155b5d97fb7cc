"""``asvspoof-cm evaluate``: the metrics of a score file."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm import metrics
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics.checks import as_labels

if TYPE_CHECKING:
    from asvspoof_cm.data.protocol import Protocol

__all__ = ["add_parser", "run"]

COLUMNS = ("speaker", "gender", "codec", "codec_seed", "attack")
SASV_CLASSES = ("target", "nontarget", "spoof")


def add_parser(subparsers: Any) -> None:
    """Describe the arguments of the subcommand."""
    parser = subparsers.add_parser(
        "evaluate",
        help="compute the official metrics of a score file",
        description="Compute the official metrics of a score file.",
    )
    parser.add_argument("--scores", required=True, type=Path, help="score file of the challenge")
    parser.add_argument("--key", type=Path, help="key file; Track 1 can take --protocol instead")
    parser.add_argument("--track", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--protocol", type=Path, help="protocol with the columns of --by, --cluster"
    )
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="COLUMN[,COLUMN]",
        help=f"results per group, columns crossed, of {', '.join(COLUMNS)}; may be repeated",
    )
    parser.add_argument(
        "--match",
        default="",
        metavar="COLUMN[,COLUMN]",
        help="columns of --by in which bonafide trials must agree with the spoofs' group",
    )
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="N", help="replicates for 95 %% intervals"
    )
    parser.add_argument("--cluster", choices=COLUMNS, help="draw whole clusters of this column")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--ties", choices=("official", "grouped"), default="official")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write figures there (Track 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compute, print and draw what the arguments ask for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = _track2(args) if args.track == 2 else _track1(args)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        sys.stderr.write(f"asvspoof-cm evaluate: warning: {message}\n")
    if args.json:
        content = {name: part.as_dict() for name, part in report.items()}
        sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n\n".join(str(part) for part in report.values()) + "\n")
    return 0


class _Table(dict[str, Any]):
    """A report that prints as aligned lines."""

    def as_dict(self) -> dict[str, Any]:
        return {
            name: value.as_dict() if hasattr(value, "as_dict") else value
            for name, value in self.items()
        }

    def __str__(self) -> str:
        width = max(map(len, self))
        texts = {k: f"{v:.4f}" if isinstance(v, float) else str(v) for k, v in self.items()}
        return "\n".join(f"{name:<{width}}  {text}" for name, text in texts.items())


def _track1(args: argparse.Namespace) -> dict[str, Any]:
    protocol = None if args.protocol is None else _read_protocol(args.protocol)
    if args.key is not None:
        key = metrics.read_key(args.key)
    elif protocol is not None:
        labels = np.where(as_labels(protocol.label), BONAFIDE, SPOOF)
        key = metrics.Key(filename=protocol.utterance, cm_label=labels)
    else:
        raise ValueError("--key or --protocol must be given.")
    values = metrics.read_scores(args.scores).for_key(key).cm
    if values is None or key.speaker is not None:
        raise ValueError(f"{args.scores} holds scores of Track 2; add --track 2.")
    columns = {} if protocol is None else _columns(protocol, key.filename)
    for name in {*_names(",".join(args.by)), *_names(args.match), *_names(args.cluster or "")}:
        if name not in COLUMNS:
            raise ValueError(f"--by and --match take {', '.join(COLUMNS)}; got {name!r}.")
        if not columns:
            raise ValueError(f"--protocol must be given: it holds the column {name!r}.")
    report: dict[str, Any] = {"track1": metrics.evaluate(values, key.cm_label, ties=args.ties)}
    clusters = columns[args.cluster] if args.cluster else None
    if args.bootstrap:
        is_bonafide = key.cm_label == BONAFIDE
        intervals = metrics.bootstrap(
            metrics.METRICS,
            values[is_bonafide],
            values[~is_bonafide],
            args.bootstrap,
            clusters=None if clusters is None else (clusters[is_bonafide], clusters[~is_bonafide]),
            seed=args.seed,
        )
        report["intervals"] = _Table(intervals)
    for by in args.by:
        names = _names(by)
        report[f"by_{'_'.join(names)}"] = metrics.breakdown(
            values,
            key.cm_label,
            {name: columns[name] for name in names},
            match=[name for name in _names(args.match) if name in names],
            n_bootstrap=args.bootstrap,
            clusters=clusters,
            seed=args.seed,
        )
    if args.plots is not None:
        _draw(args.plots, values, key.cm_label, report)
    return report


def _track2(args: argparse.Namespace) -> dict[str, Any]:
    unused = {"--protocol": args.protocol, "--by": args.by, "--bootstrap": args.bootstrap}
    unused |= {"--plots": args.plots, "--cluster": args.cluster}
    for option, value in unused.items():
        if value:
            raise ValueError(f"{option} is for Track 1; leave it out with --track 2.")
    if args.key is None:
        raise ValueError("--key must be given with --track 2.")
    key = metrics.read_key(args.key)
    if key.asv_label is None:
        raise ValueError(f"{args.key}: Track 2 needs the columns spk filename cm-label asv-label.")
    scores = metrics.read_scores(args.scores).for_key(key)
    masks = [key.asv_label == name for name in SASV_CLASSES]
    counts = zip(SASV_CLASSES, masks, strict=True)
    result = _Table({f"n_{name}": int(mask.sum()) for name, mask in counts})
    if scores.sasv is not None:
        target, nontarget, spoof = (scores.sasv[mask] for mask in masks)
        result["a_dcf"] = metrics.a_dcf(target, nontarget, spoof).value
    if scores.cm is not None and scores.asv is not None:
        is_spoof = key.cm_label == SPOOF
        cm = scores.cm[~is_spoof], scores.cm[is_spoof]
        target, nontarget, spoof = (scores.asv[mask] for mask in masks)
        result["min_t_dcf"] = metrics.min_t_dcf(*cm).value
        result["t_eer"] = metrics.t_eer((target, nontarget, spoof), cm).value
    return {"track2": result}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _read_protocol(path: Path) -> Protocol:
    from asvspoof_cm.data.protocol import read_protocol

    return read_protocol(path)


def _columns(protocol: Protocol, filename: NDArray[np.str_]) -> dict[str, NDArray[Any]]:
    """The protocol's columns in the order of the key."""
    place = {name: index for index, name in enumerate(protocol.utterance.tolist())}
    missing = [name for name in filename.tolist() if name not in place]
    if missing:
        raise ValueError(
            f"--protocol must hold every trial of the key; {len(missing)} are missing, the first "
            f"is {missing[0]}."
        )
    order = np.array([place[name] for name in filename.tolist()])
    return {name: getattr(protocol, name)[order] for name in COLUMNS}


def _draw(
    folder: Path, scores: NDArray[np.float64], labels: NDArray[np.int64], report: dict[str, Any]
) -> None:
    from asvspoof_cm import plots

    pair = scores[labels == BONAFIDE], scores[labels == SPOOF]
    plots.save_figure(plots.plot_det(*pair), folder / "det.png")
    plots.save_figure(plots.plot_scores(*pair), folder / "scores.png")
    plots.save_figure(plots.plot_calibration(*pair), folder / "calibration.png")
    for part in report.values():
        if isinstance(part, metrics.Breakdown):
            name = "_".join(part.columns)
            plots.save_figure(plots.plot_breakdown(part), folder / f"by_{name}.png")
