"""load_config(): the arguments of watch() from a TOML file."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

from hookstats.records.keys import did_you_mean
from hookstats.stats.bins import bins_from_dict
from hookstats.watching.reduce import Reduce
from hookstats.watching.watch import watch

_NOT_IN_FILES = ("model", "optimizer", "sinks", "mesh")
_NAMES = tuple(name for name in inspect.signature(watch).parameters if name not in _NOT_IN_FILES)
_BINS = ("bins", "channel_bins")
_NONE = ("channel_dim", "max_bytes")
"""Those for which TOML has false in the place of None."""
_OF_REDUCE = tuple(name for name in inspect.signature(Reduce).parameters if name != "mesh")


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
    for name in found:
        if name not in _NAMES:
            raise ValueError(
                f"{path} has {name!r}{did_you_mean(name, _NAMES)}: expected arguments of watch, "
                f"{', '.join(_NAMES)}"
            )
    for name in _BINS:
        if name in found:
            found[name] = _bins(f"{path} has {name}", found[name])
    for name in _NONE:
        if found.get(name) is False:
            found[name] = None
    if "reduce" in found:
        found["reduce"] = _reduce(f"{path} has reduce", found["reduce"])
    return found


def _reduce(what: str, value: Any) -> Reduce:
    if not isinstance(value, dict):
        raise ValueError(f"{what} = {value!r}: expected a table, such as {{every = 100}}")
    for name in value:
        if name not in _OF_REDUCE:
            raise ValueError(
                f"{what} with {name!r}{did_you_mean(name, _OF_REDUCE)}: expected "
                f"{', '.join(_OF_REDUCE)}"
            )
    try:
        return Reduce(**value)
    except ValueError as error:
        raise ValueError(f"{what} = {value!r}: {error}") from error


def _bins(what: str, value: Any) -> Any:
    if value is False:
        return None
    try:
        return bins_from_dict(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what} = {value!r}: expected false, or a table of bins ({error})") from (
            error
        )


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
