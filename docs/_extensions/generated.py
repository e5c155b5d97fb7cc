"""A directive that writes the commands' help into a page."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandsHelp(SphinxDirective):
    """Show what ``asvspoof-cm COMMAND --help`` writes, in a section for each command."""

    def run(self) -> list[nodes.Node]:
        from asvspoof_cm.cli import COMMANDS, main

        sections: list[nodes.Node] = []
        for command in COMMANDS:
            written = io.StringIO()
            narrow = mock.patch.dict(os.environ, COLUMNS="92")
            with narrow, redirect_stdout(written), suppress(SystemExit):
                main([command, "--help"])
            section = nodes.section(ids=[command], names=[command])
            section += nodes.title(text=command)
            section += nodes.literal_block(written.getvalue(), written.getvalue(), language="text")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands-help", CommandsHelp)
    return {"parallel_read_safe": True}
