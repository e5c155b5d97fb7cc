"""Directives that write parts of pages from the code: docstring notes and the commands' help."""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from docutils import nodes
from public_names import PACKAGE, public_objects
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = Path(__file__).resolve().parents[2] / "src" / "asvspoof_cm"
_NOTE = re.compile(r"^Notes?:\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Note(NamedTuple):
    """One ``Note:`` of a docstring, of the object `name` in `module`, a path such as data.packed."""

    module: str
    name: str
    text: str


def read_notes(source: Path = SOURCE) -> list[Note]:
    """Return every ``Note:`` in the docstrings of the package, in the order of the files."""
    return [
        Note(module, name, inspect.cleandoc(text))
        for path in sorted(source.rglob("*.py"))
        for module in [".".join(path.relative_to(source).with_suffix("").parts)]
        for name, docstring in _docstrings(ast.parse(path.read_text()), "")
        for text in _NOTE.findall(docstring + "\n")
    ]


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    yield name, (ast.get_docstring(node) or "") if isinstance(node, _DOCUMENTED) else ""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DOCUMENTED):
            yield from _docstrings(child, f"{name}.{child.name}".lstrip("."))


class DocstringNotes(SphinxDirective):
    """List the notes of the modules given, each with a link to its object."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        modules = self.arguments[0].split()
        notes = [note for note in read_notes() if covers(modules, note)]
        if not notes:
            raise self.error(f"no docstring in {', '.join(modules)} has a Note")
        lines = [f"- {_reference(note)}: {' '.join(note.text.split())}" for note in notes]
        for path in SOURCE.rglob("*.py"):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(lines))


def covers(modules: list[str], note: Note) -> bool:
    """Return whether the note is in one of the modules or below it."""
    return any(note.module == module or note.module.startswith(f"{module}.") for module in modules)


def _reference(note: Note) -> str:
    """Return a cross reference where the reference has the object, else its name as code."""
    for module, names in public_objects().items():
        inside = f"{PACKAGE}.{note.module}.".startswith(f"{module}.")
        if inside and note.name.partition(".")[0] in names:
            return f"{{py:obj}}`{note.name} <{module}.{note.name}>`"
    return f"`{note.module}{'.' if note.name else ''}{note.name}`"


class CommandHelp(SphinxDirective):
    """Show what ``asvspoof-cm COMMAND --help`` writes."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from asvspoof_cm.cli import main

        written = io.StringIO()
        with (
            mock.patch.dict(os.environ, COLUMNS="92"),
            redirect_stdout(written),
            suppress(SystemExit),
        ):
            main([self.arguments[0], "--help"])
        return [nodes.literal_block(written.getvalue(), written.getvalue(), language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("docstring-notes", DocstringNotes)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
