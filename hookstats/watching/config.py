"""load_config(): the arguments of watch() from a TOML file."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookstats.records.keys import did_you_mean
from hookstats.stats.bins import bins_from_dict
from hookstats.watching.reduce import Reduce
from hookstats.watching.watch import watch

_NOT_IN_FILES = ("model", "optimizer", "sinks", "mesh")
_NAMES = tuple(name for name in inspect.signature(watch).parameters if name not in _NOT_IN_FILES)
_NONE = ("bins", "channel_bins", "channel_dim", "max_bytes")
"""Those for which TOML has false in the place of None."""
_TABLES: dict[str, tuple[Callable[[Any], object], str]] = {
    "bins": (bins_from_dict, "false, or a table of bins"),
    "channel_bins": (bins_from_dict, "false, or a table of bins"),
    "reduce": (lambda table: Reduce(**table), "a table, such as {every = 100}"),
}
"""What makes an argument of a table, and what an error says was expected."""


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `watch` in a TOML file: ``hs.watch(model, **hs.load_config("watch.toml"))``.

    Entries have the names of the arguments; values are strings, numbers and lists. ``bins`` and
    ``channel_bins`` are false for None, or a table: ``{type = "linear", bins = 64, lo = -4.0, hi =
    4.0}``, ``{type = "log", subdivision_bits = 3}``. ``channel_dim`` and ``max_bytes`` are false
    for None. ``reduce`` is a table of the arguments of `Reduce` except `mesh`: ``{every = 100}``.
    `watch` checks the values.

    Raises:
        ValueError: the file is not TOML, an entry is not an argument of `watch`, or bins or
            `reduce` are wrong.
        OSError: the file cannot be read.
        ImportError: Python is older than 3.11 and tomli is not installed.
    """
    try:
        found: dict[str, Any] = _parser().loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"path = {str(path)!r}: expected TOML ({error})") from error
    for name, value in found.items():
        if name not in _NAMES:
            raise ValueError(
                f"{path} has {name!r}{did_you_mean(name, _NAMES)}: expected arguments of watch, "
                f"{', '.join(_NAMES)}"
            )
        if value is False and name in _NONE:
            found[name] = None
        elif name in _TABLES:
            make, expected = _TABLES[name]
            try:
                found[name] = make(value)
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path} has {name} = {value!r}: expected {expected} ({error})"
                ) from error
    return found


def _parser() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        import tomli
    except ImportError as error:
        raise ImportError(f"load_config needs Python 3.11, or: pip install tomli ({error})") from (
            error
        )
    return tomli
