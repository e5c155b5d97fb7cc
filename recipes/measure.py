"""The figures of the model card: the scores of several systems on several sets, and what they say.

    python recipes/measure.py score      ours=best.pt 0.1.0=old.pt … --data DIR --work DIR
    python recipes/measure.py robustness ours=best.pt 0.1.0=old.pt … --data DIR --work DIR
    python recipes/measure.py cost       ours=best.pt AASIST=aasist.pth … --work DIR
    python recipes/measure.py figures    ours=best.pt 0.1.0=old.pt … --data DIR --work DIR

A system is a checkpoint of the library, or the published weights of an AASIST or of LCNN; the one
named first is the one that ships. DIR of ``--data`` holds the tables ``demopages/corpus.tsv`` and
``corpus/corpus.tsv`` of ``recipes/manyvoices``. Scoring takes hours and is kept in ``--work``, one
file for each system, set and condition: the same command resumes it, and other weights get other
files. ``--cap N`` scores at most N clips of each class and source. ``figures`` calibrates the first
system on the development sets, and writes ``model_card/figures.json``, which ``ship.py`` reads;
``--keep`` keeps what it says of systems that are not named, on the same clips.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asvspoof_cm import (
    BONAFIDE,
    Scorer,
    fit_calibration,
    load_checkpoint,
    load_published_aasist,
)
from asvspoof_cm.audio import resample
from asvspoof_cm.augmentation import (
    RandomBandLimit,
    RandomSpeed,
    WhiteNoise,
    available_codecs,
    transcode,
)
from asvspoof_cm.checkpoint import load_published_lcnn, load_tensors
from asvspoof_cm.data import Protocol, open_audio, read_protocol
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.metrics import (
    OperatingPoint,
    bootstrap,
    eer,
    read_scores,
    within_sources,
    write_scores,
)
from asvspoof_cm.utils.files import atomic_path, sha256
from asvspoof_cm.utils.progress import track
from families import FAMILIES, family
from harness import environment, interleave
from minispoof.confounds import fit_logistic, statistics

FIGURES = Path(__file__).parent / "model_card" / "figures.json"
SETS = {  # name: table, split
    "demopages dev": ("demopages/corpus.tsv", "dev"),
    "corpus dev": ("corpus/corpus.tsv", "dev"),
    "corpus eval": ("corpus/corpus.tsv", "eval"),
}
DEV = ("demopages dev", "corpus dev")
TRIVIAL = "trivial statistics"
FEWEST = 5  # clips of each class that a source must have to be measured within
N_TRIVIAL = 3000
N_BOOTSTRAP = 1000
Array = np.ndarray[Any, Any]
Change = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class System:
    """A trained model under the name that the tables give it."""

    name: str
    path: Path

    @cached_property
    def key(self) -> str:
        """The name of its score files: other weights have another."""
        return f"{_slug(self.name)}-{sha256(self.path)[:8]}"

    def scorer(self, n_crops: int | None = None) -> Scorer:
        """Return its scorer, with its own crops unless told otherwise."""
        content = load_tensors(self.path)
        load: Callable[[Path], Any] = load_checkpoint
        if "pos_S" in content:
            load = load_published_aasist
        elif "m_transform.0.0.weight" in content:
            load = load_published_lcnn
        return Scorer(
            load(self.path), device="cpu", n_crops=n_crops, batch_size=8, calibration=None
        )


@dataclass(frozen=True)
class Part:
    """The clips of a set that are scored."""

    name: str
    folder: Path
    protocol: Protocol

    @property
    def sources(self) -> Array:
        """Where each clip comes from."""
        return self.protocol.clusters("source")

    @property
    def is_human(self) -> Array:
        """Whether a person spoke."""
        return self.protocol.label == BONAFIDE


def read_part(data: Path, name: str, cap: int | None) -> Part:
    """Return a set, with at most `cap` clips of each class and source, drawn once for all."""
    table, split = SETS[name]
    protocol = read_protocol(data / table)
    protocol = protocol.select(protocol.split == split)
    if cap is not None:
        rng, kept = np.random.default_rng(0), []
        groups = np.array([f"{s}\t{k}" for s, k in zip(protocol.source, protocol.label)])  # noqa: B905
        for group in np.unique(groups):
            kept += rng.permutation(np.flatnonzero(groups == group))[:cap].tolist()
        protocol = protocol.select(sorted(kept))
    return Part(name, (data / table).parent, protocol)


def score(args: argparse.Namespace) -> None:
    """Score every set with every system."""
    for part in _parts(args):
        for system in args.systems:
            output = _score_file(args, part.name, system.key)
            if not output.exists() or output.with_name(f"{output.name}.part").exists():
                done = system.scorer(args.crops).score_protocol(
                    part.protocol, part.folder, output, progress=True
                )
                print(f"{system.name}, {part.name}: {done.n_scored} scored, {done.n_failed} failed")
        output = _score_file(args, part.name, _slug(TRIVIAL))
        if not args.keep and not output.exists():
            write_scores(output, part.protocol.utterance, _trivial(args, part))


def robustness(args: argparse.Namespace) -> None:
    """Score the development sets under each condition, one crop per clip."""
    for name, change in conditions().items():
        for part in _parts(args, DEV):
            for system in args.systems:
                output = _score_file(args, f"{part.name} {name}", system.key)
                if output.exists():
                    continue
                clips = _changed(part, change, f"{system.name}, {name}")
                scores = system.scorer(n_crops=1).score_batch(clips)
                write_scores(output, part.protocol.utterance, scores)


def cost(args: argparse.Namespace) -> None:
    """Measure what one crop costs on one thread, all systems in turn."""
    torch.set_num_threads(1)
    scorers = {system.name: system.scorer() for system in args.systems}
    crops = {n: torch.randn(1, s.input.n_samples) for n, s in scorers.items()}
    seconds = interleave({n: lambda n=n: scorers[n].logits(crops[n]) for n in scorers})  # type: ignore[misc]
    rows = {
        system.name: {
            "n_parameters": sum(p.numel() for p in scorers[system.name].model.parameters()),  # type: ignore[attr-defined]
            "file_bytes": system.path.stat().st_size,
            "crop_s": scorers[system.name].input.crop_s,
            "n_crops": scorers[system.name].input.n_crops,
            "seconds_per_crop": seconds[system.name],
        }
        for system in args.systems
    }
    _write(args.work / "cost.json", {"environment": environment(), "systems": rows})


def figures(args: argparse.Namespace) -> None:
    """Write what all the scores say."""
    before = json.loads(args.out.read_text()) if args.keep else {"cap": args.cap, "sets": {}}
    if before["cap"] != args.cap:
        raise SystemExit(f"--keep: {args.out} has --cap {before['cap']}, not {args.cap}")
    parts = {part.name: part for part in _parts(args)}
    ours = args.systems[0]
    raw = {name: _read(args, part, ours.key) for name, part in parts.items()}
    calibration = fit_calibration(
        np.concatenate([raw[name] for name in DEV]),
        np.concatenate([parts[name].protocol.label for name in DEV]),
        prior=0.5,
        fitted_for=ours.scorer(args.crops).conditions(),
    )
    content: dict[str, Any] = {
        "environment": environment(),
        "system": ours.name,
        "checkpoint_sha256": sha256(ours.path),
        "cap": args.cap,
        "robustness_cap": args.robustness_cap,
        "fewest": FEWEST,
        "calibration": calibration.as_dict(),
        "sets": {},
    }
    for name, part in parts.items():
        llr = calibration.apply(raw[name])
        systems = {ours.name: _figures(part, llr, ("eer", "min_dcf", "act_dcf", "cllr"))}
        for key, other in _others(args):
            systems[other] = _figures(part, _read(args, part, key), ("eer", "min_dcf"))
        counts = {
            "n_bonafide": int(part.is_human.sum()),
            "n_spoof": int((~part.is_human).sum()),
        }
        kept = before["sets"].get(name, {**counts, "systems": {}})
        if {key: kept[key] for key in counts} != counts:
            raise SystemExit(f"--keep: {args.out} has other clips of {name}")
        systems |= {k: v for k, v in kept["systems"].items() if k not in systems}
        content["sets"][name] = {
            **counts,
            "systems": systems,
            "genders": _by_gender(part, llr, args.genders),
            "worst": _worst(part, llr),
        }
    content["robustness"] = list(_robust(args))
    costs = args.work / "cost.json"
    content["cost"] = json.loads(costs.read_text()) if costs.exists() else None
    _write(args.out, content)


def conditions() -> dict[str, Change]:
    """What happens to clip number k before it is scored."""

    def noise(snr_db: float) -> Change:
        augment = WhiteNoise(snr_db=(snr_db, snr_db))
        return lambda clip, k: augment(clip, generator=torch.Generator().manual_seed(k))

    def coded(codec: str) -> Change:
        return lambda clip, k: transcode(clip, codec)

    def narrowband(clip: Tensor, k: int) -> Tensor:
        return resample(resample(clip, SAMPLE_RATE, 8000), 8000, SAMPLE_RATE)

    return {
        "clean": lambda clip, k: clip,
        **{codec: coded(codec) for codec in available_codecs()},
        "white noise, 20 dB SNR": noise(20.0),
        "white noise, 10 dB SNR": noise(10.0),
        "sampled at 8 kHz": narrowband,
        "nothing above 7 kHz": lambda clip, k: RandomBandLimit(high_hz=(7000.0, 7000.0))(clip),
        "10 % slower": lambda clip, k: RandomSpeed(percent=(90, 90))(clip),
        "10 % faster": lambda clip, k: RandomSpeed(percent=(110, 110))(clip),
        "level −20 dB": lambda clip, k: 0.1 * clip,
        "1 s of silence before": lambda clip, k: torch.cat((torch.zeros(SAMPLE_RATE), clip)),
    }


def _figures(part: Part, scores: Array, metrics: Sequence[str]) -> dict[str, Any]:
    """Pooled and within sources, for all fakes and for each family; intervals draw sources."""
    kind = np.array([family(name) for name in part.protocol.attack])
    result = {**_pooled(part, scores, metrics), "within": _within(part, scores)}
    result["families"] = {
        name: {
            "n_spoof": int(chosen.sum()),
            **_pooled(part, scores, ("eer",), part.is_human | chosen),
            "within": _within(part, scores, part.is_human | chosen),
        }
        for name in FAMILIES
        if (chosen := ~part.is_human & (kind == name)).any()
    }
    return result


def _pooled(
    part: Part, scores: Array, metrics: Sequence[str], rows: Array | slice = slice(None)
) -> dict[str, Any]:
    scores, is_human, sources = scores[rows], part.is_human[rows], part.sources[rows]
    with _no_warnings():
        found = bootstrap(
            tuple(metrics),
            scores[is_human],
            scores[~is_human],
            N_BOOTSTRAP,
            clusters=(sources[is_human], sources[~is_human]),
        )
    return {name: interval.as_dict() for name, interval in found.items()}


def _within(part: Part, scores: Array, rows: Array | slice = slice(None)) -> dict[str, Any] | None:
    """The mean EER over sources with at least `FEWEST` clips of each class."""
    scores, labels, sources = scores[rows], part.protocol.label[rows], part.sources[rows]
    names, codes = np.unique(sources, return_inverse=True)
    counts = [np.bincount(codes[labels == label], minlength=len(names)) for label in (0, 1)]
    kept = np.isin(codes, np.flatnonzero(np.minimum(*counts) >= FEWEST))
    if not kept.any():
        return None
    with _no_warnings():
        found = within_sources(scores[kept], labels[kept], sources[kept], n_bootstrap=N_BOOTSTRAP)
    interval = found.interval
    return {"n_sources": len(found.rows), **(interval.as_dict() if interval else {})}


def _by_gender(part: Part, scores: Array, protocols: Sequence[Path]) -> dict[str, Any]:
    """The EER of each gender that the protocols given name, with its counts."""
    known: dict[str, str] = {}
    for path in protocols:
        protocol = read_protocol(path)
        known |= dict(zip(protocol.utterance.tolist(), protocol.gender.tolist(), strict=True))
    genders = np.array([known.get(name, "-") for name in part.protocol.utterance])
    result = {}
    for gender in ("F", "M"):
        human, spoof = (scores[(genders == gender) & c] for c in (part.is_human, ~part.is_human))
        if len(human) and len(spoof):
            value = _eer(human, spoof).value
            result[gender] = {"n_bonafide": len(human), "n_spoof": len(spoof), "eer": value}
    return result


def _worst(part: Part, scores: Array, n: int = 6) -> dict[str, list[dict[str, Any]]]:
    """The sources whose humans are refused and the generators that pass, at the EER threshold."""
    human = part.is_human
    accepted = scores >= _eer(scores[human], scores[~human]).threshold
    result = {}
    for title, names, chosen, wrong in (
        ("refused", part.sources, human, ~accepted),
        ("passed", part.protocol.attack, ~human, accepted),
    ):
        rows = [
            {"name": str(name), "n": int(own.sum()), "share": float(wrong[own].mean())}
            for name in np.unique(names[chosen])
            if (own := chosen & (names == name)).sum() >= FEWEST
        ]
        result[title] = sorted(rows, key=lambda row: -row["share"])[:n]
    return result


def _eer(human: Array, spoof: Array) -> OperatingPoint:
    with _no_warnings():
        return eer(human, spoof, ties="grouped")


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Accept an EER above 50 %: it is no mistake here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _robust(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The EER of the development sets under each condition that was scored."""
    args = argparse.Namespace(**{**vars(args), "cap": args.robustness_cap})
    parts = _parts(args, DEV)
    for name in conditions():
        row: dict[str, Any] = {"condition": name, "systems": {}}
        for system in args.systems:
            paths = [_score_file(args, f"{part.name} {name}", system.key) for part in parts]
            if all(path.exists() for path in paths):
                row["systems"][system.name] = {
                    part.name: {
                        "eer": _pooled(part, scores, ("eer",))["eer"],
                        "within": _within(part, scores),
                    }
                    for part, path in zip(parts, paths, strict=True)
                    for scores in [_in_order(path, part)]
                }
        if row["systems"]:
            yield row


def _trivial(args: argparse.Namespace, part: Part) -> Array:
    """Scores of a regression on level, duration and the like, fitted on the train parts."""
    features, labels = [], []
    for table in dict.fromkeys(table for table, _ in SETS.values()):
        protocol = read_protocol(args.data / table)
        rows = np.flatnonzero(protocol.split == "train")
        rows = rows[np.linspace(0, len(rows) - 1, min(N_TRIVIAL, len(rows))).astype(int)]
        train = Part(f"{table} train", (args.data / table).parent, protocol.select(rows))
        features.append(_statistics(args, train))
        labels.append(train.protocol.label)
    known = np.concatenate(features)
    mean, spread = known.mean(axis=0), known.std(axis=0) + 1e-12
    coefficients, intercept = fit_logistic((known - mean) / spread, np.concatenate(labels))
    return np.asarray((_statistics(args, part) - mean) / spread @ coefficients + intercept)


def _statistics(args: argparse.Namespace, part: Part) -> Array:
    path = args.work / f"{_slug(part.name)}-{len(part.protocol)}.npy"
    if not path.exists():
        clips = _changed(part, lambda clip, k: clip, f"statistics of {part.name}")
        found = np.array([statistics(clip.astype(np.float64)) for clip in clips])
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, found)
    return np.asarray(np.load(path))


def _changed(part: Part, change: Change, description: str) -> Iterator[Array]:
    audio = open_audio(part.protocol, part.folder)
    for k in track(range(len(part.protocol)), description=description, unit="clip"):
        with audio.open(k) as clip:
            yield change(torch.from_numpy(clip.read()), k).numpy()


def _parts(args: argparse.Namespace, names: Sequence[str] = tuple(SETS)) -> list[Part]:
    return [read_part(args.data, name, args.cap) for name in names]


def _others(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield from ((system.key, system.name) for system in args.systems[1:])
    if not args.keep:
        yield _slug(TRIVIAL), TRIVIAL


def _score_file(args: argparse.Namespace, name: str, key: str) -> Path:
    cap = "all" if args.cap is None else str(args.cap)
    path: Path = args.work / f"{_slug(name)}-{cap}" / f"{key}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _read(args: argparse.Namespace, part: Part, key: str) -> Array:
    return _in_order(_score_file(args, part.name, key), part)


def _in_order(path: Path, part: Part) -> Array:
    scores = read_scores(path)
    score_of = dict(zip(scores.filename.tolist(), scores.cm.tolist(), strict=True))
    return np.array([score_of[name] for name in part.protocol.utterance.tolist()])


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _system(text: str) -> System:
    name, found, path = text.partition("=")
    if not found or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text} must be NAME=FILE with a file that is there")
    return System(name, Path(path))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for run in (score, robustness, cost, figures):
        command = commands.add_parser(run.__name__, help=(run.__doc__ or "").lower())
        command.add_argument("systems", nargs="+", type=_system, metavar="NAME=FILE")
        command.add_argument("--work", type=Path, required=True, metavar="DIR")
        if run is not cost:
            command.add_argument("--data", type=Path, required=True, metavar="DIR")
            command.add_argument("--cap", type=int, metavar="N", help="clips per class and source")
        if run in (score, figures):
            command.add_argument("--crops", type=int, metavar="N", help="(each system's own)")
            command.add_argument("--keep", action="store_true", help="figures of other systems")
        if run is figures:
            command.add_argument("--genders", nargs="*", type=Path, default=(), metavar="PROTOCOL")
            command.add_argument("--robustness-cap", type=int, metavar="N", help="of robustness")
            command.add_argument("--out", type=Path, default=FIGURES)
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
