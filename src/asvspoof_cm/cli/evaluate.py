"""``asvspoof-cm evaluate``: the metrics of score files, side by side, per group, along time."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from asvspoof_cm import metrics
from asvspoof_cm._tables import Quantity, Table
from asvspoof_cm._util import FloatArray, as_labels, as_plain
from asvspoof_cm.data.protocol import read_protocol
from asvspoof_cm.data.segments import read_segments
from asvspoof_cm.labels import BONAFIDE, SASV_CLASSES, SPOOF
from asvspoof_cm.metrics.files import find_trials

COLUMNS = ("speaker", "gender", "codec", "codec_seed", "attack", "source")
_LEAST_REPLICATES = 100
_N_COMPARED = 1000
_N_PICTURES = 4
_WITHIN = Quantity("eer_within_sources", "EER, mean within sources", "%", 100.0, 3)

Result = tuple[dict[str, Any], list[Table | str], dict[str, Any]]
"""The report, the parts of its text, and pictures by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Compute the official metrics of a score file. Several score files are compared with the "
        "first: the difference of each metric, with its interval over paired replicates. With "
        "--segments, measure scores along time against stretches that are known."
    )
    add, columns = parser.add_argument, ", ".join(COLUMNS)
    add("--scores", required=True, nargs="+", type=Path, metavar="FILE", help="TSV or CSV")
    add("--key", type=Path, help="key file; Track 1 can take --protocol instead")
    add("--track", type=int, choices=(1, 2), default=1, help="2: with speaker verification")
    add("--protocol", type=Path, help="labels, sources, and the columns of --by and --cluster")
    add("--expect", choices=("train", "dev", "eval"), help="what the protocol must be, whole")
    by = f"results for each of {columns}; attack,codec crosses two"
    add("--by", nargs="+", default=[], metavar="COLUMN", help=by)
    match = "columns of --by in which bonafide trials must agree with the spoofs' group"
    add("--match", nargs="+", default=[], metavar="COLUMN", help=match)
    add("--threshold", type=float, metavar="X", help="also what comes of accepting from X on")
    add("--segments", type=Path, metavar="KEY", help="which stretches are synthetic")
    add("--gaps", metavar="LABEL", help="what time is that no segment names, such as bonafide")
    draws = f"replicates for 95 %% intervals (default: none; {_N_COMPARED} for a comparison)"
    add("--bootstrap", type=int, metavar="N", help=draws)
    add("--cluster", choices=COLUMNS, help="draw whole clusters of this column")
    add("--skip-missing", action="store_true", help="leave out and count trials without a score")
    add("--form", choices=("text", "markdown", "csv", "latex"), default="text", help="of tables")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--plots", type=Path, metavar="DIR", help="write figures there")


def run(args: argparse.Namespace) -> int:
    """Compute, print and draw what the arguments ask for."""
    if args.bootstrap is not None and 0 != args.bootstrap < _LEAST_REPLICATES:
        raise ValueError(
            f"`bootstrap` must be at least {_LEAST_REPLICATES} replicates, or 0 for none: fewer "
            f"say nothing about the ends of an interval; got {args.bootstrap}."
        )
    if args.plots is not None:
        from asvspoof_cm import plots

        plots.new_axes()  # without matplotlib it fails here, not after the bootstrap
    compute = _track2 if args.track == 2 else _along_time if args.segments else _track1
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        report, parts, pictures = compute(args)
    if pictures:
        taken: set[Path] = set()
        report["pictures"] = []
        for name, ax in pictures.items():
            path = plots.picture_path(args.plots, name, taken)
            plots.save_figure(ax, path)
            report["pictures"].append(str(path))
        parts.append("\n".join(report["pictures"]))
    if args.json:
        text = json.dumps(as_plain(report), indent=1, ensure_ascii=False, allow_nan=False)
    else:
        text = "\n\n".join(p if isinstance(p, str) else p.text(args.form) for p in parts)
    sys.stdout.write(text + "\n")
    return 0


def _refuse(args: argparse.Namespace, when: str, *names: str) -> None:
    """Refuse options that would have no effect."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False and value != []:
            raise ValueError(f"`{name}` has no effect {when}; leave it out.")


def _track1(args: argparse.Namespace) -> Result:
    """Return the results of one or several score files."""
    _refuse(args, "without --segments", "gaps")
    if args.protocol is None:
        _refuse(args, "without --protocol", "by", "cluster", "expect")
    if args.cluster and not args.bootstrap and len(args.scores) == 1:
        raise ValueError("`cluster` is for intervals; add --bootstrap N.")
    if not {*args.match} <= {name for names in args.by for name in names.split(",")}:
        raise ValueError(f"`match` must name columns of --by; got {', '.join(args.match)}.")
    protocol = None if args.protocol is None else read_protocol(args.protocol, expect=args.expect)
    if args.key is not None:
        key = metrics.read_key(args.key)
    elif protocol is not None:
        labels = np.where(as_labels(protocol.label), BONAFIDE, SPOOF)
        key = metrics.Key(filename=protocol.utterance, cm_label=labels)
    else:
        raise ValueError("--key or --protocol must be given.")
    systems = _read_systems(args, key)
    is_scored = np.isfinite(systems.sum(axis=0))
    systems, labels = systems[:, is_scored], key.cm_label[is_scored]
    columns = {}
    if protocol is not None:
        order = find_trials(key.filename.tolist(), protocol.utterance.tolist())
        if (order < 0).any():
            raise ValueError(
                f"`protocol` must hold every trial of the key; {int((order < 0).sum())} are "
                f"missing, the first is {key.filename[np.argmax(order < 0)]}."
            )
        protocol = protocol.select(order[is_scored])
        wanted = {"source", *(name for by in args.by for name in by.split(","))}
        columns = {name: protocol.column(name) for name in wanted}
    clusters = protocol.clusters(args.cluster) if protocol and args.cluster else None
    results = [_evaluate(args, values, labels, columns, clusters) for values in systems]
    report: dict[str, Any] = {}
    parts: list[Table | str] = []
    if args.skip_missing:
        counts = [int((key.cm_label[~is_scored] == label).sum()) for label in (BONAFIDE, SPOOF)]
        report["left_out"] = dict(zip(("bonafide", "spoof"), counts, strict=True))
        parts.append("left out, without a score: {} bonafide, {} spoof".format(*counts))
    stems = [path.stem for path in args.scores]
    names = stems if len({*stems}) == len(stems) else [str(path) for path in args.scores]
    if len(systems) == 1:
        report |= results[0]
        parts += _tables(results[0])
    else:
        draws: Any = {"n": args.bootstrap or _N_COMPARED, "clusters": clusters}
        differences = [
            metrics.compare(systems[0], values, labels, metrics.METRICS, **draws)
            for values in systems[1:]
        ]
        paths = map(str, args.scores)
        report["systems"] = [{"scores": s, **own} for s, own in zip(paths, results, strict=True)]
        report["differences"] = dict(zip(names[1:], differences, strict=True))
        parts.append(_comparison(names, results, differences))
        for name, own in zip(names, results, strict=True):
            tables = _tables({k: v for k, v in own.items() if k not in ("track1", "within_source")})
            parts += [name, *tables] if tables else []
    return report, parts, _pictures(names, systems, labels, results) if args.plots else {}


def _read_systems(args: argparse.Namespace, key: metrics.Key) -> FloatArray:
    """Return the scores of each file for the trials of the key, (n_systems, n_trials)."""
    found = []
    units: dict[str, Path] = {}
    for path in args.scores:
        scores = metrics.read_scores(path).for_key(key, skip_missing=args.skip_missing)
        if scores.cm is None or key.asv_label is not None:
            raise ValueError(f"{path} holds scores of Track 2; add --track 2.")
        units |= {} if scores.unit is None else {scores.unit: path}
        found.append(scores.cm)
    if len(units) > 1:
        held = " and ".join(f"{path} holds {unit}" for unit, path in units.items())
        raise ValueError(
            f"`scores` must be in one unit to be compared; {held}. Score again with one "
            "calibration, or evaluate them one by one."
        )
    return np.stack(found)


def _evaluate(
    args: argparse.Namespace,
    values: FloatArray,
    labels: Any,
    columns: dict[str, Any],
    clusters: Any,
) -> dict[str, Any]:
    """Return the results of one system by their names in the report."""
    n, is_bonafide = args.bootstrap or 0, labels == BONAFIDE
    draws: Any = {"clusters": clusters, "n_bootstrap": n}
    report: dict[str, Any] = {"track1": metrics.evaluate(values, labels)}
    if n and len(args.scores) == 1:
        pair = None if clusters is None else (clusters[is_bonafide], clusters[~is_bonafide])
        classes = values[is_bonafide], values[~is_bonafide]
        report["intervals"] = metrics.bootstrap(metrics.METRICS, *classes, n, clusters=pair)
    if columns:
        within = metrics.within_sources(values, labels, columns["source"], n_bootstrap=n)
        report |= {} if within is None else {"within_source": within}
    if args.threshold is not None:
        report["decisions"] = metrics.decisions(values, labels, args.threshold, **draws)
    for by in args.by:
        groups = {name: columns[name] for name in by.split(",")}
        name, match = "_".join(groups), [name for name in args.match if name in groups]
        report[f"by_{name}"] = metrics.breakdown(values, labels, groups, match=match, **draws)
        if args.threshold is not None:
            decisions = metrics.decisions(values, labels, args.threshold, groups=groups, **draws)
            report[f"decisions_by_{name}"] = decisions
    return report


def _tables(report: dict[str, Any]) -> list[Table | str]:
    """Return the tables of one system's results."""
    intervals = report.get("intervals")
    return [
        part.table(intervals) if name == "track1" else part.table()
        for name, part in report.items()
        if name != "intervals"
    ]


def _comparison(
    names: list[str], results: list[dict[str, Any]], differences: list[dict[str, Any]]
) -> Table:
    """Return the metrics of several systems, and the differences of the first from each."""
    track1, none = [result["track1"] for result in results], [None] * len(differences)
    rows: list[list[Any]] = [
        ["bonafide", *(result.n_bonafide for result in track1), *none],
        ["spoof", *(result.n_spoof for result in track1), *none],
    ]
    for name, quantity in metrics.METRICS.items():
        values = (result.values()[name] for result in track1)
        rows.append([quantity, *values, *(found[name] for found in differences)])
    if "within_source" in results[0]:
        errors = [float(result["within_source"].mean.values["eer"]) for result in results]
        rows.append([_WITHIN, *errors, *(errors[0] - error for error in errors[1:])])
    return Table(["metric", *names, *(f"{names[0]} − {name}" for name in names[1:])], rows)


def _pictures(
    names: list[str], systems: FloatArray, labels: Any, results: list[dict[str, Any]]
) -> dict[str, Any]:
    from asvspoof_cm import plots

    pairs = [(values[labels == BONAFIDE], values[labels == SPOOF]) for values in systems]
    ax: Any = None
    for name, pair in zip(names, pairs, strict=True):
        ax = plots.det(*pair, ax, label=name if len(pairs) > 1 else None)
    if len(pairs) > 1:
        return {"det": ax}
    groups = {name: part for name, part in results[0].items() if name.startswith("by_")}
    return {
        "det": ax,
        "scores": plots.scores(*pairs[0]),
        "calibration": plots.calibration(*pairs[0]),
        **{name: plots.breakdown(part) for name, part in groups.items()},
    }


def _along_time(args: argparse.Namespace) -> Result:
    """Return the results of scores along time against segments that are known."""
    unused = ("key", "protocol", "expect", "by", "match", "cluster", "skip_missing")
    _refuse(args, "with --segments", *unused)
    if len(args.scores) > 1:
        raise ValueError("`scores` takes one file with --segments.")
    truth = read_segments(args.segments, gaps=args.gaps)
    scores = metrics.read_frame_scores(args.scores[0])
    threshold = metrics.ASVSPOOF5.threshold if args.threshold is None else args.threshold
    result = metrics.evaluate_segments(truth, scores, threshold, n_bootstrap=args.bootstrap or 0)
    pictures = {}
    if args.plots is not None:
        from asvspoof_cm import plots

        found = metrics.segments_below(scores, threshold)
        f1 = {name: metrics.segment_rates(truth[name], found[name])["f1"] for name in truth}
        for name in sorted(f1, key=lambda name: np.nan_to_num(f1[name], nan=1.0))[:_N_PICTURES]:
            known = [(a, min(b, scores[name][-1, 1]), label) for a, b, label, _ in truth[name]]
            segments: Any = {"truth": known, "found": found[name]}
            pictures[name] = plots.timeline(scores[name], threshold=threshold, **segments)
    return {"segments": result}, [result.table()], pictures


def _track2(args: argparse.Namespace) -> Result:
    """Return the results of a score file of Track 2."""
    unused = ("protocol", "expect", "by", "match", "threshold", "segments", "gaps", "bootstrap")
    _refuse(args, "with --track 2", *unused, "cluster", "skip_missing", "plots")
    if args.key is None or len(args.scores) > 1:
        raise ValueError("--key and one file of --scores must be given with --track 2.")
    key, (path,) = metrics.read_key(args.key), args.scores
    if key.asv_label is None:
        raise ValueError(f"{args.key}: Track 2 needs the columns spk filename cm-label asv-label.")
    scores = metrics.read_scores(path).for_key(key)
    if scores.sasv is None and (scores.cm is None or scores.asv is None):
        only = "cm" if scores.asv is None else "asv"
        raise ValueError(
            f"{path}: Track 2 needs sasv-score, or cm-score and asv-score; it holds "
            f"{only}-score only."
        )
    masks = {name: key.asv_label == name for name in SASV_CLASSES}
    result: dict[str, Any] = {f"n_{name}": int(mask.sum()) for name, mask in masks.items()}
    if scores.sasv is not None:
        a_dcf = metrics.a_dcf(*(scores.sasv[mask] for mask in masks.values()))
        result |= {"a_dcf": a_dcf.value, "a_dcf_threshold": a_dcf.threshold}
    if scores.cm is not None and scores.asv is not None:
        target, nontarget, spoof = (scores.asv[mask] for mask in masks.values())
        cm = scores.cm[~masks["spoof"]], scores.cm[masks["spoof"]]
        t_dcf, t_eer = metrics.min_t_dcf(*cm), metrics.t_eer((target, nontarget, spoof), cm)
        result |= {
            "min_t_dcf": t_dcf.value,
            "min_t_dcf_threshold": t_dcf.threshold,
            "min_t_dcf_asv": "error rates of the organisers' speaker verification",
            "t_eer": t_eer.value,
            "t_eer_asv_threshold": t_eer.asv_threshold,
            "t_eer_cm_threshold": t_eer.cm_threshold,
        }
    rows = [(Quantity(name, name), value) for name, value in result.items()]
    return {"track2": result}, [Table(("track 2", "value"), rows)], {}
