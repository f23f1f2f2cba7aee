"""top: watch a running training: which layers move, what is not finite, what the rules find.

Refreshes as parts of the run arrive; q or Ctrl-C quits. "change" is that of the rms over the last
12 recorded steps, which the curve shows from zero upwards. Sites with values that are not finite
come first, then those that changed most. Of a long run the last 300 recorded steps are read.

examples:
  hookstats top runs/a
  hookstats top runs/a --kind grad_output --kind param_grad
  hookstats top runs/a --once       one frame, for scripts; also where the output is no terminal
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

from hookstats.cli.inputs import add_rank, add_run, add_selection, natural, open_path
from hookstats.cli.output import stdout
from hookstats.show.terminal import print_table, require_rich

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hookstats.cli.view import View

SECONDS = 1.0
"""Between two looks at the run directory."""
BUDGET = 0.8
"""Seconds of reading between two frames: a long run is caught up with while keys are answered."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_selection(parser)
    add_rank(parser)
    parser.add_argument("--limit", type=natural, metavar="N", help="show at most N sites")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(options: argparse.Namespace) -> int:
    require_rich()
    from hookstats.cli.view import View

    console = stdout()
    view = View(open_path(options.run), options.rank, options.layer, options.kind)
    if options.once or not console.is_terminal:
        view.read()
        _print_once(view, console, options.limit)
        return 0
    with suppress(KeyboardInterrupt):  # a way to quit
        _follow(view, console, options.limit)
    return 0


def _print_once(view: View, console: Console, limit: int | None) -> None:
    table = require_rich().table.Table
    for part in view.frame(console, len(view.sites) if limit is None else limit):
        if isinstance(part, table):
            print_table(part, console)
        else:
            console.print(part, soft_wrap=not console.is_terminal)


def _follow(view: View, console: Console, limit: int | None) -> None:
    live = require_rich().live
    with _keys() as quits, live.Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            behind = view.read(BUDGET)
            screen.update(_fit(view, console, limit), refresh=True)
            if quits(0.0 if behind else SECONDS):
                return


def _fit(view: View, console: Console, limit: int | None) -> RenderableType:
    """A frame with as many sites as the terminal is high for."""
    rows = min(len(view.sites), console.height, *[] if limit is None else [limit])
    while True:
        frame: RenderableType = require_rich().console.Group(*view.frame(console, rows))
        excess = len(console.render_lines(frame)) - console.height
        if excess <= 0 or rows <= 1:
            return frame
        rows = max(1, rows - excess)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits some seconds for a key, and says whether it was q."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield _only_wait
        return
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
    """Where there are no keys to be read; Ctrl-C is left."""
    time.sleep(seconds)
    return False
