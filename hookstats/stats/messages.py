"""What hookstats tells users: warn() of what is wrong, say() what is good to know.

Saying something raises nothing, also where stderr is closed.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hookstats.stats.printable import printable


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; if a filter turns the warning into an error, which nobody could catch, log an error.

    It is printed as "hookstats: warning: ...", or with the `severity` that the category has, under
    pytest and in notebooks, too. The message may hold names and errors from anywhere: it is made
    `printable`.
    """
    message = printable(message, lines=True)
    try:
        if not _others:
            _others.append(warnings.formatwarning)
            warnings.formatwarning = _formatted
        warnings.warn_explicit(message, category, _PLACE, 1)
    except (Exception, SystemExit):  # the filter's, or that of whoever shows warnings
        _show(logging.getLogger("hookstats").error, message)


def say(message: str, who: str = "hookstats") -> None:
    """Print a line on stderr: "hookstats: 12 steps". The log of the program is left alone, but
    ``logging.getLogger("hookstats").setLevel(logging.WARNING)`` silences the line.

    The message may hold names from anywhere: it is made `printable`.
    """
    message = printable(message, lines=True)
    if sys.stderr is not None and logging.getLogger("hookstats").level <= logging.INFO:
        _show(lambda line: print(line, file=sys.stderr), f"{who}: {message}")


def _show(by: Callable[[str], object], message: str) -> None:
    with suppress(Exception, SystemExit):
        by(message)


def error_text(error: BaseException) -> str:
    """The class and the message of an error, `printable`; an error may fail to tell its message."""
    name = type(error).__name__
    try:
        return printable(f"{name}: {error}", lines=True)
    except Exception:
        return name


RUN = "hookstats run"
"""Who says what is said under `hookstats run`."""
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
    severity = getattr(category, "severity", "warning")
    return f"hookstats: {severity}: {str(message).removeprefix('hookstats: ')}\n"


def notify(failures: dict[str, str], what: str, why: str) -> None:
    """Warn that something failed, the first time, and keep why: the coverage has all `failures`."""
    if what not in failures:
        failures[what] = why
        warn(f"hookstats: {what} failed: {why}")


def short_path(path: Path) -> str:
    """A path as people may type it here: relative, if it is in the current directory."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (OSError, ValueError):  # there is no current directory, or the path is elsewhere
        return str(path)


def size(number: float) -> str:
    """A number of bytes as people read it: "640 KiB", "12 MiB", "1.3 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while number >= 1023.5 and power < len(units) - 1:
        number, power = number / 1024, power + 1
    digits = 1 if power and number < 9.95 else 0
    return f"{number:.{digits}f} {units[power]}"
