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
from asvspoof_cm.labels import ABSENT, BONAFIDE, SASV_CLASSES, SPOOF
from asvspoof_cm.metrics.det import Ties
from asvspoof_cm.utils.checks import as_labels
from asvspoof_cm.utils.tables import render

if TYPE_CHECKING:
    from asvspoof_cm.data.protocol import Protocol

COLUMNS = ("speaker", "gender", "codec", "codec_seed", "attack", "source")


SUMMARY = "compute the official metrics of a score file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = "Compute the official metrics of a score file."
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
    parser.add_argument("--seed", type=int, help="seed of the draws (default: 0)")
    parser.add_argument(
        "--ties", choices=("official", "grouped"), help="how equal scores pass (default: official)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write figures there (Track 1)")


def run(args: argparse.Namespace) -> int:
    """Compute, print and draw what the arguments ask for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = _track2(args) if args.track == 2 else _track1(args)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        sys.stderr.write(f"asvspoof-cm evaluate: warning: {message}\n")
    if args.json:
        text = json.dumps(_plain(report), indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(text + "\n")
    else:
        sys.stdout.write("\n\n".join(map(_text, report.values())) + "\n")
    return 0


def _text(part: Any) -> str:
    """Return a part of the report as a table: a result of its own, intervals, or values by name."""
    if not isinstance(part, dict):
        return str(part)
    first = next(iter(part.values()))
    if isinstance(first, metrics.Interval):
        rows = [(metrics.METRICS[k].head, v.text(metrics.METRICS[k])) for k, v in part.items()]
        return render(("metric", f"value [{100 * first.confidence:g} % interval]"), rows, n_names=2)
    rows = [(k, f"{v:.4f}" if isinstance(v, float) else str(v)) for k, v in part.items()]
    return render(("track 2", ""), rows, n_names=2)


def _plain(part: Any) -> Any:
    """Return a part of the report as plain values, for JSON."""
    if isinstance(part, dict):
        return {name: _plain(value) for name, value in part.items()}
    return part if isinstance(part, int | float | str) else part.as_dict()


def _check_track1(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect, before anything is read or computed."""
    if args.bootstrap < 0:
        raise ValueError(f"--bootstrap must be at least 0 replicates; got {args.bootstrap}.")
    if args.cluster and not args.bootstrap:
        raise ValueError("--cluster is for intervals; add --bootstrap N.")
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative; got {args.seed}.")
    if args.ties == "grouped" and (args.bootstrap or args.plots):
        option = "--bootstrap" if args.bootstrap else "--plots"
        raise ValueError(f"--ties grouped does not reach {option}; leave one of them out.")
    by = _names(",".join(args.by))
    for name in (*by, *_names(args.match)):
        if name not in COLUMNS:
            raise ValueError(f"--by and --match take {', '.join(COLUMNS)}; got {name!r}.")
    for name in _names(args.match):
        if name not in by:
            raise ValueError(f"--match takes columns of --by; got {name!r}.")
    for name in (*by, *_names(args.cluster or "")):
        if args.protocol is None:
            raise ValueError(f"--protocol must be given: it holds the column {name!r}.")
    if args.plots is not None:
        from asvspoof_cm import plots

        plots.new_axes()  # without matplotlib it fails here, not after the bootstrap


def _track1(args: argparse.Namespace) -> dict[str, Any]:
    _check_track1(args)
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
    if protocol is not None:
        protocol = _in_order(protocol, key.filename)
    ties: Ties = args.ties or "official"
    seed = args.seed or 0
    report: dict[str, Any] = {"track1": metrics.evaluate(values, key.cm_label, ties=ties)}
    clusters = protocol.clusters(args.cluster) if protocol and args.cluster else None
    if args.bootstrap:
        is_bonafide = key.cm_label == BONAFIDE
        intervals = metrics.bootstrap(
            metrics.METRICS,
            values[is_bonafide],
            values[~is_bonafide],
            args.bootstrap,
            clusters=None if clusters is None else (clusters[is_bonafide], clusters[~is_bonafide]),
            seed=seed,
        )
        report["intervals"] = intervals
    if protocol is not None and _has_matched_source(protocol):
        known = protocol.source != ABSENT
        report["within_source"] = metrics.within_sources(
            values[known],
            key.cm_label[known],
            protocol.source[known],
            n_bootstrap=args.bootstrap,
            seed=seed,
        )
    for by in args.by:
        names = _names(by)
        report[f"by_{'_'.join(names)}"] = metrics.breakdown(
            values,
            key.cm_label,
            {name: getattr(protocol, name) for name in names},
            match=[name for name in _names(args.match) if name in names],
            ties=ties,
            n_bootstrap=args.bootstrap,
            clusters=clusters,
            seed=seed,
        )
    if args.plots is not None:
        _draw(args.plots, values, key.cm_label, report)
    return report


def _track2(args: argparse.Namespace) -> dict[str, Any]:
    unused = {"--protocol": args.protocol, "--by": args.by, "--bootstrap": args.bootstrap}
    unused |= {"--plots": args.plots, "--cluster": args.cluster, "--match": args.match}
    unused |= {"--ties": args.ties, "--seed": args.seed}
    for option, value in unused.items():
        if value or (option == "--seed" and value is not None):
            raise ValueError(f"{option} is for Track 1; leave it out with --track 2.")
    if args.key is None:
        raise ValueError("--key must be given with --track 2.")
    key = metrics.read_key(args.key)
    if key.asv_label is None:
        raise ValueError(f"{args.key}: Track 2 needs the columns spk filename cm-label asv-label.")
    scores = metrics.read_scores(args.scores).for_key(key)
    has_tandem = scores.cm is not None and scores.asv is not None
    if scores.sasv is None and not has_tandem:
        only = "cm" if scores.asv is None else "asv"
        raise ValueError(
            f"{args.scores}: Track 2 needs sasv-score, or cm-score and asv-score; it holds "
            f"{only}-score only."
        )
    masks = [key.asv_label == name for name in SASV_CLASSES]
    counts = zip(SASV_CLASSES, masks, strict=True)
    result: dict[str, Any] = {f"n_{name}": int(mask.sum()) for name, mask in counts}
    if scores.sasv is not None:
        target, nontarget, spoof = (scores.sasv[mask] for mask in masks)
        a_dcf = metrics.a_dcf(target, nontarget, spoof)
        result |= {"a_dcf": a_dcf.value, "a_dcf_threshold": a_dcf.threshold}
    if scores.cm is not None and scores.asv is not None:
        is_spoof = key.cm_label == SPOOF
        cm = scores.cm[~is_spoof], scores.cm[is_spoof]
        target, nontarget, spoof = (scores.asv[mask] for mask in masks)
        t_dcf, t_eer = metrics.min_t_dcf(*cm), metrics.t_eer((target, nontarget, spoof), cm)
        result |= {
            "min_t_dcf": t_dcf.value,
            "min_t_dcf_threshold": t_dcf.threshold,
            "min_t_dcf_asv": "error rates of the organisers' speaker verification",
            "t_eer": t_eer.value,
            "t_eer_asv_threshold": t_eer.asv_threshold,
            "t_eer_cm_threshold": t_eer.cm_threshold,
        }
    return {"track2": result}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _read_protocol(path: Path) -> Protocol:
    from asvspoof_cm.data.protocol import read_protocol

    return read_protocol(path)


def _has_matched_source(protocol: Protocol) -> bool:
    """Whether a source has both classes."""
    sources = [set(protocol.source[protocol.label == label]) for label in (BONAFIDE, SPOOF)]
    return bool(set.intersection(*sources) - {ABSENT})


def _in_order(protocol: Protocol, filename: NDArray[np.str_]) -> Protocol:
    """The protocol's rows in the order of the key."""
    place = {name: index for index, name in enumerate(protocol.utterance.tolist())}
    missing = [name for name in filename.tolist() if name not in place]
    if missing:
        raise ValueError(
            f"--protocol must hold every trial of the key; {len(missing)} are missing, the first "
            f"is {missing[0]}."
        )
    return protocol.select(np.array([place[name] for name in filename.tolist()]))


def _draw(
    folder: Path, scores: NDArray[np.float64], labels: NDArray[np.int64], report: dict[str, Any]
) -> None:
    from asvspoof_cm import plots

    pair = scores[labels == BONAFIDE], scores[labels == SPOOF]
    plots.save_figure(plots.det(*pair), folder / "det.png")
    plots.save_figure(plots.scores(*pair), folder / "scores.png")
    plots.save_figure(plots.calibration(*pair), folder / "calibration.png")
    for part in report.values():
        if isinstance(part, metrics.Breakdown):
            name = "_".join(part.columns)
            plots.save_figure(plots.breakdown(part), folder / f"by_{name}.png")
