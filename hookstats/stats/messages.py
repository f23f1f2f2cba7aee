"""What hookstats tells users: warn() of what is wrong, say() what is good to know."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from hookstats.stats.printable import printable


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; if a filter turns the warning into an error, which nobody could catch, log an error.

    It is printed as "hookstats: warning: ...", under pytest and in notebooks, too. The message may
    hold names and errors from anywhere: it is made `printable`. Where neither can be shown, as
    where stderr is closed, nothing is said.
    """
    message = printable(message, lines=True)
    try:
        if not _others:
            _others.append(warnings.formatwarning)
            warnings.formatwarning = _formatted
        warnings.warn_explicit(message, category, _PLACE, 1)
    except Exception:  # the filter's, or that of whoever shows warnings
        with suppress(Exception):
            logging.getLogger("hookstats").error(message)


_PLACE = "hookstats"
_others: list[Callable[..., str]] = []
"""How warnings of others are formatted; empty before the first warning of ours."""


def _formatted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as it is printed: of ours without the path and the line of our sources."""
    if filename != _PLACE:
        return _others[0](message, category, filename, lineno, line)
    return f"hookstats: warning: {str(message).removeprefix('hookstats: ')}\n"


def notify(failures: dict[str, str], what: str, why: str) -> None:
    """Warn that something failed, the first time, and keep why: the coverage has all `failures`."""
    if what not in failures:
        failures[what] = why
        warn(f"hookstats: {what} failed: {why}")


def say(message: str) -> None:
    """Say something once: to the logger "hookstats", at INFO, where the program configures logging,
    else on stderr. ``logging.getLogger("hookstats").setLevel(logging.WARNING)`` silences it.

    The message may hold names from anywhere: it is made `printable`.
    """
    message = printable(message, lines=True)
    logger = logging.getLogger("hookstats")
    if logger.level != logging.NOTSET or logger.hasHandlers():
        logger.info(message)
    elif sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed, or a pipe that nobody reads
            print(f"hookstats: {message}", file=sys.stderr)


def size(number: float) -> str:
    """A number of bytes as people read it: "640 KiB", "12 MiB", "1.3 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while number >= 1023.5 and power < len(units) - 1:
        number, power = number / 1024, power + 1
    digits = 1 if power and number < 9.95 else 0
    return f"{number:.{digits}f} {units[power]}"
