"""Tables of results: aligned text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, TypeAlias

from asvspoof_cm._util import Plain

Form: TypeAlias = Literal["text", "markdown", "latex", "csv"]

_LATEX_SPECIALS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"–": "--", "±": r"$\pm$"}
)


def render(
    header: Sequence[str],
    rows: Iterable[Iterable[Any]],
    form: Form = "text",
    *,
    n_names: int = 1,
    n_totals: int = 0,
) -> str:
    """Return a table, without a line end after its last line; LaTeX needs the booktabs package.

    `n_names` columns from the left hold names, the others numbers, which stand right. LaTeX rules
    off `n_totals` rows at the end.
    """
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
        return out.getvalue().rstrip("\n")
    table = [list(map(str, row)) for row in (header, *rows)]
    sides = "l" * n_names + "r" * (len(header) - n_names)
    if form == "markdown":
        table.insert(1, [":--" if side == "l" else "--:" for side in sides])
        cells = ([cell.replace("|", r"\|") for cell in row] for row in table)
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)
    if form == "latex":
        lines = [" & ".join(c.translate(_LATEX_SPECIALS) for c in row) + r" \\" for row in table]
        lines.insert(1, r"\midrule")
        if n_totals:
            lines.insert(len(lines) - n_totals, r"\midrule")
        begin = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule"]
        return "\n".join([*begin, *lines, r"\bottomrule", r"\end{tabular}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    formats = [f"{'<' if k < n_names else '>'}{width}" for k, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, row, formats)).rstrip() for row in table)


@dataclass(frozen=True)
class Quantity:
    """The name of a number and how it is printed: `scale` converts it to the printed unit."""

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    n_decimals: int = 4

    @property
    def label(self) -> str:
        """The head of a column, the label of an axis."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def text(self, value: Any) -> str:
        """Return a number, or an interval with `value`, `low` and `high`, in the printed unit."""
        if hasattr(value, "low"):
            return f"{self.text(value.value)} [{self.text(value.low)}, {self.text(value.high)}]"
        return "–" if math.isnan(value) else f"{self.scale * value:.{self.n_decimals}f}"


@dataclass(frozen=True, repr=False)
class Table:
    """A table of results: ``print`` it, or take it in a form for papers and programs.

    A cell is text, a whole number, None, a float or an interval. The `Quantity` at the head of its
    column, or else in the first cell of its row, says how the last two are printed. `n_names`
    columns from the left hold names; `n_totals` rows at the end are ruled off.
    """

    columns: Sequence[str | Quantity]
    rows: Sequence[Sequence[Any]]
    n_names: int = 1
    n_totals: int = 0

    def __str__(self) -> str:
        return self.text()

    def text(self, form: Form = "text") -> str:
        """Return the table as text, Markdown, LaTeX or CSV.

        CSV has all digits, in base units: rates are fractions. There an interval has two columns
        more, ``eer_low`` and ``eer_high``.
        """
        if form != "csv":
            heads = [c.label if isinstance(c, Quantity) else c for c in self.columns]
            rows = [map(_text, row, self.columns, repeat(row[0])) for row in self.rows]
            return render(heads, rows, form, n_names=self.n_names, n_totals=self.n_totals)
        columns: dict[str, list[Any]] = {}
        for head, values in zip(self.columns, zip(*self.rows, strict=True), strict=True):
            name = head.name if isinstance(head, Quantity) else head
            columns[name] = [*map(_plain, values)]
            if any(hasattr(value, "low") for value in values):
                for end in ("low", "high"):
                    columns[f"{name}_{end}"] = [getattr(value, end, None) for value in values]
        return render([*columns], [*zip(*columns.values(), strict=True)], "csv")


class Report(Plain):
    """A result that ``print`` shows as a table."""

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())


def _text(cell: Any, column: str | Quantity, first: Any) -> str:
    if cell is None or isinstance(cell, str | int | Quantity):
        return "" if cell is None else str(getattr(cell, "label", cell))
    return str((column if isinstance(column, Quantity) else first).text(cell))


def _plain(cell: Any) -> Any:
    cell = getattr(cell, "value", getattr(cell, "name", cell))
    return None if isinstance(cell, float) and math.isnan(cell) else cell
