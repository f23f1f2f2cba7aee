"""check_integer(), check_path() and their kin: integers and paths, each checked in one way."""

from __future__ import annotations

import os
from operator import index
from pathlib import Path


def check_integer(name: str, value: object, least: int | None, most: int | None = None) -> int:
    """`value` as an int, if it is an integer in least..most; None leaves an end open.

    Anything that Python accepts as an index is an integer, such as NumPy's integers; a bool is not.

    Raises:
        ValueError: `value` is no integer, or outside the range; the message begins with `name`.
    """
    return _integer(name, value, least, most, "")


def check_optional_integer(
    name: str, value: object, least: int | None, most: int | None = None
) -> int | None:
    """As `check_integer`, but None is returned as it is."""
    return None if value is None else _integer(name, value, least, most, ", or None")


def _index(value: object) -> int | None:
    """`value` as an int; None if it is no integer."""
    # NumPy 1 takes its bools for indices, with a warning.
    if isinstance(value, bool) or getattr(value, "dtype", None) == "bool":
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _integer(name: str, value: object, least: int | None, most: int | None, also: str) -> int:
    number = _index(value)
    if (
        number is None
        or (least is not None and number < least)
        or (most is not None and number > most)
    ):
        raise ValueError(f"{name} = {value!r}: expected an integer{_range(least, most)}{also}")
    return number


def _range(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f", {most} or less"
    return f", {least} or more" if most is None else f" in {least}..{most}"


def check_path(name: str, value: object) -> Path:
    """`value` as a path, if it is a str or an os.PathLike of one.

    Raises:
        ValueError: `value` is something else, such as bytes, or has a NUL, which no path can have.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ValueError(f"{name} = {value!r}: expected a path, as a str or a pathlib.Path")
    if "\0" in text:
        raise ValueError(f"{name} = {text!r}: expected a path without NUL characters")
    return Path(text)
