"""The paper's two tables: detection metrics and efficiency, mean ± std over seeds."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from asvspoof_cm.metrics.printing import LATEX_SPECIALS
from asvspoof_cm.report.runs import FINAL_SPLITS, METRICS, Run, group_by_system
from asvspoof_cm.utils.checks import check_choice

__all__ = ["Column", "MeanStd", "Row", "Summary", "Table", "summarize"]

_ABSENT = "–"


class Column(NamedTuple):
    """A quantity of a table.

    Attributes:
        name: Its name in a CSV, where it has the unit of the run folder.
        title: Its head in print, with the unit there.
        scale: From the run folder's unit to the printed one.
        n_decimals: How many are printed.

    Example:
        >>> Column("eer", "EER (%)", 100.0, 2).title
        'EER (%)'
    """

    name: str
    title: str
    scale: float
    n_decimals: int


_MAIN = (
    Column("eer", "EER (%)", 100.0, 2),
    Column("min_dcf", "minDCF", 1.0, 4),
    Column("cllr", "Cllr", 1.0, 4),
    Column("act_dcf", "actDCF", 1.0, 4),
)
_EFFICIENCY = (
    Column("n_parameters", "Parameters (M)", 1e-6, 2),
    Column("peak_memory_bytes", "Memory (GB)", 1e-9, 2),
    Column("train_s", "Training (s/epoch)", 1.0, 1),
    Column("best_s", "Time to best (min)", 1 / 60, 2),
    Column("ms_per_utterance", "Latency (ms/utterance)", 1.0, 4),
)


@dataclass(frozen=True, kw_only=True)
class MeanStd:
    """Mean and sample standard deviation over seeds; None where there is one value only.

    Example:
        >>> MeanStd.of([1.0, 2.0, 3.0])
        MeanStd(mean=2.0, std=1.0)
    """

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        """Return mean and deviation of at least one value."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), std=std)

    def text(self, column: Column) -> str:
        """Return the value as it is printed in a column."""
        mean = f"{column.scale * self.mean:.{column.n_decimals}f}"
        if self.std is None:
            return mean
        return f"{mean} ± {column.scale * self.std:.{column.n_decimals}f}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system.

    Attributes:
        system: Its name.
        n_runs: Its seeds.
        n_finished: Those that the values are of.
        values: By the column's name, in the run folder's unit; empty where no run is finished.

    Example:
        >>> Row(system="6", n_runs=3, n_finished=2, values={}).seeds
        '2 of 3'
    """

    system: str
    n_runs: int
    n_finished: int
    values: Mapping[str, MeanStd]

    @property
    def seeds(self) -> str:
        """How many seeds the values are of, and of how many where some are unfinished."""
        if self.n_finished == self.n_runs:
            return str(self.n_runs)
        return f"{self.n_finished} of {self.n_runs}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows, and how they are written.

    Example:
        >>> row = Row(system="6", n_runs=1, n_finished=1, values={"eer": MeanStd.of([0.1252])})
        >>> print(Table(columns=(Column("eer", "EER (%)", 100.0, 2),), rows=(row,)).markdown())
        | System | Seeds | EER (%) |
        |:--|--:|--:|
        | 6 | 1 | 12.52 |
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        ruler = ":--|" + "--:|" * (1 + len(self.columns))
        head, *body = (
            "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
            for cells in self._cells()
        )
        return "\n".join([head, "|" + ruler, *body])

    def latex(self) -> str:
        r"""Return a ``tabular`` for LaTeX with ``\usepackage{booktabs}``."""
        head, *body = (
            " & ".join(c.translate(LATEX_SPECIALS).replace("±", r"$\pm$") for c in cells) + r" \\"
            for cells in self._cells()
        )
        begin = rf"\begin{{tabular}}{{lr{'c' * len(self.columns)}}}"
        lines = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines)

    def csv(self) -> str:
        """Return a CSV at full precision, in the units of the run folders.

        Rates are fractions, memory is in bytes, times are in seconds. A quantity has two columns,
        ``…_mean`` and ``…_std``; the latter is empty where there is one seed.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [f"{c.name}_{kind}" for c in self.columns for kind in ("mean", "std")]
        writer.writerow(["system", "n_runs", "n_finished", *names])
        for row in self.rows:
            values = (row.values.get(column.name) for column in self.columns)
            pairs = ((None, None) if v is None else (v.mean, v.std) for v in values)
            numbers = [number for pair in pairs for number in pair]
            writer.writerow([row.system, row.n_runs, row.n_finished, *numbers])
        return out.getvalue().rstrip("\n")

    def _cells(self) -> Iterator[list[str]]:
        yield ["System", "Seeds", *(column.title for column in self.columns)]
        for row in self.rows:
            values = ((row.values.get(column.name), column) for column in self.columns)
            texts = (_ABSENT if value is None else value.text(column) for value, column in values)
            yield [row.system, row.seeds, *texts]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The tables of a set of runs.

    Attributes:
        main: EER, minDCF, Cllr and actDCF.
        efficiency: Parameters, memory and times.
        unfinished: Runs that are counted in the rows but have no part in the values.

    Example:
        >>> empty = Table(columns=(), rows=())
        >>> Summary(main=empty, efficiency=empty, unfinished=()).main.csv()
        'system,n_runs,n_finished'
    """

    main: Table
    efficiency: Table
    unfinished: tuple[Run, ...]


def summarize(runs: Iterable[Run], *, split: Literal["dev", "eval"] = "dev") -> Summary:
    """Return the paper's main table and its efficiency table, one row a system.

    Rows stand in the order in which the systems come. Unfinished runs are counted in the column of
    seeds and listed in `Summary.unfinished`; they have no part in the values.

    Args:
        runs: What `read_run` returned, seeds and systems mixed.
        split: The set of the main table. Memory and latency are those of the final evaluation.

    Note:
        The paper says "standard deviation" only; this is the sample one, with n − 1, which for
        three seeds is 1.22 times the other. A row of one seed has none. Training time an epoch is
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
        |:--|--:|--:|--:|--:|--:|
        | 6 | 1 | 12.50 | 0.2500 | 0.9000 | 0.3000 |
    """
    check_choice("split", split, FINAL_SPLITS)
    groups = group_by_system(runs)
    rows = tuple(_row(name, group, split) for name, group in groups.items())
    return Summary(
        main=Table(columns=_MAIN, rows=rows),
        efficiency=Table(columns=_EFFICIENCY, rows=rows),
        unfinished=tuple(r for group in groups.values() for r in group if not r.is_finished),
    )


def _row(name: str, runs: list[Run], split: str) -> Row:
    measured = [_quantities(run, run.final, split) for run in runs if run.final is not None]
    values = {}
    if measured:
        values = {key: MeanStd.of([m[key] for m in measured]) for key in measured[0]}
        values["n_parameters"] = MeanStd(mean=runs[0].n_parameters, std=None)
    return Row(system=name, n_runs=len(runs), n_finished=len(measured), values=values)


def _quantities(run: Run, final: Mapping[str, Any], split: str) -> dict[str, float]:
    if split not in final:
        raise ValueError(
            f"`split` must be one that every finished run was evaluated on; {run.path} has no "
            f"{split!r} in its final.json. Choose another split or leave the run out."
        )
    return {
        **{metric: final[split][metric] for metric in METRICS},
        "peak_memory_bytes": final["peak_memory_bytes"],
        "train_s": run.mean_train_s,
        "best_s": run.best["cumulative_s"],
        "ms_per_utterance": final["ms_per_utterance"],
    }
