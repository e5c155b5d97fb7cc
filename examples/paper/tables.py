"""Tables I, VI and VII of the paper from run folders, as Markdown, CSV and LaTeX.

    python examples/paper/tables.py runs/* --out tables

A row is a system, its values the mean ± the sample standard deviation over its seeds. All of them
come out of the runs: the figures of Dev are those of the best epoch; memory and latency are those
of the Dev passes, five crops of each utterance at the training batch size, loading included. A run
that is not finished is counted and named, and has no part in the values.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from asvspoof_cm._tables import render
from asvspoof_cm._util import write_text

FIGURES = ("eer", "min_dcf", "cllr", "act_dcf")
"""The figures of every record, in the order of the paper's table."""

TABLE_1: Mapping[str, Mapping[str, int]] = {
    "train": {"bonafide": 18_797, "spoof": 163_560, "speakers": 400, "attacks": 8},
    "dev": {"bonafide": 31_334, "spoof": 109_616, "speakers": 785, "attacks": 8},
}
"""What the paper says of the data of ASVspoof 5."""

_SUFFIXES: dict[Literal["markdown", "csv", "latex"], str] = {
    "markdown": "md",
    "csv": "csv",
    "latex": "tex",
}


class Quantity(NamedTuple):
    """A column: its head, and the factor and the digits of its numbers in print."""

    title: str
    scale: float = 1.0
    n_decimals: int = 4


TABLE_6 = {
    "eer": Quantity("EER (%)", 100, 2),
    "min_dcf": Quantity("minDCF"),
    "cllr": Quantity("Cllr"),
    "act_dcf": Quantity("actDCF"),
}
TABLE_7 = {
    "n_parameters": Quantity("Parameters (M)", 1e-6, 2),
    "memory_bytes": Quantity("Memory (GB)", 1e-9, 2),
    "train_s": Quantity("Training (s/epoch)", 1.0, 1),
    "best_s": Quantity("Time to best (min)", 1 / 60, 2),
    "latency_s": Quantity("Latency (ms/utterance)", 1000.0, 4),
    "n_clips": Quantity("Clips seen", 1.0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of one system with one seed: what `fit` wrote to its folder."""

    path: Path
    name: str
    seed: int
    settings: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.settings["is_finished"]) and bool(self.history)

    def values(self) -> dict[str, float]:
        """Return the quantities of both tables in base units: fractions, bytes, seconds."""
        best = [record for record in self.history if record["is_best"]][-1]
        n = len(self.history)
        return {
            **{name: best["dev"][name] for name in FIGURES},
            "n_parameters": self.settings["n_parameters"],
            "memory_bytes": math.fsum(r["dev_peak_memory_bytes"] for r in self.history) / n,
            "train_s": math.fsum(record["train_s"] for record in self.history) / n,
            "best_s": best["cumulative_s"],
            "latency_s": math.fsum(r["dev_s"] / r["n_dev"] for r in self.history) / n,
            "n_clips": self.history[-1]["n_clips"],
        }


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run in a folder; an unfinished one may have no epoch yet.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: A file of it is damaged; names it, and the line.
    """
    path = Path(folder)
    about = _parse((path / "run.json").read_text(encoding="utf-8"), f"{path / 'run.json'}")
    history_path, history = path / "history.jsonl", []
    if history_path.exists():
        lines = history_path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            where = f"{history_path}, line {number}"
            record = _parse(line, where)
            missing = [name for name in FIGURES if name not in record.get("dev", {})]
            if missing or "cumulative_s" not in record:
                raise ValueError(
                    f"{where}: must have cumulative_s and {', '.join(FIGURES)} of dev."
                )
            history.append(record)
    try:
        system, seed = about["known"]["system"], int(about["seed"])
        name = system["name"] + (" (authors)" if system["version"] == "authors" else "")
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path / 'run.json'}: must be that of a study; it names no system."
        ) from None
    return Run(path=path, name=name, seed=seed, settings=about, history=history)


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a JSON object; got {text[:40]!r}.")
    return content


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in the folders of a folder, by system and seed."""
    runs = [read_run(path.parent) for path in folder.glob("*/run.json")]
    return sorted(runs, key=lambda run: (run.name, run.seed))


def by_system(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each name, in the order in which they come.

    Raises:
        ValueError: There is no run; a seed of a system comes twice; runs of one name have other
            settings or data, so that their mean would mean nothing.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        group = groups.setdefault(run.name, [])
        for other in group:
            if other.seed == run.seed:
                raise ValueError(
                    f"`runs` must have each seed of a system once; {other.path} and {run.path} "
                    f"both are {run.name!r} with seed {run.seed}. Leave one out."
                )
            differing = [
                name
                for name in ("model", "recipe", "known")
                if other.settings.get(name) != run.settings.get(name)
            ]
            if differing:
                raise ValueError(
                    f"`runs` of one system must differ in their seed only; {other.path} and "
                    f"{run.path} both are {run.name!r} but differ in {', '.join(differing)} of "
                    "run.json. Give one of them another name."
                )
        group.append(run)
    if not groups:
        raise ValueError("`runs` must hold at least one run; got none.")
    return groups


def table_1(runs: Iterable[Run]) -> tuple[list[str], list[list[Any]]]:
    """Return the head and the rows of Table I: the data, and where they differ from the paper's."""
    header = ["Set", "Bona fide", "Spoofed", "Speakers", "Attacks", "As in the paper"]
    rows: list[list[Any]] = []
    for run in runs:
        for part, paper in TABLE_1.items():
            found = run.settings["known"]["data"][part]
            numbers = [found[name] for name in paper]
            other = [f"{name} {n:,}" for name, n in paper.items() if found[name] != n]
            same = "yes" if not other else f"no: {', '.join(other)}"
            row = [f"{part} ({found['protocol']})", *numbers, same]
            if row not in rows:
                rows.append(row)
    return header, rows


def summarize(
    runs: Iterable[Run], columns: Mapping[str, Quantity]
) -> tuple[list[str], list[list[Any]], list[str], list[list[Any]]]:
    """Return the head and the rows of a table, in print and in numbers with full precision.

    Note:
        The paper says "standard deviation" only; this is that of the sample, with n − 1. A cell of
        one seed has none.

    Example:
        >>> record = {
        ...     "dev": {"eer": 0.125, "min_dcf": 0.25, "cllr": 0.9, "act_dcf": 0.3},
        ...     "train_s": 50.0, "dev_s": 4.0, "n_dev": 400, "n_clips": 800, "is_best": True,
        ...     "cumulative_s": 54.0, "dev_peak_memory_bytes": 10**9,
        ... }
        >>> about = {"n_parameters": 4_846_275, "is_finished": True}
        >>> run = Run(path=Path("6-42"), name="6", seed=42, settings=about, history=[record])
        >>> header, rows, _, _ = summarize([run], TABLE_6)
        >>> print(render(header, rows, "markdown"))
        | System | Seeds | EER (%) | minDCF | Cllr | actDCF |
        | :-- | --: | --: | --: | --: | --: |
        | 6 | 1 | 12.50 | 0.2500 | 0.9000 | 0.3000 |
    """
    printed, exact = [], []
    for name, group in by_system(runs).items():
        values = [run.values() for run in group if run.is_finished]
        of = f"{len(values)} of " if len(values) < len(group) else ""
        cells: list[Any] = [name, f"{of}{len(group)}"]
        numbers: list[Any] = [name, len(group), len(values)]
        for key, quantity in columns.items():
            of_key = [value[key] for value in values]
            mean = statistics.fmean(of_key) if of_key else None
            std = statistics.stdev(of_key) if len(of_key) > 1 else None
            shown = [
                f"{quantity.scale * x:,.{quantity.n_decimals}f}"
                for x in (mean, std)
                if x is not None
            ]
            cells.append(" ± ".join(shown if key != "n_parameters" else shown[:1]) or "–")
            numbers += [mean, std]
        printed.append(cells)
        exact.append(numbers)
    header = ["System", "Seeds", *(quantity.title for quantity in columns.values())]
    names = [f"{key}_{kind}" for key in columns for kind in ("mean", "std")]
    return header, printed, ["system", "n_runs", "n_finished", *names], exact


def write_tables(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the three tables in three forms, and return the files."""
    written = []
    head, rows = table_1(runs)
    for form, suffix in _SUFFIXES.items():
        texts = {"table_1": render(head, rows, form)}
        for name, columns in (("table_6", TABLE_6), ("table_7", TABLE_7)):
            header, printed, names, exact = summarize(runs, columns)
            texts[name] = (
                render(names, exact, form) if form == "csv" else render(header, printed, form)
            )
        for name, text in texts.items():
            written.append(folder / f"{name}.{suffix}")
            write_text(written[-1], text + "\n")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables of the folders that the command names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="default: here")
    args = parser.parse_args(arguments)
    runs = [read_run(path) for path in args.runs if (path / "run.json").exists()]
    for run in runs:
        if not run.is_finished:
            sys.stderr.write(
                f"{run.path} is unfinished ({len(run.history)} epochs): not averaged.\n"
            )
    for path in write_tables(runs, args.out):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
