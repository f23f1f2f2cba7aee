"""top: watch a run while training writes it: changing layers, non-finite values, incidents.

The view is refreshed as parts of the run arrive; press q or Ctrl-C to quit. The loss and other
logged numbers are above the table. The causes of incidents come first, the worst on top, then
layers with non-finite values, then the layers that changed most. "change" is the change of the rms
over the last 12 recorded steps; the curve shows these steps, from zero upwards. Of a long run, only
the last 300 recorded steps are read.

examples:
  hookstats top runs/a
  hookstats top runs/a --kind grad_output --kind param_grad
  hookstats top runs/a --once       print one frame, the default if the output is not a terminal
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hookstats.cli.arguments import add_rank, add_rules, add_run, add_selection, natural
from hookstats.show.grid import require_rich

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hookstats.cli.view import View

SECONDS = 1.0
"""The time between two looks at the run directory."""
BUDGET = 0.8
"""The seconds of reading between two frames, so that keys are answered while a long run is read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_selection(parser)
    add_rank(parser)
    add_rules(parser)
    parser.add_argument("--limit", type=natural, metavar="N", help="show at most N sites")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import open_path
    from hookstats.cli.output import stdout
    from hookstats.cli.view import View

    console = stdout()
    view = View(
        open_path(options.run, rank=options.rank), options.layer, options.kind, options.rules
    )
    if options.once or not console.is_terminal:
        view.read()
        _print_once(view, console, options.limit)
        return 0
    with suppress(KeyboardInterrupt):  # one of the ways to quit
        _follow(view, console, options.limit)
    return 0


def _print_once(view: View, console: Console, limit: int | None) -> None:
    for part in view.frame(console, len(view.sites) if limit is None else limit):
        console.print(part, soft_wrap=not console.is_terminal)


def _follow(view: View, console: Console, limit: int | None) -> None:
    live = require_rich().live
    with _keys() as quits, live.Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            behind = view.read(BUDGET)
            screen.update(fit(view, console, limit), refresh=True)
            if quits(0.0 if behind else SECONDS):
                return


def fit(view: View, console: Console, limit: int | None) -> RenderableType:
    """A frame with as many sites as the terminal has lines for."""
    rows = min(len(view.sites), console.height, *[] if limit is None else [limit])
    while True:
        frame: RenderableType = require_rich().console.Group(*view.frame(console, rows))
        excess = len(console.render_lines(frame)) - console.height
        if excess <= 0 or rows <= 1:
            return frame
        rows = max(1, rows - excess)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits some seconds for a key, and returns whether it was q."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _only_wait
        return
    stdin = sys.stdin.fileno()

    def quits(seconds: float) -> bool:
        ready, _, _ = select.select([stdin], [], [], seconds)
        return bool(ready) and os.read(stdin, 1) in (b"q", b"Q", b"")

    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    try:
        yield quits
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> bool:
    """Wait where no keys can be read; Ctrl-C still quits."""
    time.sleep(seconds)
    return False
