"""The figures of the model card: what systems score on development and test sets.

    python recipes/measure.py score   ours=best.pt 0.2.0=old.pt … --data DIR --work DIR
    python recipes/measure.py figures ours=best.pt 0.2.0=old.pt … --data DIR --work DIR
    python recipes/measure.py adapt   ours=best.pt --data DIR --work DIR

A system is a checkpoint of the library, or the published weights of an AASIST or of LCNN; the one
named first is the one that ships. DIR of ``--data`` holds the tables of ``recipes/manyvoices``.
Scores are kept in ``--work``, one file for each system and set: the same command resumes, and other
weights get other files. A set without scores of a system has no figures of it. ``--cap N`` takes at
most N clips of each class and source, ``--channel-cap N`` in coded sets and sets of one length.

``figures`` calibrates the first system on the clean and the coded development sets together, and
writes ``model_card/figures.json``, which ``ship.py`` reads. First come the share of people refused
and the share of fakes that pass, at an LLR of 0 and at the default costs of a verdict.
``adapt`` prints what a few clips of a source or a channel change of these errors.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5, sha256
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from asvspoof_cm import Scorer, fit_calibration, load_checkpoint, load_published
from asvspoof_cm.audio import AudioFile
from asvspoof_cm.calibration import Calibration, adapt_calibration
from asvspoof_cm.checkpoint import load_tensors
from asvspoof_cm.metrics import ASVSPOOF5, bootstrap, eer
from families import FAMILIES, LANGUAGES, family

FIGURES = Path(__file__).parent / "model_card" / "figures.json"
SETS = {  # name: table, split
    "demo pages, dev": ("demopages/corpus.tsv", "dev"),
    "more repositories, dev": ("demopages2/corpus.tsv", "dev"),
    "small corpus, dev": ("corpus/corpus.tsv", "dev"),
    "small corpus, eval": ("corpus/corpus.tsv", "eval"),
    "Debian's voices, held out": ("debian/corpus.tsv", "dev"),
    "no speech": ("nospeech/sounds/corpus.tsv", "dev"),
}
CLEAN = ("demo pages, dev", "more repositories, dev", "small corpus, dev")
CHANNELS = "dev_channels"
LENGTHS = {"1 s": 1, "2 s": 2, "4 s": 4}  # the middle of the clean dev clips of 4 s and more
FEWEST = 5  # clips of each class that a source must have to be measured within
N_BOOTSTRAP = 1000
ADAPTED = ((3, 3), (5, 5), (8, 8), (8, 0))  # clips of people, of fakes
N_DRAWS = 50
Array = np.ndarray[Any, Any]
Row = Mapping[str, str]


@dataclass(frozen=True)
class System:
    """A trained model under the name that the tables give it."""

    name: str
    path: Path

    @cached_property
    def key(self) -> str:
        """The name of its score files: other weights have another."""
        return f"{_slug(self.name)}-{sha256(self.path.read_bytes()).hexdigest()[:8]}"

    def scorer(self, precision: str = "fp32") -> Scorer:
        """Return its scorer, of log-odds."""
        is_ours = "format" in load_tensors(self.path)
        model = load_checkpoint(self.path) if is_ours else load_published(self.path)
        return Scorer(model, device="cpu", precision=precision, batch_size=8, calibration=None)


@dataclass(frozen=True)
class Part:
    """The clips of a set that are scored."""

    name: str
    folder: Path
    rows: Sequence[Row]

    def audio(self, row: Row) -> Any:
        """Return what is scored: a file, or its middle, with a name."""
        path = self.folder / row["path"]
        if self.name not in LENGTHS:
            return path
        with AudioFile(path) as file:
            n_samples = round(LENGTHS[self.name] * file.sample_rate)
            return row["utterance"], file.read((file.n_samples - n_samples) // 2, n_samples)

    def column(self, name: str) -> Array:
        """Return one value for each clip; "-" where nothing is known."""
        return np.array([row.get(name) or "-" for row in self.rows])

    @property
    def language(self) -> Array:
        """Return the language of each clip whose source has one that is known."""
        return np.array([LANGUAGES.get(row["source"], "-") for row in self.rows])

    @property
    def is_human(self) -> Array:
        """Whether a person spoke."""
        return self.column("label") == "bonafide"


def read_part(data: Path, name: str, cap: int | None) -> Part | None:
    """Return a set, at most `cap` clips of each class and source; None where it is not there."""
    if name in LENGTHS:
        return _part_of_length(data, name, cap)
    table, split = SETS.get(name, (f"{CHANNELS}/{name}/corpus.tsv", "dev"))
    if not (data / table).is_file():
        return None
    with (data / table).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return Part(name, (data / table).parent, _few([r for r in rows if r["split"] == split], cap))


def _part_of_length(data: Path, name: str, cap: int | None) -> Part:
    """Return the clips of the clean dev sets that are as long as the longest of `LENGTHS`."""
    rows: list[Row] = []
    for part in filter(None, (read_part(data, title, None) for title in CLEAN)):
        rows += [{**row, "path": str((part.folder / row["path"]).resolve())} for row in part.rows]
    longest_s = max(LENGTHS.values())
    long = [row for row in rows if soundfile.info(row["path"]).duration >= longest_s]
    return Part(name, data, _few(long, cap))


def _few(rows: Sequence[Row], cap: int | None) -> list[Row]:
    """Return at most `cap` clips of each class and source, the same in coded sets."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: md5(_recording(row).encode()).hexdigest()):
        groups.setdefault((row["source"], row["label"]), []).append(row)
    return [row for group in groups.values() for row in group[:cap]]


def is_channel(name: str) -> bool:
    """Return whether a set holds the clips of others through a channel."""
    return name not in SETS and name not in LENGTHS


def _recording(row: Row) -> str:
    """Return a name that a clip shares with its coded variants, so that all sets hold the same."""
    return row["utterance"].split("~")[0]


def score(args: argparse.Namespace) -> None:
    """Score every set with every system."""
    torch.set_num_threads(args.threads)
    for system in args.systems:
        scorer = system.scorer(args.precision)
        for part in _parts(args):
            output = _score_file(args, part, system)
            if output.exists():
                continue
            lines, n_failed = [], 0
            audio = map(part.audio, part.rows)
            for row, found in zip(part.rows, scorer.score_files(audio), strict=True):
                if found.result is None:
                    n_failed += 1
                    print(f"{part.name}: {found.error}")
                    continue
                lines.append(
                    f"{row['utterance']}\t{found.result.score!r}\t{found.result.has_speech:d}"
                )
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text("\n".join(lines) + "\n")
            print(f"{system.name}, {part.name}: {len(lines)} scored, {n_failed} failed", flush=True)


def figures(args: argparse.Namespace) -> None:
    """Write what all the scores say."""
    parts = {part.name: part for part in _parts(args)}
    ours = args.systems[0]
    fitted = [part for name, part in parts.items() if name in CLEAN or is_channel(name)]
    calibration = fit_calibration(
        np.concatenate([_read(args, part, ours)[0] for part in fitted]),
        np.concatenate([part.is_human.astype(int) for part in fitted]),
        prior=0.5,
        fitted_for=ours.scorer().conditions(),
    )
    content: dict[str, Any] = {
        "system": ours.name,
        "checkpoint_sha256": sha256(ours.path.read_bytes()).hexdigest(),
        "cap": args.cap,
        "calibration": calibration.as_dict(),
        "sets": {},
    }
    for name, part in parts.items():
        systems = {}
        for system in args.systems:
            if not _score_file(args, part, system).exists():
                continue
            scores, has_speech = _read(args, part, system)
            is_ours = system is ours
            llr = calibration.apply(scores) if is_ours else _own_llr(system, scores)
            detail = is_ours and name in SETS
            systems[system.name] = _figures(part, scores, llr, has_speech, detail=detail)
        content["sets"][name] = {
            "n_bonafide": int(part.is_human.sum()),
            "n_spoof": int((part.column("label") == "spoof").sum()),
            "n_other": int((part.column("label") == "nospeech").sum()),
            "systems": systems,
        }
    args.out.write_text(as_json(content) + "\n")


def as_json(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each mapping that holds no other.

    Example:
        >>> print(as_json({"eer": {"value": 0.1, "low": 0.0}, "n": 2}))
        {
         "eer": {"value": 0.1, "low": 0.0},
         "n": 2
        }
    """
    if not isinstance(value, dict) or not any(isinstance(v, dict) for v in value.values()):
        return json.dumps(value, ensure_ascii=False)
    start = "\n" + " " * depth
    lines = [f"{start} {json.dumps(k)}: {as_json(v, depth + 1)}" for k, v in value.items()]
    return f"{{{','.join(lines)}{start}}}"


def adapt(args: argparse.Namespace) -> None:
    """Print errors at the threshold before and after adapting to a few clips of each class."""
    calibration = Calibration.from_dict(json.loads(args.out.read_text())["calibration"])
    groups: dict[str, list[tuple[Array, Array]]] = {"source": [], "channel": []}
    for part in _parts(args):
        if part.name in LENGTHS:
            continue
        llr, human = calibration.apply(_read(args, part, args.systems[0])[0]), part.is_human
        is_coded = is_channel(part.name)
        names = np.zeros(len(llr)) if is_coded else part.column("source")
        for name in np.unique(names):
            pair = (llr[(names == name) & human], llr[(names == name) & ~human])
            if min(map(len, pair)) > max(n for counts in ADAPTED for n in counts):
                groups["channel" if is_coded else "source"].append(pair)
    print("| clips of people + fakes | of a | groups | before, % | after, % | most worse, points |")
    print("| --: | --- | --: | --: | --: | --: |")
    for kind, pairs in groups.items():
        for counts in ADAPTED:
            found = 100 * np.array([_adapted(*pair, *counts) for pair in pairs]).reshape(-1, 2)
            before, after = found.mean(axis=0)
            worst = np.diff(found).max()
            print(f"| {counts[0]} + {counts[1]} | {kind} | {len(pairs)} ", end="")
            print(f"| {before:.1f} | {after:.1f} | {worst:.1f} |")


def _adapted(human: Array, fake: Array, n_human: int, n_fake: int) -> tuple[float, float]:
    """Return the mean of both error rates before and after, over draws of the clips adapted to."""
    rng, rates = np.random.default_rng(0), []
    for _ in range(N_DRAWS):
        people, others = rng.permutation(human), rng.permutation(fake)
        with _no_warnings():
            shift = adapt_calibration(Calibration(), people[:n_human], others[:n_fake]).offset
        people, others = people[n_human:], others[n_fake:]
        rates.append([(np.mean(people + x < 0) + np.mean(others + x >= 0)) / 2 for x in (0, shift)])
    before, after = np.mean(rates, axis=0)
    return float(before), float(after)


def _own_llr(system: System, scores: Array) -> Array | None:
    """Return calibrated scores of a system that brings a calibration along, else None."""
    calibration = Scorer(load_checkpoint(system.path)).calibration if _is_ours(system) else None
    return None if calibration is None else np.asarray(calibration.apply(scores))


def _is_ours(system: System) -> bool:
    return "state_dict" in load_tensors(system.path)


def _figures(
    part: Part, scores: Array, llr: Array | None, has_speech: Array, *, detail: bool
) -> dict[str, Any]:
    """Return errors at the threshold and EERs; for the shipped system also those of groups."""
    result: dict[str, Any] = {"has_speech": float(has_speech.mean())}
    human, sources = part.is_human, part.column("source")
    spoof = part.column("label") == "spoof"
    if llr is not None:
        wrong, at_costs = (
            np.where(human, llr < threshold, llr >= threshold)
            for threshold in (0.0, ASVSPOOF5.threshold)
        )
        result |= _errors(wrong, human, spoof, sources)
        result["verdict"] = _errors(at_costs, human, spoof, sources)
        if detail:
            result["groups"] = {
                "gender": _groups(part.column("gender"), wrong, human, spoof),
                "language": _groups(part.language, wrong, human, spoof),
            }
            result["sources"] = _worst(sources, wrong, human)
            kinds = np.array([family(name) for name in part.column("generator")])
            result["families"] = {
                kind: _share(wrong[chosen], sources[chosen])
                for kind in FAMILIES
                if (chosen := spoof & (kinds == kind)).any()
            }
            result["generators"] = _worst(part.column("generator"), wrong, spoof)
    if human.any() and spoof.any():
        with _no_warnings():
            found = bootstrap(
                ("eer",),
                scores[human],
                scores[spoof],
                N_BOOTSTRAP,
                clusters=(sources[human], sources[spoof]),
            )
            result["eer"] = found["eer"].as_dict()
            result["within"] = _within(scores, human, spoof, sources)
    return result


def _errors(wrong: Array, human: Array, spoof: Array, sources: Array) -> dict[str, Any]:
    """Return the shares of people refused and of fakes that pass."""
    return {
        "refused": _share(wrong[human], sources[human]),
        "passed": _share(wrong[spoof], sources[spoof]),
    }


def _share(wrong: Array, sources: Array) -> dict[str, Any] | None:
    """Return the share of errors and its interval by drawing sources."""
    if not len(wrong):
        return None
    names, codes = np.unique(sources, return_inverse=True)
    n = np.bincount(codes)
    n_wrong = np.bincount(codes, weights=wrong)
    drawn = np.random.default_rng(0).integers(len(names), size=(N_BOOTSTRAP, len(names)))
    replicates = n_wrong[drawn].sum(axis=1) / n[drawn].sum(axis=1)
    low, high = np.quantile(replicates, [0.025, 0.975])
    return {
        "n": len(wrong),
        "value": float(wrong.mean()),
        "low": float(low),
        "high": float(high),
    }


def _groups(values: Array, wrong: Array, human: Array, spoof: Array) -> dict[str, Any]:
    """Return counts and shares of errors of each value that is known."""
    return {
        str(value): {
            "n_bonafide": int((own & human).sum()),
            "refused": float(wrong[own & human].mean()) if (own & human).any() else None,
            "n_spoof": int((own & spoof).sum()),
            "passed": float(wrong[own & spoof].mean()) if (own & spoof).any() else None,
        }
        for value in np.unique(values)
        if value != "-" and (own := values == value).any()
    }


def _worst(values: Array, wrong: Array, chosen: Array, n: int = 6) -> list[list[Any]]:
    """Return (value, clips, share of errors) of those with most errors."""
    rows = [
        [str(value), int(own.sum()), float(wrong[own].mean())]
        for value in np.unique(values[chosen])
        if (own := chosen & (values == value)).sum() >= FEWEST
    ]
    return sorted(rows, key=lambda row: -row[2])[:n]


def _within(scores: Array, human: Array, spoof: Array, sources: Array) -> dict[str, Any] | None:
    """Return the mean EER over sources with at least `FEWEST` clips of each class."""
    values = [
        eer(scores[own & human], scores[own & spoof]).value
        for source in np.unique(sources)
        if min((own := sources == source)[human].sum(), own[spoof].sum()) >= FEWEST
    ]
    return {"n_sources": len(values), "value": float(np.mean(values))} if values else None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Accept an EER above 50 %: it is no mistake here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _parts(args: argparse.Namespace) -> Iterator[Part]:
    channels = sorted(path.parent.name for path in args.data.glob(f"{CHANNELS}/*/corpus.tsv"))
    for name in (*SETS, *LENGTHS, *channels):
        cap = args.cap if name in SETS else args.channel_cap
        part = read_part(args.data, name, cap)
        if part is not None and part.rows:
            yield part


def _score_file(args: argparse.Namespace, part: Part, system: System) -> Path:
    path: Path = args.work / f"{_slug(part.name)}-{len(part.rows)}" / f"{system.key}.tsv"
    return path


def _read(args: argparse.Namespace, part: Part, system: System) -> tuple[Array, Array]:
    """Return scores, and whether there is speech, in the order of the rows."""
    path = _score_file(args, part, system)
    found = dict(line.split("\t", 1) for line in path.read_text().splitlines())
    pairs = [found[row["utterance"]].split("\t") for row in part.rows]
    return np.array([float(s) for s, _ in pairs]), np.array([flag == "1" for _, flag in pairs])


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def _system(text: str) -> System:
    name, found, path = text.partition("=")
    if not found or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text} must be NAME=FILE with a file that is there")
    return System(name, Path(path))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for run in (score, figures, adapt):
        command = commands.add_parser(run.__name__, help=(run.__doc__ or "").lower())
        command.add_argument("systems", nargs="+", type=_system, metavar="NAME=FILE")
        command.add_argument("--work", type=Path, required=True, metavar="DIR")
        command.add_argument("--data", type=Path, required=True, metavar="DIR")
        command.add_argument("--cap", type=int, default=20, help="clips per class and source (20)")
        command.add_argument("--channel-cap", type=int, default=6, help="in coded sets (6)")
        command.add_argument("--threads", type=int, default=1)
        command.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
        command.add_argument("--out", type=Path, default=FIGURES)
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
