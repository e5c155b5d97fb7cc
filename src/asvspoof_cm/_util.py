"""The plumbing of every other room: checks of arguments, files and tables, progress, devices.

A message of a check names the argument, the rule, what came and what to do. Only functions that
take tensors or devices import torch.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm.labels import BONAFIDE, LABELS, SPOOF

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array: TypeAlias = NDArray[Any]
FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

MIN_RATE, MAX_RATE = 1_000, 768_000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BLOCK_BYTES = 1 << 22
_IS_SPACE = np.array([chr(code).isspace() for code in range(128)])


# What functions ask of their arguments


def as_scores(name: str, scores: ArrayLike) -> FloatArray:
    """Return `scores` as float64 of shape (n,), or say what is wrong with the argument `name`."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(
            f"`{name}` must have shape (n,); got {values.shape}. Pass one score per trial."
        )
    if values.size == 0:
        raise ValueError(
            f"`{name}` must hold at least one score; got none. "
            "A metric needs trials of every class: check the labels and the order of arguments."
        )
    if not (finite := np.isfinite(values)).all():
        n_nan = int(np.isnan(values).sum())
        raise ValueError(
            f"`{name}` must be finite; got {n_nan} NaN and {int((~finite).sum()) - n_nan} infinite "
            f"of {values.size} scores, the first at index {int(np.argmin(finite))}. "
            "Find out why the model gave them (half precision overflows) and score again."
        )
    return values


def as_labels(labels: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of shape (n,), true for bonafide, from 0 / 1 or "spoof" / "bonafide"."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise ValueError(f"`labels` must have shape (n,); got {values.shape}.")
    numbers, known = label_numbers(values, (SPOOF, BONAFIDE))
    if not known.all():
        first = int(np.argmin(known))
        raise ValueError(
            '`labels` must be 0 or "spoof", 1 or "bonafide"; '
            f"got {values.tolist()[first]!r} at index {first} ({int((~known).sum())} such of "
            f"{values.size})."
        )
    return np.equal(numbers, BONAFIDE)


def label_numbers(
    values: Array, allowed: Collection[int]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return labels (n,) of words or of `allowed` numbers, and which of them are known.

    Values are compared before they are cast, so that none wraps round.
    """
    words: dict[str | int, int] = {}
    if values.dtype.kind in "USOT":
        words.update(LABELS)
    if values.dtype.kind not in "UST":
        words.update({number: number for number in allowed})
    numbers, known = np.zeros(values.shape, np.int8), np.zeros(values.shape, bool)
    for word, number in words.items():
        matches = values == word
        numbers[matches] = number
        known |= matches
    return numbers, known


def split_by_label(scores: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the bonafide scores and the spoof scores of one list of trials."""
    values, is_bonafide = as_trials(scores, labels)
    return values[is_bonafide], values[~is_bonafide]


def as_trials(scores: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return scores (n,) and a mask (n,), true for bonafide, of trials of both classes."""
    values = as_scores("scores", scores)
    is_bonafide = as_labels(labels)
    if len(values) != len(is_bonafide):
        raise ValueError(
            f"`scores` and `labels` must be equally long; got {len(values)} and "
            f"{len(is_bonafide)}. Join them by file name first (metrics.read_scores, "
            "metrics.read_key)."
        )
    n_bonafide = int(is_bonafide.sum())
    if n_bonafide in (0, len(values)):
        missing, present = ("bonafide", "spoof") if n_bonafide == 0 else ("spoof", "bonafide")
        raise ValueError(
            f"`labels` must hold both classes; got {len(values)} {present} and no {missing} trial."
        )
    return values, is_bonafide


def as_column(name: str, values: ArrayLike, n_trials: int) -> NDArray[Any]:
    """Return one value per trial, shape (n_trials,), of any type that sorts."""
    column = np.asarray(values)
    if column.shape != (n_trials,):
        raise ValueError(
            f"`{name}` must have one value per trial, shape ({n_trials},); got {column.shape}."
        )
    if column.dtype.kind in "fO":
        missing = [i for i, value in enumerate(column.tolist()) if value is None or value != value]
        if missing:
            raise ValueError(
                f"`{name}` must have a value for every trial; {len(missing)} of {n_trials} are "
                f"None or NaN, the first at index {missing[0]}. Give them a value, such as '-'."
            )
    return column


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise a ValueError unless `value` is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}; got {value!r}.")


def one_line(error: BaseException) -> str:
    """Return an error's message, or its type where it has none, without line breaks or tabs."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}."
    return " ".join(text.split()) or type(error).__name__


class Plain:
    """A dataclass that JSON can hold."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, ready for JSON; None for what isn't finite."""
        return {name: as_plain(value) for name, value in vars(self).items()}


def as_plain(value: Any) -> Any:
    """Return `Plain` objects, and mappings and lists of them, as plain values."""
    if isinstance(value, Plain):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: as_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_between(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """Raise unless `minimum` <= `value` <= `maximum`."""
    if not minimum <= value <= maximum:
        bounds = f"between {minimum:g} and {maximum:g}"
        rule = f"at least {minimum:g}" if maximum == math.inf else bounds
        raise ValueError(f"`{name}` must be {rule}; got {value}.")


def check_positive_finite(**values: float) -> None:
    """Raise unless each value is positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite; got {value!r}.")


def check_not_negative(**values: float) -> None:
    """Raise unless each value is 0 or above, and finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            rule = "be finite" if value > 0 else "not be negative"
            raise ValueError(f"`{name}` must {rule}; got {value}.")


def check_inside_unit(**values: float) -> None:
    """Raise unless each value lies in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"`{name}` must lie between 0 and 1, excluded; got {value}.")


def check_numbers(name: str, stored: Any) -> Mapping[str, float]:
    """Return a dict of numbers that a file stored, an empty one for None."""
    found = {} if stored is None else stored
    if not isinstance(found, Mapping) or not all(
        isinstance(value, int | float) for value in found.values()
    ):
        raise ValueError(f"`{name}` must be a dict of numbers.")
    return found


def check_rate(rate: int, name: str = "sample_rate") -> int:
    """Return the sampling rate, which must lie between 1 kHz and 768 kHz."""
    is_number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not is_number or not MIN_RATE <= rate <= MAX_RATE or rate != int(rate):
        raise ValueError(
            f"`{name}` must be a whole number of Hz from {MIN_RATE:,} to {MAX_RATE:,}; got "
            f"{rate!r}. Did you pass kHz?"
        )
    return int(rate)


def check_positive(config: Any, *names: str) -> None:
    """Raise unless each named field is a whole number of at least 1."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")


def check_float(waveform: Tensor) -> None:
    """Raise unless `waveform` is a tensor of floating-point samples."""
    import torch

    if not isinstance(waveform, torch.Tensor):
        raise TypeError(
            f"`waveform` must be a torch.Tensor; got {type(waveform).__name__}. "
            "Convert an array: torch.from_numpy(waveform)."
        )
    if not waveform.is_floating_point():
        raise TypeError(
            f"`waveform` must be a float tensor; got {waveform.dtype}. "
            "Scale integers first: waveform / 32768 for int16."
        )


# Files


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    The temporary file lies in the same folder, so the replacement is atomic; its contents reach
    the disk before its name does. After an error `path` is what it was before; where the disk is
    full, the error says so, whatever the writer made of it.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"`path` must name a file; {path} is a directory.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(b"")
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        cause: BaseException | None = error
        while cause is not None:  # torch reports a full disk as another error
            if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
                raise OSError(
                    f"{path} could not be written: {os.strerror(cause.errno)}. What was there "
                    "before is intact; make room and run the same command again."
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file; a pipe, which waits, and a device, which never ends, are refused."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} must be a regular file.")
    return path.open("rb")


@contextlib.contextmanager
def text_of(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield a text file without its byte order mark; errors of what is in it name the file."""
    with open_regular(path) as file:
        data = file.read()
    try:
        yield data.removeprefix(codecs.BOM_UTF8)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}).") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write values as indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(values: Iterable[str]) -> str:
    """Return the SHA-256 of strings, in hexadecimal."""
    return hashlib.sha256(json.dumps([*values]).encode()).hexdigest()


# Imports on first use


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    Its exports are the imports under ``if TYPE_CHECKING:`` in its own source, which type checkers
    read as they stand; here they are made when a name is first asked for.
    """
    module: Any = sys.modules[package]
    homes = {
        alias.name: str(node.module)
        for block in ast.parse(module.__loader__.get_source(package)).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, getattr(import_module(homes[name]), name))
        return vars(module)[name]

    return get, lambda: sorted({*homes, *vars(module)}), sorted(homes)


def import_extra(module: str, extra: str) -> Any:
    """Return a module that comes with an extra of the package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {error.name or module}, an extra: pip install 'asvspoof-cm[{extra}]'."
        ) from error


# Progress


def track(
    items: Iterable[Any] = (),
    *,
    total: int | None = None,
    description: str | None = None,
    unit: str = "it",
    enabled: bool = True,
) -> Any:
    """Return tqdm's bar of `items`, which yields them and can `set_postfix`.

    Off a terminal it is written every 5 seconds. Nothing is shown where tqdm is not installed
    (extra ``train``) or `enabled` is False.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return _NoBar(items)
    slow: Any = {} if sys.stderr.isatty() else {"delay": 5.0, "mininterval": 5.0}
    slow |= {"dynamic_ncols": True, "disable": not enabled}
    return tqdm(items, total=total, desc=description, unit=unit, **slow)


class _NoBar:
    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def set_postfix(self, *_: Any, **__: Any) -> None: ...


# Seeds, processes and devices


def derive_seed(seed: int, *key: int) -> int:
    """Return a seed for `torch.Generator` that depends on `seed` and on every number of `key`."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a name stands for; "auto" is CUDA, else MPS, else the CPU."""
    import torch

    is_here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        if not is_here["cuda"]:
            return torch.device("mps" if is_here["mps"] else "cpu")
        # torchrun says which card of its machine is this process's.
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(
            f"`device` must be auto, cpu, cuda, cuda:1, mps or another of PyTorch's; "
            f"got {device!r}."
        ) from None
    if not is_here.get(chosen.type, True):
        raise ValueError(
            f"`device` must be one that is here; got {device!r}, without {chosen.type.upper()}."
        )
    return chosen


# Models


def heads_of(model: Any, waveforms: Any) -> dict[str, Any]:
    """Return what all heads of a model say of a batch (batch, time), by name, from one pass.

    That is ``logits`` (batch, 2) and, where the model has such heads, ``speech`` (batch,), the
    log-odds that there is any; ``frames`` (batch, n_frames), the log-odds of human against
    synthetic speech in frames of ``hop_s``, and ``frame_speech``.
    """
    if getattr(model, "takes_arrays", False):
        found: dict[str, Any] = model.heads(waveforms)
        return found
    if not hasattr(model, "outputs"):
        return {"logits": model(waveforms)}
    _, logits, frames, speech = model.outputs(waveforms)
    heads = {"logits": logits, "speech": speech}
    if frames is not None:
        heads |= {"frames": frames.logits, "frame_speech": frames.speech_logits}
        heads["hop_s"] = frames.hop_s
    return {name: part for name, part in heads.items() if part is not None}


# Tables


def first_row(data: bytes) -> tuple[list[str], str | None]:
    r"""Return the cells of the first line that is not blank, and what separates them.

    That is a tab where the line has one, else a semicolon, a comma or a bar, whichever there are
    most of, else None for white space. Without such a line there are no cells.
    """
    match = re.search(rb"[^\r\n]*\S[^\r\n]*", data)  # whole: its first cell may be empty
    line = match.group().decode("utf-8") if match else ""
    delimiter = "\t" if "\t" in line else max(";,|", key=line.count)
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
    if delimiter is not None or not data.isascii():
        return _from_rows(data.decode("utf-8"), delimiter, columns, n_columns)
    parts: dict[str, list[Array]] = {name: [np.empty(0, dtype=np.str_)] for name in columns}
    lines = [np.empty(0, dtype=np.int64)]
    for block, block_lines in _ascii_blocks(data, columns, n_columns):
        lines.append(block_lines)
        for name, column in block.items():
            parts[name].append(column)
    # One column at a time, so that no more than one stands in memory twice.
    return {name: np.concatenate(parts.pop(name)) for name in columns}, np.concatenate(lines)


def _from_rows(
    text: str, delimiter: str | None, columns: Mapping[str, int], n_columns: int
) -> tuple[dict[str, Array], Array]:
    cells: dict[str, list[str]] = {name: [] for name in columns}
    lines = []
    for line, row in _rows(text, delimiter):
        if len(row) != n_columns:
            raise _wrong_number(line, n_columns, row)
        lines.append(line)
        for name, k in columns.items():
            cells[name].append(row[k])
    arrays = {name: np.array(cells.pop(name), dtype=np.str_) for name in columns}
    return arrays, np.array(lines, dtype=np.int64)


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
