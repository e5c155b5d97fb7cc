"""From run folders to the paper's two tables and the curves of its figure, without torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from asvspoof_cm.metrics import METRICS
from asvspoof_cm.runs import COSTS, FINAL_SPLITS, RECORDED_METRICS, SPLITS, Run, group_by_system
from asvspoof_cm.utils.checks import FloatArray, check_choice
from asvspoof_cm.utils.tables import Form, render

__all__ = ["Curve", "SeedCurve", "Summary", "Table", "summarize", "training_efficiency"]

_PAPER = ("eer", "min_dcf", "cllr", "act_dcf")


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
class Table:
    """One row per system; ``print`` and the three forms of papers and programs."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return self._render("text")

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return self._render("markdown")

    def latex(self) -> str:
        r"""Return a ``tabular`` for LaTeX with ``\usepackage{booktabs}``."""
        return self._render("latex")

    def csv(self) -> str:
        """Return a CSV at full precision, in the units of the run folders.

        Rates are fractions, memory is in bytes, times are in seconds. A quantity has two columns,
        ``…_mean`` and ``…_std``; the latter is empty where there is one seed.
        """
        names = [f"{c.name}_{kind}" for c in self.columns for kind in MeanStd._fields]
        rows = []
        for row in self.rows:
            values = (row.values.get(column.name, (None, None)) for column in self.columns)
            numbers = [number for pair in values for number in pair]
            rows.append([row.system, row.n_runs, row.n_finished, *numbers])
        return render(["system", "n_runs", "n_finished", *names], rows, "csv")

    def _render(self, form: Form) -> str:
        rows = []
        for row in self.rows:
            of = f"{row.n_finished} of " if row.n_finished < row.n_runs else ""
            cells = (_text(row.values.get(column.name), column) for column in self.columns)
            rows.append([row.system, f"{of}{row.n_runs}", *cells])
        return render(["System", "Seeds", *(column.title for column in self.columns)], rows, form)


def _text(value: MeanStd | None, column: Column) -> str:
    if value is None:
        return "–"
    numbers = (column.scale * number for number in value if number is not None)
    return " ± ".join(f"{number:.{column.n_decimals}f}" for number in numbers)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The tables of a set of runs.

    Attributes:
        main: EER, minDCF, Cllr and actDCF, and what else `METRICS` holds and every run has.
        efficiency: Parameters, memory and times.
        unfinished: Runs that are counted in the rows but have no part in the values.
    """

    main: Table
    efficiency: Table
    unfinished: tuple[Run, ...]


def summarize(runs: Iterable[Run], *, split: Literal["dev", "eval"] = "dev") -> Summary:
    """Return the paper's main table and its efficiency table, one row per system.

    Rows stand in the order in which the systems come. Unfinished runs are counted in the column of
    seeds and listed in `Summary.unfinished`; they have no part in the values.

    Args:
        runs: What `read_run` returned, seeds and systems mixed.
        split: The set of the main table. Memory and latency are there once ``asvspoof-cm profile``
            has measured the run.

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
        >>> record = {"dev": metrics, "train_s": 50.0, "cumulative_s": 90.0}
        >>> final = {"dev": metrics, "peak_memory_bytes": 1_400_000_000, "ms_per_utterance": 0.8}
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=4_846_275,
        ...           data={}, history=(record,), final=final)
        >>> print(summarize([run]).main.markdown())
        | System | Seeds | EER (%) | minDCF | Cllr | actDCF |
        | :-- | --: | --: | --: | --: | --: |
        | 6 | 1 | 12.50 | 0.2500 | 0.9000 | 0.3000 |
    """
    check_choice("split", split, FINAL_SPLITS)
    groups = group_by_system(runs)
    measured = {
        name: [_quantities(run, run.final, split) for run in group if run.final is not None]
        for name, group in groups.items()
    }
    finals = [quantities for of_system in measured.values() for quantities in of_system]
    extra = [n for n in METRICS if n not in _PAPER and all(n in final for final in finals)]
    main = []
    for metric in (METRICS[name] for name in (*_PAPER, *extra)):
        # Two digits of a per cent are those of the paper.
        n_decimals = 2 if metric.unit == "%" else metric.n_decimals
        main.append(Column(metric.name, metric.head, metric.scale, n_decimals))
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


def _quantities(run: Run, final: Mapping[str, Any], split: str) -> dict[str, float]:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedCurve:
    """One seed's raw records of one metric, to its last epoch.

    Attributes:
        seed: The seed.
        time_s: Cumulative training and validation time after each epoch, shape (n_epochs,).
        values: The metric, shape (n_epochs,).
        is_finished: Whether the run has come to its end.
    """

    seed: int
    time_s: FloatArray
    values: FloatArray
    is_finished: bool

    @property
    def best(self) -> tuple[float, float]:
        """Time and value of the lowest record, the first of equals."""
        index = int(np.argmin(self.values))
        return float(self.time_s[index]), float(self.values[index])


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric of one system on one set, over training time.

    Attributes:
        system: The name of the system.
        split: "train" or "dev".
        metric: One of "min_dcf", "eer" (a fraction), "cllr" and "act_dcf".
        n_runs: How many seeds there are, those without an epoch included.
        time_s: Points in time, shape (n_points,); none where the finished seeds share no range.
        mean: The mean over finished seeds at these points, shape (n_points,).
        std: Their sample standard deviation, shape (n_points,); None with one finished seed.
        seeds: The records of each seed that has an epoch.
    """

    system: str
    split: str
    metric: str
    n_runs: int
    time_s: FloatArray
    mean: FloatArray
    std: FloatArray | None
    seeds: tuple[SeedCurve, ...]

    @property
    def n_finished(self) -> int:
        """How many seeds the mean is of."""
        return sum(seed.is_finished for seed in self.seeds)


def training_efficiency(runs: Iterable[Run], *, n_points: int = 30) -> list[Curve]:
    """Return the curves of the paper's figure: each system, set and metric over training time.

    For each system, `n_points` log-spaced points in time are chosen in the range that all its
    seeds share, from the latest first epoch to the earliest last one, and each seed's metric is
    interpolated onto them, linearly in time. No value is extrapolated.

    Args:
        runs: What `read_run` returned, seeds and systems mixed.
        n_points: Points of the mean.

    Note:
        The paper averages "within the range shared by all three seeds" and also draws each curve
        "all the way to its early-stopping point", but seeds stop at different times. Here the mean
        and its band cover the shared range, and each seed's own records (`Curve.seeds`) go on to
        its own early stop. The deviation is the sample one, with n − 1; the paper does not say.

        A run that is unfinished has its records only: it is left out of the mean and the band.

    Raises:
        ValueError: There is no epoch at all, or the runs can't be averaged; see `summarize`.

    Example:
        >>> from pathlib import Path
        >>> def record(epoch):
        ...     metrics = dict.fromkeys(("min_dcf", "eer", "cllr", "act_dcf"), 1 / epoch)
        ...     return {"train": metrics, "dev": metrics, "cumulative_s": 60.0 * epoch}
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=1, data={},
        ...           history=tuple(map(record, (1, 2, 4))), final={})
        >>> curve = training_efficiency([run])[0]
        >>> curve.split, curve.metric, curve.time_s[[0, -1]].tolist(), curve.seeds[0].best
        ('train', 'min_dcf', [60.0, 240.0], (240.0, 0.25))
    """
    if n_points < 2:
        raise ValueError(f"`n_points` must be at least 2; got {n_points}.")
    groups = group_by_system(runs)
    if not any(run.history for group in groups.values() for run in group):
        raise ValueError("`runs` must hold an epoch to draw; no run has finished its first one.")
    return [
        _curve(name, group, split, metric, n_points)
        for name, group in groups.items()
        for split in SPLITS
        for metric in RECORDED_METRICS
    ]


def _curve(name: str, runs: Sequence[Run], split: str, metric: str, n_points: int) -> Curve:
    seeds = tuple(
        SeedCurve(
            seed=run.seed,
            time_s=np.array([record["cumulative_s"] for record in run.history], dtype=float),
            values=np.array([record[split][metric] for record in run.history], dtype=float),
            is_finished=run.is_finished,
        )
        for run in runs
        if run.history
    )
    finished = [seed for seed in seeds if seed.is_finished]
    time_s = np.empty(0)
    if finished:
        first_s = max(seed.time_s[0] for seed in finished)
        last_s = min(seed.time_s[-1] for seed in finished)
        time_s = np.geomspace(first_s, last_s, n_points) if first_s < last_s else time_s
    # One row per seed; without a seed there is no point either.
    values = np.array([np.interp(time_s, seed.time_s, seed.values) for seed in finished])
    return Curve(
        system=name,
        split=split,
        metric=metric,
        n_runs=len(runs),
        time_s=time_s,
        mean=values.mean(axis=0) if finished else time_s,
        std=values.std(axis=0, ddof=1) if len(finished) > 1 else None,
        seeds=seeds,
    )
