"""track(): a progress bar for what takes longer than a moment, on stderr, in terminals alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from hookstats.show.grid import require_rich

T = TypeVar("T")

LONG = 2.0
"""The seconds from which on something has a bar."""
_LOOK = 0.3  # the seconds after which the rest can be estimated


def track(items: Collection[T], what: str) -> Iterator[T]:
    """The items, one by one; a bar says how many were taken if all take longer than `LONG`.

    The bar is there while items are taken, and leaves no trace. Where stderr is no terminal, or
    rich is missing, there is none, and none goes on that cannot be shown.

    what: what is done, for the bar: "comparing".
    """
    began, bar = time.monotonic(), None
    try:
        for done, item in enumerate(items):
            seconds = time.monotonic() - began
            with suppress(Exception):  # stderr may be closed
                if bar is not None:
                    bar.update(bar.task_ids[0], completed=done)
                elif done and seconds > _LOOK and seconds * len(items) / done > LONG:
                    bar = _bar(what, len(items))
            yield item
    finally:
        with suppress(Exception):
            if bar is not None:
                bar.stop()


def _bar(what: str, total: int) -> Any:
    """A bar that has been started; None where stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    rich = require_rich()
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=rich.console.Console(stderr=True),
        transient=True,
    )
    bar.add_task(what, total=total)
    bar.start()
    return bar
