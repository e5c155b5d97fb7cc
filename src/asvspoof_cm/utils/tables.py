"""Tables: the one reader, into NumPy columns, and the one renderer, into text for people."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
_BLOCK_BYTES = 1 << 22
_BLOCK_ROWS = 1 << 16
_IS_SPACE = np.array([chr(code).isspace() for code in range(128)])
_LATEX_SPECIALS = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "–": "--",
        "±": r"$\pm$",
    }
)

Form: TypeAlias = Literal["text", "markdown", "latex", "csv"]


def render(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    form: Form = "text",
    *,
    n_names: int = 1,
    n_totals: int = 0,
) -> str:
    """Return a table in one of four forms, without a line end after its last line.

    Args:
        header: The names of the columns.
        rows: Their cells: text, or for "csv" any values.
        form: "text" aligns columns with spaces, "markdown" and "csv" are what they say, "latex" is
            a ``tabular`` that needs the booktabs package.
        n_names: Columns from the left that hold names; the others hold numbers and stand right.
        n_totals: Rows at the end that LaTeX rules off.
    """
    table = [list(map(str, row)) for row in (header, *rows)] if form != "csv" else [header, *rows]
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(table)
        return out.getvalue().rstrip("\n")
    n_numbers = len(header) - n_names
    if form == "markdown":
        table.insert(1, [":--"] * n_names + ["--:"] * n_numbers)
        return "\n".join(
            f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in table
        )
    if form == "latex":
        lines = [" & ".join(c.translate(_LATEX_SPECIALS) for c in row) + r" \\" for row in table]
        end = len(lines) - n_totals
        totals = [r"\midrule", *lines[end:]] if n_totals else []
        begin = rf"\begin{{tabular}}{{{'l' * n_names}{'r' * n_numbers}}}"
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:end], *totals, r"\bottomrule"]
        return "\n".join([begin, *body, r"\end{tabular}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = [str.ljust] * n_names + [str.rjust] * n_numbers
    return "\n".join(
        "  ".join(
            side(c, width) for side, c, width in zip(sides, row, widths, strict=True)
        ).rstrip()
        for row in table
    )


class Quantity(NamedTuple):
    """What a number is called and how it is printed: `scale` leads to the printed unit."""

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

    A cell is text, a whole number, None, or a float or interval of the `Quantity` that its column
    is, or else the first cell of its row. `n_names` columns from the left hold names; `n_totals`
    rows at the end are ruled off.
    """

    columns: Sequence[str | Quantity]
    rows: Sequence[Sequence[Any]]
    n_names: int = 1
    n_totals: int = 0

    def __str__(self) -> str:
        return self.text()

    def text(self, form: Form = "text") -> str:
        """Return the table in one of the forms of `render`.

        "csv" has all digits, in base units: rates are fractions. There an interval has two columns
        more, ``eer_low`` and ``eer_high``.
        """
        if form == "csv":
            return self._csv()
        heads = [c.label if isinstance(c, Quantity) else c for c in self.columns]
        rows = []
        for row in self.rows:
            pairs = zip(row, self.columns, strict=True)
            rows.append([_text(cell, column, row[0]) for cell, column in pairs])
        return render(heads, rows, form, n_names=self.n_names, n_totals=self.n_totals)

    def _csv(self) -> str:
        columns = [*zip(*self.rows, strict=True)]
        header: list[str] = []
        cells: list[list[Any]] = []
        for column, values in zip(self.columns, columns, strict=True):
            name = column.name if isinstance(column, Quantity) else column
            header.append(name)
            cells.append([_plain(getattr(value, "value", value)) for value in values])
            if any(hasattr(value, "low") for value in values):
                for end in ("low", "high"):
                    header.append(f"{name}_{end}")
                    cells.append([getattr(value, end, None) for value in values])
        return render(header, zip(*cells, strict=True), "csv")


def _text(cell: Any, column: str | Quantity, first: Any) -> str:
    if isinstance(cell, Quantity):
        return cell.label
    if cell is None or isinstance(cell, str | int):
        return "" if cell is None else str(cell)
    quantity = column if isinstance(column, Quantity) else first
    return str(quantity.text(cell))


def _plain(cell: Any) -> Any:
    if isinstance(cell, Quantity):
        return cell.name
    return None if isinstance(cell, float) and math.isnan(cell) else cell


class Tabular:
    """A result that is a table: ``print`` it, or take it in a form for papers and programs."""

    def _cells(self) -> tuple[Sequence[str], Sequence[Sequence[Any]], dict[str, int]]:
        """Return the header and the rows for people, and what `render` needs to know of them."""
        raise NotImplementedError

    def _numbers(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return the header and the rows with all digits."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self._render("text")

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return self._render("markdown")

    def latex(self) -> str:
        r"""Return a ``tabular`` for LaTeX with ``\usepackage{booktabs}``."""
        return self._render("latex")

    def csv(self) -> str:
        """Return comma-separated values with all digits, in base units: rates are fractions."""
        return render(*self._numbers(), "csv")

    def _render(self, form: Form) -> str:
        header, rows, shape = self._cells()
        return render(header, rows, form, **shape)


def first_row(data: bytes) -> tuple[list[str], str | None]:
    r"""Return the cells of the first line that is not blank, and what separates them.

    That is a tab where the line has one, else a semicolon, a comma or a bar, whichever there are
    most of, else None for white space. Without such a line there are no cells.
    """
    match = re.search(rb"[^\r\n]*\S[^\r\n]*", data)  # whole: its first cell may be empty
    line = match.group().decode("utf-8") if match else ""
    delimiter = max(";,|", key=line.count)
    delimiter = "\t" if "\t" in line else delimiter
    chosen = delimiter if delimiter in line else None
    return next((row for _, row in _rows(line, chosen)), []), chosen


def read_table(
    data: bytes, delimiter: str | None, columns: Mapping[str, int], n_columns: int
) -> tuple[dict[str, Array], Array]:
    r"""Return some columns of a table, and the line number of each row; blank lines are no rows.

    Args:
        data: The table, UTF-8 text.
        delimiter: "," or ";" for CSV, "\t" and "|" without quotes, None for white space.
        columns: The position of each column to return.
        n_columns: How many columns each line must have.

    Returns:
        A string array of shape (n,) for each name in `columns`, and the line numbers, (n,).

    Raises:
        ValueError: A line has another number of columns; the message starts with the line.
    """
    if delimiter is None and data.isascii():
        blocks = _ascii_blocks(data, columns, n_columns)
    else:
        blocks = _row_blocks(data.decode("utf-8"), delimiter, columns, n_columns)
    parts: dict[str, list[Array]] = {name: [np.empty(0, dtype=np.str_)] for name in columns}
    lines = [np.empty(0, dtype=np.int64)]
    for block, block_lines in blocks:
        lines.append(block_lines)
        for name, column in block.items():
            parts[name].append(column)
    # One column at a time, so that no more than one stands in memory twice.
    return {name: np.concatenate(parts.pop(name)) for name in columns}, np.concatenate(lines)


def _ascii_blocks(
    data: bytes, columns: Mapping[str, int], n_columns: int
) -> Iterator[tuple[dict[str, Array], Array]]:
    """Find the cells of whole blocks of bytes at once."""
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data += b"" if data.endswith(b"\n") else b"\n"
    start, n_lines = 0, 0
    while start < len(data):
        stop = data.index(b"\n", min(start + _BLOCK_BYTES, len(data)) - 1) + 1
        codes = np.frombuffer(data, np.uint8, stop - start, start)
        is_space = _IS_SPACE[codes]
        edges = np.flatnonzero(np.diff(is_space, prepend=True))
        starts, ends = edges[0::2], edges[1::2]
        line_ends = np.flatnonzero(codes == ord("\n"))
        n_cells = np.diff(np.searchsorted(starts, line_ends), prepend=0)
        wrong = np.flatnonzero((n_cells != n_columns) & (n_cells != 0))
        if len(wrong):
            line = data[start:stop].split(b"\n", wrong[0] + 1)[wrong[0]].decode("ascii")
            raise _wrong_number(n_lines + wrong[0] + 1, n_columns, line.split())
        block = {}
        for name, k in columns.items():
            block[name] = _gather(codes, starts[k::n_columns], ends[k::n_columns])
        yield block, np.flatnonzero(n_cells) + n_lines + 1
        start, n_lines = stop, n_lines + len(line_ends)


def _gather(codes: Array, starts: Array, ends: Array) -> Array:
    """Copy the bytes from each start to its end into a fixed-width string array."""
    if not len(starts):
        return np.empty(0, dtype=np.str_)
    width = int((ends - starts).max())
    positions = starts[:, None] + np.arange(width)
    inside = positions < ends[:, None]
    characters = np.where(inside, codes[np.minimum(positions, len(codes) - 1)], 0)
    return characters.astype(np.uint32).view(f"<U{width}")[:, 0]


def _row_blocks(
    text: str, delimiter: str | None, columns: Mapping[str, int], n_columns: int
) -> Iterator[tuple[dict[str, Array], Array]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    for line, row in _rows(text, delimiter):
        if len(row) != n_columns:
            raise _wrong_number(line, n_columns, row)
        rows.append(row)
        lines.append(line)
        if len(rows) == _BLOCK_ROWS:
            yield _columns_of(rows, columns), np.array(lines)
            rows, lines = [], []
    if rows:
        yield _columns_of(rows, columns), np.array(lines)


def _columns_of(rows: list[list[str]], columns: Mapping[str, int]) -> dict[str, Array]:
    return {name: np.array([row[k] for row in rows], dtype=np.str_) for name, k in columns.items()}


def _rows(text: str, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    file = io.StringIO(text, newline="")
    if delimiter is None:
        for line, content in enumerate(file, start=1):
            if row := content.split():
                yield line, row
        return
    if delimiter in ("\t", "|"):
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: not valid CSV ({error}).") from error


def _wrong_number(line: int, n_columns: int, row: list[str]) -> ValueError:
    return ValueError(
        f"line {line}: each line must have {n_columns} columns, as the first; "
        f"got {len(row)}: {row}."
    )
