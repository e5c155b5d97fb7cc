"""From run folders to the paper's two tables and the curves of its figure, without torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from asvspoof_cm._util import FloatArray, Tabular, check_choice
from asvspoof_cm.metrics import METRICS
from asvspoof_cm.runs import COSTS, FINAL_SPLITS, RECORDED_METRICS, SPLITS, Run, group_by_system

__all__ = ["Summary", "Table", "summarize"]

_N_POINTS = 30
_PAPER = ("eer", "min_dcf", "cllr", "act_dcf")  # `RECORDED_METRICS` in the order of its table


class MeanStd(NamedTuple):
    """Mean and sample standard deviation over seeds; None where there is one value only."""

    mean: float
    std: float | None


class Column(NamedTuple):
    """A quantity: its name and unit in the run folder, and its head, factor and digits in print."""

    name: str
    title: str
    scale: float
    n_decimals: int

    def text(self, values: Iterable[float | None]) -> str:
        """Return a mean and its deviation as far as there are any."""
        numbers = (self.scale * value for value in values if value is not None)
        return " ± ".join(f"{number:.{self.n_decimals}f}" for number in numbers) or "–"


class Row(NamedTuple):
    """A system, its seeds, and the values by column, which are of the finished ones."""

    system: str
    n_runs: int
    n_finished: int
    values: Mapping[str, MeanStd]


_EFFICIENCY = (
    Column("n_parameters", "Parameters (M)", 1e-6, 2),
    Column("peak_memory_bytes", "Memory (GB)", 1e-9, 2),
    Column("train_s", "Training (s/epoch)", 1.0, 1),
    Column("best_s", "Time to best (min)", 1 / 60, 2),
    Column("ms_per_utterance", "Latency (ms/utterance)", 1.0, 4),
)


@dataclass(frozen=True, kw_only=True)
class Table(Tabular):
    """One row per system; the CSV is in the units of the run folders: fractions, bytes, seconds."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def _cells(self) -> Any:
        rows = []
        for row in self.rows:
            of = f"{row.n_finished} of " if row.n_finished < row.n_runs else ""
            cells = (column.text(row.values.get(column.name, ())) for column in self.columns)
            rows.append([row.system, f"{of}{row.n_runs}", *cells])
        return ["System", "Seeds", *(column.title for column in self.columns)], rows, {}

    def _numbers(self) -> Any:
        names = [f"{c.name}_{kind}" for c in self.columns for kind in MeanStd._fields]
        rows = []
        for row in self.rows:
            values = (row.values.get(column.name, (None, None)) for column in self.columns)
            numbers = [number for pair in values for number in pair]
            rows.append([row.system, row.n_runs, row.n_finished, *numbers])
        return ["system", "n_runs", "n_finished", *names], rows


class Summary(NamedTuple):
    """The two tables, and the runs that are counted in them but have no part in the values."""

    main: Table
    efficiency: Table
    unfinished: tuple[Run, ...]


def summarize(runs: Iterable[Run], *, split: Literal["dev", "eval"] = "dev") -> Summary:
    """Return the paper's main table and its efficiency table, one row per system.

    The main table has EER, minDCF, Cllr and actDCF. Memory and latency are there once
    ``asvspoof-cm profile`` has measured the run.

    Args:
        runs: What `read_run` returned, seeds and systems mixed; systems keep their order.
        split: The set of the main table.

    Note:
        The paper says "standard deviation" only; this is the sample one, with n − 1, which for
        three seeds is 1.22 times the other. A row of one seed has none. Training time per epoch is
        without validation, the time to the best checkpoint is with it: so it must be in the paper,
        where the latter exceeds 100 epochs of the former (system 4: 254.70 min, 134.4 s). 1 GB is
        10⁹ bytes.

    Raises:
        ValueError: Runs of one system differ in more than their seed, a seed comes twice, or a
            finished run was not evaluated on `split`.

    Example:
        >>> from pathlib import Path
        >>> metrics = {"eer": 0.125, "min_dcf": 0.25, "cllr": 0.9, "act_dcf": 0.3}
        >>> record = {"dev": metrics, "train_s": 50.0, "cumulative_s": 90.0, "is_best": True}
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=4_846_275,
        ...           data={}, history=(record,), final={"dev": metrics})
        >>> print(summarize([run]).main.markdown())
        | System | Seeds | EER (%) | minDCF | Cllr | actDCF |
        | :-- | --: | --: | --: | --: | --: |
        | 6 | 1 | 12.50 | 0.2500 | 0.9000 | 0.3000 |
    """
    check_choice("split", split, FINAL_SPLITS)
    groups = group_by_system(runs)
    measured = {
        name: [_quantities(run, split) for run in group if run.is_finished]
        for name, group in groups.items()
    }
    main = []
    for metric in map(METRICS.__getitem__, _PAPER):
        # Two digits of a per cent are those of the paper.
        n_decimals = 2 if metric.unit == "%" else metric.n_decimals
        head = metric.label if metric.unit == "%" else metric.title
        main.append(Column(metric.name, head, metric.scale, n_decimals))
    rows = tuple(_row(name, group, measured[name]) for name, group in groups.items())
    return Summary(
        main=Table(columns=tuple(main), rows=rows),
        efficiency=Table(columns=_EFFICIENCY, rows=rows),
        unfinished=tuple(r for group in groups.values() for r in group if not r.is_finished),
    )


def _row(name: str, runs: list[Run], measured: list[dict[str, float]]) -> Row:
    values = {}
    for key in dict.fromkeys(key for of_run in measured for key in of_run):
        numbers = [of_run[key] for of_run in measured if key in of_run]
        std = statistics.stdev(numbers) if len(numbers) > 1 else None
        values[key] = MeanStd(statistics.fmean(numbers), std)
    if measured:
        values["n_parameters"] = MeanStd(runs[0].n_parameters, None)
    return Row(name, len(runs), len(measured), values)


def _quantities(run: Run, split: str) -> dict[str, float]:
    final = run.final or {}
    if split not in final:
        raise ValueError(
            f"`split` must be one that every finished run was evaluated on; {run.path} has no "
            f"{split!r} in its final.json. Choose another split or leave the run out."
        )
    return {
        **{metric: final[split][metric] for metric in METRICS if metric in final[split]},
        **{name: final[name] for name in COSTS if name in final},
        "train_s": run.mean_train_s,
        "best_s": run.best["cumulative_s"],
    }


class SeedCurve(NamedTuple):
    """One seed's raw records of one metric, (n_epochs,) each."""

    time_s: FloatArray
    values: FloatArray
    is_finished: bool

    @property
    def best(self) -> tuple[float, float]:
        """Time and value of the lowest record, the first of equals."""
        index = int(np.argmin(self.values))
        return float(self.time_s[index]), float(self.values[index])


class Curve(NamedTuple):
    """One metric of one system on one set: of each seed with an epoch, and the finished ones' mean.

    `time_s`, `mean` and `std` have no point where the finished seeds share no range of time.
    """

    system: str
    split: str
    metric: str
    n_runs: int
    time_s: FloatArray
    mean: FloatArray
    std: FloatArray | None
    seeds: tuple[SeedCurve, ...]


def training_curves(runs: Iterable[Run]) -> list[Curve]:
    """Return the curves of the paper's figure: each system, set and metric over training time.

    For each system, 30 log-spaced points in time are chosen in the range that all its finished
    seeds share, from the latest first epoch to the earliest last one, and each seed's metric is
    interpolated onto them, linearly in time. No value is extrapolated.

    Note:
        The paper averages "within the range shared by all three seeds" and also draws each curve
        "all the way to its early-stopping point", but seeds stop at different times. Here the mean
        and its band cover the shared range, and each seed's own records (`Curve.seeds`) go on to
        its own early stop. The deviation is the sample one, with n − 1; the paper does not say.
    """
    groups = group_by_system(runs)
    if not any(run.history for group in groups.values() for run in group):
        raise ValueError("`runs` must hold an epoch to draw; no run has finished its first one.")
    return [
        _curve(name, group, split, metric)
        for name, group in groups.items()
        for split in SPLITS
        for metric in RECORDED_METRICS
    ]


def _curve(name: str, runs: Sequence[Run], split: str, metric: str) -> Curve:
    seeds = tuple(
        SeedCurve(
            np.array([record["cumulative_s"] for record in run.history], dtype=float),
            np.array([record[split][metric] for record in run.history], dtype=float),
            run.is_finished,
        )
        for run in runs
        if run.history
    )
    finished = [seed for seed in seeds if seed.is_finished]
    time_s = np.empty(0)
    if finished:
        first_s = max(seed.time_s[0] for seed in finished)
        last_s = min(seed.time_s[-1] for seed in finished)
        time_s = np.geomspace(first_s, last_s, _N_POINTS) if first_s < last_s else time_s
    # One row per seed; without a seed there is no point either.
    values = np.array([np.interp(time_s, seed.time_s, seed.values) for seed in finished])
    mean = values.mean(axis=0) if finished else time_s
    std = values.std(axis=0, ddof=1) if len(finished) > 1 else None
    return Curve(name, split, metric, len(runs), time_s, mean, std, seeds)
