"""``asvspoof-cm evaluate``: the metrics of a score file, or of two score files side by side."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asvspoof_cm import metrics
from asvspoof_cm._util import FloatArray, as_labels, render
from asvspoof_cm.labels import BONAFIDE, SASV_CLASSES, SPOOF
from asvspoof_cm.metrics import METRICS
from asvspoof_cm.metrics.files import find_trials
from asvspoof_cm.metrics.groups import has_sources
from asvspoof_cm.metrics.track1 import Ties

if TYPE_CHECKING:
    from asvspoof_cm.data.protocol import Protocol

SUMMARY = "compute the official metrics of a score file, or compare two"

COLUMNS = ("speaker", "gender", "codec", "codec_seed", "attack", "source")
_LEAST_REPLICATES = 100
_N_COMPARED = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Compute the official metrics of a score file. With two score files, compare the two "
        "systems: the difference of each metric with its interval over paired replicates, and "
        "McNemar's test of the decisions at the Bayes threshold."
    )
    add = parser.add_argument
    add(
        "--scores",
        required=True,
        nargs="+",
        type=Path,
        metavar="FILE",
        help="score file, TSV or CSV; two are compared",
    )
    add("--key", type=Path, help="key file; Track 1 can take --protocol instead")
    add("--track", type=int, choices=(1, 2), default=1, help="2: with speaker verification")
    add("--protocol", type=Path, help="protocol: labels, sources, the columns of --by, --cluster")
    add(
        "--by",
        action="append",
        default=[],
        metavar="COLUMN[,COLUMN]",
        help=f"results per group, columns crossed, of {', '.join(COLUMNS)}; may be repeated",
    )
    add(
        "--match",
        default="",
        metavar="COLUMN[,COLUMN]",
        help="columns of --by in which bonafide trials must agree with the spoofs' group",
    )
    add(
        "--bootstrap",
        type=int,
        default=0,
        metavar="N",
        help=f"replicates for 95 %% intervals, at least {_LEAST_REPLICATES} "
        f"(default: none; {_N_COMPARED} for two score files)",
    )
    add("--cluster", choices=COLUMNS, help="draw whole clusters of this column")
    add("--seed", type=int, help="seed of the draws (default: 0)")
    add("--ties", choices=("official", "grouped"), help="how equal scores pass (default: official)")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--plots", type=Path, metavar="DIR", help="write figures there (Track 1)")


def run(args: argparse.Namespace) -> int:
    """Compute, print and draw what the arguments ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        report = _track2(args) if args.track == 2 else _track1(args)
    if args.json:
        text = json.dumps(_plain(report), indent=1, ensure_ascii=False, allow_nan=False)
    elif "systems" in report:
        text = _comparison(args.scores, report)
    else:
        text = "\n\n".join(map(_text, report.values()))
    sys.stdout.write(text + "\n")
    return 0


def _check_track1(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect, before anything is read or computed."""
    several = len(args.scores) > 1
    if len(args.scores) > 2:
        raise ValueError(f"--scores takes one file, or two to compare; got {len(args.scores)}.")
    if args.bootstrap and args.bootstrap < _LEAST_REPLICATES:
        raise ValueError(
            f"--bootstrap must be at least {_LEAST_REPLICATES} replicates, or 0 for none: fewer "
            f"say nothing about the ends of an interval; got {args.bootstrap}."
        )
    if args.cluster and not (args.bootstrap or several):
        raise ValueError("--cluster is for intervals; add --bootstrap N.")
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative; got {args.seed}.")
    if args.ties == "grouped" and (several or args.bootstrap or args.plots):
        option = "--bootstrap" if args.bootstrap else "--plots" if args.plots else "a comparison"
        raise ValueError(f"--ties grouped does not reach {option}; leave one of them out.")
    if several and args.by:
        raise ValueError("--by is for one score file; leave it out with two.")
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
    from asvspoof_cm.data.protocol import read_protocol

    protocol = None if args.protocol is None else read_protocol(args.protocol)
    if args.key is not None:
        key = metrics.read_key(args.key)
    elif protocol is not None:
        labels = np.where(as_labels(protocol.label), BONAFIDE, SPOOF)
        key = metrics.Key(filename=protocol.utterance, cm_label=labels)
    else:
        raise ValueError("--key or --protocol must be given.")
    systems = []
    for path in args.scores:
        values = metrics.read_scores(path).for_key(key).cm
        if values is None or key.asv_label is not None:
            raise ValueError(f"{path} holds scores of Track 2; add --track 2.")
        systems.append(values)
    if protocol is not None:
        protocol = _in_order(protocol, key)
    if len(systems) == 2:
        return _compare(args, (systems[0], systems[1]), key, protocol)
    return _evaluate(args, systems[0], key, protocol)


def _evaluate(
    args: argparse.Namespace, values: FloatArray, key: metrics.Key, protocol: Protocol | None
) -> dict[str, Any]:
    ties: Ties = args.ties or "official"
    seed = args.seed or 0
    report: dict[str, Any] = {"track1": metrics.evaluate(values, key.cm_label, ties=ties)}
    clusters = protocol.clusters(args.cluster) if protocol and args.cluster else None
    is_bonafide = key.cm_label == BONAFIDE
    pair = values[is_bonafide], values[~is_bonafide]
    if args.bootstrap:
        of_class = None if clusters is None else (clusters[is_bonafide], clusters[~is_bonafide])
        report["intervals"] = metrics.bootstrap(
            METRICS, *pair, args.bootstrap, clusters=of_class, seed=seed
        )
    if within := _within(args, values, key, protocol):
        report["within_source"] = within
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
        from asvspoof_cm import plots

        pictures = {
            "det": plots.det(*pair),
            "scores": plots.scores(*pair),
            "calibration": plots.calibration(*pair),
        }
        for name, part in report.items():
            if isinstance(part, metrics.Breakdown):
                pictures[name] = plots.breakdown(part)
        report["pictures"] = _save(args.plots, pictures)
    return report


def _compare(
    args: argparse.Namespace,
    systems: tuple[FloatArray, FloatArray],
    key: metrics.Key,
    protocol: Protocol | None,
) -> dict[str, Any]:
    is_bonafide = key.cm_label == BONAFIDE
    report: dict[str, Any] = {
        "systems": [
            {"scores": str(path), "track1": metrics.evaluate(values, key.cm_label)}
            for path, values in zip(args.scores, systems, strict=True)
        ]
    }
    for part, values in zip(report["systems"], systems, strict=True):
        if within := _within(args, values, key, protocol):
            part["within_source"] = within
    report["difference"] = metrics.compare(
        *systems,
        key.cm_label,
        METRICS,
        args.bootstrap or _N_COMPARED,
        clusters=protocol.clusters(args.cluster) if protocol and args.cluster else None,
        seed=args.seed or 0,
    )
    report["mcnemar"] = metrics.mcnemar(*systems, key.cm_label)
    if args.plots is not None:
        from asvspoof_cm import plots

        stems = [path.stem for path in args.scores]
        ax, labels = None, stems if len({*stems}) == 2 else map(str, args.scores)
        for label, values in zip(labels, systems, strict=True):
            ax = plots.det(values[is_bonafide], values[~is_bonafide], ax, label=label)
        report["pictures"] = _save(args.plots, {"det": ax})
    return report


def _within(
    args: argparse.Namespace, values: FloatArray, key: metrics.Key, protocol: Protocol | None
) -> metrics.WithinSources | None:
    """Return the errors within sources, None unless one source has both classes."""
    if protocol is None or not has_sources(key.cm_label, protocol.source):
        return None
    n_bootstrap = args.bootstrap if len(args.scores) == 1 else 0
    return metrics.within_sources(
        values, key.cm_label, protocol.source, n_bootstrap=n_bootstrap, seed=args.seed or 0
    )


def _track2(args: argparse.Namespace) -> dict[str, Any]:
    unused = {"--protocol": args.protocol, "--by": args.by, "--bootstrap": args.bootstrap}
    unused |= {"--plots": args.plots, "--cluster": args.cluster, "--match": args.match}
    unused |= {"--ties": args.ties, "--seed": args.seed}
    for option, value in unused.items():
        if value or (option == "--seed" and value is not None):
            raise ValueError(f"{option} is for Track 1; leave it out with --track 2.")
    if len(args.scores) > 1:
        raise ValueError("--scores takes one file with --track 2.")
    if args.key is None:
        raise ValueError("--key must be given with --track 2.")
    key, (path,) = metrics.read_key(args.key), args.scores
    if key.asv_label is None:
        raise ValueError(f"{args.key}: Track 2 needs the columns spk filename cm-label asv-label.")
    scores = metrics.read_scores(path).for_key(key)
    has_tandem = scores.cm is not None and scores.asv is not None
    if scores.sasv is None and not has_tandem:
        only = "cm" if scores.asv is None else "asv"
        raise ValueError(
            f"{path}: Track 2 needs sasv-score, or cm-score and asv-score; it holds "
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


def _in_order(protocol: Protocol, key: metrics.Key) -> Protocol:
    """The protocol's rows in the order of the key."""
    order = find_trials(key.filename.tolist(), protocol.utterance.tolist())
    if (order < 0).any():
        raise ValueError(
            f"--protocol must hold every trial of the key; {int((order < 0).sum())} are missing, "
            f"the first is {key.filename[np.argmax(order < 0)]}."
        )
    return protocol.select(order)


def _save(folder: Path, pictures: dict[str, Any]) -> list[str]:
    from asvspoof_cm import plots

    paths = []
    for name, ax in pictures.items():
        paths.append(str(folder / f"{name}.png"))
        plots.save_figure(ax, paths[-1])
    return paths


def _plain(part: Any) -> Any:
    """Return a part of the report as plain values, for JSON."""
    if isinstance(part, dict):
        return {name: _plain(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_plain(value) for value in part]
    return part if isinstance(part, int | float | str) else part.as_dict()


def _text(part: Any) -> str:
    """Return a part of the report: a result of its own, pictures, intervals or values by name."""
    if isinstance(part, list):
        return "\n".join(part)
    if not isinstance(part, dict):
        return str(part)
    first = next(iter(part.values()))
    if isinstance(first, metrics.Interval):
        rows = [(METRICS[k].label, METRICS[k].text(v)) for k, v in part.items()]
        return render(("metric", "value [95 % interval]"), rows, n_names=2)
    rows = [(k, f"{v:.4f}" if isinstance(v, float) else str(v)) for k, v in part.items()]
    return render(("track 2", ""), rows, n_names=2)


def _comparison(paths: Sequence[Path], report: dict[str, Any]) -> str:
    """Return the tables of two systems."""
    systems = [system["track1"] for system in report["systems"]]
    rows = []
    for name, interval in report["difference"].items():
        metric = METRICS[name]
        values = (system.values()[name] for system in systems)
        rows.append([metric.label, *map(metric.text, values), metric.text(interval)])
    if "within_source" in report["systems"][0]:
        errors = [100 * system["within_source"].mean_eer for system in report["systems"]]
        cells = [f"{value:.3f}" for value in (*errors, errors[0] - errors[1])]
        rows.append(["EER (%), mean within sources", *cells])
    header = ("metric", "A", "B", "A − B [95 % interval]")
    names = [f"{letter}: {path}" for letter, path in zip("AB", paths, strict=True)]
    trials = f"{systems[0].n_bonafide} bonafide, {systems[0].n_spoof} spoof"
    parts = ["\n".join([*names, trials]), render(header, rows), str(report["mcnemar"])]
    return "\n\n".join([*parts, *map(_text, [report["pictures"]] if "pictures" in report else [])])
