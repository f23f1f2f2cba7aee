"""check: check the models of a training script on its first batch, before anything is trained.

SCRIPT and its arguments are what python would get; -m MODULE runs a module. The script runs up to
its first backward, and ends there: no step is taken. Each model is checked with the batch that it
was called with, see `hookstats.check`. The exit code is 1 if a finding is worse than a note, so
that a CI job fails.

examples:
  hookstats check train.py --epochs 3
  hookstats check --batch-dim none -m package.train
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hookstats.cli.arguments import add_script

if TYPE_CHECKING:
    from torch import nn

    from hookstats.preflight.finding import Line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-dim",
        choices=("0", "1", "none"),
        default="0",
        help="the dimension that samples have, none for models that mix samples on purpose "
        "(default: 0)",
    )
    parser.add_argument(
        "--causal",
        action="store_true",
        help="no output may see later tokens (default: asked where targets are the next tokens)",
    )
    add_script(parser)


def run(options: argparse.Namespace) -> int:
    """Run the script; its exceptions, warnings and what it prints are its own."""
    from hookstats.cli.run import run_script
    from hookstats.integrations.preflight import Checked, Preflight
    from hookstats.preflight.check import as_text, findings_of

    script = options.script
    if not options.module and not Path(script).is_file():
        return _say(f"error: SCRIPT {script}: no such file")
    levels = [0]

    def tell(model: nn.Module, lines: Sequence[Line]) -> None:
        print(as_text(model, lines), flush=True)
        levels.extend(one.level for one in findings_of(lines))

    batch_dim = None if options.batch_dim == "none" else int(options.batch_dim)
    preflight = Preflight(tell, batch_dim, True if options.causal else None)
    try:
        with preflight.watching():
            run_script(script, options.arguments, module=options.module)
    except Checked:
        for name in preflight.in_parts:
            _say(f"{name}: not checked, as the script calls its parts; use hookstats.check")
        return int(max(levels) > 0)
    except SystemExit as ended:
        if ended.code:
            raise
    return _say(f"error: SCRIPT {script}: it ended, and trained no model")


def _say(what: str) -> int:
    """Print a line on stderr; the exit code of an error."""
    print(f"hookstats check: {what}", file=sys.stderr)
    return 2
