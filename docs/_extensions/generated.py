"""A directive that writes the commands' help into a page."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


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
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
