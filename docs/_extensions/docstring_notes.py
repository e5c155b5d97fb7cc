"""Every ``Note:`` in the docstrings of the package, read from its source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "src" / "asvspoof_cm"
_NOTE = re.compile(r"^Notes?:\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Note(NamedTuple):
    """One note: of the object `name`, empty for a module, in `module` such as ``data.packed``."""

    module: str
    name: str
    text: str


def read_notes() -> list[Note]:
    """Return the notes in the order of the files."""
    return [
        Note(".".join(path.relative_to(SOURCE).with_suffix("").parts), name, inspect.cleandoc(text))
        for path in sorted(SOURCE.rglob("*.py"))
        for name, docstring in _docstrings(ast.parse(path.read_text()), "")
        for text in _NOTE.findall(docstring + "\n")
    ]


def covers(modules: Sequence[str], note: Note) -> bool:
    """Return whether the note is in one of the modules or below it."""
    return any(f"{note.module}.".startswith(f"{module}.") for module in modules)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, _DOCUMENTED):
        yield name, ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        inner = getattr(child, "name", None) if isinstance(child, _DOCUMENTED) else None
        yield from _docstrings(child, ".".join(filter(None, (name, inner))))
