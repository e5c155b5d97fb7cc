"""Directives that write parts of pages from the code: docstring notes and the commands' help."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from unittest import mock

from docstring_notes import SOURCE, Note, covers, read_notes
from docutils import nodes
from public_names import PACKAGE, public_objects
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class DocstringNotes(SphinxDirective):
    """List the notes of the modules given, each with a link to its object."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        modules = self.arguments[0].split()
        notes = [note for note in read_notes() if covers(modules, note)]
        if not notes:
            raise self.error(f"no docstring in {', '.join(modules)} has a Note")
        for path in SOURCE.rglob("*.py"):
            self.env.note_dependency(str(path))
        lines = [f"- {_reference(note)}: {' '.join(note.text.split())}" for note in notes]
        return self.parse_text_to_nodes("\n".join(lines))


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
        narrow = mock.patch.dict(os.environ, COLUMNS="92")
        with narrow, redirect_stdout(written), suppress(SystemExit):
            main([self.arguments[0], "--help"])
        return [nodes.literal_block(written.getvalue(), written.getvalue(), language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("docstring-notes", DocstringNotes)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
