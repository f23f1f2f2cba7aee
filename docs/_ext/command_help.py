"""The directive `command-help`: what `hookstats COMMAND --help` prints, asked of the command."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from hookstats.cli import main

COLUMNS = 80


class CommandHelp(Directive):
    """A literal block; the argument is the subcommand, none for what there are."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = str(COLUMNS)  # what argparse asks for the width
        out = io.StringIO()
        with redirect_stdout(out), suppress(SystemExit):
            main([*self.arguments, "--help"])
        text = out.getvalue()
        return [nodes.literal_block(text, text, language="none")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
